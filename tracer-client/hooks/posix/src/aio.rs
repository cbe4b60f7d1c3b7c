//! POSIX asynchronous I/O. A request begins when it is submitted, and has completed when the program first sees it complete
//! (`aio_error`, `aio_suspend`, `aio_cancel`, `lio_listio` that waits, `aio_return`): libc's own threads, which carry
//! it out, are not seen. What a program is told of by a signal or in a thread, it asks for with the same functions.

use crate::files::tracked;
use crate::pending::{self, Interface, Key, Queue, Request};
use crate::real::{Real, Returned, hook, keeping_errno};
use miot_tracer::NONE;
use miot_tracer::op::{Op, posix};
use std::ffi::{c_int, c_void};

/// The application's request block.
type Block = *mut libc::aiocb;
/// A list of them, some of which may be null.
type Blocks = *const Block;

/// All blocks are of one queue.
const QUEUE: Queue = Queue { interface: Interface::Aio, number: 0 };

hook!(aio_read | aio_read64 (block: Block) -> c_int, |real| submitting(posix::AIO_READ, block, real));
hook!(aio_write | aio_write64 (block: Block) -> c_int, |real| submitting(posix::AIO_WRITE, block, real));
hook!(aio_fsync | aio_fsync64 (operation: c_int, block: Block) -> c_int, |real| {
    submitting(posix::AIO_FSYNC, block, real)
});

fn submitting(op: Op, block: Block, real: impl FnOnce() -> c_int) -> c_int {
    if !submit(op, block) {
        return real();
    }
    let returned = real();
    let failure = returned.result();
    if failure < 0
        && let Some(request) = pending::take(key(block))
    {
        request.refused(failure);
    }
    returned
}

/// Remembers a request. Before the call: it may be done, and its block collected by another thread, within it. False: it is
/// none to record, or there was no room.
fn submit(op: Op, block: Block) -> bool {
    // The block of an earlier request that nobody has asked for.
    if let Some(request) = pending::take(key(block)) {
        request.unseen();
    }
    let Some(request) = begin(op, block) else { return false };
    let kept = pending::remember(QUEUE, block.addr() as u64, &request);
    if !kept {
        request.unseen();
    }
    kept
}

fn begin(op: Op, block: Block) -> Option<Request> {
    if block.is_null() {
        return None;
    }
    // SAFETY: the block is the caller's, and libc is about to read it.
    let (fd, offset, length, buffer) = unsafe {
        let block = &*block;
        (block.aio_fildes, block.aio_offset as u64, block.aio_nbytes as u64, block.aio_buf.addr() as u64)
    };
    if op == posix::AIO_FSYNC {
        return Request::on(op, tracked(op, fd)?, NONE, NONE);
    }
    Some(Request::on(op, tracked(op, fd)?, offset, length)?.with_buffer(buffer))
}

fn key(block: Block) -> Key {
    QUEUE.key(block.addr() as u64)
}

/// What libc says of a block: 0, `EINPROGRESS`, or why it failed.
fn error_of(block: Block) -> c_int {
    static AIO_ERROR: Real = Real::new();
    // SAFETY: the function of this name has this prototype, and the block is one that was submitted and is the caller's.
    keeping_errno(|| unsafe {
        let aio_error: unsafe extern "C-unwind" fn(Block) -> c_int =
            std::mem::transmute(AIO_ERROR.get::<c_int>("aio_error\0"));
        aio_error(block)
    })
}

/// What a request that has not failed returned. Libc gives it as often as it is asked.
fn value_of(block: Block) -> isize {
    static AIO_RETURN: Real = Real::new();
    // SAFETY: as above.
    keeping_errno(|| unsafe {
        let aio_return: unsafe extern "C-unwind" fn(Block) -> isize =
            std::mem::transmute(AIO_RETURN.get::<isize>("aio_return\0"));
        aio_return(block)
    })
}

/// Records a request that is done, of which libc has said `error`. The block must still be the program's to ask for.
fn settle(block: Block, error: c_int) {
    if error != libc::EINPROGRESS && error >= 0 && pending::holds(key(block)) {
        let result = if error == 0 { value_of(block) as i64 } else { -i64::from(error) };
        if let Some(request) = pending::take(key(block)) {
            request.complete(result);
        }
    }
}

/// The same for each block of a list.
fn settle_all(blocks: Blocks, count: c_int) {
    each(blocks, count, |block| {
        if pending::holds(key(block)) {
            settle(block, error_of(block));
        }
    });
}

fn each(blocks: Blocks, count: c_int, mut look: impl FnMut(Block)) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: an argument of the call that is under way: a list of so many blocks, which libc reads too.
        let block = unsafe { *blocks.add(at) };
        if !block.is_null() {
            look(block);
        }
    }
}

hook!(aio_error | aio_error64 (block: Block) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| settle(block, returned));
    returned
});
hook!(aio_return | aio_return64 (block: Block) -> isize, |real| {
    // Before the call: afterwards the block may be used again.
    if pending::holds(key(block)) {
        settle(block, error_of(block));
    }
    real()
});
hook!(aio_suspend | aio_suspend64 (blocks: Blocks, count: c_int, timeout: *const libc::timespec) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| settle_all(blocks, count));
    returned
});
hook!(aio_cancel | aio_cancel64 (fd: c_int, block: Block) -> c_int, |real| {
    let returned = real();
    keeping_errno(|| settle_all(&raw const block, c_int::from(!block.is_null())));
    returned
});
hook!(lio_listio | lio_listio64 (mode: c_int, blocks: Blocks, count: c_int, notify: *mut c_void) -> c_int, |real| {
    each(blocks, count, |block| {
        // SAFETY: the block is the caller's, and libc is about to read it.
        match unsafe { (*block).aio_lio_opcode } {
            libc::LIO_READ => _ = submit(posix::AIO_READ, block),
            libc::LIO_WRITE => _ = submit(posix::AIO_WRITE, block),
            _ => {}
        }
    });
    let returned = real();
    // All are done, or some were refused: those have their error.
    if mode == libc::LIO_WAIT || returned != 0 {
        keeping_errno(|| settle_all(blocks, count));
    }
    returned
});
