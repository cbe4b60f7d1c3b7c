//! Memory that this machine does not return to its host.
//!
//! Some virtual machines return free memory to their host, in blocks of 2 MiB or more. The next use
//! of it waits for the host: a write to the page cache takes up to ten times as long. An
//! application would pay for that memory, whereas the repetitions of a benchmark reuse each
//! other's.

use anyhow::{Result, ensure};
use std::io::Error;
use std::ptr::null_mut;

/// Distance of used pages: less than the size of returned blocks.
const STEP: usize = 1 << 20;
const PAGE: usize = 4096;

/// While this value exists, that much free memory cannot be returned, because one page in every
/// mebibyte of it is in use. The kernel allocates this memory before it splits larger blocks.
#[derive(Debug)]
pub(crate) struct Kept {
    address: *mut libc::c_void,
    length: usize,
}

impl Kept {
    pub(crate) fn new(mib: usize) -> Result<Kept> {
        let length = mib << 20;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let address =
            unsafe { libc::mmap(null_mut(), length, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        ensure!(address != libc::MAP_FAILED, "no {mib} MiB of memory: {}", Error::last_os_error());
        let kept = Kept { address, length };
        // SAFETY: the mapping is private to this value, and is advised and written within its
        // bounds. Nothing refers to its contents.
        unsafe {
            // No part of a huge page would be free before all of it is.
            libc::madvise(address, length, libc::MADV_NOHUGEPAGE);
            address.cast::<u8>().write_bytes(1, length);
            for step in (0..length).step_by(STEP) {
                let freed = libc::madvise(address.add(step + PAGE), STEP - PAGE, libc::MADV_DONTNEED);
                ensure!(freed == 0, "cannot free memory: {}", Error::last_os_error());
            }
        }
        Ok(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used any more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
