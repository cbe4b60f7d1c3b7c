//! Settings of the C library's allocator.

/// The process keeps freed memory up to this size, bytes.
#[cfg(target_env = "gnu")]
const KEEP: i32 = 128 << 20;
/// Allocations up to this size reuse freed memory, bytes: the maximum that the allocator accepts.
#[cfg(target_env = "gnu")]
const REUSE: i32 = 32 << 20;

/// Makes the allocator keep freed memory for the next merge. By default glibc returns the columns
/// of each merge to the kernel, and the page faults of the next merge cost a third of the time of
/// the thread that writes the trace (about 50 ns per event). Programs should call this first in
/// `main`; it affects the whole process.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - mallopt takes no pointers and may be called at any time by any thread.
    // - Both values are within the ranges that mallopt(3) gives; a value it refuses changes
    //   nothing.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP);
        libc::mallopt(libc::M_MMAP_THRESHOLD, REUSE);
    }
}
