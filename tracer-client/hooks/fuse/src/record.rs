//! Recording of one request of the kernel, from its arrival to just before the reply.
//!
//! The event is in the lane before the waiting program gets the reply, so that the program's own
//! record of its call ends later.

use miot_tracer::{
    Caller, Completion, Ext, Layer, NONE, Op, RequestArgs, StartedRequest, begin, begin_on, cancel, end_with,
};
use rustix::io::Errno;
use std::cell::Cell;

/// Returns the operation in the layer `fuse`.
const fn in_fuse_layer(op: Op) -> Op {
    Op { layer: Layer::Fuse as u8, number: op.number }
}

thread_local! {
    /// Buffer for the path of the request that ends, empty between requests.
    static PATH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A request between its arrival and its reply.
#[derive(Debug)]
#[must_use]
pub(crate) struct RecordedRequest {
    begun: Option<StartedRequest>,
    caller: Option<Caller>,
}

/// Returns the end of a request with nothing except its result.
pub(crate) fn completion<T>(result: &Result<T, Errno>, value: impl FnOnce(&T) -> i64) -> Completion {
    Completion::of(match result {
        Ok(ok) => value(ok),
        Err(errno) => -i64::from(errno.raw_os_error()),
    })
}

/// Returns the end of a request with an argument, whose result is 0 or −errno.
pub(crate) fn completion_with<T>(result: &Result<T, Errno>, argument: u64) -> Completion {
    Completion { length: argument, ..completion(result, |_| 0) }
}

/// Returns the argument word of an event: flags in the lower half, the mode in the upper half.
pub(crate) fn argument(flags: i32, mode: u32) -> u64 {
    u64::from(flags as u32) | u64::from(mode) << 32
}

impl RecordedRequest {
    /// Returns whether the request is being recorded.
    pub(crate) fn is_some(&self) -> bool {
        self.begun.is_some()
    }

    /// Begins a request that refers to files by name.
    pub(crate) fn begin(op: Op, request: &fuser::Request) -> RecordedRequest {
        RecordedRequest { begun: begin(in_fuse_layer(op)), caller: caller(request) }
    }

    /// Begins a request on an open file. `define` names the file's handle if the trace does not
    /// have it, and returns whether it did; the request then begins again, after that record.
    pub(crate) fn on(
        op: Op,
        request: &fuser::Request,
        args: RequestArgs,
        define: impl FnOnce() -> bool,
    ) -> RecordedRequest {
        let op = in_fuse_layer(op);
        let mut begun = begin_on(op, args);
        if let Some(first) = begun
            && define()
        {
            cancel(first);
            begun = begin_on(op, args);
        }
        RecordedRequest { begun, caller: caller(request) }
    }

    /// Ends a request on an open file.
    pub(crate) fn end(self, done: Completion) {
        if let Some(begun) = self.begun {
            end_with(begun, done, &Ext { caller: self.caller, ..Ext::default() });
        }
    }

    /// Ends a request that has read from another file, with that file's handle and byte offset.
    pub(crate) fn end_copy(self, done: Completion, source_handle: u64, source_offset: u64) {
        if let Some(begun) = self.begun {
            let ext = Ext {
                handle2: Some(source_handle),
                offset2: Some(source_offset),
                caller: self.caller,
                ..Ext::default()
            };
            end_with(begun, done, &ext);
        }
    }

    /// Ends a request that refers to a file by name, and optionally to a second name. `write_path`
    /// appends the path to an empty buffer, which the thread keeps for its next request.
    pub(crate) fn end_path(self, done: Completion, write_path: impl FnOnce(&mut Vec<u8>), second: &[u8]) {
        if let Some(begun) = self.begun {
            let mut path = PATH.take();
            write_path(&mut path);
            let ext = Ext { path1: &path, path2: second, caller: self.caller, ..Ext::default() };
            end_with(begun, done, &ext);
            path.clear();
            PATH.set(path);
        }
    }

    /// Ends a request that refers to two files by name.
    pub(crate) fn end_paths(self, done: Completion, paths: impl FnOnce() -> (Vec<u8>, Vec<u8>)) {
        if let Some(begun) = self.begun {
            let (path1, path2) = paths();
            let ext = Ext { path1: &path1, path2: &path2, caller: self.caller, ..Ext::default() };
            end_with(begun, done, &ext);
        }
    }
}

/// Returns the thread that made the request; `None` for a request of the kernel itself, e.g. to
/// write pages of a mapping.
fn caller(request: &fuser::Request) -> Option<Caller> {
    (request.pid() != 0).then(|| Caller { tid: request.pid(), uid: request.uid() })
}

/// Returns handle, offset and length of a request that begins.
pub(crate) fn request_args(handle: u64, offset: u64, length: u64) -> RequestArgs {
    RequestArgs { handle, offset, length }
}

/// Returns the handle of a request that has no offset and no length.
pub(crate) fn args_without_range(handle: u64) -> RequestArgs {
    request_args(handle, NONE, NONE)
}
