//! Hooks of opening and closing streams.

use super::{Stream, descriptor};
use crate::description::generation;
use crate::descriptor::record_close;
use crate::files::{OpenedFile, begin, begin_on, event_flags, tracked};
use crate::open::open_with;
use crate::path::{Path, PathArgument, arg};
use crate::process::on_spawn;
use crate::real::{ReturnValue, hook};
use crate::table;
use miot_tracer::op::{Op, stdio};
use miot_tracer::{Completion, Ext, NONE, cancel, end, end_with, flag, new_handle};
use std::ffi::{CStr, c_char, c_int};

/// `mode` of `fopen`: a pointer to a string that libc reads before the call can fail.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct OpenMode(*const c_char);

impl OpenMode {
    /// Returns the flags with which libc opens. Must be called after the real call.
    fn flags(self) -> c_int {
        if self.0.is_null() {
            return 0;
        }
        // SAFETY:
        // - The pointer is not null, and libc has read a NUL-terminated string at this address.
        let mode = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        // The character set follows a comma.
        let mode = mode.split(|byte| *byte == b',').next().unwrap_or_default();
        let has = |letter: u8, flag: c_int| if mode.contains(&letter) { flag } else { 0 };
        let (one_way, create) = match mode.first() {
            Some(b'w') => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
            Some(b'a') => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
            _ => (libc::O_RDONLY, 0),
        };
        let access = if mode.contains(&b'+') { libc::O_RDWR } else { one_way };
        access | create | has(b'x', libc::O_EXCL) | has(b'e', libc::O_CLOEXEC)
    }

    /// Returns flags and mode bits as in the argument word of `open`.
    fn arg(self) -> u64 {
        let flags = self.flags();
        arg(flags, if flags & libc::O_CREAT != 0 { 0o666 } else { 0 })
    }
}

/// Returns the initial position of a stream that is opened with these flags.
const fn initial_position(flags: c_int) -> u64 {
    if flags & libc::O_APPEND != 0 { NONE } else { 0 }
}

/// Records the open of a path as a stream.
fn record_open_path(op: Op, path: Path, mode: OpenMode, real: impl FnOnce() -> Stream) -> Stream {
    let flags = || mode.flags();
    let stream = || initial_position(mode.flags());
    open_with(op, path.into(), flags, || mode.arg(), stream, real, |new| descriptor(*new))
}

hook!(fopen | fopen64 (path: Path, mode: OpenMode) -> Stream, |real| {
    record_open_path(stdio::FOPEN, path, mode, real)
});
hook!(freopen | freopen64 (path: Path, mode: OpenMode, stream: Stream) -> Stream, |real| {
    // The old file is closed even if the call fails.
    table::forget(descriptor(stream));
    if !path.0.is_null() {
        return record_open_path(stdio::FREOPEN, path, mode, real);
    }
    // Without a path the same file gets another mode. Its descriptor identifies it.
    let begun = begin(stdio::FREOPEN);
    let new = real();
    let failure = new.result();
    let fd = if failure < 0 { -1 } else { descriptor(new) };
    table::forget(fd);
    let Some(begun) = begun else { return new };
    let done = Completion { length: mode.arg(), ..Completion::of(failure.min(0)) };
    if failure < 0 {
        end(begun, done);
    } else if let Some(file) = tracked(stdio::FREOPEN, fd) {
        end(begun, Completion { handle: file.handle(), result: i64::from(fd), flags: file.flags(), ..done });
    } else {
        cancel(begun);
    }
    new
});
hook!(fdopen(fd: c_int, mode: OpenMode) -> Stream, |real| {
    let Some(file) = tracked(stdio::FDOPEN, fd) else { return real() };
    let begun = begin_on(stdio::FDOPEN, file.args_without_offset(NONE));
    let Some(begun) = begun else { return file.run_unrecorded(real) };
    let new = real();
    let failure = new.result();
    if failure >= 0 {
        let flags = mode.flags();
        if flags & libc::O_APPEND != 0 {
            // libc sets the flag on the descriptor.
            file.set(u32::from(flag::APPEND));
        }
        let position = if file.flags() & flag::APPEND != 0 { NONE } else { file.position(fd) };
        file.set_stream_position(position);
    }
    let result = if failure < 0 { failure } else { i64::from(fd) };
    let (handle, flags) = (file.handle(), file.flags());
    end(begun, Completion { handle, length: mode.arg(), flags, ..Completion::of(result) });
    new
});
hook!(fclose(stream: Stream) -> c_int, |real| record_close(stdio::FCLOSE, descriptor(stream), real));

hook!(tmpfile | tmpfile64 () -> Stream, |real| {
    let generation = generation();
    let begun = begin(stdio::TMPFILE);
    let new = real();
    let failure = new.result();
    let fd = if failure < 0 { -1 } else { descriptor(new) };
    let Some(begun) = begun else {
        table::forget(fd);
        return new;
    };
    if failure < 0 {
        end(begun, Completion::of(failure));
        return new;
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let handle = new_handle();
    // This event does not name the file; `tracked` then queries its name, which no directory
    // contains.
    OpenedFile { fd, handle, flags, generation, stream: 0, defined: false }.add_to_table();
    if tracked(stdio::TMPFILE, fd).is_some() {
        end(begun, Completion { handle, flags: event_flags(flags), ..Completion::of(i64::from(fd)) });
    } else {
        cancel(begun);
    }
    new
});

// A pipe is not a file: the call is recorded, with the command instead of a path, but no request on
// the stream.
hook!(popen(command: Path, kind: *const c_char) -> Stream, |real| {
    let begun = begin(stdio::POPEN);
    let new = on_spawn(real);
    let failure = new.result();
    let fd = if failure < 0 { -1 } else { descriptor(new) };
    table::forget(fd);
    if let Some(begun) = begun {
        let done = Completion::of(if failure < 0 { failure } else { i64::from(fd) });
        command.as_given(failure, PathArgument::First, |path1| end_with(begun, done, &Ext { path1, ..Ext::default() }));
    }
    new
});
hook!(pclose(stream: Stream) -> c_int, |real| {
    let begun = begin(stdio::PCLOSE);
    table::forget(descriptor(stream));
    let status = real();
    if let Some(begun) = begun {
        end(begun, Completion::of(status.result()));
    }
    status
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_convert_to_open_flags() {
        let create = libc::O_CREAT | libc::O_TRUNC;
        for (mode, flags) in [
            (c"r", libc::O_RDONLY),
            (c"rb+", libc::O_RDWR),
            (c"w", libc::O_WRONLY | create),
            (c"w+xe", libc::O_RDWR | create | libc::O_EXCL | libc::O_CLOEXEC),
            (c"a", libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND),
            (c"r,ccs=e+x", libc::O_RDONLY),
        ] {
            assert_eq!(OpenMode(mode.as_ptr()).flags(), flags, "{mode:?}");
        }
        assert_eq!(OpenMode(std::ptr::null()).flags(), 0);
        assert_eq!(OpenMode(c"w".as_ptr()).arg() >> 32, 0o666);
    }
}
