//! One request of the kernel, from its arrival to just before the answer.
//!
//! The event is in the lane before the program that waits has its answer: what the program records of its own call ends later.

use miot_tracer::{Begun, Caller, Doing, Done, Ext, Layer, NONE, Op, begin, begin_on, cancel, end_with};
use rustix::io::Errno;

/// The operation in the layer of FUSE.
pub(crate) const fn fuse(op: Op) -> Op {
    Op { layer: Layer::Fuse as u8, number: op.number }
}

/// A request between its arrival and its answer.
#[derive(Debug)]
#[must_use]
pub(crate) struct Recorded {
    begun: Option<Begun>,
    caller: Option<Caller>,
}

/// How a request ended, with nothing but a result.
pub(crate) fn done<T>(result: &Result<T, Errno>, value: impl FnOnce(&T) -> i64) -> Done {
    Done::of(match result {
        Ok(ok) => value(ok),
        Err(errno) => -i64::from(errno.raw_os_error()),
    })
}

/// [`done`] of a request with an argument.
pub(crate) fn done_with<T>(result: &Result<T, Errno>, argument: u64) -> Done {
    Done { length: argument, ..done(result, |_| 0) }
}

/// Flags, and the mode in the upper half.
pub(crate) fn argument(flags: i32, mode: u32) -> u64 {
    u64::from(flags as u32) | u64::from(mode) << 32
}

impl Recorded {
    /// Something records it.
    pub(crate) fn is_some(&self) -> bool {
        self.begun.is_some()
    }

    /// A request that names files.
    pub(crate) fn begin(op: Op, request: &fuser::Request) -> Recorded {
        Recorded { begun: begin(fuse(op)), caller: caller(request) }
    }

    /// A request on an open file, to which `define` gives its name if the trace does not have it.
    pub(crate) fn on(
        op: Op,
        request: &fuser::Request,
        doing: Doing,
        define: impl FnOnce() -> bool,
    ) -> Recorded {
        let op = fuse(op);
        let mut begun = begin_on(op, doing);
        if let Some(first) = begun
            && define()
        {
            cancel(first);
            begun = begin_on(op, doing);
        }
        Recorded { begun, caller: caller(request) }
    }

    /// Ends a request on an open file.
    pub(crate) fn end(self, done: Done) {
        if let Some(begun) = self.begun {
            end_with(begun, done, &Ext { caller: self.caller, ..Ext::default() });
        }
    }

    /// Ends a request that read from another file.
    pub(crate) fn end_copy(self, done: Done, other: u64, offset: u64) {
        if let Some(begun) = self.begun {
            let ext =
                Ext { handle2: Some(other), offset2: Some(offset), caller: self.caller, ..Ext::default() };
            end_with(begun, done, &ext);
        }
    }

    /// Ends a request that names a file, and maybe something else.
    pub(crate) fn end_path(self, done: Done, path: impl FnOnce() -> Vec<u8>, second: &[u8]) {
        if let Some(begun) = self.begun {
            let path = path();
            let ext = Ext { path1: &path, path2: second, caller: self.caller, ..Ext::default() };
            end_with(begun, done, &ext);
        }
    }

    /// Ends a request that names two files.
    pub(crate) fn end_paths(self, done: Done, paths: impl FnOnce() -> (Vec<u8>, Vec<u8>)) {
        if let Some(begun) = self.begun {
            let (path1, path2) = paths();
            let ext = Ext { path1: &path1, path2: &path2, caller: self.caller, ..Ext::default() };
            end_with(begun, done, &ext);
        }
    }
}

/// `None`: the kernel asks for itself, as when it writes pages of a mapping.
fn caller(request: &fuser::Request) -> Option<Caller> {
    (request.pid() != 0).then(|| Caller { tid: request.pid(), uid: request.uid() })
}

/// What an open file is about to be asked.
pub(crate) fn doing(handle: u64, offset: u64, length: u64) -> Doing {
    Doing { handle, offset, length }
}

/// On a file, without a range.
pub(crate) fn doing_nothing(handle: u64) -> Doing {
    doing(handle, NONE, NONE)
}
