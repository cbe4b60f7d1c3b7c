//! A file without a descriptor: what tells it from every other, and how it is opened again.
//!
//! The kernel's file handle does both, where the file system has them and the process may open by them
//! (`CAP_DAC_READ_SEARCH`). It contains the generation of the inode number, so that a file that has the number later is
//! another one. Where there are handles that only identify, or none, a file is opened by its path and compared; without
//! handles by the time of its birth.

use crate::place::Place;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Linux's `MAX_HANDLE_SZ`.
const MOST_BYTES: usize = 128;
/// Most bytes of a path in one call, less than Linux's `PATH_MAX` by more than the longest name.
const MOST_PATH: usize = 3 << 10;
/// A name to be found, and not what it points to.
const FOUND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What tells a file from every other with its device and inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A handle of this type.
    Handle(i32, Box<[u8]>),
    /// Type of the file; seconds and nanoseconds of its birth, 0 if the file system does not know.
    Born(FileType, i64, u32),
}

/// What is kept of a file whose descriptor was closed.
#[derive(Debug)]
pub(crate) struct Mark {
    identity: Identity,
    /// A directory of the same mount, if the identity is a handle that opens the file there.
    anchor: Option<Arc<OwnedFd>>,
}

impl Mark {
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.anchor.is_some()
    }

    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        self.identity == identify(fd.as_fd()).0
    }
}

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct Raw {
    bytes: u32,
    kind: i32,
    handle: [u8; MOST_BYTES],
}

impl Raw {
    fn new(kind: i32, handle: &[u8]) -> Raw {
        let mut raw = Raw { bytes: handle.len() as u32, kind, handle: [0; MOST_BYTES] };
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

/// The handle of a file, and the id of the mount through which it is seen.
fn handle_of(fd: BorrowedFd<'_>, flags: i32) -> Result<(Identity, i32), Errno> {
    let mut raw = Raw { bytes: MOST_BYTES as u32, kind: 0, handle: [0; MOST_BYTES] };
    let mut mount = 0;
    // SAFETY:
    // - the path is a string that ends in NUL;
    // - the handle has the layout of `struct file_handle`, with as many bytes after it as it says;
    // - both outlive the call.
    let done = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            raw.as_ptr(),
            &raw mut mount,
            libc::AT_EMPTY_PATH | flags,
        )
    };
    if done != 0 {
        return Err(last_error());
    }
    let handle = raw.handle.get(..raw.bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok((Identity::Handle(raw.kind, handle.into()), mount))
}

/// With the id of the mount where the identity is a handle that may open the file.
fn identify(fd: BorrowedFd<'_>) -> (Identity, Option<i32>) {
    if let Ok((identity, mount)) = handle_of(fd, 0) {
        return (identity, Some(mount));
    }
    // Since Linux 6.5 any file system has handles that only identify.
    if let Ok((identity, _)) = handle_of(fd, libc::AT_HANDLE_FID) {
        return (identity, None);
    }
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::BTIME);
    let born = found.map_or(Identity::Born(FileType::Unknown, 0, 0), |found| {
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        Identity::Born(kind, found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    });
    (born, None)
}

fn open_handle(anchor: &OwnedFd, identity: &Identity) -> Result<OwnedFd, Errno> {
    let Identity::Handle(kind, handle) = identity else { return Err(Errno::OPNOTSUPP) };
    let mut raw = Raw::new(*kind, handle);
    // SAFETY: the handle has the layout of `struct file_handle`, with as many bytes after it as it says, and outlives the
    // call.
    let fd =
        unsafe { libc::open_by_handle_at(anchor.as_raw_fd(), raw.as_ptr(), FOUND.bits() as libc::c_int) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the call has just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes marks, and opens what they are of.
#[derive(Debug)]
pub(crate) struct Handles {
    root: Arc<OwnedFd>,
    /// By the id of the mount. `None`: handles do not open files there.
    anchors: Mutex<HashMap<i32, Option<Weak<OwnedFd>>>>,
    /// Holds that of the source for good.
    of_root: Option<Arc<OwnedFd>>,
}

impl Handles {
    pub(crate) fn new(root: Arc<OwnedFd>) -> Handles {
        let mut handles = Handles { root: root.clone(), anchors: Mutex::default(), of_root: None };
        handles.of_root = handles.mark(&*root, &Arc::default(), true).anchor;
        handles
    }

    /// Files of the source's own file system can be opened by their handles.
    pub(crate) fn open_files(&self) -> bool {
        self.of_root.is_some()
    }

    /// A mark of a file that is, or was, at `place`.
    pub(crate) fn mark(&self, fd: impl AsFd, place: &Arc<Place>, is_directory: bool) -> Mark {
        let (identity, mount) = identify(fd.as_fd());
        let anchor = mount.and_then(|mount| {
            self.anchor(mount, || {
                if is_directory {
                    anchor_at(fd.as_fd(), mount)
                } else {
                    anchor_at(self.at(&place.directory()?).ok()?.as_fd(), mount)
                }
            })
        });
        Mark { identity, anchor }
    }

    /// A directory of this mount, as `make` finds one if none is known.
    fn anchor(&self, mount: i32, make: impl FnOnce() -> Option<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let mut anchors = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        match anchors.get(&mount) {
            Some(None) => return None,
            Some(Some(known)) => {
                if let Some(anchor) = known.upgrade() {
                    return Some(anchor);
                }
            }
            None => {}
        }
        let made = make().map(Arc::new);
        anchors.insert(mount, made.as_ref().map(Arc::downgrade));
        made
    }

    /// Opens a file that has no descriptor: by its handle, else where it was last seen if it is the same file.
    ///
    /// # Errors
    /// `ESTALE` if it cannot be found.
    pub(crate) fn open(&self, mark: &Mark, place: &Arc<Place>) -> Result<OwnedFd, Errno> {
        if let Some(anchor) = &mark.anchor {
            match open_handle(anchor, &mark.identity) {
                Err(Errno::STALE | Errno::OPNOTSUPP | Errno::PERM | Errno::NOENT) => {}
                opened => return opened,
            }
        }
        match self.at(place) {
            Ok(fd) if mark.is_of(&fd) => Ok(fd),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno),
            _ => Err(Errno::STALE),
        }
    }

    /// What is at a place.
    fn at(&self, place: &Arc<Place>) -> Result<OwnedFd, Errno> {
        let path = place.path(b"");
        let mut rest = path.strip_prefix(b"/").unwrap_or(&path);
        let mut reached: Option<OwnedFd> = None;
        while rest.len() > MOST_PATH {
            let slash = rest[..MOST_PATH].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = reached.as_ref().unwrap_or(&self.root);
            reached = Some(rustix::fs::openat(from, &rest[..slash], flags, Mode::empty())?);
            rest = &rest[slash + 1..];
        }
        let from = reached.as_ref().unwrap_or(&self.root);
        let name: &[u8] = if rest.is_empty() { b"." } else { rest };
        rustix::fs::openat(from, name, FOUND, Mode::empty())
    }
}

/// The directory, open so that handles can be used with it, if it is of this mount and they can.
fn anchor_at(directory: BorrowedFd<'_>, mount: i32) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let anchor = rustix::fs::openat(directory, c".", flags, Mode::empty()).ok()?;
    let (identity, of) = handle_of(anchor.as_fd(), 0).ok()?;
    (of == mount && open_handle(&anchor, &identity).is_ok()).then_some(anchor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    fn place_of(root: &Arc<Place>, name: &str) -> Arc<Place> {
        Arc::new(Place::of(root, name.as_ref()))
    }

    fn found(path: &Path) -> OwnedFd {
        rustix::fs::open(path, FOUND, Mode::empty()).unwrap()
    }

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("miot-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn a_file_is_found_by_its_mark_and_one_with_its_name_is_not_it() {
        let dir = directory("mark");
        fs::write(dir.join("a"), "first").unwrap();
        let handles = Handles::new(Arc::new(found(&dir)));
        let root = Arc::new(Place::default());
        let place = place_of(&root, "a");
        let mark = handles.mark(found(&dir.join("a")), &place, false);
        let number = fs::metadata(dir.join("a")).unwrap().ino();
        let again = handles.open(&mark, &place).unwrap();
        assert_eq!(rustix::fs::fstat(&again).unwrap().st_ino, number);
        // Where it is not, if there are handles; and where it is, without.
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert_eq!(handles.open(&mark, &place).is_ok(), handles.open_files());
        let by_path = Mark { anchor: None, ..mark };
        assert_eq!(handles.open(&by_path, &place).unwrap_err(), Errno::STALE);
        let moved = handles.open(&by_path, &place_of(&root, "b")).unwrap();
        assert_eq!(rustix::fs::fstat(&moved).unwrap().st_ino, number);
        fs::write(dir.join("a"), "another").unwrap();
        assert_eq!(handles.open(&by_path, &place).unwrap_err(), Errno::STALE);
        drop((again, moved));
        fs::remove_file(dir.join("b")).unwrap();
        assert_eq!(handles.open(&by_path, &place).unwrap_err(), Errno::STALE);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_has_the_inode_number_later_is_another() {
        let dir = directory("reused");
        let path = dir.join("a");
        let root = Arc::new(Place::default());
        let handles = Handles::new(Arc::new(found(&dir)));
        let mut reused = 0;
        for _ in 0..64 {
            File::create(&path).unwrap();
            let (mark, number) = (handles.mark(found(&path), &place_of(&root, "a"), false), ino(&path));
            fs::remove_file(&path).unwrap();
            File::create(&path).unwrap();
            reused += u32::from(ino(&path) == number);
            assert!(!mark.is_of(found(&path)));
            assert_eq!(handles.open(&mark, &place_of(&root, "a")).unwrap_err(), Errno::STALE);
            fs::remove_file(&path).unwrap();
        }
        println!("{reused} of 64 inode numbers were used again");
        fs::remove_dir_all(&dir).unwrap();
    }

    fn ino(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn a_path_longer_than_one_call_takes_is_walked() {
        let dir = directory("deep");
        let (mut place, name) = (Arc::new(Place::default()), "d".repeat(200));
        let root: OwnedFd = found(&dir);
        let mut at = rustix::io::fcntl_dupfd_cloexec(&root, 0).unwrap();
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &*name, FOUND, Mode::empty()).unwrap();
            place = place_of(&place, &name);
        }
        let handles = Handles::new(Arc::new(root));
        let mark = Mark { anchor: None, ..handles.mark(&at, &place, true) };
        assert!(handles.open(&mark, &place).is_ok());
        fs::remove_dir_all(&dir).unwrap();
    }
}
