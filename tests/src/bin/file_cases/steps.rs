//! Steps of the cases. Each step returns its result as text.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

pub(crate) fn name_of(errno: Errno) -> String {
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

/// Returns `ok` or the name of the error.
pub(crate) fn said<T>(result: Result<T, Errno>) -> String {
    result.map_or_else(name_of, |_| "ok".into())
}

/// Returns the value or the name of the error.
pub(crate) fn value<T: ToString>(result: Result<T, Errno>) -> String {
    result.map_or_else(name_of, |value| value.to_string())
}

/// Describes the file that a name refers to.
pub(crate) fn shown(path: &Path) -> String {
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

pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags, bits: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, mode(bits))
}

pub(crate) fn make(path: impl AsRef<Path>, content: &str) -> OwnedFd {
    let fd = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC, 0o644).expect("a new file");
    rustix::io::write(&fd, content.as_bytes()).expect("room");
    fd
}

pub(crate) fn mkdir(path: impl AsRef<Path>, bits: u32) -> Result<(), Errno> {
    rustix::fs::mkdir(path.as_ref(), mode(bits))
}

pub(crate) fn chmod(path: impl AsRef<Path>, bits: u32) -> Result<(), Errno> {
    rustix::fs::chmod(path.as_ref(), mode(bits))
}

pub(crate) fn own(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    rustix::fs::chownat(
        CWD,
        path.as_ref(),
        uid.map(Uid::from_raw),
        gid.map(Gid::from_raw),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

pub(crate) fn rename(old: &Path, new: &Path, flags: RenameFlags) -> String {
    said(rustix::fs::renameat_with(CWD, old, CWD, new, flags))
}

pub(crate) fn me() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub(crate) fn long(bytes: usize) -> String {
    "n".repeat(bytes)
}

/// Returns a path of `bytes` bytes below a directory.
pub(crate) fn deep(below: &Path, bytes: usize) -> PathBuf {
    let mut path = below.as_os_str().as_bytes().to_vec();
    while path.len() + 2 <= bytes {
        path.extend_from_slice(b"/x");
    }
    path.resize(bytes, b'/');
    PathBuf::from(OsStr::from_bytes(&path))
}

pub(crate) fn text(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) if bytes.len() > 64 => {
            format!("{}:{}", bytes.len(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>())
        }
        Ok(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes)),
        Err(error) => name_of(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

pub(crate) fn names(path: &Path) -> String {
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

/// Maps a shared page at an offset of the file and stores a byte into it.
pub(crate) fn poke(fd: impl AsFd, at: u64, byte: u8) -> String {
    let page = at & !4095;
    // SAFETY: a new mapping; the write is inside its only page, and it is unmapped after its last
    // use.
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

pub(crate) fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Names of the extended attributes that a file has of its own.
pub(crate) fn list(path: &Path) -> String {
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
