//! Cases of what a file system must do, in the manner of pjdfstest: `file_cases prepare DIR` as root, then `file_cases run DIR`
//! as anybody. One line is printed for each case: its name and what came of its steps. Two file systems are alike if
//! they print the same.

#![allow(clippy::expect_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

/// A group of the user who is not root, but not the user's own.
const GROUP: u32 = 4242;
/// Somebody else.
const OTHER: u32 = 4243;

type Steps = Vec<String>;

fn main() {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match words.as_slice() {
        [how, dir] if how == "prepare" => prepare(dir),
        [how, dir] if how == "run" => CASES.iter().for_each(|(name, case)| {
            let place = dir.join(name);
            fs::create_dir(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
            println!("{name}: {}", case(&place, &dir.join("prepared")).join(" "));
        }),
        _ => panic!("usage: file_cases prepare|run DIR"),
    }
}

/// What only root can make, for those who are not.
fn prepare(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).expect("a directory of ours");
    let made = dir.join("prepared");
    fs::create_dir(&made).expect("a new directory");
    for (name, uid, gid, mode) in [
        ("theirs", OTHER, OTHER, 0o755),
        ("closed", OTHER, OTHER, 0o700),
        ("blind", OTHER, OTHER, 0o711),
        ("group", OTHER, GROUP, 0o2775),
        ("sticky", OTHER, OTHER, 0o1777),
    ] {
        let path = made.join(name);
        fs::create_dir(&path).expect("a new directory");
        for (file, mode) in
            [("read", 0o644), ("shut", 0o600), ("open", 0o666), ("suid", 0o6777), ("run", 0o711)]
        {
            let file = path.join(file);
            fs::write(&file, "content").expect("a new file");
            chown(&file, Some(uid), Some(gid)).expect("root");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("root");
        }
        chown(&path, Some(uid), Some(gid)).expect("root");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root");
    }
}

fn name_of(errno: Errno) -> String {
    let names = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::NXIO, "ENXIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::ACCESS, "EACCES"),
        (Errno::EXIST, "EEXIST"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::MLINK, "EMLINK"),
        (Errno::RANGE, "ERANGE"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::LOOP, "ELOOP"),
        (Errno::NODATA, "ENODATA"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::NOTTY, "ENOTTY"),
        (Errno::FBIG, "EFBIG"),
        (Errno::TXTBSY, "ETXTBSY"),
        (Errno::BUSY, "EBUSY"),
        (Errno::STALE, "ESTALE"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::IO, "EIO"),
    ];
    let name = names.iter().find(|(known, _)| *known == errno).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("errno-{}", errno.raw_os_error()))
}

/// `ok` or the name of the error.
fn said<T>(result: Result<T, Errno>) -> String {
    result.map_or_else(name_of, |_| "ok".into())
}

/// The value or the name of the error.
fn value<T: ToString>(result: Result<T, Errno>) -> String {
    result.map_or_else(name_of, |value| value.to_string())
}

/// What a name stands for.
fn shown(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Err(error) => name_of(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        Ok(meta) => {
            let kind = meta.file_type();
            let letter = match kind {
                _ if kind.is_file() => 'f',
                _ if kind.is_dir() => 'd',
                _ if kind.is_symlink() => 'l',
                _ if kind.is_fifo() => 'p',
                _ if kind.is_socket() => 's',
                _ if kind.is_char_device() => 'c',
                _ => 'b',
            };
            let size = if kind.is_file() || kind.is_symlink() { meta.size() } else { 0 };
            format!(
                "{letter}:{:o}:n{}:s{size}:{}:{}:r{}",
                meta.mode() & 0o7777,
                meta.nlink(),
                meta.uid(),
                meta.gid(),
                meta.rdev()
            )
        }
    }
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn open(path: impl AsRef<Path>, flags: OFlags, bits: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, mode(bits))
}

fn make(path: impl AsRef<Path>, content: &str) -> OwnedFd {
    let fd = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC, 0o644).expect("a new file");
    rustix::io::write(&fd, content.as_bytes()).expect("room");
    fd
}

fn mkdir(path: impl AsRef<Path>, bits: u32) -> Result<(), Errno> {
    rustix::fs::mkdir(path.as_ref(), mode(bits))
}

fn chmod(path: impl AsRef<Path>, bits: u32) -> Result<(), Errno> {
    rustix::fs::chmod(path.as_ref(), mode(bits))
}

fn own(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    rustix::fs::chownat(
        CWD,
        path.as_ref(),
        uid.map(Uid::from_raw),
        gid.map(Gid::from_raw),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

fn rename(old: &Path, new: &Path, flags: RenameFlags) -> String {
    said(rustix::fs::renameat_with(CWD, old, CWD, new, flags))
}

fn me() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn long(bytes: usize) -> String {
    "n".repeat(bytes)
}

/// A path of so many bytes below a directory.
fn deep(below: &Path, bytes: usize) -> PathBuf {
    let mut path = below.as_os_str().as_bytes().to_vec();
    while path.len() + 2 <= bytes {
        path.extend_from_slice(b"/x");
    }
    path.resize(bytes, b'/');
    PathBuf::from(OsStr::from_bytes(&path))
}

fn text(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) if bytes.len() > 64 => {
            format!("{}:{}", bytes.len(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>())
        }
        Ok(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes)),
        Err(error) => name_of(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn names(path: &Path) -> String {
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names.join(",")
        }
        Err(error) => name_of(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Maps a shared page and puts a byte into it, at an offset of the file.
fn poke(fd: impl AsFd, at: u64, byte: u8) -> String {
    let page = at & !4095;
    // SAFETY: a new mapping; what is written lies in its one page, and it is unmapped after its last use.
    unsafe {
        let map = rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            page,
        );
        let Ok(map) = map else { return said(map) };
        *map.cast::<u8>().add((at - page) as usize) = byte;
        let synced = rustix::mm::msync(map, 4096, MsyncFlags::SYNC);
        let _ = rustix::mm::munmap(map, 4096);
        said(synced)
    }
}

type Case = fn(&Path, &Path) -> Steps;

/// Each: a directory of its own and what root has prepared.
const CASES: &[(&str, Case)] = &[
    ("chmod_sets_all_twelve_bits", |d, _| {
        let path = d.join("f");
        make(&path, "x");
        [0o0, 0o777, 0o644, 0o1644, 0o2755, 0o4755, 0o7777]
            .iter()
            .map(|m| said(chmod(&path, *m)) + &shown(&path))
            .collect()
    }),
    ("chmod_errors", |d, p| {
        make(d.join("f"), "x");
        vec![
            said(chmod(d.join("none"), 0o600)),
            said(chmod(d.join("f/x"), 0o600)),
            said(chmod(d.join(long(256)), 0o600)),
            said(chmod(deep(d, 4096), 0o600)),
            said(chmod(p.join("theirs/open"), 0o600)),
            said(chmod(p.join("closed/open"), 0o600)),
        ]
    }),
    ("chmod_of_a_directory_takes_access_away", |d, _| {
        let inner = d.join("dir");
        let made = mkdir(&inner, 0o700);
        make(inner.join("f"), "x");
        let closed = chmod(&inner, 0);
        let seen = vec![said(made), said(closed), text(&inner.join("f")), names(&inner)];
        let _ = chmod(&inner, 0o700);
        seen
    }),
    ("chown_to_others", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let link = d.join("l");
        let _ = rustix::fs::symlink("f", &link);
        let _ = chmod(&path, 0o6755);
        let (uid, gid) = me();
        vec![
            said(own(&path, None, Some(gid))),
            shown(&path),
            said(own(&path, Some(OTHER), None)),
            shown(&path),
            said(own(&path, Some(uid), Some(GROUP))),
            shown(&path),
            said(own(&link, Some(OTHER), Some(OTHER))),
            shown(&link),
            said(own(p.join("theirs/open"), Some(uid), None)),
            said(own(d.join("none"), Some(uid), None)),
            said(own(d.join("f/x"), Some(uid), None)),
        ]
    }),
    ("link_makes_another_name", |d, _| {
        let (one, two) = (d.join("one"), d.join("two"));
        make(&one, "content");
        let linked = said(rustix::fs::link(&one, &two));
        let same = fs::metadata(&one).map(|m| m.ino()).ok() == fs::metadata(&two).map(|m| m.ino()).ok();
        let _ = chmod(&two, 0o600);
        vec![linked, same.to_string(), shown(&one), said(rustix::fs::unlink(&one)), shown(&two), text(&two)]
    }),
    ("link_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("dir"), 0o755);
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        vec![
            said(rustix::fs::link(d.join("f"), d.join("f"))),
            said(rustix::fs::link(d.join("dir"), d.join("new"))),
            said(rustix::fs::link(d.join("none"), d.join("new"))),
            said(rustix::fs::link(d.join("f"), d.join("f/x"))),
            said(rustix::fs::link(d.join("f"), d.join("none/x"))),
            said(rustix::fs::link(d.join("f"), d.join(long(256)))),
            said(rustix::fs::link(d.join("f"), d.join("loop/x"))),
            said(rustix::fs::link(d.join("f"), p.join("theirs/new"))),
            said(rustix::fs::link(p.join("closed/open"), d.join("new"))),
            said(rustix::fs::link(p.join("theirs/suid"), d.join("suid"))),
            said(rustix::fs::link(p.join("sticky/shut"), d.join("shut"))),
        ]
    }),
    ("link_to_a_symbolic_link", |d, _| {
        let _ = rustix::fs::symlink("nowhere", d.join("l"));
        let linked = said(rustix::fs::link(d.join("l"), d.join("m")));
        vec![linked, shown(&d.join("m")), shown(&d.join("l"))]
    }),
    ("mkdir_and_the_mask", |d, _| {
        let mut seen = Steps::new();
        for (name, mask, bits) in
            [("a", 0o22, 0o777), ("b", 0, 0o777), ("c", 0o77, 0o755), ("d", 0o777, 0o777), ("e", 0, 0o1777)]
        {
            let was = rustix::process::umask(mode(mask));
            seen.push(said(mkdir(d.join(name), bits)));
            rustix::process::umask(was);
            seen.push(shown(&d.join(name)));
        }
        seen.push(shown(d));
        seen
    }),
    ("mkdir_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = rustix::fs::symlink("dangling", d.join("l"));
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        vec![
            said(mkdir(d.join("f"), 0o755)),
            said(mkdir(d.join("l"), 0o755)),
            said(mkdir(d.join("f/x"), 0o755)),
            said(mkdir(d.join("none/x"), 0o755)),
            said(mkdir(d.join(long(255)), 0o755)),
            said(mkdir(d.join(long(256)), 0o755)),
            said(mkdir(deep(d, 4096), 0o755)),
            said(mkdir(d.join("loop/x"), 0o755)),
            said(mkdir(p.join("theirs/x"), 0o755)),
            said(mkdir(p.join("closed/x"), 0o755)),
        ]
    }),
    ("in_a_directory_of_a_group", |_, p| {
        // Writable because of a supplementary group, which the new file gets.
        let (uid, _) = me();
        let (dir, file, bits) = (
            p.join(format!("group/dir{uid}")),
            p.join(format!("group/file{uid}")),
            p.join(format!("group/bits{uid}")),
        );
        let seen = vec![
            said(mkdir(&dir, 0o755)),
            shown(&dir),
            said(open(&file, OFlags::CREATE | OFlags::RDWR, 0o644)),
            shown(&file),
            said(open(&bits, OFlags::CREATE | OFlags::RDWR, 0o2770)),
            shown(&bits),
            said(chmod(&file, 0o2770)),
            shown(&file),
        ];
        let _ = (fs::remove_dir(&dir), fs::remove_file(&file), fs::remove_file(&bits));
        seen
    }),
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
    ("rename_replaces", |d, _| {
        let (a, b) = (d.join("a"), d.join("b"));
        make(&a, "a");
        let kept = make(&b, "b");
        let done = rename(&a, &b, RenameFlags::empty());
        let mut buffer = [0; 4];
        let still = value(rustix::io::pread(&kept, &mut buffer, 0));
        let links = rustix::fs::fstat(&kept).map(|s| s.st_nlink).unwrap_or(9);
        vec![done, text(&b), shown(&a), still, links.to_string()]
    }),
    ("rename_flags", |d, _| {
        let (a, b, c) = (d.join("a"), d.join("b"), d.join("c"));
        make(&a, "a");
        let _ = mkdir(&b, 0o755);
        make(b.join("in"), "inside");
        vec![
            rename(&a, &b, RenameFlags::NOREPLACE),
            rename(&a, &c, RenameFlags::NOREPLACE),
            rename(&c, &b, RenameFlags::EXCHANGE),
            text(&b),
            text(&c.join("in")),
            rename(&b, &d.join("none"), RenameFlags::EXCHANGE),
            rename(&b, &c, RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
            names(d),
        ]
    }),
    ("rename_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("dir"), 0o755);
        let _ = mkdir(d.join("full"), 0o755);
        make(d.join("full/f"), "x");
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        [
            (d.join("none"), d.join("new")),
            (d.join("f"), d.join("dir")),
            (d.join("dir"), d.join("f")),
            (d.join("dir"), d.join("full")),
            (d.join("full"), d.join("full/in")),
            (d.join("full/f/x"), d.join("new")),
            (d.join("f"), d.join(long(256))),
            (d.join("f"), d.join("loop/x")),
            (d.join("f"), d.join("none/x")),
            (d.join("f"), p.join("theirs/x")),
            (p.join("theirs/open"), d.join("x")),
            (p.join("sticky/open"), d.join("y")),
            (d.join("dir/."), d.join("z")),
            (d.join("f"), d.join("f")),
        ]
        .iter()
        .map(|(from, to)| {
            let seen = rename(from, to, RenameFlags::empty());
            if seen == "ok" && (from.starts_with(p) || to.starts_with(p)) {
                rename(to, from, RenameFlags::empty());
            }
            seen
        })
        .collect()
    }),
    ("rename_of_a_directory_moves_what_is_below", |d, _| {
        let _ = (mkdir(d.join("a"), 0o755), mkdir(d.join("a/b"), 0o755), mkdir(d.join("c"), 0o755));
        let open_file = make(d.join("a/b/f"), "deep");
        let done = rename(&d.join("a"), &d.join("c/a"), RenameFlags::empty());
        let _ = rustix::io::write(&open_file, b"er");
        vec![done, text(&d.join("c/a/b/f")), shown(&d.join("a/b/f")), shown(d), shown(&d.join("c"))]
    }),
    ("rmdir_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("full"), 0o755);
        make(d.join("full/f"), "x");
        let _ = mkdir(d.join("empty"), 0o755);
        let _ = rustix::fs::symlink("empty", d.join("l"));
        [
            d.join("full"),
            d.join("f"),
            d.join("none"),
            d.join("l"),
            d.join("f/x"),
            d.join("empty/."),
            d.join("full/.."),
            d.join(long(256)),
            p.join("theirs"),
            d.join("empty"),
            d.join("empty"),
        ]
        .iter()
        .map(|path| said(rustix::fs::rmdir(path)))
        .chain([shown(d)])
        .collect()
    }),
    ("a_directory_that_is_gone_is_still_open", |d, _| {
        let path = d.join("dir");
        let _ = mkdir(&path, 0o755);
        let fd = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        let gone = said(rustix::fs::rmdir(&path));
        let made = said(rustix::fs::openat(&fd, "x", OFlags::CREATE | OFlags::RDWR, mode(0o644)));
        vec![gone, made, value(rustix::fs::fstat(&fd).map(|s| s.st_nlink))]
    }),
    ("symlink_and_readlink", |d, p| {
        let target = long(4095);
        vec![
            said(rustix::fs::symlink("target/not there", d.join("l"))),
            shown(&d.join("l")),
            fs::read_link(d.join("l")).map_or("no".into(), |t| t.display().to_string()),
            said(rustix::fs::symlink(&*target, d.join("long"))),
            shown(&d.join("long")),
            said(rustix::fs::symlink(&*long(4096), d.join("longer"))),
            said(rustix::fs::symlink("x", d.join("l"))),
            said(rustix::fs::symlink("", d.join("m"))),
            said(rustix::fs::symlink("x", d.join("none/m"))),
            said(rustix::fs::symlink("x", d.join(long(256)))),
            said(rustix::fs::symlink("x", p.join("theirs/m"))),
            said(rustix::fs::readlink(d, Vec::new())),
            said(chmod(d.join("l"), 0o600)),
        ]
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
    ("unlink_errors", |d, p| {
        let _ = mkdir(d.join("dir"), 0o755);
        make(d.join("f"), "x");
        let _ = rustix::fs::symlink("f", d.join("l"));
        [
            d.join("dir"),
            d.join("none"),
            d.join("f/x"),
            d.join(long(256)),
            p.join("theirs/none"),
            p.join("closed/none"),
            d.join("l"),
            d.join("f"),
            d.join("f"),
        ]
        .iter()
        .map(|path| said(rustix::fs::unlink(path)))
        .collect()
    }),
    ("unlink_of_others_files", |_, p| {
        // Back again for the next who tries.
        ["theirs/read", "sticky/read"]
            .iter()
            .map(|name| {
                let (path, kept) = (p.join(name), p.join(format!("{name}.kept")));
                let _ = rustix::fs::link(&path, &kept);
                let seen = said(rustix::fs::unlink(&path));
                let _ = rustix::fs::rename(&kept, &path);
                seen
            })
            .collect()
    }),
    ("a_file_that_is_gone_is_still_open", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "before");
        let gone = said(rustix::fs::unlink(&path));
        let _ = rustix::io::write(&fd, b" and after");
        let mut buffer = [0; 32];
        let read = rustix::io::pread(&fd, &mut buffer, 0).unwrap_or(0);
        let stat = rustix::fs::fstat(&fd).expect("an open file");
        vec![
            gone,
            format!("{:?}", String::from_utf8_lossy(&buffer[..read])),
            format!("{}:{}", stat.st_nlink, stat.st_size),
            said(rustix::fs::ftruncate(&fd, 2)),
            said(rustix::fs::fchmod(&fd, mode(0o600))),
            shown(&path),
        ]
    }),
    ("utimensat_sets_nanoseconds", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let _ = rustix::fs::symlink("f", d.join("l"));
        let set = |path: &Path, a: (i64, i64), m: (i64, i64), flags| {
            let times = Timestamps {
                last_access: Timespec { tv_sec: a.0, tv_nsec: a.1 },
                last_modification: Timespec { tv_sec: m.0, tv_nsec: m.1 },
            };
            let result = said(rustix::fs::utimensat(CWD, path, &times, flags));
            let times = fs::symlink_metadata(path)
                .map(|m| format!("{}.{:09}/{}.{:09}", m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec()));
            format!("{result}:{}", times.unwrap_or_default())
        };
        let follow = AtFlags::empty();
        vec![
            set(&path, (1, 2), (3, 4), follow),
            set(&path, (0, UTIME_OMIT), (1_900_000_000, 999_999_999), follow),
            set(&path, (-2, 800_000_000), (0, UTIME_OMIT), follow),
            set(&path, (-1, 1), (-10, 0), follow),
            set(&path, (4_000_000_000, 5), (8_000_000_000, 6), follow),
            set(&d.join("l"), (7, 8), (9, 10), AtFlags::SYMLINK_NOFOLLOW),
            set(d, (11, 12), (13, 14), follow),
            set(&path, (0, 1_000_000_000), (0, 0), follow),
            set(&d.join("none"), (0, 0), (0, 0), follow),
            set(&d.join("f/x"), (0, 0), (0, 0), follow),
            said(rustix::fs::utimensat(CWD, p.join("theirs/read"), &now(), follow)),
            said(rustix::fs::utimensat(CWD, p.join("theirs/open"), &now(), follow)),
            // Whoever may write may say that it is now, but no other time.
            set(&p.join("closed/open"), (1, 0), (1, 0), follow)
                .split(':')
                .next()
                .unwrap_or_default()
                .to_owned(),
        ]
    }),
    ("times_move_by_themselves", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "x");
        let old = Timestamps {
            last_access: Timespec { tv_sec: 1000, tv_nsec: 0 },
            last_modification: Timespec { tv_sec: 1000, tv_nsec: 0 },
        };
        let _ = rustix::fs::utimensat(CWD, &path, &old, AtFlags::empty());
        let _ = rustix::fs::utimensat(CWD, d, &old, AtFlags::empty());
        let moved =
            |path: &Path| fs::metadata(path).map(|m| (m.mtime() != 1000).to_string()).unwrap_or_default();
        let before = moved(&path);
        let _ = rustix::io::write(&fd, b"y");
        let written = moved(&path);
        let directory = moved(d);
        make(d.join("g"), "");
        vec![before, written, directory, moved(d)]
    }),
    ("extended_attributes", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let (create, replace, any) = (XattrFlags::CREATE, XattrFlags::REPLACE, XattrFlags::empty());
        let mut buffer = [0; 64];
        let _ = rustix::fs::symlink("f", d.join("l"));
        vec![
            said(rustix::fs::setxattr(&path, "user.a", b"one", create)),
            said(rustix::fs::setxattr(&path, "user.a", b"two", create)),
            said(rustix::fs::setxattr(&path, "user.b", b"two", replace)),
            said(rustix::fs::setxattr(&path, "user.a", b"three", replace)),
            value(rustix::fs::getxattr(&path, "user.a", &mut buffer)),
            String::from_utf8_lossy(&buffer[..5]).into_owned(),
            said(rustix::fs::getxattr(&path, "user.a", &mut buffer[..2])),
            value(rustix::fs::getxattr(&path, "user.a", &mut buffer[..0])),
            said(rustix::fs::getxattr(&path, "user.none", &mut buffer)),
            said(rustix::fs::setxattr(&path, "user.empty", b"", any)),
            value(rustix::fs::getxattr(&path, "user.empty", &mut buffer)),
            list(&path),
            said(rustix::fs::listxattr(&path, &mut buffer[..2])),
            said(rustix::fs::removexattr(&path, "user.a")),
            said(rustix::fs::removexattr(&path, "user.a")),
            list(&path),
            said(rustix::fs::setxattr(&path, "nonsense", b"", any)),
            said(rustix::fs::setxattr(&path, "trusted.t", b"1", any)),
            said(rustix::fs::setxattr(&*path, &*format!("user.{}", long(300)), b"1", any)),
            said(rustix::fs::lsetxattr(d.join("l"), "user.l", b"1", any)),
            said(rustix::fs::setxattr(p.join("theirs/read"), "user.x", b"1", any)),
            said(rustix::fs::getxattr(p.join("theirs/shut"), "user.x", &mut buffer)),
            said(rustix::fs::setxattr(d.join("none"), "user.x", b"1", any)),
        ]
    }),
    ("access_control_lists", |d, _| {
        let _ = mkdir(d.join("dir"), 0o755);
        // u::rwx, g::r-x, g:4242:rwx, m::rwx, o::---
        let acl: Vec<u8> = [
            (1u16, 7u16, u32::MAX),
            (4, 5, u32::MAX),
            (8, 7, GROUP),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ]
        .iter()
        .fold(2u32.to_le_bytes().to_vec(), |mut out, (tag, bits, id)| {
            out.extend(tag.to_le_bytes());
            out.extend(bits.to_le_bytes());
            out.extend(id.to_le_bytes());
            out
        });
        let set = |name: &str| said(rustix::fs::setxattr(d.join("dir"), name, &acl, XattrFlags::empty()));
        let was = rustix::process::umask(mode(0o77));
        let seen = vec![
            set("system.posix_acl_access"),
            set("system.posix_acl_default"),
            shown(&d.join("dir")),
            said(mkdir(d.join("dir/sub"), 0o777)),
            shown(&d.join("dir/sub")),
            said(open(d.join("dir/f"), OFlags::CREATE | OFlags::RDWR, 0o666)),
            shown(&d.join("dir/f")),
            list(&d.join("dir/f")),
            said(chmod(d.join("dir"), 0o700)),
            shown(&d.join("dir")),
        ];
        rustix::process::umask(was);
        seen
    }),
    ("set_user_id_is_lost_by_who_may_not_keep_it", |d, p| {
        let mut seen = Steps::new();
        let (uid, _) = me();
        // Again and again the same file, which root has prepared.
        for how in 0..5 {
            let path = if uid == 0 || how > 3 { d.join(format!("own{how}")) } else { p.join("theirs/suid") };
            if uid == 0 || how > 3 {
                make(&path, "content");
                let _ = chmod(&path, 0o6777);
            }
            let done = match how {
                0 => open(&path, OFlags::RDWR, 0).map(|fd| {
                    let _ = rustix::io::pwrite(fd, b"", 0);
                }),
                1 => open(&path, OFlags::RDWR, 0).and_then(|fd| rustix::io::pwrite(fd, b"c", 0).map(drop)),
                2 => open(&path, OFlags::RDWR, 0).and_then(|fd| rustix::fs::ftruncate(fd, 7)),
                3 => open(&path, OFlags::RDWR | OFlags::TRUNC, 0).map(drop),
                _ => own(&path, None, Some(me().1)),
            };
            seen.extend([said(done), shown(&path)]);
        }
        seen
    }),
    ("access_asks_for_the_real_user", |d, p| {
        make(d.join("f"), "x");
        let _ = chmod(d.join("f"), 0o444);
        [
            (d.join("f"), Access::WRITE_OK),
            (d.join("f"), Access::EXEC_OK),
            (d.join("f"), Access::READ_OK),
            (p.join("theirs/shut"), Access::READ_OK),
            (p.join("theirs/run"), Access::EXEC_OK),
            (p.join("closed/read"), Access::EXISTS),
            (d.join("none"), Access::EXISTS),
        ]
        .iter()
        .map(|(path, what)| said(rustix::fs::access(path, *what)))
        .collect()
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
        // Not a whole page, so that the kernel writes the rest of one back.
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
            // SAFETY: plain numbers, of which all zero is a value.
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
    ("many_entries_are_all_listed_once", |d, _| {
        for n in 0..3000 {
            drop(open(d.join(format!("a name of some length {n}")), OFlags::CREATE | OFlags::WRONLY, 0o644));
        }
        let listed = names(d);
        let hash = listed.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let numbers = fs::read_dir(d).map_or(0, |entries| {
            use std::os::unix::fs::DirEntryExt as _;
            entries.flatten().filter(|e| e.metadata().is_ok_and(|m| m.ino() == e.ino())).count()
        });
        for n in (0..3000).step_by(2) {
            let _ = fs::remove_file(d.join(format!("a name of some length {n}")));
        }
        vec![
            listed.split(',').count().to_string(),
            hash.to_string(),
            numbers.to_string(),
            names(d).split(',').count().to_string(),
        ]
    }),
    ("a_directory_can_be_read_again_from_any_entry", |d, _| {
        for n in 0..300 {
            drop(open(d.join(format!("{n}")), OFlags::CREATE | OFlags::WRONLY, 0o644));
        }
        let directory = open(d, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        let read = |from: u64| -> Vec<(String, u64)> {
            let _ = rustix::fs::seek(&directory, SeekFrom::Start(from));
            let mut buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
            let mut raw = rustix::fs::RawDir::new(&directory, &mut buffer);
            let mut out = Vec::new();
            while let Some(Ok(entry)) = raw.next() {
                out.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
            }
            out
        };
        let all = read(0);
        // From the place after the hundredth entry come the others.
        let rest = read(all[99].1);
        vec![all.len().to_string(), (rest == all[100..]).to_string(), (read(0) == all).to_string()]
    }),
    ("names_are_bytes", |d, _| {
        let odd = [b"\xff\xfe".as_slice(), b"new\nline", b" ", b"a\\b", "ä".as_bytes(), b"-rf", b"...", b"#"];
        let made: Vec<String> = odd
            .iter()
            .map(|name| said(open(d.join(OsStr::from_bytes(name)), OFlags::CREATE | OFlags::WRONLY, 0o644)))
            .collect();
        let mut found: Vec<Vec<u8>> = fs::read_dir(d)
            .expect("a directory")
            .flatten()
            .map(|e| e.file_name().as_bytes().to_vec())
            .collect();
        found.sort();
        vec![made.join(""), format!("{found:?}")]
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

fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Names of a file's own extended attributes.
fn list(path: &Path) -> String {
    let mut buffer = [0; 1024];
    match rustix::fs::listxattr(path, &mut buffer) {
        Ok(n) => {
            let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
            let mut names: Vec<&str> = text.split('\0').filter(|name| !name.is_empty()).collect();
            names.sort_unstable();
            names.join(",")
        }
        Err(errno) => name_of(errno),
    }
}
