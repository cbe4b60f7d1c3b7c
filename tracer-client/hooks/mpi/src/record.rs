//! Recording of requests: blocking and non-blocking requests on an open file, and completions.

use crate::abi::{Handle, SUCCESS};
use crate::files::{self, OpenFile};
use crate::mpi::{Mpi, mpi};
use crate::requests::{self, PendingRequest, this_thread};
use crate::tracer::tracer;
use miot_proto::event::{Communicator, flag};
use miot_proto::op::Op;
use miot_tracer::capi::{MIOT_NOBODY, MIOT_NONE, miot_done, miot_ext, miot_request};
use std::ffi::{c_int, c_void};
use std::ptr::null;

/// Values of the event of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestEvent {
    pub(crate) done: miot_done,
    pub(crate) ext: miot_ext,
    /// Requested bytes, shown while the request is in flight; `None` if that is `done.length`.
    pub(crate) requested_bytes: Option<u64>,
}

impl RequestEvent {
    /// Returns an event with a trace handle and a communicator, and nothing else.
    pub(crate) fn new(handle: u64, communicator: Communicator) -> RequestEvent {
        RequestEvent {
            done: miot_done { handle, offset: MIOT_NONE, length: MIOT_NONE, result: 0, flags: 0 },
            ext: miot_ext {
                path: null(),
                second: null(),
                handle2: 0,
                offset2: MIOT_NONE,
                caller_tid: 0,
                caller_uid: MIOT_NOBODY,
                mpi_rank: communicator.rank,
                mpi_size: communicator.size,
                etypes: MIOT_NONE,
                type_size: MIOT_NONE,
                type_extent: MIOT_NONE,
            },
            requested_bytes: None,
        }
    }

    /// Returns the event with this length.
    pub(crate) fn with_length(mut self, length: i64) -> RequestEvent {
        self.done.length = length as u64;
        self
    }
}

/// Begins a request that becomes the parent of the requests that MPI makes for it. Returns `None`
/// if nothing is recorded.
pub(crate) fn begin(op: Op, event: &RequestEvent) -> Option<miot_request> {
    let done = &event.done;
    let length = event.requested_bytes.unwrap_or(done.length);
    let request = (tracer().begin)(op.layer, op.number, done.handle, done.offset, length);
    (request.number != 0).then_some(request)
}

/// Ends a request. Returns whether it was recorded.
pub(crate) fn end(request: &miot_request, event: &RequestEvent) -> bool {
    // SAFETY:
    // - The three pointers refer to live values.
    // - The strings of the extension are null or live C strings.
    unsafe { (tracer().end)(request, &raw const event.done, &raw const event.ext) != 0 }
}

/// Sets the file's trace handle in the event, and names the handle if the trace does not have it.
/// Must be called within a request.
fn set_trace_handle(fh: Handle, event: &mut RequestEvent) {
    if event.done.handle == 0 {
        // SAFETY:
        // - `path` is a live C string.
        event.done.handle = files::ensure_trace_handle(fh, |path| unsafe { (tracer().name)(path.as_ptr()) });
    }
}

/// Records a request on an open file that is complete when its call returns. `prepare` sets the
/// values that are known before the call, `succeeded` those that MPI returns. A request on an
/// unknown file is not recorded.
pub(crate) fn record_blocking(
    op: Op,
    fh: Handle,
    prepare: impl FnOnce(&Mpi, &OpenFile, &mut RequestEvent),
    call: impl FnOnce() -> c_int,
    succeeded: impl FnOnce(&Mpi, &mut RequestEvent),
) -> c_int {
    let (Some(mpi), Some(file)) = (mpi(), files::find(fh)) else { return call() };
    let mut event = RequestEvent::new(file.handle, file.communicator);
    prepare(mpi, &file, &mut event);
    let Some(request) = begin(op, &event) else { return call() };
    set_trace_handle(fh, &mut event);
    let returned = call();
    event.done.result = mpi.result(returned);
    if returned == SUCCESS {
        succeeded(mpi, &mut event);
    }
    end(&request, &event);
    returned
}

/// Records a request on an open file that another call completes. `call` submits it; `accepted`
/// returns MPI's handle of the submitted request.
pub(crate) fn record_nonblocking(
    op: Op,
    fh: Handle,
    prepare: impl FnOnce(&Mpi, &OpenFile, &mut RequestEvent),
    call: impl FnOnce() -> c_int,
    accepted: impl FnOnce(&Mpi, &mut RequestEvent) -> Handle,
) -> c_int {
    let (Some(mpi), Some(file)) = (mpi(), files::find(fh)) else { return call() };
    let mut event = RequestEvent::new(file.handle, file.communicator);
    event.done.flags = flag::ASYNC;
    prepare(mpi, &file, &mut event);
    let Some(request) = begin(op, &event) else { return call() };
    set_trace_handle(fh, &mut event);
    let returned = call();
    if returned != SUCCESS {
        event.done.result = mpi.result(returned);
        end(&request, &event);
        return returned;
    }
    // The request is no longer the parent of what this thread does next.
    // SAFETY:
    // - The pointer refers to a live request.
    unsafe { (tracer().cancel)(&raw const request) };
    let name = accepted(mpi, &mut event);
    let pending = PendingRequest { request, event, thread: this_thread() };
    if let Some(unstored) = requests::add(name, pending) {
        complete(&unstored, unstored.assumed_result());
    }
    returned
}

/// Completes a request that was in flight. On the thread that submitted it, the request keeps its
/// number, by which requests made in the submitting call refer to it as their parent.
pub(crate) fn complete(pending: &PendingRequest, result: i64) {
    let mut event = pending.event;
    event.done.result = result;
    if pending.thread == this_thread() {
        end(&pending.request, &event);
    } else {
        // SAFETY:
        // - The three pointers refer to live values.
        // - The strings of the extension are null.
        unsafe {
            (tracer().complete)(&raw const pending.request, &raw const event.done, &raw const event.ext);
        }
    }
}

/// Returns the number of bytes moved, or −errno of `error`.
///
/// # Safety
/// - `status` points to the status of a request that has ended with `error`.
pub(crate) unsafe fn transfer_result(mpi: &Mpi, error: c_int, status: *const c_void) -> i64 {
    // SAFETY:
    // - `status` is the status of a request that has succeeded, by the contract of this function.
    if error == SUCCESS { unsafe { mpi.bytes_moved(status) } } else { mpi.result(error) }
}
