//! Files of the tracer, opened and closed by raw system calls. The caller holds a permit for them
//! ([`crate::gate::permit`]).

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::CStr;

/// A file that is closed without libc: dropping an `OwnedFd` may call libc's `close`, which a hook
/// in this library may have replaced.
pub(crate) struct File(Option<OwnedFd>);

impl File {
    pub(crate) fn open(path: &CStr, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        // `openat`, like the loader: a filter may allow `openat` and deny `open`.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(CWD, path, flags, mode).map(|fd| File(Some(fd)))
    }

    /// The descriptor. Never `None`: the file is open until it is dropped.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            // SAFETY: `close` requires
            // - an open descriptor that this process owns: this value owned it;
            // - no use of it afterwards: it was taken out of the value.
            unsafe { rustix::io::close(fd.into_raw_fd()) };
        }
    }
}
