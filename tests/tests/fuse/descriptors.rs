//! The kernel knows more files than miot-fuse may have descriptors. Programs are not affected.

use crate::mounted::{MountDirs, Mounted};
use miot_tests::process::until;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, statat};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

const LIMIT: usize = 64;
/// Command prefix that limits the number of descriptors. Root could raise its limit again, so the
/// capability is dropped.
pub(crate) const FEW: &[&str] = &["setpriv", "--bounding-set", "-sys_resource", "prlimit", "--nofile=64:64"];
/// Like [`FEW`], and files cannot be opened by their handles, as in most containers.
pub(crate) const FEW_WITHOUT_HANDLES: &[&str] =
    &["setpriv", "--bounding-set", "-dac_read_search,-sys_resource", "prlimit", "--nofile=64:64"];
/// Number of files: far more than the descriptors.
const FILES: usize = 1000;

fn with_few(name: &str, test: impl Fn(&Mounted, bool)) {
    for (suffix, starter, handles) in [("", FEW, true), ("-no-handles", FEW_WITHOUT_HANDLES, false)] {
        let place = MountDirs::new(&format!("{name}{suffix}"));
        let many = place.source.join("many");
        fs::create_dir(&many).unwrap();
        for n in 0..FILES {
            fs::write(many.join(format!("f{n}")), n.to_string()).unwrap();
        }
        let mounted = place.mounted_by(starter, &["--cache", "none", "--threads", "2"]);
        test(&mounted, handles);
        assert!(fs::read_dir(format!("/proc/{}/fd", mounted.id())).unwrap().count() <= LIMIT);
        mounted.end();
    }
}

/// Uses all files of the mount, and then checks that no other file was used.
fn use_all(mounted: &Mounted) {
    for n in 0..FILES {
        let _ = fs::metadata(mounted.place.mount.join(format!("many/f{n}"))).unwrap();
    }
}

fn found(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap()
}

#[test]
fn kernel_may_know_more_files_than_descriptors() {
    with_few("fuse-few-known", |mounted, _| {
        let many = mounted.place.mount.join("many");
        // All known at the same time.
        let known: Vec<OwnedFd> = (0..FILES).map(|n| found(&many.join(format!("f{n}")))).collect();
        for (n, fd) in known.iter().enumerate() {
            let path = many.join(format!("f{n}"));
            let below = fs::metadata(mounted.place.source.join(format!("many/f{n}"))).unwrap();
            assert_eq!(
                (fstat(fd).unwrap().st_ino, fs::read_to_string(&path).unwrap()),
                (below.ino(), n.to_string())
            );
        }
        for n in 0..FILES {
            match n % 4 {
                0 => fs::rename(many.join(format!("f{n}")), many.join(format!("r{n}"))).unwrap(),
                1 => fs::remove_file(many.join(format!("f{n}"))).unwrap(),
                2 => fs::write(many.join(format!("f{n}")), "more").unwrap(),
                _ => fs::hard_link(many.join(format!("f{n}")), many.join(format!("h{n}"))).unwrap(),
            }
        }
        fs::rename(&many, mounted.place.mount.join("moved")).unwrap();
        for (n, fd) in known.iter().enumerate() {
            // Removed files must not outnumber the descriptors where descriptors are the only way.
            let stat = match fstat(fd) {
                Err(Errno::STALE) if n % 4 == 1 => continue,
                stat => stat.unwrap(),
            };
            assert_eq!(stat.st_nlink, [1, 0, 1, 2][n % 4], "f{n}");
            assert_eq!(stat.st_size, if n % 4 == 2 { 4 } else { n.to_string().len() as i64 }, "f{n}");
        }
        fs::rename(mounted.place.mount.join("moved"), &many).unwrap();
        assert_eq!(fs::read_dir(&many).unwrap().count(), FILES);
    });
}

#[test]
fn open_files_work_while_many_files_are_known() {
    with_few("fuse-few-open", |mounted, _| {
        let path = |n: usize| mounted.place.mount.join(format!("open{n}"));
        let mut open: Vec<File> = (0..8)
            .map(|n| {
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path(n)).unwrap()
            })
            .collect();
        let removed = open.len() / 2;
        for n in 0..removed {
            fs::remove_file(path(n)).unwrap();
        }
        use_all(mounted);
        for (n, file) in open.iter_mut().enumerate() {
            writeln!(file, "line of {n}").unwrap();
            // Each close of a copy is a flush.
            for _ in 0..3 {
                drop(file.try_clone().unwrap());
            }
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), u64::from(n >= removed));
            let mut back = vec![0; 9];
            file.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(back, format!("line of {n}").as_bytes());
        }
        drop(open);
        for n in removed..8 {
            assert_eq!(fs::read_to_string(path(n)).unwrap(), format!("line of {n}\n"));
        }
    });
}

#[test]
fn opening_too_many_files_is_refused_for_that_process_only() {
    with_few("fuse-few-refused", |mounted, _| {
        let open = |n| File::open(mounted.place.mount.join(format!("many/f{n}")));
        let (mut opened, mut refused) = (Vec::new(), 0);
        for n in 0..LIMIT {
            match open(n) {
                Ok(file) => opened.push(file),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::NFILE.raw_os_error()));
                    refused += 1;
                }
            }
        }
        println!("{} open, {refused} refused", opened.len());
        assert!(opened.len() >= 8 && refused > 0);
        use_all(mounted);
        for (n, mut file) in opened.into_iter().enumerate() {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text).unwrap();
            assert_eq!(text, n.to_string());
            // A flush, and the end.
            rustix::io::dup(&file).map(drop).unwrap();
        }
        until("the kernel has closed them", || open(0).is_ok());
    });
}

#[test]
fn one_file_can_be_opened_more_often_than_descriptors() {
    with_few("fuse-few-shared", |mounted, _| {
        let path = mounted.place.mount.join("file");
        let write = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let open: Vec<File> = (0..3 * LIMIT).map(|_| write().unwrap()).collect();
        for (n, file) in open.iter().enumerate() {
            file.write_all_at(&[n as u8], n as u64).unwrap();
        }
        let expected: Vec<u8> = (0..3 * LIMIT).map(|n| n as u8).collect();
        // A process that only reads has no descriptor to share.
        assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(Errno::NFILE.raw_os_error()));
        assert_eq!(fs::read(mounted.place.source.join("file")).unwrap(), expected);
        let truncated = OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap();
        assert_eq!(truncated.metadata().unwrap().len(), 0);
        drop((open, truncated));
        until("the kernel has closed them", || fs::read(&path).is_ok());
    });
}

#[test]
fn removed_file_stays_readable_for_its_openers() {
    with_few("fuse-few-removed", |mounted, _| {
        let at = |name: &str| mounted.place.mount.join(name);
        fs::write(at("file"), "content").unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("replaced"), "old").unwrap();
        fs::write(at("new"), "the new one").unwrap();
        fs::write(at("name"), "two names").unwrap();
        fs::hard_link(at("name"), at("second")).unwrap();
        let held: Vec<(OwnedFd, u64, i64)> = ["file", "directory", "replaced", "name"]
            .map(|name| {
                let fd = found(&at(name));
                let stat = fstat(&fd).unwrap();
                (fd, stat.st_ino, stat.st_size)
            })
            .into();
        use_all(mounted);
        fs::remove_file(at("file")).unwrap();
        fs::remove_dir(at("directory")).unwrap();
        fs::rename(at("new"), at("replaced")).unwrap();
        fs::remove_file(at("second")).unwrap();
        use_all(mounted);
        for (n, (fd, number, size)) in held.iter().enumerate() {
            let stat = fstat(fd).unwrap();
            assert_eq!((stat.st_ino, stat.st_nlink), (*number, u64::from(n == 3)), "{n}");
            assert!(n == 1 || stat.st_size == *size, "{n}");
        }
        assert_eq!(fs::read_to_string(at("replaced")).unwrap(), "the new one");
        assert_eq!(fs::read_to_string(at("name")).unwrap(), "two names");
        fs::remove_file(at("name")).unwrap();
        use_all(mounted);
        assert_eq!(fstat(&held[3].0).unwrap().st_nlink, 0);
    });
}

#[test]
fn file_replaced_in_the_source_is_not_confused() {
    with_few("fuse-few-replaced", |mounted, handles| {
        let (below, through) = (mounted.place.source.join("file"), mounted.place.mount.join("file"));
        let mut reused = 0;
        for round in 0..20 {
            let text = format!("round {round}");
            fs::write(&below, &text).unwrap();
            assert_eq!(fs::read_to_string(&through).unwrap(), text);
            let old = found(&through);
            let number = fstat(&old).unwrap().st_ino;
            use_all(mounted);
            fs::remove_file(&below).unwrap();
            let new = format!("another {round}");
            fs::write(&below, &new).unwrap();
            reused += u32::from(fs::metadata(&below).unwrap().ino() == number);
            let of_old = statat(&old, c"", AtFlags::EMPTY_PATH).map(|stat| stat.st_size);
            assert_eq!(of_old, Err(Errno::STALE), "round {round}");
            assert_eq!(fs::read_to_string(&through).unwrap(), new);
            assert_eq!(fs::metadata(&through).unwrap().len(), new.len() as u64);
            assert_eq!(fstat(&old).map(drop), Err(Errno::STALE), "round {round}");
            fs::remove_file(&through).unwrap();
        }
        println!("{reused} inode numbers were used again");
        // A file that others rename is the same file, if it can be found without its name.
        let moved: PathBuf = mounted.place.source.join("elsewhere");
        fs::write(&below, "to be moved").unwrap();
        let known = found(&through);
        use_all(mounted);
        fs::rename(&below, &moved).unwrap();
        assert_eq!(fstat(&known).is_ok(), handles);
        assert_eq!(fs::read_to_string(mounted.place.mount.join("elsewhere")).unwrap(), "to be moved");
        let now = fstat(&known).unwrap();
        assert_eq!(now.st_ino, statat(CWD, &moved, AtFlags::empty()).unwrap().st_ino);
    });
}

#[test]
fn descriptor_limit_is_raised_to_the_maximum() {
    let starter = ["setpriv", "--bounding-set", "-sys_resource", "prlimit", "--nofile=50:200"];
    let mounted = MountDirs::new("fuse-few-raised").mounted_by(&starter, &[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", mounted.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("200"), "{line}");
    mounted.end();
}
