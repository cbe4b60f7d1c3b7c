//! Hooks of Linux's asynchronous I/O by `libaio.so.1`. A request begins at `io_submit`. It is
//! complete when the program gets its event from `io_getevents` or `io_pgetevents`.
//!
//! `libaio` reads events from memory that it shares with the kernel, and so may a program without
//! any call (fio with `userspace_reap`). Such requests are recorded when their context is destroyed
//! or the program ends, if their events still exist.

use crate::memory::{is_readable, peek};
use crate::pending::{self, Interface, PendingRequest, Queue};
use crate::real::{Long, NegatedErrno, ReturnValue, hook};
use crate::syscall::call_library;
use miot_tracer::NONE;
use miot_tracer::op::posix;
use std::ffi::{c_int, c_void};

/// `io_context_t`: address of the event ring.
type Context = usize;

/// `struct iocb`, `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Block {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    notify: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    data: u64,
    /// Address of the request's block.
    block: u64,
    result: i64,
    second: i64,
}

const _: () = assert!(size_of::<Block>() == 64 && size_of::<Event>() == 32);

/// Header of the event ring, `struct aio_ring` of the kernel's `fs/aio.c`; the events follow.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ring {
    id: u32,
    count: u32,
    head: u32,
    tail: u32,
    magic: u32,
    features: u32,
    incompatible: u32,
    bytes: u32,
}

/// Value of [`Ring::magic`].
const MAGIC: u32 = 0xa10a_10a1;

/// Values of `opcode`.
mod command {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const FSYNC: u16 = 2;
    pub(super) const FDSYNC: u16 = 3;
    pub(super) const READV: u16 = 7;
    pub(super) const WRITEV: u16 = 8;
}

fn queue(context: Context) -> Queue {
    Queue { interface: Interface::Libaio, number: context as u64 }
}

hook!(io_submit(context: Context, count: Long, blocks: *const *const Block) -> NegatedErrno, |real| {
    on_submit(context, count, blocks, || call_library(real))
});

/// Handles `io_submit`. The requests are stored before the call: during the call they may complete,
/// and another thread may collect, free and reuse their blocks.
pub(crate) fn on_submit<R: ReturnValue>(
    context: Context,
    count: Long,
    blocks: *const *const Block,
    real: impl FnOnce() -> R,
) -> R {
    let count = usize::try_from(count).unwrap_or(0);
    let list = if is_readable(blocks, count) {
        // SAFETY:
        // - The caller passes an array of `count` pointers, which is readable.
        unsafe { std::slice::from_raw_parts(blocks, count) }
    } else {
        &[]
    };
    let queue = queue(context);
    // The kernel stops at the first block that it cannot read.
    let readable = list.iter().take_while(|block| is_readable(**block, 1)).count();
    let list = list.get(..readable).unwrap_or_default();
    let mut any = false;
    for block in list {
        // SAFETY:
        // - The block is readable, and every bit pattern is a valid `Block`.
        let Some(request) = begin(unsafe { block.read_unaligned() }) else { continue };
        any = true;
        // An earlier request with this block, whose event the program has taken from the ring
        // itself.
        if let Some(earlier) = pending::take_oldest(queue.key(block.addr() as u64)) {
            earlier.complete_unseen();
        }
        if !pending::store(queue, block.addr() as u64, request) {
            request.complete_unseen();
        }
    }
    let returned = real();
    if any {
        let result = returned.result();
        let refused = list.get(usize::try_from(result).unwrap_or(0)..).unwrap_or_default();
        for (at, block) in refused.iter().enumerate() {
            let request = pending::take_oldest(queue.key(block.addr() as u64));
            // The error refers to the first refused block; the kernel has not read the others.
            if let Some(mut request) = request.filter(|_| at == 0 && result < 0) {
                request.record_refused(result);
            }
        }
    }
    returned
}

fn begin(block: Block) -> Option<PendingRequest> {
    let op = match block.opcode {
        command::READ | command::READV => posix::LIBAIO_READ,
        command::WRITE | command::WRITEV => posix::LIBAIO_WRITE,
        command::FSYNC | command::FDSYNC => posix::LIBAIO_FSYNC,
        _ => return None,
    };
    let fd = block.fd as c_int;
    let (length, buffer) = match block.opcode {
        command::FSYNC | command::FDSYNC => return PendingRequest::begin_on(op, fd, NONE, NONE),
        command::READV | command::WRITEV => requested_bytes(block.buffer, block.length),
        _ => (block.length, block.buffer),
    };
    Some(PendingRequest::begin_on(op, fd, block.offset as u64, length)?.with_buffer(buffer))
}

/// Returns the number of bytes requested by a vector of buffers, and the address of the first
/// buffer; [`NONE`] and 0 if the vector cannot be read.
pub(crate) fn requested_bytes(vector: u64, count: u64) -> (u64, u64) {
    let vector = vector as *const libc::iovec;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > libc::UIO_MAXIOV as usize || !is_readable(vector, count) {
        return (NONE, 0);
    }
    // SAFETY:
    // - All `count` elements are readable.
    // - The thread that owns the vector is in the call that submits it.
    let element = |at| unsafe { vector.add(at).read() };
    let bytes = (0..count).map(|at| element(at).iov_len as u64).fold(0, u64::saturating_add);
    (bytes, if count == 0 { 0 } else { element(0).iov_base.addr() as u64 })
}

hook!(io_getevents(
    context: Context, least: Long, most: Long, events: *mut Event, timeout: *mut libc::timespec,
) -> NegatedErrno, |real| {
    on_getevents(context, events, || call_library(real))
});
hook!(io_pgetevents(
    context: Context, least: Long, most: Long, events: *mut Event, timeout: *mut libc::timespec, mask: *mut c_void,
) -> NegatedErrno, |real| {
    on_getevents(context, events, || call_library(real))
});

/// Handles a call that returns events.
pub(crate) fn on_getevents<R: ReturnValue>(
    context: Context,
    events: *const Event,
    real: impl FnOnce() -> R,
) -> R {
    let returned = real();
    for at in 0..usize::try_from(returned.result()).unwrap_or(0) {
        // SAFETY:
        // - The kernel has written as many events as the call has returned.
        complete(context, unsafe { events.add(at).read_unaligned() });
    }
    returned
}

fn complete(context: Context, event: Event) {
    if let Some(request) = pending::take_oldest(queue(context).key(event.block)) {
        request.complete(event.result);
    }
}

hook!(io_cancel(context: Context, block: *mut Block, event: *mut Event) -> NegatedErrno, |real| {
    on_cancel(context, event, || call_library(real))
});

/// Handles `io_cancel`. Linux returns the event of a canceled request by `io_getevents` since 3.12;
/// earlier versions return it here.
pub(crate) fn on_cancel<R: ReturnValue>(
    context: Context,
    event: *const Event,
    real: impl FnOnce() -> R,
) -> R {
    let returned = real();
    if returned.result() == 0 && is_readable(event, 1) {
        // SAFETY:
        // - The event is readable, and the kernel has written it.
        complete(context, unsafe { event.read_unaligned() });
    }
    returned
}

hook!(io_destroy(context: Context) -> NegatedErrno, |real| on_destroy(context, || call_library(real)));

/// Handles `io_destroy`. The requests are recorded before the call: after it, a new context may get
/// the same number.
pub(crate) fn on_destroy<R: ReturnValue>(context: Context, real: impl FnOnce() -> R) -> R {
    record_uncollected(context);
    real()
}

/// Records the requests of a context that will not be collected, with their results if their events
/// are still in the ring.
pub(crate) fn record_uncollected(context: Context) {
    let ring = context as *const Ring;
    if let Some(Ring { count, head, tail, magic: MAGIC, bytes, .. }) = peek(ring)
        && count != 0
    {
        let mut at = head % count;
        while at != tail % count {
            let Some(event) =
                peek(ring.wrapping_byte_add(bytes as usize).cast::<Event>().wrapping_add(at as usize))
            else {
                break;
            };
            complete(context, event);
            at = (at + 1) % count;
        }
    }
    pending::abandon(Some(queue(context)));
}

/// Records the pending requests when the program ends.
pub(crate) fn finish() {
    while let Some(queue) = pending::queue_of(Interface::Libaio) {
        record_uncollected(queue.number as Context);
    }
}
