//! Calls that move data between a descriptor and memory, or between two descriptors.

use super::super::returned::{Result, returned};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Calls that fill `memory`, all of it in one segment.
macro_rules! reads {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name(fd: c_int, memory: &mut [u8] $(, $argument: $type)*) -> Result<i64> {
            // SAFETY:
            // - `memory` is valid for writes of `memory.len()` bytes, and this call has it alone;
            // - the other arguments are numbers.
            returned(unsafe { $function(fd, memory.as_mut_ptr().cast(), memory.len() $(, $argument)*) } as i64)
        }
    )* };
}

reads! {
    read => libc::read, ();
    pread => libc::pread64, (offset: i64);
}

/// Calls that write `memory`, all of it in one segment.
macro_rules! writes {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name(fd: c_int, memory: &[u8] $(, $argument: $type)*) -> Result<i64> {
            // SAFETY:
            // - `memory` is valid for reads of `memory.len()` bytes, and the call only reads it;
            // - the other arguments are numbers.
            returned(unsafe { $function(fd, memory.as_ptr().cast(), memory.len() $(, $argument)*) } as i64)
        }
    )* };
}

writes! {
    write => libc::write, ();
    pwrite => libc::pwrite64, (offset: i64);
}

/// Calls that fill `memory` through a vector of one segment. The last numbers are flags: none.
macro_rules! vector_reads {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*) $(, $flags:literal)?;)*) => { $(
        pub(in crate::replay::calls) fn $name(fd: c_int, memory: &mut [u8] $(, $argument: $type)*) -> Result<i64> {
            let vector = [libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }];
            // SAFETY:
            // - `vector` has one segment and outlives the call;
            // - its segment is valid for writes of its length, and this call has it alone;
            // - the other arguments are numbers.
            returned(unsafe { $function(fd, vector.as_ptr(), 1 $(, $argument)* $(, $flags)?) } as i64)
        }
    )* };
}

vector_reads! {
    readv => libc::readv, ();
    preadv => libc::preadv, (offset: i64);
    preadv2 => libc::preadv2, (offset: i64), 0;
}

/// Calls that write `memory` through a vector of one segment. The last numbers are flags: none.
macro_rules! vector_writes {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*) $(, $flags:literal)?;)*) => { $(
        pub(in crate::replay::calls) fn $name(fd: c_int, memory: &[u8] $(, $argument: $type)*) -> Result<i64> {
            let vector = [libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() }];
            // SAFETY:
            // - `vector` has one segment and outlives the call;
            // - its segment is valid for reads of its length, and the call only reads it;
            // - the other arguments are numbers.
            returned(unsafe { $function(fd, vector.as_ptr(), 1 $(, $argument)* $(, $flags)?) } as i64)
        }
    )* };
}

vector_writes! {
    writev => libc::writev, ();
    pwritev => libc::pwritev, (offset: i64);
    pwritev2 => libc::pwritev2, (offset: i64), 0;
}

/// `None` stands for a null pointer: the position of the descriptor.
fn offset_pointer(offset: &mut Option<i64>) -> *mut i64 {
    offset.as_mut().map_or(null_mut(), |offset| offset)
}

pub(in crate::replay::calls) fn copy_file_range(
    from: c_int,
    mut from_offset: Option<i64>,
    to: c_int,
    mut to_offset: Option<i64>,
    length: usize,
) -> Result<i64> {
    let from_offset = offset_pointer(&mut from_offset);
    let to_offset = offset_pointer(&mut to_offset);
    // SAFETY:
    // - each offset is null or points to an integer that outlives the call;
    // - the other arguments are numbers.
    returned(unsafe { libc::copy_file_range(from, from_offset, to, to_offset, length, 0) } as i64)
}

pub(in crate::replay::calls) fn sendfile(
    to: c_int,
    from: c_int,
    mut from_offset: Option<i64>,
    length: usize,
) -> Result<i64> {
    let from_offset = offset_pointer(&mut from_offset);
    // SAFETY:
    // - the offset is null or points to an integer that outlives the call;
    // - the other arguments are numbers.
    returned(unsafe { libc::sendfile64(to, from, from_offset, length) } as i64)
}
