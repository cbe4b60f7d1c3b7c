//! Cases for opening, reading, writing, mapping, locking and executing files.

use crate::steps::*;
use crate::{Case, Steps};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FallocateFlags, FileType, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("mkfifo_and_mknod", |d, p| {
        let was = rustix::process::umask(mode(0o27));
        let mut seen = Steps::new();
        for (name, kind, device) in [
            ("fifo", FileType::Fifo, 0),
            ("socket", FileType::Socket, 0),
            ("file", FileType::RegularFile, 0),
            ("char", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            ("block", FileType::BlockDevice, rustix::fs::makedev(259, 0x12345)),
        ] {
            seen.push(said(rustix::fs::mknodat(CWD, d.join(name), kind, mode(0o666), device)));
            seen.push(shown(&d.join(name)));
        }
        rustix::process::umask(was);
        for wrong in
            [d.join("fifo"), d.join("fifo/x"), d.join("none/x"), d.join(long(256)), p.join("theirs/x")]
        {
            seen.push(said(rustix::fs::mknodat(CWD, wrong, FileType::Fifo, mode(0o666), 0)));
        }
        seen
    }),
    ("a_fifo_carries", |d, _| {
        let path = d.join("fifo");
        let _ = rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode(0o600), 0);
        let alone = said(open(&path, OFlags::WRONLY | OFlags::NONBLOCK, 0));
        let both = open(&path, OFlags::RDWR, 0).expect("a fifo");
        let _ = rustix::io::write(&both, b"through");
        let mut buffer = [0; 16];
        vec![alone, value(rustix::io::read(&both, &mut buffer))]
    }),
    ("open_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("dir"), 0o755);
        let _ = rustix::fs::symlink("f", d.join("l"));
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        let _ = rustix::fs::symlink("b", d.join("a"));
        let _ = rustix::fs::symlink("a", d.join("b"));
        let (read, write, create) = (OFlags::RDONLY, OFlags::WRONLY, OFlags::CREATE | OFlags::RDWR);
        [
            (d.join("none"), read),
            (d.join("f/x"), read),
            (d.join("dir"), write),
            (d.join("dir"), create),
            (d.join("f"), create | OFlags::EXCL),
            (d.join("l"), create | OFlags::EXCL),
            (d.join("l"), read | OFlags::NOFOLLOW),
            (d.join("loop"), read),
            (d.join("a"), read),
            (d.join("f"), read | OFlags::DIRECTORY),
            (d.join(long(256)), create),
            (deep(d, 4096), read),
            (d.join("none/x"), create),
            (p.join("theirs/shut"), read),
            (p.join("theirs/read"), write),
            (p.join("theirs/read"), read),
            (p.join("theirs/open"), OFlags::RDWR),
            (p.join("theirs/new"), create),
            (p.join("closed/open"), read),
            (p.join("blind/open"), read),
            (p.join("blind/none"), read),
            (p.join("blind"), read | OFlags::DIRECTORY),
        ]
        .iter()
        .map(|(path, flags)| said(open(path, *flags, 0o644)))
        .collect()
    }),
    ("open_creates_as_its_caller", |d, _| {
        let was = rustix::process::umask(mode(0o137));
        let made = open(d.join("f"), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o7777);
        rustix::process::umask(was);
        let unwritable = open(d.join("g"), OFlags::CREATE | OFlags::RDWR, 0o400).expect("a new file");
        let written = value(rustix::io::write(&unwritable, b"still"));
        vec![said(made), shown(&d.join("f")), written, shown(&d.join("g")), text(&d.join("g"))]
    }),
    ("open_with_trunc_and_append", |d, _| {
        let path = d.join("f");
        drop(make(&path, "0123456789"));
        let append = open(&path, OFlags::RDWR | OFlags::APPEND, 0).expect("a file");
        let _ = rustix::io::write(&append, b"abc");
        let first = text(&path);
        let _ = rustix::io::pwrite(&append, b"Z", 0);
        let second = text(&path);
        let other = open(&path, OFlags::WRONLY, 0).expect("a file");
        let _ = rustix::io::pwrite(&other, b"more at the end", 30);
        let _ = rustix::io::write(&append, b"!");
        let third = text(&path);
        let cut = said(open(&path, OFlags::WRONLY | OFlags::TRUNC, 0));
        vec![first, second, third, cut, shown(&path)]
    }),
    ("flags_changed_after_the_open", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "0123456789");
        let set = said(rustix::fs::fcntl_setfl(&fd, OFlags::APPEND));
        let _ = rustix::io::pwrite(&fd, b"end", 0);
        let appended = text(&path);
        let _ = rustix::fs::fcntl_setfl(&fd, OFlags::empty());
        let _ = rustix::io::pwrite(&fd, b"START", 0);
        vec![set, appended, text(&path)]
    }),
    ("truncate_both_ways", |d, p| {
        let path = d.join("f");
        let fd = make(&path, "0123456789");
        let mut seen = Steps::new();
        for size in [5, 8, 100_000, 0, 3] {
            seen.push(said(rustix::fs::ftruncate(&fd, size)));
            seen.push(text(&path));
        }
        let cut = |path: &Path, size: i64| {
            let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
            // SAFETY: a C string.
            let result = unsafe { libc::truncate(name.as_ptr(), size) };
            if result == 0 {
                "ok".into()
            } else {
                name_of(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
            }
        };
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        seen.extend([
            cut(&path, 70_000),
            shown(&path),
            cut(&path, -1),
            cut(d, 0),
            cut(&d.join("none"), 0),
            cut(&d.join("f/x"), 0),
            cut(&d.join("loop"), 0),
            cut(&d.join(long(256)), 0),
            cut(&p.join("theirs/read"), 7),
            cut(&p.join("theirs/open"), 7),
            said(rustix::fs::ftruncate(open(&path, OFlags::RDONLY, 0).expect("a file"), 0)),
        ]);
        seen
    }),
    ("holes_and_allocation", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "");
        let block = vec![7; 65536];
        let _ = rustix::io::pwrite(&fd, &block, 0);
        let _ = rustix::io::pwrite(&fd, &block, 1 << 20);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mut seen = vec![
            value(rustix::fs::seek(&fd, SeekFrom::Hole(0))),
            value(rustix::fs::seek(&fd, SeekFrom::Data(65536))),
            value(rustix::fs::seek(&fd, SeekFrom::Hole(1 << 20))),
            value(rustix::fs::seek(&fd, SeekFrom::Data(2 << 20))),
            said(rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 2 << 20)),
            shown(&path),
            said(rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 4 << 20)),
            shown(&path),
            said(rustix::fs::fallocate(&fd, punch, 4096, 8192)),
            value(rustix::fs::seek(&fd, SeekFrom::Hole(0))),
            said(rustix::fs::fallocate(&fd, FallocateFlags::ZERO_RANGE, 0, 4096)),
            said(rustix::fs::fallocate(&fd, punch, 0, 0)),
            text(&path),
        ];
        seen.push(said(rustix::fs::fallocate(open(&path, OFlags::RDONLY, 0).expect("a file"), punch, 0, 1)));
        seen
    }),
    ("copy_file_range_within_and_between", |d, _| {
        let content: String = (0..40_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
        let (from, to) = (make(d.join("from"), &content), make(d.join("to"), ""));
        let copy = |a: &OwnedFd, mut at: u64, b: &OwnedFd, mut to: u64, n| {
            value(rustix::fs::copy_file_range(a, Some(&mut at), b, Some(&mut to), n))
        };
        vec![
            copy(&from, 0, &to, 0, 40_000),
            text(&d.join("to")),
            copy(&from, 100, &to, 50_000, 1000),
            text(&d.join("to")),
            copy(&from, 40_000, &to, 0, 10),
            copy(&from, 0, &from, 40_000, 20_000),
            copy(&from, 0, &from, 10, 100),
            text(&d.join("from")),
        ]
    }),
    ("large_files", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "start");
        let far = (1u64 << 40) + 17;
        let wrote = value(rustix::io::pwrite(&fd, b"far", far));
        let mut buffer = [0; 8];
        vec![
            wrote,
            shown(&path),
            value(rustix::io::pread(&fd, &mut buffer, far)),
            String::from_utf8_lossy(&buffer[..3]).into_owned(),
            value(rustix::io::pread(&fd, &mut buffer, far + 3)),
            value(rustix::fs::seek(&fd, SeekFrom::End(0))),
            said(rustix::io::pwrite(&fd, b"x", u64::MAX >> 1)),
            said(rustix::io::pwrite(&fd, b"x", 1 << 60)),
            said(rustix::fs::ftruncate(&fd, 1)),
            shown(&path),
        ]
    }),
    ("direct_reads_and_writes", |d, _| {
        let path = d.join("f");
        let Ok(fd) = open(&path, OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT, 0o644) else {
            return vec!["no O_DIRECT".into()];
        };
        let mut store = vec![0; 3 * 4096];
        let start = store.as_ptr().align_offset(4096);
        store[start..start + 8192].fill(b'd');
        let wrote = value(rustix::io::pwrite(&fd, &store[start..start + 8192], 4096));
        let short = said(rustix::io::pwrite(&fd, &store[start..start + 100], 0));
        store.fill(0);
        let read = value(rustix::io::pread(&fd, &mut store[start..start + 8192], 0));
        let sum = store.iter().map(|b| u64::from(*b)).sum::<u64>();
        let cached = open(&path, OFlags::RDWR, 0).expect("a file");
        let poked = poke(&cached, 5000, b'X');
        let mut one = [0; 1];
        let _ = rustix::io::pread(&cached, &mut one, 5000);
        vec![wrote, short, read, sum.to_string(), poked, one[0].to_string(), text(&path)]
    }),
    ("mappings_and_descriptors_agree", |d, _| {
        let path = d.join("f");
        // Not a whole page, so that the kernel must write back a partial page.
        let fd = make(&path, &"m".repeat(5000));
        let append = open(&path, OFlags::WRONLY | OFlags::APPEND, 0).expect("a file");
        let direct = open(&path, OFlags::WRONLY | OFlags::DIRECT, 0);
        let first = poke(&fd, 10, b'A');
        let second = poke(&fd, 4999, b'Z');
        let _ = rustix::io::write(&append, b"appended");
        let third = poke(&fd, 5001, b'Q');
        let mut buffer = [0; 16];
        let n = rustix::io::pread(&fd, &mut buffer, 4996).unwrap_or(0);
        drop((append, direct));
        vec![
            first,
            second,
            third,
            String::from_utf8_lossy(&buffer[..n]).into_owned(),
            shown(&path),
            text(&path),
        ]
    }),
    ("a_mapping_outlives_its_descriptor", |d, _| {
        let path = d.join("f");
        let fd = make(&path, &"m".repeat(4096));
        // SAFETY: a new mapping of one page, used within it and unmapped after.
        unsafe {
            let map = rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            );
            let Ok(map) = map else { return vec![said(map)] };
            drop(fd);
            *map.cast::<u8>().add(4095) = b'!';
            let _ = rustix::mm::munmap(map, 4096);
        }
        vec![text(&path)]
    }),
    ("locks_of_files", |d, _| {
        let path = d.join("f");
        make(&path, "x");
        let (one, two) =
            (open(&path, OFlags::RDWR, 0).expect("a file"), open(&path, OFlags::RDWR, 0).expect("a file"));
        let mut seen = vec![
            said(rustix::fs::flock(&one, FlockOperation::LockExclusive)),
            said(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared)),
            said(rustix::fs::flock(&one, FlockOperation::LockShared)),
            said(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared)),
            said(rustix::fs::flock(&one, FlockOperation::Unlock)),
        ];
        let lock = |fd: &OwnedFd, kind: libc::c_int, start: i64, len: i64, command| {
            // SAFETY: the structure has only integer fields, for which all zeros is a valid value.
            let mut range: libc::flock = unsafe { std::mem::zeroed() };
            (range.l_type, range.l_start, range.l_len) = (kind as i16, start, len);
            // SAFETY: the structure that this command takes.
            let result = unsafe { libc::fcntl(rustix::fd::AsRawFd::as_raw_fd(fd), command, &range) };
            if result == 0 {
                "ok".to_owned()
            } else {
                name_of(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
            }
        };
        seen.extend([
            lock(&one, libc::F_WRLCK, 0, 10, libc::F_OFD_SETLK),
            lock(&two, libc::F_RDLCK, 5, 10, libc::F_OFD_SETLK),
            lock(&two, libc::F_WRLCK, 10, 10, libc::F_OFD_SETLK),
            lock(&one, libc::F_UNLCK, 0, 5, libc::F_OFD_SETLK),
            lock(&two, libc::F_RDLCK, 0, 5, libc::F_OFD_SETLK),
            lock(&one, libc::F_WRLCK, 100, 1, libc::F_SETLK),
        ]);
        drop(one);
        seen.push(lock(&two, libc::F_WRLCK, 0, 20, libc::F_OFD_SETLK));
        seen
    }),
    ("a_program_is_run_and_cannot_be_written", |d, p| {
        let path = d.join("sleep");
        let _ = fs::copy("/bin/sleep", &path);
        let _ = chmod(&path, 0o700);
        let Ok(mut child) = std::process::Command::new(&path).arg("5").spawn() else {
            return vec!["not run".into()];
        };
        let busy = said(open(&path, OFlags::WRONLY, 0));
        let _ = child.kill();
        let _ = child.wait();
        let refused = std::process::Command::new(p.join("theirs/read"))
            .spawn()
            .map(|_| ())
            .map_err(|e| e.raw_os_error());
        vec![busy, format!("{refused:?}")]
    }),
    ("data_is_synced", |d, _| {
        let fd = make(d.join("f"), "x");
        let directory = open(d, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        vec![
            said(rustix::fs::fsync(&fd)),
            said(rustix::fs::fdatasync(&fd)),
            said(rustix::fs::fsync(&directory)),
            said(
                open(d.join("f"), OFlags::RDWR | OFlags::SYNC, 0)
                    .and_then(|fd| rustix::io::write(fd, b"synced")),
            ),
            value(rustix::fs::statvfs(d).map(|s| s.f_namemax)),
            value(rustix::fs::statvfs(d).map(|s| s.f_blocks)),
        ]
    }),
    ("descriptors_that_cannot", |d, _| {
        let path = d.join("f");
        make(&path, "x");
        let (read, write) = (
            open(&path, OFlags::RDONLY, 0).expect("a file"),
            open(&path, OFlags::WRONLY, 0).expect("a file"),
        );
        let directory = open(d, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        let mut buffer = [0; 4];
        vec![
            said(rustix::io::write(&read, b"x")),
            said(rustix::io::read(&write, &mut buffer)),
            said(rustix::io::read(&directory, &mut buffer)),
            said(rustix::fs::ftruncate(&directory, 0)),
        ]
    }),
];
