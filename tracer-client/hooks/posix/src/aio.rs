//! Hooks of POSIX asynchronous I/O.
//!
//! A request begins when it is submitted. It is complete when the program first observes its
//! completion (`aio_error`, `aio_suspend`, `aio_cancel`, a waiting `lio_listio`, `aio_return`):
//! libc's own threads, which execute it, are not hooked. A program that is notified by a signal or
//! in a thread queries the request with the same functions.

use crate::pending::{self, Interface, Key, PendingRequest, Queue};
use crate::real::{RealFunction, ReturnValue, hook, keeping_errno};
use miot_tracer::NONE;
use miot_tracer::op::{Op, posix};
use std::ffi::{c_int, c_void};

/// Request block of the application.
type Block = *mut libc::aiocb;
/// List of blocks, some of which may be null.
type Blocks = *const Block;

/// All blocks belong to one queue.
const QUEUE: Queue = Queue { interface: Interface::Aio, number: 0 };

hook!(aio_read | aio_read64 (block: Block) -> c_int, |real| record_submit(posix::AIO_READ, block, real));
hook!(aio_write | aio_write64 (block: Block) -> c_int, |real| record_submit(posix::AIO_WRITE, block, real));
hook!(aio_fsync | aio_fsync64 (operation: c_int, block: Block) -> c_int, |real| {
    record_submit(posix::AIO_FSYNC, block, real)
});

fn record_submit(op: Op, block: Block, real: impl FnOnce() -> c_int) -> c_int {
    if !store_request(op, block) {
        return real();
    }
    let returned = real();
    let failure = returned.result();
    if failure < 0
        && let Some(mut request) = pending::take_oldest(key(block))
    {
        request.record_refused(failure);
    }
    returned
}

/// Stores a request before the call: during the call it may complete, and another thread may
/// collect its block. Returns false if the request is not to be recorded or the table is full.
fn store_request(op: Op, block: Block) -> bool {
    // The block of an earlier request whose completion the program did not query.
    if let Some(request) = pending::take_oldest(key(block)) {
        request.complete_unseen();
    }
    let Some(request) = begin(op, block) else { return false };
    let is_stored = pending::store(QUEUE, block.addr() as u64, request);
    if !is_stored {
        request.complete_unseen();
    }
    is_stored
}

fn begin(op: Op, block: Block) -> Option<PendingRequest> {
    if block.is_null() {
        return None;
    }
    // SAFETY:
    // - `block` is not null and points to a block of the caller, which libc is about to read.
    let (fd, offset, length, buffer) = unsafe {
        let block = &*block;
        (block.aio_fildes, block.aio_offset as u64, block.aio_nbytes as u64, block.aio_buf.addr() as u64)
    };
    if op == posix::AIO_FSYNC {
        return PendingRequest::begin_on(op, fd, NONE, NONE);
    }
    Some(PendingRequest::begin_on(op, fd, offset, length)?.with_buffer(buffer))
}

fn key(block: Block) -> Key {
    QUEUE.key(block.addr() as u64)
}

/// Returns libc's status of a block: 0, `EINPROGRESS`, or the errno of its failure.
fn error_of(block: Block) -> c_int {
    static AIO_ERROR: RealFunction = RealFunction::new();
    // SAFETY:
    // - The function of this name has this prototype.
    // - The block was submitted by the caller.
    keeping_errno(|| unsafe {
        let aio_error: unsafe extern "C-unwind" fn(Block) -> c_int =
            std::mem::transmute(AIO_ERROR.get::<c_int>("aio_error\0"));
        aio_error(block)
    })
}

/// Returns the result of a request that has succeeded. libc returns it any number of times.
fn value_of(block: Block) -> isize {
    static AIO_RETURN: RealFunction = RealFunction::new();
    // SAFETY:
    // - The function of this name has this prototype.
    // - The block was submitted by the caller.
    keeping_errno(|| unsafe {
        let aio_return: unsafe extern "C-unwind" fn(Block) -> isize =
            std::mem::transmute(AIO_RETURN.get::<isize>("aio_return\0"));
        aio_return(block)
    })
}

/// Records a request that is complete with libc's status `error`. The program must not have
/// collected the block yet.
fn record_if_complete(block: Block, error: c_int) {
    if error != libc::EINPROGRESS && error >= 0 && pending::contains(key(block)) {
        let result = if error == 0 { value_of(block) as i64 } else { -i64::from(error) };
        if let Some(request) = pending::take_oldest(key(block)) {
            request.complete(result);
        }
    }
}

/// Calls [`record_if_complete`] for each block of a list.
fn record_all_complete(blocks: Blocks, count: c_int) {
    for_each_block(blocks, count, |block| {
        if pending::contains(key(block)) {
            record_if_complete(block, error_of(block));
        }
    });
}

fn for_each_block(blocks: Blocks, count: c_int, mut run: impl FnMut(Block)) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY:
        // - The caller passes a list of `count` blocks, which libc reads too.
        let block = unsafe { *blocks.add(at) };
        if !block.is_null() {
            run(block);
        }
    }
}

hook!(aio_error | aio_error64 (block: Block) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| record_if_complete(block, returned));
    returned
});
hook!(aio_return | aio_return64 (block: Block) -> isize, |real| {
    // Before the call: after it, the program may reuse the block.
    if pending::contains(key(block)) {
        record_if_complete(block, error_of(block));
    }
    real()
});
hook!(aio_suspend | aio_suspend64 (blocks: Blocks, count: c_int, timeout: *const libc::timespec) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| record_all_complete(blocks, count));
    returned
});
hook!(aio_cancel | aio_cancel64 (fd: c_int, block: Block) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| record_all_complete(&raw const block, c_int::from(!block.is_null())));
    returned
});
hook!(lio_listio | lio_listio64 (mode: c_int, blocks: Blocks, count: c_int, notify: *mut c_void) -> c_int, |real| {
    for_each_block(blocks, count, |block| {
        // SAFETY:
        // - `block` is not null and points to a block of the caller, which libc is about to read.
        match unsafe { (*block).aio_lio_opcode } {
            libc::LIO_READ => _ = store_request(posix::AIO_READ, block),
            libc::LIO_WRITE => _ = store_request(posix::AIO_WRITE, block),
            _ => {}
        }
    });
    let returned = real();
    // All requests are complete, or some were refused and have an error.
    if mode == libc::LIO_WAIT || returned != 0 {
        keeping_errno(|| record_all_complete(blocks, count));
    }
    returned
});
