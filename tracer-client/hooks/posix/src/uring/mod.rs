//! io_uring, as far as calls are made: those that liburing exports, and those of `syscall(2)`.
//!
//! Requests and completions pass through memory that the program shares with the kernel. What a call is about to submit is read
//! there before it; what has completed, before and after each call. So a request begins with the call that submits it and has
//! completed when the next call after its completion looks. Programs that make the system calls by instructions of their own (fio;
//! everything of liburing that is linked statically) are not seen; if their ring was made and mapped by libc's functions, the
//! event `uring_unseen` says how many requests it took.

mod entry;
mod ring;

use crate::real::{Address, Negative, Offset, Returned, hook};
use crate::syscall::within;
use crate::vfork;
use miot_tracer::op::posix;
use ring::{Places, Ring};
use std::ffi::{c_int, c_uint, c_void};

/// `struct io_uring` of `liburing.h`, which programs have compiled in: the part that has not changed since 2.0.
#[repr(C)]
struct Handle {
    head: usize,
    tail: usize,
    mask: usize,
    entries_count: usize,
    state: usize,
    dropped: usize,
    array: usize,
    entries: usize,
    /// From and to: entries that `io_uring_get_sqe` has given out and that are not in the queue yet.
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

const _: () = assert!(size_of::<Handle>() == 104 + 88 + 8);

type RingHandle = *mut Handle;
type Pointer = *mut c_void;

/// True if this process image has an epoch: without one nothing is recorded.
fn is_set_up() -> bool {
    !vfork::in_child() && (miot_tracer::epoch() != 0 || miot_tracer::submit(posix::URING_READ).is_some())
}

/// The ring of a handle, to be used by this process image.
fn known(handle: RingHandle) -> Option<&'static Ring> {
    if !is_set_up() {
        return None;
    }
    // SAFETY: the caller's own handle, open.
    let handle = unsafe { &*handle };
    if let Some(ring) = ring::at(handle.head) {
        ring.check();
        return Some(ring);
    }
    let places = Places {
        head: handle.head,
        tail: handle.tail,
        mask: handle.mask,
        array: handle.array,
        entries: handle.entries,
        completed: handle.completed,
        completed_mask: handle.completed_mask,
        completions: handle.completions,
    };
    ring::insert(-1, handle.flags, &places)
}

/// A call that may submit, wait, or look for completions.
fn calling<R>(handle: RingHandle, real: impl FnOnce() -> R) -> R {
    let Some(ring) = known(handle) else { return real() };
    ring.collect();
    // SAFETY: the caller's own handle, which no other thread may be using to submit.
    let (first, last) = unsafe { ((*handle).first, (*handle).last) };
    ring.submit((first, last.wrapping_sub(first)));
    let returned = within(real);
    ring.collect();
    returned
}

/// A call that waits or looks, perhaps while another thread submits.
fn looking<R>(handle: RingHandle, real: impl FnOnce() -> R) -> R {
    let Some(ring) = known(handle) else { return real() };
    ring.collect();
    let returned = within(real);
    ring.collect();
    returned
}

hook!(io_uring_submit(ring: RingHandle) -> Negative, |real| calling(ring, real));
hook!(io_uring_submit_and_wait(ring: RingHandle, count: c_uint) -> Negative, |real| calling(ring, real));
hook!(io_uring_submit_and_wait_timeout(
    ring: RingHandle, completion: Pointer, count: c_uint, timeout: Pointer, mask: Pointer,
) -> Negative, |real| calling(ring, real));
hook!(io_uring_submit_and_wait_min_timeout(
    ring: RingHandle, completion: Pointer, count: c_uint, timeout: Pointer, least: c_uint, mask: Pointer,
) -> Negative, |real| calling(ring, real));
hook!(io_uring_submit_and_wait_reg(
    ring: RingHandle, completion: Pointer, count: c_uint, registered: c_int,
) -> Negative, |real| calling(ring, real));
hook!(io_uring_submit_and_get_events(ring: RingHandle) -> Negative, |real| calling(ring, real));
hook!(io_uring_get_events(ring: RingHandle) -> Negative, |real| looking(ring, real));
hook!(__io_uring_get_cqe(
    ring: RingHandle, completion: Pointer, submit: c_uint, count: c_uint, mask: Pointer,
) -> Negative, |real| {
    if submit > 0 { calling(ring, real) } else { looking(ring, real) }
});
// With a timeout, on kernels without `IORING_FEAT_EXT_ARG`, these two submit.
hook!(io_uring_wait_cqes(
    ring: RingHandle, completion: Pointer, count: c_uint, timeout: Pointer, mask: Pointer,
) -> Negative, |real| looking(ring, real));
hook!(io_uring_wait_cqe_timeout(ring: RingHandle, completion: Pointer, timeout: Pointer) -> Negative, |real| {
    looking(ring, real)
});
hook!(io_uring_wait_cqes_min_timeout(
    ring: RingHandle, completion: Pointer, count: c_uint, timeout: Pointer, least: c_uint, mask: Pointer,
) -> Negative, |real| looking(ring, real));
hook!(io_uring_peek_batch_cqe(ring: RingHandle, completions: Pointer, count: c_uint) -> Negative, |real| {
    looking(ring, real)
});
hook!(io_uring_queue_exit(ring: RingHandle) -> (), |real| {
    if let Some(ring) = known(ring) {
        ring.finish();
    }
    within(real)
});
hook!(io_uring_enter(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: Pointer) -> Negative, |real| {
    entering(fd as c_int, flags, || within(real))
});
hook!(io_uring_enter2(
    fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: Pointer, bytes: usize,
) -> Negative, |real| entering(fd as c_int, flags, || within(real)));
hook!(io_uring_setup(entries: c_uint, parameters: *const Parameters) -> Negative, |real| {
    setting_up(parameters, || within(real))
});

/// `io_uring_enter` of a ring that the program has mapped by itself.
pub(crate) fn entering<R>(fd: c_int, flags: c_uint, real: impl FnOnce() -> R) -> R {
    /// `fd` is an index of the ring's own.
    const REGISTERED: c_uint = 1 << 4;
    let ring = if flags & REGISTERED == 0 { ring::of_descriptor(fd) } else { None };
    let Some(ring) = ring else { return real() };
    ring.collect();
    ring.submit((0, 0));
    let returned = real();
    ring.collect();
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

/// A ring that the program will map by itself.
pub(crate) fn setting_up<R: Returned>(parameters: *const Parameters, real: impl FnOnce() -> R) -> R {
    let returned = real();
    let fd = returned.result();
    // Of what is mapped in another way nothing is seen.
    const NO_MMAP: u32 = 1 << 14;
    if fd >= 0 && is_set_up() {
        // SAFETY: the call has succeeded, so the kernel has written them.
        let parameters = unsafe { parameters.read_unaligned() };
        if parameters.flags & NO_MMAP == 0 {
            ring::made(fd as c_int, &parameters);
        }
    }
    returned
}

/// A mapping of something that is no file.
pub(crate) fn mapping(fd: c_int, offset: Offset, real: impl FnOnce() -> Address) -> Address {
    let returned = real();
    if !ring::none()
        && returned != Address::FAILED
        && let Some(ring) = ring::of_descriptor(fd)
    {
        ring.map(offset, returned.0);
    }
    returned
}

/// A mapping is about to go.
pub(crate) fn unmapping(address: usize) {
    if !ring::none()
        && let Some(ring) = ring::mapped_at(address)
    {
        ring.finish();
    }
}

/// The program ends.
pub(crate) fn finish() {
    ring::finish();
}
