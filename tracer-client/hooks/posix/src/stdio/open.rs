//! Opening and closing streams.

use super::{Stream, descriptor};
use crate::description::generation;
use crate::descriptor::closing;
use crate::files::{Opened, begin, begin_on, event_flags, tracked};
use crate::open::open_with;
use crate::path::{Path, arg};
use crate::process::spawning;
use crate::real::{Returned, hook};
use crate::table;
use miot_tracer::op::stdio;
use miot_tracer::{Done, Ext, NONE, cancel, end, end_with, flag, new_handle};
use std::ffi::{CStr, c_char, c_int};

/// `mode` of `fopen`: a pointer that libc looks through before anything can fail.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Mode(*const c_char);

impl Mode {
    /// The flags that libc opens with. To be asked after the call.
    fn flags(self) -> c_int {
        if self.0.is_null() {
            return 0;
        }
        // SAFETY: a string, which libc has read.
        let mode = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        // What follows a comma is the character set.
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

    /// Flags and mode bits, as `open` would be told.
    fn arg(self) -> u64 {
        let flags = self.flags();
        arg(flags, if flags & libc::O_CREAT != 0 { 0o666 } else { 0 })
    }
}

/// Where a stream starts that was opened with these flags.
const fn start(flags: c_int) -> u64 {
    if flags & libc::O_APPEND != 0 { NONE } else { 0 }
}

hook!(fopen | fopen64 (path: Path, mode: Mode) -> Stream, |real| {
    let flags = || mode.flags();
    open_with(stdio::FOPEN, path.into(), flags, || mode.arg(), || start(mode.flags()), real, |new| descriptor(*new))
});
hook!(freopen | freopen64 (path: Path, mode: Mode, stream: Stream) -> Stream, |real| {
    // The old file is closed, whatever happens then.
    table::forget(descriptor(stream));
    if !path.0.is_null() {
        let flags = || mode.flags();
        return open_with(stdio::FREOPEN, path.into(), flags, || mode.arg(), || start(mode.flags()), real, |new| descriptor(*new));
    }
    // The same file in another mode: found by its descriptor.
    let begun = begin(stdio::FREOPEN);
    let new = real();
    let failure = new.result();
    let fd = if failure < 0 { -1 } else { descriptor(new) };
    table::forget(fd);
    let Some(begun) = begun else { return new };
    let done = Done { length: mode.arg(), ..Done::of(failure.min(0)) };
    if failure < 0 {
        end(begun, done);
    } else if let Some(file) = tracked(stdio::FREOPEN, fd) {
        end(begun, Done { handle: file.handle(), result: i64::from(fd), flags: file.flags(), ..done });
    } else {
        cancel(begun);
    }
    new
});
hook!(fdopen(fd: c_int, mode: Mode) -> Stream, |real| {
    let Some(file) = tracked(stdio::FDOPEN, fd) else { return real() };
    let Some(begun) = begin_on(stdio::FDOPEN, file.named(NONE)) else { return file.unseen(real) };
    let new = real();
    let failure = new.result();
    if failure >= 0 {
        let flags = mode.flags();
        if flags & libc::O_APPEND != 0 {
            // Libc sets it on the descriptor.
            file.set(u32::from(flag::APPEND));
        }
        let position = if file.flags() & flag::APPEND != 0 { NONE } else { file.position(fd) };
        file.set_stream(position);
    }
    let result = if failure < 0 { failure } else { i64::from(fd) };
    end(begun, Done { handle: file.handle(), length: mode.arg(), flags: file.flags(), ..Done::of(result) });
    new
});
hook!(fclose(stream: Stream) -> c_int, |real| closing(stdio::FCLOSE, descriptor(stream), real));

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
        end(begun, Done::of(failure));
        return new;
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let handle = new_handle();
    // Not named by this event; `tracked` then finds the name it never had in a directory.
    Opened { fd, handle, flags, generation, stream: 0, defined: false }.enter();
    if tracked(stdio::TMPFILE, fd).is_some() {
        end(begun, Done { handle, flags: event_flags(flags), ..Done::of(i64::from(fd)) });
    } else {
        cancel(begun);
    }
    new
});

// A pipe is no file: the call is recorded, with the command in the place of a path, and nothing on it.
hook!(popen(command: Path, kind: *const c_char) -> Stream, |real| {
    let begun = begin(stdio::POPEN);
    let new = spawning(real);
    let failure = new.result();
    let fd = if failure < 0 { -1 } else { descriptor(new) };
    table::forget(fd);
    if let Some(begun) = begun {
        let done = Done::of(if failure < 0 { failure } else { i64::from(fd) });
        command.as_given(failure, false, |path1| end_with(begun, done, &Ext { path1, ..Ext::default() }));
    }
    new
});
hook!(pclose(stream: Stream) -> c_int, |real| {
    let begun = begin(stdio::PCLOSE);
    table::forget(descriptor(stream));
    let status = real();
    if let Some(begun) = begun {
        end(begun, Done::of(status.result()));
    }
    status
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_open_flags() {
        let create = libc::O_CREAT | libc::O_TRUNC;
        for (mode, flags) in [
            (c"r", libc::O_RDONLY),
            (c"rb+", libc::O_RDWR),
            (c"w", libc::O_WRONLY | create),
            (c"w+xe", libc::O_RDWR | create | libc::O_EXCL | libc::O_CLOEXEC),
            (c"a", libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND),
            (c"r,ccs=e+x", libc::O_RDONLY),
        ] {
            assert_eq!(Mode(mode.as_ptr()).flags(), flags, "{mode:?}");
        }
        assert_eq!(Mode(std::ptr::null()).flags(), 0);
        assert_eq!(Mode(c"w".as_ptr()).arg() >> 32, 0o666);
    }
}
