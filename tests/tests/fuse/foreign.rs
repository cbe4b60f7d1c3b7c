//! Third-party tests of file systems, on the source and through the mount in the same run. Results
//! must be equal.
//!
//! `MIOT_FOREIGN=long` runs every kind and many more operations.

use crate::descriptors::{FEW, FEW_WITHOUT_HANDLES};
use crate::mounted::{MountDirs, Mounted};
use miot_tests::built::root;
use miot_tests::process::{Ended, run};
use miot_tests::random::seed;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Programs of stress-ng's classes `filesystem` and `io` that work in a directory. A short run uses
/// the first twelve.
const STRESSORS: [&str; 39] = [
    "dentry",
    "dir",
    "filename",
    "fpunch",
    "getdent",
    "iomix",
    "link",
    "lockf",
    "rename",
    "revio",
    "utime",
    "xattr",
    "access",
    "aio",
    "aiol",
    "chmod",
    "chown",
    "copy-file",
    "dirdeep",
    "dirmany",
    "fallocate",
    "fcntl",
    "fiemap",
    "flock",
    "fsize",
    "fstat",
    "hdd",
    "inotify",
    "io",
    "lease",
    "locka",
    "lockofd",
    "mknod",
    "open",
    "readahead",
    "seek",
    "symlink",
    "sync-file",
    "touch",
];
const SHORT: usize = 12;
/// Exit codes of stress-ng for success, lack of a resource, and not implemented.
const NO_FAILURE: [i32; 3] = [0, 3, 4];

/// Cases of pjdfstest that are skipped through FUSE, which does not report a limit of links.
const LEFT_OUT: [&str; 1] = ["link::link_count_max"];

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
# More than the source's time stamps are coarse by.
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

const FSX: &str = "
flen = 300000
[opsize]
min = 1
max = 60000
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 2
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
";

fn is_long() -> bool {
    std::env::var_os("MIOT_FOREIGN").is_some_and(|how| how == "long")
}

/// Command of a tool that `tests/setup.sh` installs.
fn tool(name: &str) -> Command {
    let mut path = OsString::from(root().join("target/tools/bin"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new("env");
    command.arg(name).env("PATH", path);
    command
}

/// Mounts with each cache mode and with few descriptors. A short run has not all of them.
fn mounts(name: &str) -> Vec<(&'static str, Mounted)> {
    let no_cache = ["--cache", "none", "-o", "suid,dev"].as_slice();
    [
        ("auto", true, [].as_slice(), ["-o", "suid,dev"].as_slice()),
        ("none", true, &[], no_cache),
        ("always", false, &[], &["--cache", "always", "-o", "suid,dev"]),
        ("few", false, FEW, no_cache),
        ("few-no-handles", true, FEW_WITHOUT_HANDLES, no_cache),
    ]
    .into_iter()
    .filter(|(_, short, ..)| *short || is_long())
    .map(|(how, _, starter, options)| {
        (how, MountDirs::new(&format!("{name}-{how}")).mounted_by(starter, options))
    })
    .collect()
}

/// Result of each case.
fn pjdfstest(directory: &Path) -> BTreeMap<String, String> {
    // Use a short path, because names of sockets are limited to 108 bytes.
    let short = tempfile::tempdir().unwrap();
    fs::set_permissions(&short, fs::Permissions::from_mode(0o755)).unwrap();
    let (path, configuration) = (short.path().join("d"), short.path().join("c.toml"));
    symlink(directory, &path).unwrap();
    fs::write(&configuration, PJDFSTEST).unwrap();
    let ended = run(tool("pjdfstest").env("NO_COLOR", "1").arg("-c").arg(configuration).arg("-p").arg(path));
    let cases: BTreeMap<String, String> = ended
        .stdout
        .lines()
        .filter_map(|line| line.trim().rsplit_once(' '))
        .filter(|(_, what)| ["ok", "FAILED", "skipped"].contains(what))
        .map(|(name, what)| (name.trim().to_owned(), what.to_owned()))
        .collect();
    assert!(cases.len() > 300, "{ended:?}");
    cases
}

#[test]
fn pjdfstest_results_equal_those_of_the_source() {
    let mut plain = None;
    for (how, mounted) in mounts("fuse-pjdfstest") {
        let plain = plain.get_or_insert_with(|| pjdfstest(&mounted.place.source));
        let through = pjdfstest(&mounted.place.mount);
        let worse: Vec<_> = plain
            .iter()
            .filter(|(name, what)| *what == "ok" && !LEFT_OUT.contains(&name.as_str()))
            .filter_map(|(name, _)| Some((name, through.get(name)?)).filter(|(_, what)| *what != "ok"))
            .collect();
        assert!(worse.is_empty() && plain.len() == through.len(), "{how}: {worse:?}");
        let passed = through.values().filter(|what| *what == "ok").count();
        println!("{how}: {passed} of {} passed", through.len());
        assert!(passed > 300, "{how}: {through:?}");
        mounted.end();
    }
}

fn fsx(seed: u64, file: &Path) -> Ended {
    let configuration = file.with_file_name("fsx.toml");
    fs::write(&configuration, FSX).unwrap();
    let operations = if is_long() { "100000" } else { "2000" };
    let directory = file.parent().unwrap();
    let mut command = tool("fsx");
    command.args(["-q", "-N", operations, "-S", &seed.to_string(), "-f"]).arg(configuration);
    run(command.arg("-P").arg(directory).arg(file))
}

#[test]
fn fsx_reads_its_writes_and_leaves_the_same_file() {
    let seed = seed("fsx") % 1_000_000;
    for (how, mounted) in mounts("fuse-fsx") {
        let (plain, through) = (mounted.place.dir.join("plain"), mounted.place.mount.join("file"));
        let _ = fsx(seed, &plain).success();
        let ended = fsx(seed, &through);
        assert!(ended.status.success(), "{how}, seed {seed}: {ended:?}");
        let content = fs::read(&plain).unwrap();
        assert!(content == fs::read(&through).unwrap(), "{how}, seed {seed}: through the mount");
        assert!(content == fs::read(mounted.place.source.join("file")).unwrap(), "{how}, seed {seed}: below");
        mounted.end();
    }
}

#[test]
fn dbench_works_on_the_mount() {
    let seconds = if is_long() { "60" } else { "3" };
    // Its two clients have more files open than the limited mount has descriptors.
    for (how, mounted) in mounts("fuse-dbench").into_iter().filter(|(how, _)| !how.starts_with("few")) {
        let mut command = Command::new("dbench");
        let ended = run(command.args(["-t", seconds, "-D"]).arg(&mounted.place.mount).arg("2")).success();
        assert!(ended.stdout.contains("Throughput"), "{how}: {ended:?}");
        // dbench reports a failed request and continues. It works without a barrier, because
        // parallel tests may use all semaphores of the machine.
        let failed = |line: &str| line.contains("failed") && !line.contains("barrier semaphore");
        assert!(!ended.stdout.lines().any(failed), "{how}: {ended:?}");
        mounted.end();
    }
}

fn stressed(stressor: &str, directory: &Path) -> Ended {
    let mut command = Command::new("stress-ng");
    command.args([format!("--{stressor}"), "1".into(), "--timeout".into(), "1".into(), "--verify".into()]);
    run(command.arg("--temp-path").arg(directory))
}

#[test]
fn stress_ng_results_equal_those_of_the_source() {
    let stressors = if is_long() { &STRESSORS[..] } else { &STRESSORS[..SHORT] };
    for (how, mounted) in mounts("fuse-stress") {
        if !is_long() && how == "none" {
            continue;
        }
        let plain = mounted.place.dir.join("plain");
        fs::create_dir(&plain).unwrap();
        for stressor in stressors {
            let (directly, through) = std::thread::scope(|scope| {
                let directly = scope.spawn(|| stressed(stressor, &plain));
                let through = stressed(stressor, &mounted.place.mount);
                (directly.join().unwrap(), through)
            });
            let good = NO_FAILURE.contains(&through.code()) || through.code() == directly.code();
            assert!(good, "{how} {stressor}: plain {}: {through:?}", directly.code());
        }
        mounted.end();
    }
}
