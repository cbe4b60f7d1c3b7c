//! Asynchronous requests: one call submits them, another one, often of another thread, completes
//! them.

use super::commit::commit_with_ext;
use super::prepare::{Purpose, prepare};
use super::{Completion, StartedRequest, begin};
use crate::clock::ticks;
use crate::lane::RequestArgs;
use crate::pending::{ShownAt, ShownFile, ShownRequest};
use crate::{process, tls};
use miot_proto::event::{Caller, Ext, NONE, RecordKind, flag};
use miot_proto::op::{self, Layer, Op};

/// A request between its [`submit`] and its [`complete`].
#[derive(Clone, Copy, Debug)]
pub struct AsyncRequest {
    begin: u64,
    op: Op,
    parent: ParentRequest,
    shown: ShownAt,
}

/// The parent of an asynchronous request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ParentRequest {
    /// Thread of the parent, 0 if there is no parent.
    pub(crate) tid: u32,
    /// Number of the parent in that thread.
    pub(crate) request: u32,
}

impl AsyncRequest {
    /// Time of submission, raw ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.begin
    }

    /// True if the request has no parent.
    #[must_use]
    pub fn is_outermost(&self) -> bool {
        self.parent.tid == 0
    }

    pub(crate) fn into_parts(self) -> (u64, Op, ParentRequest, ShownAt) {
        (self.begin, self.op, self.parent, self.shown)
    }

    pub(crate) fn from_parts(begin: u64, op: Op, parent: ParentRequest, shown: ShownAt) -> AsyncRequest {
        AsyncRequest { begin, op, parent, shown }
    }

    /// Shows the request as in flight until [`complete`], with its arguments, the thread that it is
    /// for (0 if unknown) and its file. Up to
    /// [`PENDING_ENTRIES`](miot_proto::segment::PENDING_ENTRIES) requests of a process are shown at
    /// the same time. A request that is shown and never completed is shown until the process ends.
    pub fn show(&mut self, args: RequestArgs, caller: u32, file: ShownFile<'_>) {
        let thread = tls::thread();
        // SAFETY: dereferencing `thread`, its lane and its control page requires
        // - `thread` is the calling thread's own block, which lives as long as the thread;
        // - lane and control page are mapped: checked with `has_lane`.
        let (table, tid) = unsafe {
            if !(*thread).has_lane() || self.shown != ShownAt::NOWHERE {
                return;
            }
            (process::make_pending_table(&*(*thread).control), (*(*thread).lane).tid())
        };
        let Some(table) = table else { return };
        let RequestArgs { handle, offset, length } = args;
        let shown =
            ShownRequest { op: self.op, begin: self.begin, handle, offset, length, tid, caller, file };
        self.shown = table.show(process::number_pending(), &shown);
    }

    /// Shows the request no longer. [`complete`] does that too.
    pub fn hide(&mut self) {
        let shown = std::mem::replace(&mut self.shown, ShownAt::NOWHERE);
        if shown != ShownAt::NOWHERE
            && let Some(table) = process::pending_table()
        {
            table.hide(self.op, shown);
        }
    }
}

/// Begins a request that is served elsewhere, so that any thread may [`complete`] it, or none.
/// `None`: the request is not recorded. The call reads the clock. An abandoned request needs no
/// cleanup, because it is not shown as in flight, unless [`AsyncRequest::show`] is called.
#[inline]
#[must_use]
pub fn submit(op: Op) -> Option<AsyncRequest> {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - its lane and control page are mapped where they are used: checked with `has_lane`, or
    //   guaranteed by `can_begin_fast` or `prepare`.
    unsafe {
        if !(*thread).can_begin_fast(op) && ((*thread).skips(op) || !prepare(thread, Purpose::Request(op))) {
            return None;
        }
        let request = (*thread).enclosing();
        let tid = if request == 0 { 0 } else { (*(*thread).lane).tid() };
        let parent = ParentRequest { tid, request };
        Some(AsyncRequest { begin: ticks(), op, parent, shown: ShownAt::NOWHERE })
    }
}

/// [`submit`] for a region with this name and number ([`crate::Region`]). It has no parent, and is
/// shown as in flight.
#[inline]
pub(crate) fn begin_region(name: &[u8], number: u64) -> Option<AsyncRequest> {
    let mut region = submit(op::app::REGION)?;
    // SAFETY: dereferencing the thread's block and its lane requires
    // - the calling thread's own block, which lives as long as the thread: `tls::thread` returns
    //   it;
    // - a lane in this process's segment: `submit` has returned a request, so the thread has a
    //   lane.
    let tid = unsafe { (*(*tls::thread()).lane).tid() };
    // If another thread ends the region, it names this one as its caller.
    region.parent = ParentRequest { tid, request: 0 };
    region.show(RequestArgs { handle: 0, offset: NONE, length: number }, 0, ShownFile::Path(name));
    Some(region)
}

/// Ends a request of [`submit`], which another thread may have submitted: takes the completion time
/// and commits the event to the lane of the calling thread, with the flag
/// [`ASYNC`](miot_proto::event::flag::ASYNC). Returns false if the event was dropped and counted,
/// or if tracing has been switched off.
///
/// The parent of the event is the request during which it was submitted. If another thread
/// submitted it, the event has no parent, because requests are numbered per thread; the event then
/// names that thread as its caller. A request submitted by the start of a split MPI-IO collective
/// gets the end of that collective as its parent.
pub fn complete(mut submitted: AsyncRequest, mut done: Completion, ext: &Ext<'_>) -> bool {
    submitted.hide();
    done.flags |= flag::ASYNC;
    let Some(begun) = begin(submitted.op) else { return false };
    let ParentRequest { tid, request } = submitted.parent;
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` and its lane requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - `lane` points into this process's segment: `begin` has returned a request, so the thread
    //   has a lane.
    let (own, split_end) = unsafe {
        let mpi = Op { layer: Layer::MpiIo as u8, number: (*thread).mpi_op };
        let is_split_end = (*thread).mpi_request != 0 && mpi.ends_split();
        ((*(*thread).lane).tid(), is_split_end.then_some((*thread).mpi_request))
    };
    let (enclosing, caller) = match tid {
        0 => (0, ext.caller),
        tid if tid == own => (split_end.unwrap_or(request), ext.caller),
        tid => (0, ext.caller.or(Some(Caller { tid, uid: Caller::UNKNOWN }))),
    };
    let begun = StartedRequest { begin: submitted.begin, enclosing, ..begun };
    commit_with_ext(RecordKind::Request, begun, done, None, &Ext { caller, ..*ext })
}
