//! Requests that are never parents of others: [`begin`](super::begin) and [`end`](super::end) for
//! hooks, whose fast path they make shorter. What they do not cover is left to the other functions.

use super::commit::{FastRecord, commit_with_ext};
use super::{Completion, PackedRequest, StartedRequest, tls};
use crate::clock::counter;
use crate::lane::RequestArgs;
use miot_proto::event::{self, Ext, OnePath, RecordKind};
use miot_proto::op::Op;
use miot_proto::segment::in_flight;

/// A request between [`begin_leaf`] and [`end_leaf`].
#[derive(Clone, Copy, Debug)]
pub struct LeafRequest {
    begin: u64,
    /// Number of the request, in the high half.
    number: u64,
}

impl LeafRequest {
    /// The request for the general functions. `op` is that of its begin.
    #[must_use]
    pub fn started(self, op: Op) -> StartedRequest {
        self.without_parent(op).with_present_parent()
    }

    #[inline(always)]
    fn without_parent(self, op: Op) -> StartedRequest {
        StartedRequest { begin: self.begin, op, request: (self.number >> 32) as u32, enclosing: 0 }
    }

    #[inline(always)]
    fn packed(self, op: Op, done: Completion) -> PackedRequest {
        PackedRequest::new(self.without_parent(op), done)
    }
}

impl StartedRequest {
    /// The request as a child of the thread's present parent.
    fn with_present_parent(self) -> StartedRequest {
        let thread = tls::thread();
        // SAFETY: dereferencing `thread` requires
        // - `thread` is the calling thread's own block, which lives as long as the thread.
        StartedRequest { enclosing: unsafe { (*thread).enclosing() }, ..self }
    }
}

/// Begins a request on the fast path. `None`: it has not begun, and [`begin`](super::begin) finds
/// out whether it is recorded.
#[inline(always)]
#[must_use]
pub fn begin_leaf(op: Op) -> Option<LeafRequest> {
    begin(op, None)
}

/// [`begin_leaf`] with the arguments of the request, which are shown while the request is in
/// flight.
#[inline(always)]
#[must_use]
pub fn begin_leaf_on(op: Op, args: RequestArgs) -> Option<LeafRequest> {
    begin(op, Some(&args))
}

#[inline(always)]
fn begin(op: Op, args: Option<&RequestArgs>) -> Option<LeafRequest> {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` and its lane requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - no other reference to it is live: a signal handler that interrupts leaves the state
    //   consistent;
    // - `lane` points into this process's segment: `can_begin_fast` has returned true.
    let (thread, lane) = unsafe {
        if !(*thread).can_begin_fast(op) {
            return None;
        }
        (&mut *thread, &*(*thread).lane)
    };
    // After the last number the general function continues with 1.
    let number = thread.number.wrapping_add(1 << 32);
    if number == 0 {
        return None;
    }
    thread.number = number;
    let begin = counter();
    let word = in_flight::word(op, 0, Some(thread.producer.tail())) | number;
    lane.in_flight.show(word, begin, args);
    Some(LeafRequest { begin, number })
}

/// Ends a request: takes the completion time and commits the event. `op` is that of its begin.
/// `done` is called after the time was taken. Returns false if the event was dropped and counted.
#[inline(always)]
pub fn end_leaf(op: Op, begun: LeafRequest, done: impl Fn() -> Completion) -> bool {
    commit::<1>(op, begun, &done, b"")
}

/// [`end_leaf`] for a request that has one path. A path longer than
/// [`MAX_PATH`](miot_proto::event::MAX_PATH) bytes is truncated and flagged.
#[inline(always)]
pub fn end_leaf_on_path(op: Op, begun: LeafRequest, done: impl Fn() -> Completion, path: &[u8]) -> bool {
    if path.is_empty() || path.len() > event::MAX_PATH {
        return commit_any(&begun.packed(op, done()), path);
    }
    commit::<0>(op, begun, &done, path)
}

/// Commits a record of `SLOTS` slots; 0: of as many as the path needs.
#[inline(always)]
fn commit<const SLOTS: u64>(op: Op, begun: LeafRequest, done: &impl Fn() -> Completion, path: &[u8]) -> bool {
    let LeafRequest { begin, number } = begun;
    let slots = if SLOTS == 0 { 1 + event::path_slots(path) as u64 } else { SLOTS };
    let thread = tls::thread();
    let record = FastRecord { kind: RecordKind::Request, op, begin, number, parent: None, slots };
    // SAFETY: `FastRecord::commit` requires
    // - the calling thread's own block, which lives as long as the thread.
    let committed = unsafe {
        record.commit(thread, done, &|ring, tail| {
            if SLOTS == 0 {
                ring.set_path(tail + 1, OnePath::First(path));
            }
        })
    };
    committed || commit_any(&begun.packed(op, done()), path)
}

/// Ends a request that cannot be ended on the fast path.
#[cold]
#[inline(never)]
fn commit_any(request: &PackedRequest, path: &[u8]) -> bool {
    let (begun, done) = request.unpack();
    let ext = Ext { path1: path, ..Ext::default() };
    commit_with_ext(RecordKind::Request, begun.with_present_parent(), done, None, &ext)
}
