//! Hooks of io_uring: the calls that liburing exports, and those of `syscall(2)`.
//!
//! Requests and completions pass through memory that the program shares with the kernel. Each hook
//! reads the submissions there before its call, and the completions before and after it. A request
//! thus begins with the call that submits it, and is complete at the first call after its
//! completion. Programs that make the system calls by instructions of their own (fio; a statically
//! linked liburing) are not recorded. If their ring was created and mapped by libc's functions, the
//! event `uring_unseen` contains the number of its requests.

mod entry;
mod ring;

use crate::real::{Address, NegatedErrno, Offset, ReturnValue, hook};
use crate::syscall::call_library;
use crate::vfork;
use miot_tracer::op::posix;
use ring::{Ring, RingAddresses};
use std::ffi::{c_int, c_uint, c_void};

/// `struct io_uring` of `liburing.h`, which programs contain: the part that has not changed since
/// 2.0.
#[repr(C)]
struct IoUring {
    head: usize,
    tail: usize,
    mask: usize,
    entries_count: usize,
    state: usize,
    dropped: usize,
    array: usize,
    entries: usize,
    /// Range of the entries that `io_uring_get_sqe` has returned and that are not in the queue yet.
    first: c_uint,
    last: c_uint,
    ring_bytes: usize,
    ring: usize,
    pad: [c_uint; 4],
    completed_head: usize,
    completed: usize,
    completed_mask: usize,
    completed_entries: usize,
    completed_state: usize,
    overflow: usize,
    completions: usize,
    completed_bytes: usize,
    completed_ring: usize,
    completed_pad: [c_uint; 4],
    flags: c_uint,
    fd: c_int,
}

const _: () = assert!(size_of::<IoUring>() == 104 + 88 + 8);

type RingPointer = *mut IoUring;
type Pointer = *mut c_void;

/// Returns whether this process image has an epoch, and sets it up if necessary. Without an epoch
/// nothing is recorded.
fn is_set_up() -> bool {
    !vfork::in_child() && (miot_tracer::epoch() != 0 || miot_tracer::submit(posix::URING_READ).is_some())
}

/// Returns the entry of a ring for this process image, and creates it if necessary.
fn tracked_ring(handle: RingPointer) -> Option<&'static Ring> {
    if !is_set_up() {
        return None;
    }
    // SAFETY:
    // - The caller passes a pointer to its open ring, which liburing reads as well.
    let handle = unsafe { &*handle };
    if let Some(ring) = ring::with_head_at(handle.head) {
        ring.restart_if_replaced();
        return Some(ring);
    }
    let addresses = RingAddresses {
        head: handle.head,
        tail: handle.tail,
        mask: handle.mask,
        array: handle.array,
        entries: handle.entries,
        completed: handle.completed,
        completed_mask: handle.completed_mask,
        completions: handle.completions,
    };
    ring::insert(-1, handle.flags, &addresses)
}

/// Handles a call that may submit, wait, or read completions.
fn on_submit_or_wait<R>(handle: RingPointer, real: impl FnOnce() -> R) -> R {
    let Some(ring) = tracked_ring(handle) else { return real() };
    ring.record_completions();
    // SAFETY:
    // - The caller passes a pointer to its open ring.
    // - No other thread may submit with this ring during the call.
    let (first, last) = unsafe { ((*handle).first, (*handle).last) };
    ring.record_submissions(first, last.wrapping_sub(first));
    let returned = call_library(real);
    ring.record_completions();
    returned
}

/// Handles a call that waits or reads completions, possibly while another thread submits.
fn on_wait<R>(handle: RingPointer, real: impl FnOnce() -> R) -> R {
    let Some(ring) = tracked_ring(handle) else { return real() };
    ring.record_completions();
    let returned = call_library(real);
    ring.record_completions();
    returned
}

hook!(io_uring_submit(ring: RingPointer) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_submit_and_wait(ring: RingPointer, count: c_uint) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_submit_and_wait_timeout(
    ring: RingPointer, completion: Pointer, count: c_uint, timeout: Pointer, mask: Pointer,
) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_submit_and_wait_min_timeout(
    ring: RingPointer, completion: Pointer, count: c_uint, timeout: Pointer, least: c_uint, mask: Pointer,
) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_submit_and_wait_reg(
    ring: RingPointer, completion: Pointer, count: c_uint, registered: c_int,
) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_submit_and_get_events(ring: RingPointer) -> NegatedErrno, |real| on_submit_or_wait(ring, real));
hook!(io_uring_get_events(ring: RingPointer) -> NegatedErrno, |real| on_wait(ring, real));
hook!(__io_uring_get_cqe(
    ring: RingPointer, completion: Pointer, submit: c_uint, count: c_uint, mask: Pointer,
) -> NegatedErrno, |real| {
    if submit > 0 { on_submit_or_wait(ring, real) } else { on_wait(ring, real) }
});
// With a timeout, on kernels without `IORING_FEAT_EXT_ARG`, the next two submit.
hook!(io_uring_wait_cqes(
    ring: RingPointer, completion: Pointer, count: c_uint, timeout: Pointer, mask: Pointer,
) -> NegatedErrno, |real| on_wait(ring, real));
hook!(io_uring_wait_cqe_timeout(ring: RingPointer, completion: Pointer, timeout: Pointer) -> NegatedErrno, |real| {
    on_wait(ring, real)
});
hook!(io_uring_wait_cqes_min_timeout(
    ring: RingPointer, completion: Pointer, count: c_uint, timeout: Pointer, least: c_uint, mask: Pointer,
) -> NegatedErrno, |real| on_wait(ring, real));
hook!(io_uring_peek_batch_cqe(ring: RingPointer, completions: Pointer, count: c_uint) -> NegatedErrno, |real| {
    on_wait(ring, real)
});
hook!(io_uring_queue_exit(ring: RingPointer) -> (), |real| {
    if let Some(ring) = tracked_ring(ring) {
        ring.finish();
    }
    call_library(real)
});
hook!(io_uring_enter(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: Pointer) -> NegatedErrno, |real| {
    on_enter(fd as c_int, flags, || call_library(real))
});
hook!(io_uring_enter2(
    fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: Pointer, bytes: usize,
) -> NegatedErrno, |real| on_enter(fd as c_int, flags, || call_library(real)));
hook!(io_uring_setup(entries: c_uint, parameters: *const Parameters) -> NegatedErrno, |real| {
    on_setup(parameters, || call_library(real))
});

/// Handles `io_uring_enter` of a ring that the program has mapped itself.
pub(crate) fn on_enter<R>(fd: c_int, flags: c_uint, real: impl FnOnce() -> R) -> R {
    /// `IORING_ENTER_REGISTERED_RING`: `fd` is an index of registered rings.
    const REGISTERED: c_uint = 1 << 4;
    let ring = if flags & REGISTERED == 0 { ring::of_descriptor(fd) } else { None };
    let Some(ring) = ring else { return real() };
    ring.record_completions();
    ring.record_submissions(0, 0);
    let returned = real();
    ring.record_completions();
    returned
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    counts: [u32; 2],
    flags: u32,
    threads: [u32; 2],
    features: u32,
    more: [u32; 4],
    /// Offsets of head, tail, mask, size, flags, dropped, array.
    submission: [u32; 10],
    /// Offsets of head, tail, mask, size, overflow, completions.
    completion: [u32; 10],
}

const _: () = assert!(size_of::<Parameters>() == 120);

/// Handles the creation of a ring that the program will map itself.
pub(crate) fn on_setup<R: ReturnValue>(parameters: *const Parameters, real: impl FnOnce() -> R) -> R {
    let returned = real();
    let fd = returned.result();
    // `IORING_SETUP_NO_MMAP`: the program allocates the memory, and the ring is not recorded.
    const NO_MMAP: u32 = 1 << 14;
    if fd >= 0 && is_set_up() {
        // SAFETY:
        // - The call has succeeded, so that the kernel has written the parameters.
        let parameters = unsafe { parameters.read_unaligned() };
        if parameters.flags & NO_MMAP == 0 {
            ring::track_created(fd as c_int, &parameters);
        }
    }
    returned
}

/// Handles a mapping of a descriptor that is not a file.
pub(crate) fn on_mmap(fd: c_int, offset: Offset, real: impl FnOnce() -> Address) -> Address {
    let returned = real();
    if !ring::is_unused()
        && returned != Address::FAILED
        && let Some(ring) = ring::of_descriptor(fd)
    {
        ring.on_mmap(offset, returned.0);
    }
    returned
}

/// Handles a mapping that is about to be removed.
pub(crate) fn on_munmap(address: usize) {
    if !ring::is_unused()
        && let Some(ring) = ring::mapped_at(address)
    {
        ring.finish();
    }
}

/// Returns whether the program has ever had a ring.
#[inline(always)]
pub(crate) fn is_used() -> bool {
    ring::is_used()
}

/// Records the pending requests when the program ends.
pub(crate) fn finish() {
    ring::finish();
}
