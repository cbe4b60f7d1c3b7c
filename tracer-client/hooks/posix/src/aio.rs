//! POSIX asynchronous I/O. A request begins when it is submitted and is recorded when the program collects
//! its result (`aio_return`), with the flag `ASYNC`: libc's own threads, which carry it out, are not seen.
//! Requests the program never collects are not recorded, nor is `lio_listio`.

use crate::files::{begin_on, tracked};
use crate::real::{Returned, hook};
use miot_tracer::op::{Op, posix};
use miot_tracer::{Doing, Done, Ext, NONE, cancel, end, epoch, flag, record};
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// The application's request block.
type Block = *mut libc::aiocb;

/// Requests remembered between submission and collection: more than libc's default queue runs at a time.
const MAX: usize = 256;
/// In `block`: somebody is writing the entry.
const RESERVED: usize = 1;

/// A submitted request.
struct Pending {
    /// Address of its block, or 0 for a free entry.
    block: AtomicUsize,
    begun: AtomicU64,
    handle: AtomicU64,
    epoch: AtomicU32,
    /// Number of the operation, and the flags of the file.
    kind: AtomicU32,
}

static PENDING: [Pending; MAX] = [const {
    Pending {
        block: AtomicUsize::new(0),
        begun: AtomicU64::new(0),
        handle: AtomicU64::new(0),
        epoch: AtomicU32::new(0),
        kind: AtomicU32::new(0),
    }
}; MAX];

hook!(aio_read | aio_read64 (block: Block) -> c_int, |real| submitting(posix::AIO_READ, block, real));
hook!(aio_write | aio_write64 (block: Block) -> c_int, |real| submitting(posix::AIO_WRITE, block, real));
hook!(aio_fsync | aio_fsync64 (operation: c_int, block: Block) -> c_int, |real| {
    submitting(posix::AIO_FSYNC, block, real)
});

fn submitting(op: Op, block: Block, real: impl FnOnce() -> c_int) -> c_int {
    if block.is_null() {
        return real();
    }
    // SAFETY: the block is the caller's, and libc is about to read it.
    let fd = unsafe { (*block).aio_fildes };
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let (offset, length) = extent(op, block);
    let Some(begun) = begin_on(op, Doing { handle, offset, length }) else { return real() };
    // Before the call: the request may be done, and its block collected by another thread, within it.
    let entry = remember(block, begun.ticks(), handle, u32::from(op.number) | u32::from(file.flags()) << 16);
    let returned = real();
    let failure = returned.result();
    if failure < 0 {
        if let Some(entry) = entry {
            entry.block.store(0, Release);
        }
        end(begun, Done { handle, offset, length, result: failure, flags: file.flags() });
    } else {
        cancel(begun);
    }
    returned
}

fn remember(block: Block, begun: u64, handle: u64, kind: u32) -> Option<&'static Pending> {
    let entry = PENDING.iter().find(|entry| {
        entry.block.load(Relaxed) == 0 && entry.block.compare_exchange(0, RESERVED, AcqRel, Relaxed).is_ok()
    })?;
    entry.begun.store(begun, Relaxed);
    entry.handle.store(handle, Relaxed);
    entry.epoch.store(epoch(), Relaxed);
    entry.kind.store(kind, Relaxed);
    entry.block.store(block.addr(), Release);
    Some(entry)
}

/// Offset and length of a request.
fn extent(op: Op, block: Block) -> (u64, u64) {
    if op == posix::AIO_FSYNC {
        return (NONE, NONE);
    }
    // SAFETY: libc has read the block, or is about to; until the request is collected the program leaves it alone.
    unsafe { ((*block).aio_offset as u64, (*block).aio_nbytes as u64) }
}

hook!(aio_return | aio_return64 (block: Block) -> isize, |real| {
    let entry = PENDING.iter().find(|entry| !block.is_null() && entry.block.load(Acquire) == block.addr());
    let Some(entry) = entry else { return real() };
    let kind = entry.kind.load(Relaxed);
    let (begun, handle) = (entry.begun.load(Relaxed), entry.handle.load(Relaxed));
    let same = entry.epoch.load(Relaxed) == epoch();
    let op = Op { number: kind as u8, ..posix::AIO_READ };
    let flags = (kind >> 16) as u16 | flag::ASYNC;
    let (offset, length) = extent(op, block);
    entry.block.store(0, Release);
    let returned = real();
    if same {
        let offset = if flags & flag::APPEND != 0 && op == posix::AIO_WRITE { NONE } else { offset };
        let done = Done { handle, offset, length, result: returned.result(), flags };
        record(op, begun, miot_tracer::ticks(), done, &Ext::default());
    }
    returned
});
