//! The control page as mapped memory.
//!
//! It is mapped because the sleep of an idle log-client is a futex in it. The file has mode 0644,
//! so only its owner can truncate it under the mapping.

#![expect(clippy::disallowed_types, reason = "words of the control page, shared with producers")]

use miot_proto::control::{BYTES, EXCEPTION_BYTES, MAGIC, MAX_EXCEPTIONS, Settings, exception, word};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
};

type Page = [AtomicU64; BYTES / 8];

/// The mapping.
#[derive(Debug)]
pub(super) struct MappedPage(NonNull<Page>);

// SAFETY: the page is accessed only through atomics, and stays mapped as long as the value lives.
unsafe impl Send for MappedPage {}
// SAFETY: as above.
unsafe impl Sync for MappedPage {}

impl MappedPage {
    pub(super) fn new(file: &OwnedFd) -> Result<MappedPage, Errno> {
        // SAFETY:
        // - a new mapping at an address the kernel chooses overlaps nothing;
        // - the file is BYTES long (checked or allocated by the caller), and only its owner could
        //   shorten it.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(address.cast::<Page>()).map(MappedPage).ok_or(Errno::NOMEM)
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY:
        // - the page is mapped until drop, page-aligned and BYTES long;
        // - all access to it is atomic.
        let page = unsafe { self.0.as_ref() };
        &page[at / 8]
    }

    /// The futex word of a sleeping log-client.
    pub(super) fn bell(&self) -> &AtomicU32 {
        // SAFETY:
        // - the low half of a live little-endian `u64` atomic is four bytes, aligned for `u32`;
        // - the reference does not outlive the page, which `self` keeps mapped.
        unsafe { &*std::ptr::from_ref(self.word(word::SLEEPING)).cast::<AtomicU32>() }
    }

    /// Stores settings, in their order.
    pub(super) fn store(&self, settings: &Settings, tsc_hz: u64) {
        for (at, value) in settings.words(tsc_hz) {
            self.word(at).store(value, Release);
        }
    }

    /// Removes all exceptions: the node's settings apply to all programs.
    pub(super) fn clear_exceptions(&self) {
        if self.word(word::EXCEPTED).swap(0, Release) == 0 {
            return;
        }
        for entry in 0..MAX_EXCEPTIONS {
            self.word(word::EXCEPTION + entry * EXCEPTION_BYTES + exception::KIND).store(0, Release);
        }
        self.word(word::EXCEPTIONS).fetch_add(1, Release);
    }

    /// Stores the list of programs and users that are not recorded. A producer that reads it
    /// meanwhile sees no list.
    pub(super) fn store_left_out(&self, list: &[u8]) {
        let length = self.word(word::LEFT_OUT_BYTES);
        length.store(0, Release);
        for (at, bytes) in list.chunks(8).enumerate() {
            let mut text = [0; 8];
            text[..bytes.len()].copy_from_slice(bytes);
            self.word(word::LEFT_OUT + 8 * at).store(u64::from_le_bytes(text), Release);
        }
        length.store(list.len() as u64, Release);
    }

    /// Initializes the page for this process.
    pub(super) fn configure(&self, settings: &Settings, tsc_hz: u64) {
        for (at, value) in
            [(word::READER_PID, u64::from(std::process::id())), (word::SLEEPING, 0), (word::CLOSED, 0)]
        {
            self.word(at).store(value, Relaxed);
        }
        self.clear_exceptions();
        // The predecessor's rate is that of this machine, since the page does not survive a boot.
        let known = if tsc_hz == 0 { self.word(word::TSC_HZ).load(Relaxed) } else { tsc_hz };
        self.store(settings, known);
        self.word(word::MAGIC).store(MAGIC, Release);
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY:
        // - `new` mapped exactly this range;
        // - no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}
