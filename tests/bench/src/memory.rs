//! Memory that stays in this machine.
//!
//! Some virtual machines give free memory back to their host, in blocks of 2 MiB or more, and
//! whatever uses it again waits for the host: a write into the page cache takes up to ten times as
//! long. An application would then pay for memory that repetitions of a benchmark get from one
//! another.

use anyhow::{Result, ensure};
use std::io::Error;
use std::ptr::null_mut;

/// Less than the blocks that are given back.
const STEP: usize = 1 << 20;
const PAGE: usize = 4096;

/// While this is held, so much free memory cannot be given back: a page in every mebibyte of it is
/// in use. The kernel hands it out before it breaks up larger blocks.
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
        // SAFETY: the mapping is its own and is advised and written within its bounds; nothing
        // refers to what is in it.
        unsafe {
            // Of a huge page no part would be free before all of it is.
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
        // SAFETY: mapped by `new`, and used no more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
