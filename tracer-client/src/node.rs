//! The control page of the node's log-client, mapped read-only.
//!
//! The page belongs to the log-client: nobody else may write or truncate it (mode 0644), so reading the
//! mapping cannot fault. It stays mapped for the life of the process, across `fork`.

use crate::clock;
use crate::file::File;
use crate::gate::{self, Calls};
use crate::identity;
use crate::process;
use miot_proto::control::{
    BYTES, EXCEPTION_BYTES, ExceptionKind, FILE, MAGIC, MAX_EXCEPTIONS, MAX_EXCLUSION_BYTES, OPS_LAYERS,
    STALE_SECONDS, WhenFull, exception, exception_bit, is_excluded, job_key, op_bit, word,
};
use miot_proto::op::Op;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// The mapped control page of a log-client.
#[repr(transparent)]
pub(crate) struct Control([AtomicU64; BYTES / 8]);

/// The page in use; null while no log-client was found. What each program touches at its start is together in one
/// section, among words that the loader has relocated: a page more is a page fault more.
#[unsafe(link_section = ".data.miot")]
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());

/// What it takes to map the page.
const ATTACH: Calls =
    Calls::OPEN.and(Calls::CLOSE).and(Calls::STAT).and(Calls::MAP).and(Calls::UNMAP).and(Calls::CLOCK);

/// True if there is a control page to look at. Makes no call that the loader has not made before.
#[cold]
pub(crate) fn is_there() -> bool {
    current().is_some() || gate::may_ask() && open().is_some()
}

fn open() -> Option<File> {
    let path = identity::path_in_dir(FILE.as_bytes());
    File::open(path.as_c_str()?, OFlags::RDONLY, Mode::empty()).ok()
}

/// The control page, mapped now if it was not yet. `None`: no log-client on this node.
#[cold]
pub(crate) fn attach() -> Option<&'static Control> {
    if let Some(control) = current() {
        return Some(control);
    }
    let _pass = gate::pass(ATTACH)?;
    let file = open()?;
    let stat = rustix::fs::fstat(file.fd()?).ok()?;
    if stat.st_size < BYTES as i64 || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return None;
    }
    if clock::unix_seconds().saturating_sub(stat.st_mtime) > STALE_SECONDS {
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

    /// True if requests of this operation are all recorded now.
    #[inline(always)]
    pub(crate) fn records(&self, op: Op) -> bool {
        let (at, bit) = op_bit(op);
        self.get(at) >> bit & 1 != 0
    }

    /// Where the exception is that holds for this process, if there is one: byte offset of its entry. Looked for when the
    /// exceptions have changed.
    fn exception(&self) -> Option<usize> {
        let changes = self.get_acquire(word::EXCEPTIONS);
        if changes == 0 {
            return None;
        }
        let entry = process::exception(changes).unwrap_or_else(|| {
            let entry = self.find_exception();
            process::remember_exception(changes, entry);
            entry
        });
        entry.map(|entry| word::EXCEPTION + entry * EXCEPTION_BYTES)
    }

    #[cold]
    fn find_exception(&self) -> Option<usize> {
        let (own, job) = (process::nonce(), job_key(identity::job_id()));
        let find = |kind: ExceptionKind, key: u64| {
            (0..MAX_EXCEPTIONS).find(|entry| {
                let at = word::EXCEPTION + entry * EXCEPTION_BYTES;
                self.get_acquire(at + exception::KIND) == kind as u64 && self.get(at + exception::KEY) == key
            })
        };
        let mine = own.and_then(|own| find(ExceptionKind::Process, own));
        mine.or_else(|| if identity::job_id().is_empty() { None } else { find(ExceptionKind::Job, job) })
    }

    /// True if requests of this operation are recorded now, or those that a filter keeps.
    pub(crate) fn wants(&self, op: Op) -> bool {
        if self.records(op) {
            return true;
        }
        if let Some(at) = self.exception() {
            let (chosen, bit) = exception_bit(op);
            let layer = self.get(at + exception::LAYERS) >> (op.layer % OPS_LAYERS as u8) & 1 != 0;
            return self.filters() && layer && self.get(at + chosen) >> bit & 1 != 0;
        }
        let (at, bit) = op_bit(op);
        let chosen = || self.get(at - word::OPS + word::CHOSEN) >> bit & 1 != 0;
        let layer = || self.get(word::LAYERS) >> (op.layer % OPS_LAYERS as u8) & 1 != 0;
        self.filters() && layer() && chosen()
    }

    /// True if the log-client has ended in an orderly way.
    #[inline(always)]
    pub(crate) fn closed(&self) -> bool {
        self.get(word::CLOSED) != 0
    }

    /// True if requests of this operation are not recorded for now, by a log-client that is still there.
    #[inline(always)]
    pub(crate) fn leaves_alone(&self, op: Op) -> bool {
        !self.records(op) && !self.filters() && !self.closed()
    }

    /// True if tracing is switched off as a whole and without exception, by a log-client that is still there.
    #[inline(always)]
    pub(crate) fn is_off(&self) -> bool {
        self.get(word::EXCEPTED) | self.get(word::ENABLED) | self.get(word::CLOSED) == 0
    }

    /// True unless tracing is switched off as a whole, for this process.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        if self.get(word::EXCEPTED) != 0 {
            return self.is_on_here();
        }
        self.get(word::ENABLED) != 0
    }

    #[cold]
    fn is_on_here(&self) -> bool {
        self.get(self.exception().map_or(word::ENABLED, |at| at + exception::ENABLED)) != 0
    }

    /// True if requests are recorded, and some of them are to be left out: see
    /// [`min_duration`](Self::min_duration) and [`sample`](Self::sample).
    #[inline(always)]
    pub(crate) fn filters(&self) -> bool {
        self.get(word::FILTER) != 0 && self.is_on()
    }

    /// True if requests are recorded with the CPU time of their thread.
    pub(crate) fn wants_cpu_time(&self) -> bool {
        self.get(word::FILTER) & 2 != 0
    }

    /// Requests that took fewer ticks are left out.
    pub(crate) fn min_duration(&self, tsc: bool) -> u64 {
        if let Some(at) = self.exception() {
            return self.get(at + if tsc { exception::MIN_TSC } else { exception::MIN_NS });
        }
        self.get(if tsc { word::MIN_TSC } else { word::MIN_NS })
    }

    /// Requests are left out whose lot has one of these bits.
    pub(crate) fn sample(&self) -> u64 {
        self.get(self.exception().map_or(word::SAMPLE, |at| at + exception::SAMPLE))
    }

    /// True if a lane that fills is no reason to wake the log-client.
    pub(crate) fn is_flight_recorder(&self) -> bool {
        self.get(word::FLIGHT_RECORDER) != 0
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

    /// True while no more memory is to be claimed on this node.
    pub(crate) fn is_full(&self) -> bool {
        self.get(word::NODE_FULL) != 0
    }

    /// True if a program with this executable, of this user, is not to be recorded. `exe` is asked only if there is a list.
    #[cold]
    pub(crate) fn is_excluded<'a>(&self, exe: impl FnOnce() -> &'a [u8], user: u32) -> bool {
        let length = self.get_acquire(word::LEFT_OUT_BYTES) as usize;
        if length == 0 {
            return false;
        }
        let mut list = [0; MAX_EXCLUSION_BYTES];
        for (at, bytes) in list.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.get(word::LEFT_OUT + 8 * at).to_le_bytes());
        }
        is_excluded(&list[..length.min(MAX_EXCLUSION_BYTES)], exe(), user)
    }

    /// Wakes the log-client if it sleeps, and if the call is allowed; else it comes by itself, later. A system call if it
    /// sleeps, a load if not.
    pub(crate) fn ring(&self) {
        let sleeping = &self.0[word::SLEEPING / 8];
        if sleeping.load(Relaxed) != 0
            && let Some(_pass) = gate::pass(Calls::WAKE)
        {
            // SAFETY: the low half of a live `u64` atomic is four aligned bytes, which hold the futex.
            let futex = unsafe { &*std::ptr::from_ref(sleeping).cast::<AtomicU32>() };
            let _ = rustix::thread::futex::wake(futex, rustix::thread::futex::Flags::empty(), 1);
        }
    }
}
