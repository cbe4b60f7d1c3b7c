//! Linux's asynchronous I/O as `libaio.so.1` has it. A request begins at `io_submit`, and has completed when the program gets
//! its event from `io_getevents` or `io_pgetevents`.
//!
//! `libaio` reads events from memory that it shares with the kernel, and so may a program without any call (fio with
//! `userspace_reap`): such requests are recorded when their context is destroyed or the program ends, as far as their
//! events are still there.

use crate::files::tracked;
use crate::memory::{is_readable, peek};
use crate::pending::{self, Interface, Queue, Request};
use crate::real::{Long, Negative, Returned, hook};
use crate::syscall::within;
use miot_tracer::NONE;
use miot_tracer::op::posix;
use std::ffi::{c_int, c_void};

/// `io_context_t`: the address of the ring of events.
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
    /// Address of the block.
    block: u64,
    result: i64,
    second: i64,
}

const _: () = assert!(size_of::<Block>() == 64 && size_of::<Event>() == 32);

/// Start of the ring of events, `struct aio_ring` of the kernel's `fs/aio.c`; the events follow.
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

/// In [`Ring::magic`].
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

hook!(io_submit(context: Context, count: Long, blocks: *const *const Block) -> Negative, |real| {
    submitting(context, count, blocks, || within(real))
});

/// Requests are remembered before the call: within it they may be done, and their blocks collected, freed and used again by
/// another thread.
pub(crate) fn submitting<R: Returned>(
    context: Context,
    count: Long,
    blocks: *const *const Block,
    real: impl FnOnce() -> R,
) -> R {
    let count = usize::try_from(count).unwrap_or(0);
    let list = if is_readable(blocks, count) {
        // SAFETY: an argument of the call that is under way, and it can be read.
        unsafe { std::slice::from_raw_parts(blocks, count) }
    } else {
        &[]
    };
    let queue = queue(context);
    // The kernel stops at the first that it cannot read.
    let readable = list.iter().take_while(|block| is_readable(**block, 1)).count();
    let list = list.get(..readable).unwrap_or_default();
    let mut any = false;
    for block in list {
        // SAFETY: as above.
        let Some(request) = begin(unsafe { block.read_unaligned() }) else { continue };
        any = true;
        // An earlier request with this block, whose event the program has taken out of the ring by itself.
        if let Some(earlier) = pending::take(queue.key(block.addr() as u64)) {
            earlier.unseen();
        }
        if !pending::remember(queue, block.addr() as u64, &request) {
            request.unseen();
        }
    }
    let returned = real();
    if any {
        let result = returned.result();
        let refused = list.get(usize::try_from(result).unwrap_or(0)..).unwrap_or_default();
        for (at, block) in refused.iter().enumerate() {
            let request = pending::take(queue.key(block.addr() as u64));
            // It is the first that the error is about; the others have not been looked at.
            if let Some(request) = request.filter(|_| at == 0 && result < 0) {
                request.refused(result);
            }
        }
    }
    returned
}

fn begin(block: Block) -> Option<Request> {
    let op = match block.opcode {
        command::READ | command::READV => posix::LIBAIO_READ,
        command::WRITE | command::WRITEV => posix::LIBAIO_WRITE,
        command::FSYNC | command::FDSYNC => posix::LIBAIO_FSYNC,
        _ => return None,
    };
    let file = tracked(op, block.fd as c_int)?;
    let (length, buffer) = match block.opcode {
        command::FSYNC | command::FDSYNC => return Request::on(op, file, NONE, NONE),
        command::READV | command::WRITEV => total(block.buffer, block.length),
        _ => (block.length, block.buffer),
    };
    Some(Request::on(op, file, block.offset as u64, length)?.with_buffer(buffer))
}

/// Bytes that a vector of buffers asks for, and the address of the first; [`NONE`] and 0 if it cannot be read.
pub(crate) fn total(vector: u64, count: u64) -> (u64, u64) {
    let vector = vector as *const libc::iovec;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > libc::UIO_MAXIOV as usize || !is_readable(vector, count) {
        return (NONE, 0);
    }
    // SAFETY: it can be read, and its thread is in the call that submits it.
    let element = |at| unsafe { vector.add(at).read() };
    let bytes = (0..count).map(|at| element(at).iov_len as u64).fold(0, u64::saturating_add);
    (bytes, if count == 0 { 0 } else { element(0).iov_base.addr() as u64 })
}

hook!(io_getevents(
    context: Context, least: Long, most: Long, events: *mut Event, timeout: *mut libc::timespec,
) -> Negative, |real| {
    collecting(context, events, || within(real))
});
hook!(io_pgetevents(
    context: Context, least: Long, most: Long, events: *mut Event, timeout: *mut libc::timespec, mask: *mut c_void,
) -> Negative, |real| {
    collecting(context, events, || within(real))
});

pub(crate) fn collecting<R: Returned>(context: Context, events: *const Event, real: impl FnOnce() -> R) -> R {
    let returned = real();
    for at in 0..usize::try_from(returned.result()).unwrap_or(0) {
        // SAFETY: the kernel has written so many events.
        complete(context, unsafe { events.add(at).read_unaligned() });
    }
    returned
}

fn complete(context: Context, event: Event) {
    if let Some(request) = pending::take(queue(context).key(event.block)) {
        request.complete(event.result);
    }
}

hook!(io_cancel(context: Context, block: *mut Block, event: *mut Event) -> Negative, |real| {
    cancelling(context, event, || within(real))
});

/// Linux gives the event of a cancelled request to `io_getevents` (since 3.12), earlier ones gave it here.
pub(crate) fn cancelling<R: Returned>(context: Context, event: *const Event, real: impl FnOnce() -> R) -> R {
    let returned = real();
    if returned.result() == 0 && is_readable(event, 1) {
        // SAFETY: it can be read, and the kernel has written it.
        complete(context, unsafe { event.read_unaligned() });
    }
    returned
}

hook!(io_destroy(context: Context) -> Negative, |real| destroying(context, || within(real)));

/// Before the call: right after it, the next context may get the same number.
pub(crate) fn destroying<R: Returned>(context: Context, real: impl FnOnce() -> R) -> R {
    forget(context);
    real()
}

/// Records what nobody will collect: with its result if there is an event that nobody has taken.
pub(crate) fn forget(context: Context) {
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

/// The program ends.
pub(crate) fn finish() {
    while let Some(queue) = pending::queue_of(Interface::Libaio) {
        forget(queue.number as Context);
    }
}
