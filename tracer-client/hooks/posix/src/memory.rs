//! Memory of the program that only the kernel is meant to read, and answers `EFAULT` for if it is not there.

use crate::real::keeping_errno;
use miot_tracer::gate::{self, Calls};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The smallest pages there are.
const PAGE: usize = 4096;
/// Pages remembered to be readable.
const PAGES: usize = 256;

/// Numbers of pages that could be read when they were first asked for: the blocks of a program lie in few pages and stay there.
/// (A program that unmaps one and then passes the kernel an address in it is not protected.)
static READABLE: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];

/// True if memory can be read.
pub(crate) fn is_readable<T>(at: *const T, count: usize) -> bool {
    let (start, bytes) = (at.addr(), size_of::<T>().saturating_mul(count));
    let Some(last) = start.checked_add(bytes.max(1) - 1) else { return false };
    (start / PAGE..=last / PAGE).all(|page| {
        page != 0
            && READABLE.get(page % PAGES).is_some_and(|known| {
                known.load(Relaxed) == page || {
                    let mut byte = MaybeUninit::<u8>::uninit();
                    let readable = copy((page * PAGE) as *const u8, &mut byte, 1);
                    if readable {
                        known.store(page, Relaxed);
                    }
                    readable
                }
            })
    })
}

/// Copies what is at an address, one system call. `None`: it cannot be read.
pub(crate) fn peek<T: Copy>(at: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: all of it was copied from a value of this type, as the caller believes it to be.
    copy(at, &mut value, size_of::<T>()).then(|| unsafe { value.assume_init() })
}

fn copy<T, U>(from: *const T, to: &mut MaybeUninit<U>, bytes: usize) -> bool {
    let Some(_pass) = gate::pass(Calls::PEEK | Calls::PID) else { return false };
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes };
    // SAFETY: one element each; the kernel checks the address that is read, and there is room for what it writes.
    keeping_errno(|| unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == bytes as isize
    })
}
