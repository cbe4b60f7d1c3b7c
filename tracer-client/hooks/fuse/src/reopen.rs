//! Identity of a file without a descriptor, and reopening it.
//!
//! The kernel's file handle serves both purposes if the file system has handles and the process may
//! open files by them (`CAP_DAC_READ_SEARCH`). A handle contains the generation of the inode
//! number, so that a later file with the same number is distinguished. If handles only identify
//! files, or if there are none, a file is opened by its path and compared; without handles by its
//! time of birth.

use crate::location::Location;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Maximum size of a handle in bytes: Linux's `MAX_HANDLE_SZ`.
const MAX_HANDLE_BYTES: usize = 128;
/// Maximum length of a path in one call, in bytes. It is less than Linux's `PATH_MAX` by more than
/// the longest name.
const MAX_PATH_BYTES: usize = 3 << 10;
/// Flags to open a name itself, not the target of a symbolic link.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Distinguishes a file from every other file with the same device and inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileIdentity {
    /// A file handle of the kernel.
    Handle { kind: i32, bytes: Box<[u8]> },
    /// Type and time of birth of a file; the time is 0 if the file system does not have it.
    Birth { file_type: FileType, seconds: i64, nanoseconds: u32 },
}

/// Data that reopens a file whose descriptor was closed.
#[derive(Debug)]
pub(crate) struct ReopenKey {
    identity: FileIdentity,
    /// A directory of the same mount, if the identity is a handle that opens the file there.
    anchor: Option<Arc<OwnedFd>>,
}

impl ReopenKey {
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.anchor.is_some()
    }

    /// Returns whether a descriptor refers to the file of this key.
    pub(crate) fn is_file_of(&self, fd: impl AsFd) -> bool {
        self.identity == identify(fd.as_fd()).0
    }
}

/// `struct file_handle` with space for the longest handle.
#[repr(C)]
struct RawFileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE_BYTES],
}

impl RawFileHandle {
    fn new(kind: i32, handle: &[u8]) -> RawFileHandle {
        let mut raw = RawFileHandle { bytes: handle.len() as u32, kind, handle: [0; MAX_HANDLE_BYTES] };
        raw.handle[..handle.len()].copy_from_slice(handle);
        raw
    }

    fn as_ptr(&mut self) -> *mut libc::file_handle {
        std::ptr::from_mut(self).cast()
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Returns the handle of a file, and the id of its mount.
fn handle_of(fd: BorrowedFd<'_>, flags: i32) -> Result<(FileIdentity, i32), Errno> {
    let mut raw = RawFileHandle { bytes: MAX_HANDLE_BYTES as u32, kind: 0, handle: [0; MAX_HANDLE_BYTES] };
    let mut mount = 0;
    // SAFETY:
    // - The path is a NUL-terminated string.
    // - `raw` has the layout of `struct file_handle`, followed by as many bytes as it specifies.
    // - `raw` and `mount` outlive the call.
    let returned = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            raw.as_ptr(),
            &raw mut mount,
            libc::AT_EMPTY_PATH | flags,
        )
    };
    if returned != 0 {
        return Err(last_error());
    }
    let bytes = raw.handle.get(..raw.bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok((FileIdentity::Handle { kind: raw.kind, bytes: bytes.into() }, mount))
}

/// Returns the identity of a file, and the id of its mount if the identity is a handle that may
/// open the file.
fn identify(fd: BorrowedFd<'_>) -> (FileIdentity, Option<i32>) {
    if let Ok((identity, mount)) = handle_of(fd, 0) {
        return (identity, Some(mount));
    }
    // Since Linux 6.5 every file system has handles that only identify.
    if let Ok((identity, _)) = handle_of(fd, libc::AT_HANDLE_FID) {
        return (identity, None);
    }
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::BTIME);
    let unknown = FileIdentity::Birth { file_type: FileType::Unknown, seconds: 0, nanoseconds: 0 };
    let birth = stat.map_or(unknown, |stat| FileIdentity::Birth {
        file_type: FileType::from_raw_mode(stat.stx_mode.into()),
        seconds: stat.stx_btime.tv_sec,
        nanoseconds: stat.stx_btime.tv_nsec,
    });
    (birth, None)
}

fn open_handle(anchor: &OwnedFd, identity: &FileIdentity) -> Result<OwnedFd, Errno> {
    let FileIdentity::Handle { kind, bytes } = identity else { return Err(Errno::OPNOTSUPP) };
    let mut raw = RawFileHandle::new(*kind, bytes);
    // SAFETY:
    // - `raw` has the layout of `struct file_handle`, followed by as many bytes as it specifies.
    // - `raw` outlives the call.
    let fd = unsafe {
        libc::open_by_handle_at(anchor.as_raw_fd(), raw.as_ptr(), PATH_FLAGS.bits() as libc::c_int)
    };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY:
    // - The call has just opened `fd`, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates the keys of files and reopens files by them.
#[derive(Debug)]
pub(crate) struct Reopener {
    root: Arc<OwnedFd>,
    /// Anchors by the id of their mount. `None`: handles do not open files there.
    anchors: Mutex<HashMap<i32, Option<Weak<OwnedFd>>>>,
    /// Keeps the anchor of the source open.
    root_anchor: Option<Arc<OwnedFd>>,
}

impl Reopener {
    pub(crate) fn new(root: Arc<OwnedFd>) -> Reopener {
        let mut reopener = Reopener { root: root.clone(), anchors: Mutex::default(), root_anchor: None };
        reopener.root_anchor = reopener.key(&*root, &Arc::default(), true).anchor;
        reopener
    }

    /// Returns whether handles open the files of the source's own file system.
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.root_anchor.is_some()
    }

    /// Returns the key of a file that is, or was, at a location.
    pub(crate) fn key(&self, fd: impl AsFd, location: &Arc<Location>, is_directory: bool) -> ReopenKey {
        let (identity, mount) = identify(fd.as_fd());
        let anchor = mount.and_then(|mount| {
            self.anchor(mount, || {
                if is_directory {
                    open_anchor(fd.as_fd(), mount)
                } else {
                    open_anchor(self.open_at(&location.directory()?).ok()?.as_fd(), mount)
                }
            })
        });
        ReopenKey { identity, anchor }
    }

    /// Returns a directory of a mount. If none is known, `open` opens one.
    fn anchor(&self, mount: i32, open: impl FnOnce() -> Option<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let mut anchors = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        match anchors.get(&mount) {
            Some(None) => return None,
            Some(Some(anchor)) => {
                if let Some(anchor) = anchor.upgrade() {
                    return Some(anchor);
                }
            }
            None => {}
        }
        let opened = open().map(Arc::new);
        anchors.insert(mount, opened.as_ref().map(Arc::downgrade));
        opened
    }

    /// Opens a file that has no descriptor: by its handle, or at its last known location if the
    /// file there is the same.
    ///
    /// # Errors
    /// - `ESTALE` if the file cannot be found.
    /// - `EMFILE`, `ENFILE` or `ENOMEM` if resources are exhausted.
    pub(crate) fn open(&self, key: &ReopenKey, location: &Arc<Location>) -> Result<OwnedFd, Errno> {
        if let Some(anchor) = &key.anchor {
            match open_handle(anchor, &key.identity) {
                Err(Errno::STALE | Errno::OPNOTSUPP | Errno::PERM | Errno::NOENT) => {}
                opened => return opened,
            }
        }
        match self.open_at(location) {
            Ok(fd) if key.is_file_of(&fd) => Ok(fd),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno),
            _ => Err(Errno::STALE),
        }
    }

    /// Opens the file at a location. A long path is opened in several steps.
    fn open_at(&self, location: &Arc<Location>) -> Result<OwnedFd, Errno> {
        let path = location.path(b"");
        let mut rest = path.strip_prefix(b"/").unwrap_or(&path);
        let mut reached: Option<OwnedFd> = None;
        while rest.len() > MAX_PATH_BYTES {
            let slash = rest[..MAX_PATH_BYTES].iter().rposition(|byte| *byte == b'/');
            let slash = slash.ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = reached.as_ref().unwrap_or(&self.root);
            reached = Some(rustix::fs::openat(from, &rest[..slash], flags, Mode::empty())?);
            rest = &rest[slash + 1..];
        }
        let from = reached.as_ref().unwrap_or(&self.root);
        let name: &[u8] = if rest.is_empty() { b"." } else { rest };
        rustix::fs::openat(from, name, PATH_FLAGS, Mode::empty())
    }
}

/// Opens a directory so that handles can be used with it. Returns `None` if the directory is not of
/// this mount or if handles do not open files there.
fn open_anchor(directory: BorrowedFd<'_>, mount: i32) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let anchor = rustix::fs::openat(directory, c".", flags, Mode::empty()).ok()?;
    let (identity, anchor_mount) = handle_of(anchor.as_fd(), 0).ok()?;
    (anchor_mount == mount && open_handle(&anchor, &identity).is_ok()).then_some(anchor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    fn location_of(root: &Arc<Location>, name: &str) -> Arc<Location> {
        Arc::new(Location::new(root, name.as_ref()))
    }

    fn open_path(path: &Path) -> OwnedFd {
        rustix::fs::open(path, PATH_FLAGS, Mode::empty()).unwrap()
    }

    fn test_directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("miot-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn key_reopens_its_file_and_no_other() {
        let dir = test_directory("reopen");
        fs::write(dir.join("a"), "first").unwrap();
        let reopener = Reopener::new(Arc::new(open_path(&dir)));
        let root = Arc::new(Location::default());
        let location = location_of(&root, "a");
        let key = reopener.key(open_path(&dir.join("a")), &location, false);
        let number = fs::metadata(dir.join("a")).unwrap().ino();
        let again = reopener.open(&key, &location).unwrap();
        assert_eq!(rustix::fs::fstat(&again).unwrap().st_ino, number);
        // With handles the file is found after a rename; without, only at its new location.
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert_eq!(reopener.open(&key, &location).is_ok(), reopener.opens_by_handle());
        let by_path = ReopenKey { anchor: None, ..key };
        assert_eq!(reopener.open(&by_path, &location).unwrap_err(), Errno::STALE);
        let moved = reopener.open(&by_path, &location_of(&root, "b")).unwrap();
        assert_eq!(rustix::fs::fstat(&moved).unwrap().st_ino, number);
        fs::write(dir.join("a"), "another").unwrap();
        assert_eq!(reopener.open(&by_path, &location).unwrap_err(), Errno::STALE);
        drop((again, moved));
        fs::remove_file(dir.join("b")).unwrap();
        assert_eq!(reopener.open(&by_path, &location).unwrap_err(), Errno::STALE);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn reused_inode_number_is_another_file() {
        let dir = test_directory("reused");
        let path = dir.join("a");
        let root = Arc::new(Location::default());
        let reopener = Reopener::new(Arc::new(open_path(&dir)));
        let mut reused = 0;
        for _ in 0..64 {
            File::create(&path).unwrap();
            let key = reopener.key(open_path(&path), &location_of(&root, "a"), false);
            let number = inode_number(&path);
            fs::remove_file(&path).unwrap();
            File::create(&path).unwrap();
            reused += u32::from(inode_number(&path) == number);
            assert!(!key.is_file_of(open_path(&path)));
            assert_eq!(reopener.open(&key, &location_of(&root, "a")).unwrap_err(), Errno::STALE);
            fs::remove_file(&path).unwrap();
        }
        println!("{reused} of 64 inode numbers were used again");
        fs::remove_dir_all(&dir).unwrap();
    }

    fn inode_number(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn path_longer_than_path_max_is_opened_in_steps() {
        let dir = test_directory("deep");
        let (mut location, name) = (Arc::new(Location::default()), "d".repeat(200));
        let root: OwnedFd = open_path(&dir);
        let mut at = rustix::io::fcntl_dupfd_cloexec(&root, 0).unwrap();
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &*name, PATH_FLAGS, Mode::empty()).unwrap();
            location = location_of(&location, &name);
        }
        let reopener = Reopener::new(Arc::new(root));
        let key = ReopenKey { anchor: None, ..reopener.key(&at, &location, true) };
        assert!(reopener.open(&key, &location).is_ok());
        fs::remove_dir_all(&dir).unwrap();
    }
}
