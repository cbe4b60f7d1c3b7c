//! The control page, from the side that writes it.
//!
//! Mapped, because the sleep of an idle log-client is a futex in it. The file is ours and mode 0644, so
//! nobody else can truncate it under the mapping. A page of a predecessor is taken over in place: running
//! producers have it mapped.

use super::is_our_file;
use crate::config::Config;
use crate::error::Error;
use miot_proto::control::{BYTES, FILE, MAGIC, word};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{Timespec, futex};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use std::time::Duration;

type Page = [AtomicU64; BYTES / 8];

/// The mapped control page.
#[derive(Debug)]
pub(crate) struct Control {
    page: NonNull<Page>,
}

// SAFETY: the page is reached only through atomics, and stays mapped as long as the value lives.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    pub(super) fn open(path: &Path, dir: BorrowedFd<'_>, config: &Config) -> Result<Control, Error> {
        let fail = |error: Errno| Error::path("cannot set up the control page", path.join(FILE), error);
        if let Some(file) = predecessor(dir) {
            let control = Control::map(&file).map_err(fail)?;
            if control.word(word::MAGIC).load(Relaxed) == MAGIC {
                control.configure(config)?;
                return Ok(control);
            }
        }
        // Under another name until it is complete: a producer must never find half a page.
        let name = format!("{FILE}.{}", rustix::process::getpid().as_raw_nonzero());
        let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let made = rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
            .and_then(|()| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64))
            .and_then(|()| Control::map(&file))
            .map_err(fail)
            .and_then(|control| control.configure(config).map(|()| control))
            .and_then(|control| rustix::fs::renameat(dir, &name, dir, FILE).map_err(fail).map(|()| control));
        if made.is_err() {
            let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        }
        made
    }

    fn map(file: &OwnedFd) -> Result<Control, Errno> {
        // SAFETY:
        // - a new mapping at an address the kernel chooses overlaps nothing;
        // - the file is BYTES long (checked or allocated by the caller), ours, and only we could shorten it.
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
        NonNull::new(address.cast::<Page>()).map(|page| Control { page }).ok_or(Errno::NOMEM)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: mapped until drop, page-aligned, BYTES long; all access is atomic.
        let page = unsafe { self.page.as_ref() };
        &page[at / 8]
    }

    fn configure(&self, config: &Config) -> Result<(), Error> {
        let words = [
            (word::LAYERS, config.layer_mask()?),
            (word::WHEN_FULL, config.when_full as u64),
            (word::WAIT_NS, u64::try_from(config.wait.as_nanos()).unwrap_or(u64::MAX)),
            (word::LANE_SLOTS, config.lane_slots),
            (word::LANE_SLOTS_MAX, config.lane_slots_max),
            (word::PROCESS_BYTES, config.process_bytes),
            (word::READER_PID, u64::from(std::process::id())),
            (word::SLEEPING, 0),
            (word::ENABLED, 1),
            (word::CLOSED, 0),
        ];
        for (at, value) in words {
            self.word(at).store(value, Relaxed);
        }
        self.word(word::MAGIC).store(MAGIC, Release);
        Ok(())
    }

    /// Says to waiting producers that somebody reads.
    pub(crate) fn swept(&self) {
        let sweeps = self.word(word::SWEEPS);
        sweeps.store(sweeps.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Sleeps until a producer rings or the time is over.
    ///
    /// A lane that became half full after the last sweep looked at it, but before its producer could see
    /// that we sleep, rings with its next request.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let timeout = Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let sleeping = self.word(word::SLEEPING);
        // SAFETY: the low half of a live little-endian `u64` atomic is four aligned bytes.
        let word = unsafe { &*std::ptr::from_ref(sleeping).cast::<AtomicU32>() };
        sleeping.store(1, SeqCst);
        // Shared between processes, hence without the private flag. Woken, timed out or interrupted: the
        // next sweep looks for itself.
        let _ = futex::wait(word, futex::Flags::empty(), 1, Some(&timeout));
        sleeping.store(0, SeqCst);
    }

    /// Ends recording on the node: producers go dormant.
    pub(crate) fn close(&self) {
        self.word(word::ENABLED).store(0, Relaxed);
        self.word(word::SLEEPING).store(0, Relaxed);
        self.word(word::CLOSED).store(1, Release);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

/// The page an earlier log-client of this user left, if it has the right size.
fn predecessor(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, FILE, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (is_our_file(&stat) && stat.st_size == BYTES as i64).then_some(file)
}
