//! The control page of the node's log-client, mapped read-only.
//!
//! The page belongs to the log-client: nobody else may write or truncate it (mode 0644), so reading the
//! mapping cannot fault. It stays mapped for the life of the process, across `fork`.

use crate::file::File;
use crate::identity;
use miot_proto::control::{BYTES, FILE, MAGIC, WhenFull, word};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// The mapped control page of a log-client.
#[repr(transparent)]
pub(crate) struct Control([AtomicU64; BYTES / 8]);

/// The page in use; null while no log-client was found.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());

/// The control page, mapped now if it was not yet. `None`: no log-client on this node.
#[cold]
pub(crate) fn attach() -> Option<&'static Control> {
    if let Some(control) = current() {
        return Some(control);
    }
    let path = identity::path_in_dir(FILE.as_bytes());
    let file = File::open(path.as_c_str()?, OFlags::RDONLY, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(file.fd()?).ok()?;
    if stat.st_size < BYTES as i64 || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return None;
    }
    // SAFETY:
    // - a new mapping at an address the kernel chooses overlaps nothing;
    // - the file is at least one page long, and only its owner could make it shorter.
    let address = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, file.fd()?, 0)
            .ok()?
    };
    let control = address.cast::<Control>();
    // SAFETY: page-aligned, BYTES long, mapped for ever unless unmapped below; read only through atomics.
    let seen = unsafe { &*control };
    if seen.get_acquire(word::MAGIC) != MAGIC {
        // SAFETY: mapped above, and the only reference to it ends here.
        let _ = unsafe { rustix::mm::munmap(address, BYTES) };
        return None;
    }
    // Two threads may both map it; the loser's mapping stays, which costs a page once.
    CONTROL.store(control, Relaxed);
    current()
}

/// The control page if it is mapped.
#[inline(always)]
pub(crate) fn current() -> Option<&'static Control> {
    // SAFETY: null, or a mapping that is never removed.
    unsafe { CONTROL.load(Relaxed).as_ref() }
}

/// The log-client has gone: forget its page and look for a successor's. The mapping stays, other threads
/// may be reading it.
#[cold]
pub(crate) fn detach() {
    CONTROL.store(std::ptr::null_mut(), Relaxed);
}

impl Control {
    #[inline(always)]
    fn get(&self, at: usize) -> u64 {
        self.0[at / 8].load(Relaxed)
    }

    fn get_acquire(&self, at: usize) -> u64 {
        self.0[at / 8].load(Acquire)
    }

    /// True if events of this layer are recorded now.
    #[inline(always)]
    pub(crate) fn records(&self, layer: u8) -> bool {
        self.get(word::ENABLED) != 0 && self.get(word::LAYERS) >> (layer & 63) & 1 != 0
    }

    /// True if the log-client has ended in an orderly way.
    pub(crate) fn closed(&self) -> bool {
        self.get(word::CLOSED) != 0
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        WhenFull::from_number(self.get(word::WHEN_FULL))
    }

    /// Longest wait for room, nanoseconds.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.get(word::WAIT_NS)
    }

    /// First and largest lane, slots.
    pub(crate) fn lane_slots(&self) -> (u64, u64) {
        (self.get(word::LANE_SLOTS), self.get(word::LANE_SLOTS_MAX))
    }

    /// Bytes this process may claim.
    pub(crate) fn process_bytes(&self) -> u64 {
        self.get(word::PROCESS_BYTES)
    }

    /// Wakes the log-client if it sleeps. A system call if it does, a load if not.
    pub(crate) fn ring(&self) {
        let sleeping = &self.0[word::SLEEPING / 8];
        if sleeping.load(Relaxed) != 0 {
            // SAFETY: the low half of a live `u64` atomic is four aligned bytes, which hold the futex.
            let futex = unsafe { &*std::ptr::from_ref(sleeping).cast::<AtomicU32>() };
            let _ = rustix::thread::futex::wake(futex, rustix::thread::futex::Flags::empty(), 1);
        }
    }
}
