//! Access to memory of the program that normally only the kernel reads, which returns `EFAULT` if
//! the memory is not mapped.

#![expect(clippy::disallowed_types, reason = "pages known to be readable")]

use crate::real::keeping_errno;
use miot_tracer::gate::{self, Calls};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Smallest page size, in bytes.
const PAGE: usize = 4096;
/// Number of pages remembered as readable.
const PAGES: usize = 256;

/// Numbers of pages that were readable at their first check: the blocks of a program are in few
/// pages and stay there. A program that unmaps such a page and then passes an address in it to the
/// kernel is not protected.
static READABLE: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];

/// Returns whether `count` values at an address can be read.
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

/// Copies the value at an address, with one system call. `None` if it cannot be read.
pub(crate) fn peek<T: Copy>(at: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY:
    // - All bytes of `value` were copied.
    // - The callers use types for which every bit pattern is valid.
    copy(at, &mut value, size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// Copies memory through the kernel. Returns false if it cannot be read.
fn copy<T, U>(from: *const T, to: &mut MaybeUninit<U>, bytes: usize) -> bool {
    let Some(_permit) = gate::permit(Calls::PEEK | Calls::PID) else { return false };
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes };
    // SAFETY:
    // - `local` and `remote` are arrays of one element.
    // - `to` has space for `bytes` bytes.
    // - The kernel checks the address that it reads.
    keeping_errno(|| unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == bytes as isize
    })
}
