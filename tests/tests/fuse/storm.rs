//! Many threads modify names and data for some seconds. Afterwards the mount and its source are
//! equal.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::descriptors::{FEW, FEW_WITHOUT_HANDLES};
use crate::mounted::{MountDirs, Mounted, shell};
use miot_tests::process::run;
use miot_tests::random::{Random, seed};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: u64 = 12;
const LONG: Duration = Duration::from_secs(4);
/// Number of names: few, so that threads use the same ones.
const NAMES: u64 = 40;

#[test]
fn trees_are_equal_after_a_storm() {
    for (name, options) in [("fuse-storm", [].as_slice()), ("fuse-storm-uncached", &["--cache", "none"])] {
        after_a_storm(name, MountDirs::new(name).mounted(options));
    }
}

#[test]
fn trees_are_equal_after_a_storm_with_few_descriptors() {
    for (name, starter) in [("fuse-storm-few", FEW), ("fuse-storm-few-no-handles", FEW_WITHOUT_HANDLES)] {
        // Each thread has two files open, and the kernel closes them later than the thread does.
        let starter: Vec<&str> = starter
            .iter()
            .map(|word| if word.starts_with("--nofile") { "--nofile=128:128" } else { *word })
            .collect();
        after_a_storm(
            name,
            MountDirs::new(name).mounted_by(&starter, &["--cache", "none", "--threads", "2"]),
        );
    }
}

fn after_a_storm(name: &str, mounted: Mounted) {
    let seed = seed(name);
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mount, done, failed) = (&mounted.place.mount, &done, &failed);
            scope.spawn(move || storm(mount, thread, Random::of(seed + thread), done, failed));
        }
    });
    println!("{} operations done, {} refused", done.load(Relaxed), failed.load(Relaxed));
    assert!(done.load(Relaxed) > 1000 && failed.load(Relaxed) > 10);
    let tree = "find . -type f -exec sha256sum {} + | sort -k 2; find . -printf '%p %y %m %s %n %l %i\\n' | grep -v '^\\. ' | sort";
    let through = run(&mut shell(&mounted.place.mount, tree)).success().stdout;
    let below = run(&mut shell(&mounted.place.source, tree)).success().stdout;
    assert!(through == below, "the trees differ: see {}", mounted.place.dir.display());
    mounted.end();
}

fn storm(mount: &Path, thread: u64, mut random: Random, done: &AtomicU64, failed: &AtomicU64) {
    let start = Instant::now();
    let mine = mount.join(format!("own-{thread}"));
    let own = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&mine).unwrap();
    let mut expected = vec![0u8; 1 << 18];
    own.set_len(expected.len() as u64).unwrap();
    while start.elapsed() < LONG {
        let mut name = || mount.join(format!("n{}", random.below(NAMES)));
        let (a, b) = (name(), name());
        let inner = a.join(format!("i{}", random.below(4)));
        let result = match random.below(16) {
            0 => File::create(&a).map(drop),
            1 => fs::create_dir(&a),
            2 => fs::remove_file(&a),
            3 => fs::remove_dir(&a),
            4 => fs::rename(&a, &b),
            5 => fs::hard_link(&a, &b),
            6 => symlink(&b, &a),
            7 => fs::write(&inner, vec![thread as u8; random.below(20_000) as usize]),
            8 => fs::remove_file(&inner),
            9 => fs::rename(&inner, &b),
            10 => fs::read_dir(&a).map(|entries| entries.for_each(drop)),
            11 => fs::set_permissions(&a, fs::Permissions::from_mode(0o700 + random.below(64) as u32)),
            12 => fs::read(&a).map(drop),
            13 => OpenOptions::new().append(true).open(&a).and_then(|f| f.write_at(b"appended", 0).map(drop)),
            // A file of one thread must have the contents that the thread wrote.
            14 => {
                let at = random.below(expected.len() as u64 - 9000) as usize;
                let bytes: Vec<u8> = (0..random.below(9000)).map(|n| (n as u8) ^ thread as u8).collect();
                expected[at..at + bytes.len()].copy_from_slice(&bytes);
                own.write_all_at(&bytes, at as u64)
            }
            _ => {
                let at = random.below(expected.len() as u64 - 9000) as usize;
                let mut bytes = vec![0; random.below(9000) as usize];
                own.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(bytes == expected[at..at + bytes.len()], "thread {thread} at {at}");
                Ok(())
            }
        };
        let counter = match result {
            Ok(()) => done,
            Err(error) => {
                let odd = ["Input/output", "Stale", "not implemented", "Bad file", "Too many open"];
                assert!(
                    !odd.iter().any(|word| error.to_string().contains(word)),
                    "{error} of {}",
                    a.display()
                );
                failed
            }
        };
        counter.fetch_add(1, Relaxed);
    }
    assert!(fs::read(&mine).unwrap() == expected, "thread {thread}");
}
