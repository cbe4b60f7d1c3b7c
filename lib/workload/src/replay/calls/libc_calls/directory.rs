//! Calls on directory streams.

use super::super::returned::{Result, last_error, returned};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    #[link_name = "scandir"]
    fn libc_scandir(
        path: *const c_char,
        out: *mut *mut *mut libc::dirent,
        select: *const c_void,
        compare: *const c_void,
    ) -> c_int;
}

/// An open directory stream. The table of open files holds its address and forgets it before
/// [`close`](Directory::close).
#[derive(Clone, Copy, Debug)]
pub(in crate::replay::calls) struct Directory(*mut libc::DIR);

impl Directory {
    pub(in crate::replay::calls) fn open(path: &CStr) -> Result<Directory> {
        // SAFETY: `path` is a C string that outlives the call.
        Directory::checked(unsafe { libc::opendir(path.as_ptr()) })
    }

    /// The stream owns the descriptor from now on.
    pub(in crate::replay::calls) fn from_descriptor(fd: c_int) -> Result<Directory> {
        // SAFETY: the argument is a number.
        Directory::checked(unsafe { libc::fdopendir(fd) })
    }

    fn checked(directory: *mut libc::DIR) -> Result<Directory> {
        if directory.is_null() { Err(last_error()) } else { Ok(Directory(directory)) }
    }

    /// Address for the table of open files, see [`from_address`](Directory::from_address).
    pub(in crate::replay::calls) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    /// `address` must come from [`address`](Directory::address), of a stream that is not closed.
    pub(in crate::replay::calls) fn from_address(address: usize) -> Directory {
        Directory(std::ptr::with_exposed_provenance_mut(address))
    }

    pub(in crate::replay::calls) fn descriptor(self) -> c_int {
        // SAFETY: the stream is open.
        unsafe { libc::dirfd(self.0) }
    }

    /// Returns 1 for an entry, 0 at the end.
    pub(in crate::replay::calls) fn read(self) -> i64 {
        // SAFETY:
        // - the stream is open;
        // - steps of several threads on one stream have the order of the trace, whose program had
        //   to synchronize them;
        // - the entry is only compared with null.
        i64::from(!unsafe { libc::readdir64(self.0) }.is_null())
    }

    pub(in crate::replay::calls) fn rewind(self) {
        // SAFETY: as in `read`.
        unsafe { libc::rewinddir(self.0) }
    }

    /// The table of open files must not contain the stream any more.
    pub(in crate::replay::calls) fn close(self) -> Result<i64> {
        // SAFETY: the stream is open, and nothing uses it after this.
        returned(unsafe { libc::closedir(self.0) })
    }
}

/// Returns the number of entries of a directory.
pub(in crate::replay::calls) fn scandir(path: &CStr) -> Result<i64> {
    let mut entries = null_mut();
    // SAFETY:
    // - `path` is a C string that outlives the call;
    // - `entries` is valid for writes of a pointer;
    // - null functions select all entries and leave them unsorted.
    let count = returned(unsafe { libc_scandir(path.as_ptr(), &raw mut entries, null(), null()) })?;
    if entries.is_null() {
        return Ok(count);
    }
    // SAFETY:
    // - `scandir` has returned `count` entries at `entries`;
    // - the array and each entry come from `malloc`, and nothing uses them after this.
    unsafe {
        for entry in std::slice::from_raw_parts(entries, count as usize) {
            libc::free(entry.cast());
        }
        libc::free(entries.cast());
    }
    Ok(count)
}
