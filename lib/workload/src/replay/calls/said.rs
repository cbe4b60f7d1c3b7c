//! What calls of libc say, as results.

use rustix::io::Errno;
use std::ffi::c_int;

pub(super) type Result<T> = std::result::Result<T, Errno>;

/// What a call of libc says: −1 and `errno`, or a value.
pub(super) fn said(returned: impl Into<i64>) -> Result<i64> {
    match returned.into() {
        -1 => Err(last_error()),
        value => Ok(value),
    }
}

pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What a function says that returns its error.
pub(super) fn number(returned: c_int) -> Result<i64> {
    if returned == 0 { Ok(0) } else { Err(Errno::from_raw_os_error(returned)) }
}
