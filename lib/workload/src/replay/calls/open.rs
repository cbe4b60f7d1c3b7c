//! Requests that open a file by its path.

use super::libc_calls::{self, Directory};
use super::returned::Result;
use super::{Target, permissions};
use crate::replay::ReplayStep;
use miot_proto::op::posix;
use rustix::fs::FileType;
use std::ffi::{CStr, c_int, c_uint};

/// Flags and permissions with which `mkstemp` creates a file.
const MKSTEMP_FLAGS: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
const MKSTEMP_MODE: c_uint = 0o600;

impl Target {
    /// Opens the path as the step did, and enters the file in the table.
    pub(super) fn open(&self, step: &ReplayStep, path: &CStr) -> Result<i64> {
        if step.operation() == posix::OPENDIR {
            return self.open_directory(step, path);
        }
        let flags = open_flags(step, path);
        let mode = permissions(step.high_argument());
        let fd = match step.operation() {
            posix::OPEN => libc_calls::open(path, flags, mode),
            posix::OPENAT => libc_calls::openat(path, flags, mode),
            posix::CREAT => libc_calls::creat(path, mode),
            _ => libc_calls::open(path, MKSTEMP_FLAGS, MKSTEMP_MODE),
        }?;
        self.enter(step, fd as c_int);
        Ok(fd)
    }

    fn open_directory(&self, step: &ReplayStep, path: &CStr) -> Result<i64> {
        let directory = Directory::open(path)?;
        let fd = directory.descriptor();
        let mut files = self.files();
        files.insert(step.handle, step.result, fd);
        files.set_directory(step.handle, directory.address(), fd);
        Ok(i64::from(fd))
    }

    /// Enters the opened file. One whose open failed in the trace has no handle: it is closed.
    fn enter(&self, step: &ReplayStep, fd: c_int) {
        if step.result < 0 || step.handle == 0 {
            let _ = libc_calls::close(fd);
        } else {
            self.files().insert(step.handle, step.result, fd);
        }
    }
}

/// Flags of `open`. A named pipe is opened for reading and writing, which does not block: the
/// process that opens the other end may not be in the trace.
fn open_flags(step: &ReplayStep, path: &CStr) -> c_int {
    let flags = step.low_argument();
    if !is_pipe(path) {
        return flags;
    }
    let access = if step.result < 0 { flags & libc::O_ACCMODE } else { libc::O_RDWR };
    flags & !libc::O_ACCMODE | access | libc::O_NONBLOCK
}

/// True if the path is that of a named pipe. A hook does not record this check.
pub(super) fn is_pipe(path: &CStr) -> bool {
    let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::Fifo)
}
