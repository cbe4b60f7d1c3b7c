//! Hooks of strings and lines.

use super::{Movement, Stream, nothing_read, record_transfer, standard_output};
use crate::real::{ReturnValue, hook};
use miot_tracer::NONE;
use miot_tracer::op::stdio;
use std::ffi::{CStr, c_char, c_int};

hook!(fgets | fgets_unlocked (line: *mut c_char, size: c_int, stream: Stream) -> *mut c_char, |real| {
    record_transfer(stdio::FGETS, stream, real, |line| read_line(stream, line, size))
});
hook!(__fgets_chk | __fgets_unlocked_chk (
    line: *mut c_char, room: usize, size: c_int, stream: Stream,
) -> *mut c_char, |real| {
    record_transfer(stdio::FGETS, stream, real, |line| read_line(stream, line, size))
});

fn read_line(stream: Stream, line: *mut c_char, size: c_int) -> (u64, Movement) {
    if line.is_null() {
        return (size as u64, Movement::Bytes(nothing_read(stream)));
    }
    // SAFETY:
    // - `fgets` has just written a NUL-terminated string at this address.
    let read = unsafe { CStr::from_ptr(line) }.to_bytes();
    // A string that neither fills the buffer nor ends in a newline: the file has ended, or the
    // bytes read contain a NUL.
    let is_measurable = read.last() == Some(&b'\n') || read.len() as i64 == i64::from(size) - 1;
    (size as u64, if is_measurable { Movement::Bytes(read.len() as i64) } else { Movement::Unknown })
}

hook!(getline(line: *mut *mut c_char, size: *mut usize, stream: Stream) -> isize, |real| {
    record_transfer(stdio::GETLINE, stream, real, |read| read_delimited(stream, read))
});
hook!(getdelim | __getdelim (
    line: *mut *mut c_char, size: *mut usize, delimiter: c_int, stream: Stream,
) -> isize, |real| {
    // Compilers inline `getline` as this call.
    let op = if delimiter == c_int::from(b'\n') { stdio::GETLINE } else { stdio::GETDELIM };
    record_transfer(op, stream, real, |read| read_delimited(stream, read))
});

fn read_delimited(stream: Stream, read: isize) -> (u64, Movement) {
    (NONE, Movement::Bytes(if read == -1 { nothing_read(stream) } else { read as i64 }))
}

hook!(fputs | fputs_unlocked (string: *const c_char, stream: Stream) -> c_int, |real| {
    record_transfer(stdio::FPUTS, stream, real, |returned| written(string, 0, returned))
});
hook!(puts(string: *const c_char) -> c_int, |real| {
    record_transfer(stdio::PUTS, standard_output(), real, |returned| written(string, 1, returned))
});

/// Returns requested bytes and movement of a write of a string, which `extra` bytes follow.
fn written(string: *const c_char, extra: i64, returned: c_int) -> (u64, Movement) {
    if returned < 0 {
        return (NONE, Movement::Bytes((-1 as c_int).result()));
    }
    // SAFETY:
    // - The call has succeeded, so that libc has just read a NUL-terminated string at this address.
    let bytes = unsafe { CStr::from_ptr(string) }.count_bytes() as i64 + extra;
    (bytes as u64, Movement::Bytes(bytes))
}
