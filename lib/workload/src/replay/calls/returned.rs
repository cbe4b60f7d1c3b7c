//! Return values of libc calls as results.

use rustix::io::Errno;
use std::ffi::c_int;

pub(super) type Result<T> = std::result::Result<T, Errno>;

/// Converts the return value of a call that reports failure as −1 with `errno`.
pub(super) fn returned(value: impl Into<i64>) -> Result<i64> {
    match value.into() {
        -1 => Err(last_error()),
        value => Ok(value),
    }
}

/// The `errno` of the last failed call of this thread.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Converts the return value of a call that returns its error number, such as `posix_fallocate`.
pub(super) fn returned_errno(value: c_int) -> Result<i64> {
    if value == 0 { Ok(0) } else { Err(Errno::from_raw_os_error(value)) }
}
