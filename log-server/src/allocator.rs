//! The C library's allocator, told to keep what it has.

/// Freed memory up to this size stays with the process, bytes.
#[cfg(target_env = "gnu")]
const KEEP: i32 = 64 << 20;
/// Allocations up to this size come from memory that was freed before, bytes: the most the allocator takes.
#[cfg(target_env = "gnu")]
const REUSE: i32 = 32 << 20;

/// Makes the allocator keep freed memory for the next merge. By default glibc gives the columns of every
/// merge back to the kernel, and faulting them in again costs a third of the time of the thread that writes
/// the trace (about 50 ns per event). For programs to call first thing in `main`; it concerns the whole process.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - mallopt takes no pointers and may be called at any time by any thread.
    // - Both values are within the ranges that mallopt(3) gives; a value it refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP);
        libc::mallopt(libc::M_MMAP_THRESHOLD, REUSE);
    }
}
