//! Checks whether another process has a file open or mapped.
//!
//! The kernel grants a write lease (fcntl(2), `F_SETLEASE`) only if no other open file description
//! of the file is left, and a mapping keeps its own. A producer has its segment mapped from its
//! creation to the end of its process image, in any namespace, and a forked child does not inherit
//! the mapping. So the result shows whether the producer lives, independent of its pid, the bytes
//! of the segment and `/proc`.

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// `F_SETSIG` of fcntl(2), the same on all architectures.
const F_SETSIG: libc::c_int = 10;

/// True if another open file description or mapping of the file exists. The descriptor must be open
/// for writing. `None` if this process may not ask (another user's file without `CAP_LEASE`), or if
/// the file system has no leases.
pub(super) fn is_held(file: impl AsFd) -> Option<bool> {
    // If a process opens the file during the lease, the kernel sends a signal. Not SIGIO, which
    // would end this process, but one that is ignored by default.
    fcntl(&file, F_SETSIG, libc::SIGURG).ok()?;
    match fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => {
            let _ = fcntl(&file, libc::F_SETLEASE, libc::F_UNLCK);
            Some(false)
        }
        Err(Errno::AGAIN) => Some(true),
        Err(_) => None,
    }
}

fn fcntl(file: &impl AsFd, command: libc::c_int, argument: libc::c_int) -> Result<(), Errno> {
    // SAFETY:
    // - the descriptor is open as long as it is borrowed;
    // - these commands take an integer argument and access no memory.
    let answer = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) };
    if answer == -1 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::fs::File;

    #[test]
    fn file_is_held_while_open_or_mapped_elsewhere() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let ours = open();
        assert_eq!(is_held(&ours), Some(false));
        let theirs = open();
        assert_eq!(is_held(&ours), Some(true));
        // SAFETY:
        // - a new mapping at an address that the kernel chooses overlaps nothing;
        // - it is not accessed, and unmapped below.
        let mapped = unsafe {
            let null = std::ptr::null_mut();
            rustix::mm::mmap(null, 4096, ProtFlags::READ, MapFlags::SHARED, &theirs, 0).unwrap()
        };
        drop(theirs);
        assert_eq!(is_held(&ours), Some(true), "mapped");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(is_held(&ours), Some(true), "without a name");
        // SAFETY: unmaps exactly the mapping made above.
        unsafe { rustix::mm::munmap(mapped, 4096).unwrap() };
        assert_eq!(is_held(&ours), Some(false));
    }
}
