//! The shapes of requests: on an open file, under way, completed.

use crate::abi::{Handle, SUCCESS};
use crate::files::{self, File};
use crate::mpi::{Mpi, mpi};
use crate::requests::{self, Pending, this_thread};
use crate::tracer::tracer;
use miot_proto::event::{Communicator, flag};
use miot_proto::op::Op;
use miot_tracer::capi::{MIOT_NOBODY, MIOT_NONE, miot_done, miot_ext, miot_request};
use std::ffi::{c_int, c_void};
use std::ptr::null;

/// What is recorded of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) done: miot_done,
    pub(crate) ext: miot_ext,
    /// Bytes asked for, as shown while the request is in flight; `None` if that is `done.length`.
    pub(crate) asked: Option<u64>,
}

impl Event {
    /// Of a file's communicator, with nothing else.
    pub(crate) fn of(handle: u64, communicator: Communicator) -> Event {
        Event {
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
            asked: None,
        }
    }

    /// With a length.
    pub(crate) fn length(mut self, length: i64) -> Event {
        self.done.length = length as u64;
        self
    }
}

/// Begins a request that encloses what MPI does for it.
pub(crate) fn begin(op: Op, event: &Event) -> Option<miot_request> {
    let done = &event.done;
    let request =
        (tracer().begin)(op.layer, op.number, done.handle, done.offset, event.asked.unwrap_or(done.length));
    (request.number != 0).then_some(request)
}

/// Ends it. True: recorded.
pub(crate) fn end(request: &miot_request, event: &Event) -> bool {
    // SAFETY: structures, whose strings are null or live.
    unsafe { (tracer().end)(request, &raw const event.done, &raw const event.ext) != 0 }
}

/// The file of a handle, with a name in the trace: to be asked within a request.
fn name(fh: Handle, event: &mut Event) {
    if event.done.handle == 0 {
        // SAFETY: a C string.
        event.done.handle = files::named(fh, |path| unsafe { (tracer().name)(path.as_ptr()) });
    }
}

/// A request on an open file that is over when its call returns. `prepare` says what is known before, `succeeded` what
/// MPI tells after; a file that we do not know is not recorded.
pub(crate) fn on_file(
    op: Op,
    fh: Handle,
    prepare: impl FnOnce(&Mpi, &File, &mut Event),
    call: impl FnOnce() -> c_int,
    succeeded: impl FnOnce(&Mpi, &mut Event),
) -> c_int {
    let (Some(mpi), Some(file)) = (mpi(), files::find(fh)) else { return call() };
    let mut event = Event::of(file.handle, file.communicator);
    prepare(mpi, &file, &mut event);
    let Some(request) = begin(op, &event) else { return call() };
    name(fh, &mut event);
    let returned = call();
    event.done.result = mpi.result(returned);
    if returned == SUCCESS {
        succeeded(mpi, &mut event);
    }
    end(&request, &event);
    returned
}

/// A request on an open file that another call completes: `call` submits it and says what MPI calls it.
pub(crate) fn submitted(
    op: Op,
    fh: Handle,
    prepare: impl FnOnce(&Mpi, &File, &mut Event),
    call: impl FnOnce() -> c_int,
    accepted: impl FnOnce(&Mpi, &mut Event) -> Handle,
) -> c_int {
    let (Some(mpi), Some(file)) = (mpi(), files::find(fh)) else { return call() };
    let mut event = Event::of(file.handle, file.communicator);
    event.done.flags = flag::ASYNC;
    prepare(mpi, &file, &mut event);
    let Some(request) = begin(op, &event) else { return call() };
    name(fh, &mut event);
    let returned = call();
    if returned != SUCCESS {
        event.done.result = mpi.result(returned);
        end(&request, &event);
        return returned;
    }
    // What the thread does from now on is not done for this request.
    // SAFETY: a structure.
    unsafe { (tracer().cancel)(&raw const request) };
    let name = accepted(mpi, &mut event);
    if let Some(homeless) = requests::add(name, Pending { request, event, thread: this_thread() }) {
        complete(&homeless, homeless.unknown());
    }
    returned
}

/// A request that was under way has ended with a result. On the thread that submitted it, it keeps its number, by which
/// what was done in the submitting call names it.
pub(crate) fn complete(pending: &Pending, result: i64) {
    let mut event = pending.event;
    event.done.result = result;
    if pending.thread == this_thread() {
        end(&pending.request, &event);
    } else {
        // SAFETY: structures without strings.
        unsafe {
            (tracer().complete)(&raw const pending.request, &raw const event.done, &raw const event.ext);
        }
    }
}

/// Bytes moved, or why there are none.
///
/// # Safety
/// `status` points to the status of a request that has ended with `error`.
pub(crate) unsafe fn outcome(mpi: &Mpi, error: c_int, status: *const c_void) -> i64 {
    // SAFETY: by the contract of this function.
    if error == SUCCESS { unsafe { mpi.bytes(status) } } else { mpi.result(error) }
}
