//! Strings and lines.

use super::{Moved, Stream, moving, nothing_read, standard_output};
use crate::real::{Returned, hook};
use miot_tracer::NONE;
use miot_tracer::op::stdio;
use std::ffi::{CStr, c_char, c_int};

hook!(fgets | fgets_unlocked (line: *mut c_char, size: c_int, stream: Stream) -> *mut c_char, |real| {
    moving(stdio::FGETS, stream, real, |line| read_line(stream, line, size))
});
hook!(__fgets_chk | __fgets_unlocked_chk (
    line: *mut c_char, room: usize, size: c_int, stream: Stream,
) -> *mut c_char, |real| {
    moving(stdio::FGETS, stream, real, |line| read_line(stream, line, size))
});

fn read_line(stream: Stream, line: *mut c_char, size: c_int) -> (u64, Moved) {
    if line.is_null() {
        return (size as u64, Moved::By(nothing_read(stream)));
    }
    // SAFETY: `fgets` has just written a string here.
    let read = unsafe { CStr::from_ptr(line) }.to_bytes();
    // Neither full nor ended by a newline: the end of the file, or a NUL among the bytes read.
    let whole = read.last() == Some(&b'\n') || read.len() as i64 == i64::from(size) - 1;
    (size as u64, if whole { Moved::By(read.len() as i64) } else { Moved::Ask })
}

hook!(getline(line: *mut *mut c_char, size: *mut usize, stream: Stream) -> isize, |real| {
    moving(stdio::GETLINE, stream, real, |read| read_delimited(stream, read))
});
hook!(getdelim | __getdelim (
    line: *mut *mut c_char, size: *mut usize, delimiter: c_int, stream: Stream,
) -> isize, |real| {
    // What `getline` is where the compiler inlines it.
    let op = if delimiter == c_int::from(b'\n') { stdio::GETLINE } else { stdio::GETDELIM };
    moving(op, stream, real, |read| read_delimited(stream, read))
});

fn read_delimited(stream: Stream, read: isize) -> (u64, Moved) {
    (NONE, Moved::By(if read == -1 { nothing_read(stream) } else { read as i64 }))
}

hook!(fputs | fputs_unlocked (string: *const c_char, stream: Stream) -> c_int, |real| {
    moving(stdio::FPUTS, stream, real, |returned| written(string, 0, returned))
});
hook!(puts(string: *const c_char) -> c_int, |real| {
    moving(stdio::PUTS, standard_output(), real, |returned| written(string, 1, returned))
});

/// `more` bytes follow the string.
fn written(string: *const c_char, more: i64, returned: c_int) -> (u64, Moved) {
    if returned < 0 {
        return (NONE, Moved::By((-1 as c_int).result()));
    }
    // SAFETY: a string, which libc has just read.
    let bytes = unsafe { CStr::from_ptr(string) }.count_bytes() as i64 + more;
    (bytes as u64, Moved::By(bytes))
}
