//! Files of our own, opened and closed by raw system calls, which the caller has leave for (`gate`).

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::CStr;

/// Closes without libc: dropping an `OwnedFd` may call libc's `close`, which a hook in this very library
/// may have replaced.
pub(crate) struct File(Option<OwnedFd>);

impl File {
    pub(crate) fn open(path: &CStr, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        // `openat`, as the loader: a filter may allow one and not the other.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(CWD, path, flags, mode).map(|fd| File(Some(fd)))
    }

    /// `None` never happens while the file is open, which it is until dropped.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            // SAFETY: the descriptor was owned by this value and is used no more.
            unsafe { rustix::io::close(fd.into_raw_fd()) };
        }
    }
}
