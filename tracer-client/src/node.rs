//! The control page of the node's log-client, mapped read-only.
//!
//! Only the log-client may write or truncate the page (mode 0644), so reading the mapping cannot
//! fault. It stays mapped for the life of the process, across `fork`.

use crate::clock;
use crate::file::File;
use crate::gate::{self, Calls};
use crate::identity;
use crate::local::address;
use crate::process;
use miot_proto::control::{
    BYTES, EXCEPTION_BYTES, ExceptionKind, FILE, MAGIC, MAX_EXCEPTIONS, MAX_EXCLUSION_BYTES, OPS_LAYERS,
    STALE_SECONDS, WhenFull, exception, exception_bit, filter, is_excluded, job_key, op_bit, word,
};
use miot_proto::op::Op;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// The mapped control page of a log-client.
#[repr(transparent)]
pub(crate) struct Control([AtomicU64; BYTES / 8]);

/// The page in use; null if no log-client was found yet. The words that each program touches at its
/// start share one section, beside words that the loader has relocated, because each further page
/// is a page fault.
#[unsafe(link_section = ".data.miot")]
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());

/// System calls that mapping the page needs.
const ATTACH: Calls =
    Calls::OPEN.and(Calls::CLOSE).and(Calls::STAT).and(Calls::MAP).and(Calls::UNMAP).and(Calls::CLOCK);

/// There was a control page when the program started.
#[unsafe(link_section = ".data.miot")]
static FOUND_AT_START: AtomicBool = AtomicBool::new(false);

/// Looks for a control page when the program starts. Makes only system calls that the loader has
/// made before.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn find_at_start() -> bool {
    let found = gate::can_detect() && open_page().is_some();
    FOUND_AT_START.store(found, Relaxed);
    found
}

/// True if there is a control page, or was one when the program started. Makes only system calls
/// that the loader has made before.
#[cold]
pub(crate) fn page_exists() -> bool {
    FOUND_AT_START.load(Relaxed) || current().is_some() || gate::can_detect() && open_page().is_some()
}

#[unsafe(link_section = ".text.startup")]
fn open_page() -> Option<File> {
    let path = identity::path_in_dir(FILE.as_bytes());
    File::open(path.as_c_str()?, OFlags::RDONLY, Mode::empty()).ok()
}

/// Returns the control page, after mapping it if necessary. `None`: the node has no log-client.
#[cold]
pub(crate) fn attach() -> Option<&'static Control> {
    if let Some(control) = current() {
        return Some(control);
    }
    let _pass = gate::permit(ATTACH)?;
    let file = open_page()?;
    let stat = rustix::fs::fstat(file.fd()?).ok()?;
    if stat.st_size < BYTES as i64 || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return None;
    }
    if clock::unix_seconds().saturating_sub(stat.st_mtime) > STALE_SECONDS {
        return None;
    }
    // SAFETY: `mmap` requires
    // - no overlap with existing mappings: the kernel chooses the address.
    // Reading the mapping cannot fault: the file is at least one page long, and only its owner can
    // shorten it.
    let address = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, file.fd()?, 0)
            .ok()?
    };
    let control = address.cast::<Control>();
    // SAFETY: the reference requires
    // - an aligned pointer to `BYTES` readable bytes: mapped above, page-aligned;
    // - a mapping that outlives it: it is unmapped only below, where the reference ends;
    // - shared access only: the page is read through atomics.
    let seen = unsafe { &*control };
    if seen.get_acquire(word::MAGIC) != MAGIC {
        // SAFETY: `munmap` requires
        // - the range of a mapping: exactly the one made above;
        // - no use of it afterwards: the only reference to it ends here.
        let _ = unsafe { rustix::mm::munmap(address, BYTES) };
        return None;
    }
    // Two threads may map the page at the same time. The first mapping is then never used, which
    // costs one page once.
    CONTROL.store(control, Relaxed);
    current()
}

/// Returns the control page if it is mapped.
#[inline(always)]
pub(crate) fn current() -> Option<&'static Control> {
    let control = address!(CONTROL: AtomicPtr<Control>);
    // SAFETY: dereferencing and `as_ref` require
    // - a static that lives forever and is only shared: `CONTROL` is an atomic;
    // - null or a pointer to a live page: control pages in use are never unmapped.
    unsafe { (*control).load(Relaxed).as_ref() }
}

/// Forgets the page of a log-client that has ended, so that [`attach`] looks for a successor. The
/// mapping stays, because other threads may be reading it.
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

    /// True if all requests of this operation are recorded now.
    #[inline(always)]
    pub(crate) fn records(&self, op: Op) -> bool {
        let (at, bit) = op_bit(op);
        self.get(at) >> bit & 1 != 0
    }

    /// Byte offset of the exception entry that applies to this process, if there is one. Searched
    /// again when the exceptions have changed.
    fn exception(&self) -> Option<usize> {
        let changes = self.get_acquire(word::EXCEPTIONS);
        if changes == 0 {
            return None;
        }
        let entry = process::cached_exception(changes).unwrap_or_else(|| {
            let entry = self.find_exception();
            process::cache_exception(changes, entry);
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

    /// True if requests of this operation are recorded now, either all or those that pass the
    /// filter. The words that it reads do not change when the doorbell does: then
    /// [`records`](Self::records) and [`has_filter`](Self::has_filter) change one after the other,
    /// and for a moment both are false.
    pub(crate) fn wants(&self, op: Op) -> bool {
        if self.records(op) {
            return true;
        }
        if let Some(at) = self.exception() {
            let (chosen, bit) = exception_bit(op);
            let layer = self.get(at + exception::LAYERS) >> (op.layer % OPS_LAYERS as u8) & 1 != 0;
            return self.is_on() && layer && self.get(at + chosen) >> bit & 1 != 0;
        }
        self.is_on() && self.is_chosen(op)
    }

    /// True if the settings of the node include this operation, whether tracing is on or not.
    #[inline(always)]
    fn is_chosen(&self, op: Op) -> bool {
        let (at, bit) = op_bit(op);
        self.get(word::LAYERS) >> (op.layer % OPS_LAYERS as u8) & 1 != 0
            && self.get(at - word::OPS + word::CHOSEN) >> bit & 1 != 0
    }

    /// False if [`wants`](Self::wants) is false and no exceptions have to be searched for that.
    #[inline(always)]
    pub(crate) fn may_want(&self, op: Op) -> bool {
        self.records(op) || self.is_on() && (self.get(word::EXCEPTED) != 0 || self.is_chosen(op))
    }

    /// True if the log-client has ended in an orderly way.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.get(word::CLOSED) != 0
    }

    /// True if requests of this operation are not recorded for now, by a log-client that is still
    /// running.
    #[inline(always)]
    pub(crate) fn ignores(&self, op: Op) -> bool {
        !self.may_want(op) && !self.is_closed()
    }

    /// True if tracing is switched off without exceptions, by a log-client that is still running.
    #[inline(always)]
    pub(crate) fn is_off(&self) -> bool {
        self.get(word::EXCEPTED) | self.get(word::ENABLED) | self.get(word::CLOSED) == 0
    }

    /// True unless tracing is switched off for this process.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        if self.get(word::EXCEPTED) != 0 {
            return self.is_on_for_process();
        }
        self.get(word::ENABLED) != 0
    }

    #[cold]
    fn is_on_for_process(&self) -> bool {
        self.get(self.exception().map_or(word::ENABLED, |at| at + exception::ENABLED)) != 0
    }

    /// True if requests are recorded and a filter excludes some of them: see
    /// [`min_duration_ticks`](Self::min_duration_ticks) and [`sample_mask`](Self::sample_mask).
    #[inline(always)]
    pub(crate) fn has_filter(&self) -> bool {
        self.get(word::FILTER) != 0 && self.is_on()
    }

    /// True if requests are recorded with the CPU time of their thread.
    pub(crate) fn wants_cpu_time(&self) -> bool {
        self.get(word::FILTER) & filter::CPU_TIME != 0
    }

    /// Wakes the log-client if it asked every request for that: it sleeps long, because the node
    /// had no events.
    pub(crate) fn ring_doorbell(&self) {
        if self.get(word::FILTER) & filter::DOORBELL != 0 {
            self.wake_log_client();
        }
    }

    /// Least duration of a recorded request, in ticks of the time stamp counter (`tsc`) or
    /// nanoseconds.
    pub(crate) fn min_duration_ticks(&self, tsc: bool) -> u64 {
        if let Some(at) = self.exception() {
            return self.get(at + if tsc { exception::MIN_TSC } else { exception::MIN_NS });
        }
        self.get(if tsc { word::MIN_TSC } else { word::MIN_NS })
    }

    /// Bits that must be 0 in the sample hash of a recorded request.
    pub(crate) fn sample_mask(&self) -> u64 {
        self.get(self.exception().map_or(word::SAMPLE, |at| at + exception::SAMPLE))
    }

    /// True if a lane that fills is not a reason to wake the log-client.
    pub(crate) fn is_flight_recorder(&self) -> bool {
        self.get(word::FLIGHT_RECORDER) != 0
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        WhenFull::from_number(self.get(word::WHEN_FULL))
    }

    /// Longest wait for free slots, nanoseconds.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.get(word::WAIT_NS)
    }

    /// Slots of a thread's first lane and of the largest one.
    pub(crate) fn lane_slots(&self) -> (u64, u64) {
        (self.get(word::LANE_SLOTS), self.get(word::LANE_SLOTS_MAX))
    }

    /// Bytes that this process may allocate for its segment.
    pub(crate) fn process_bytes(&self) -> u64 {
        self.get(word::PROCESS_BYTES)
    }

    /// True while no more memory may be allocated on this node.
    pub(crate) fn is_node_full(&self) -> bool {
        self.get(word::NODE_FULL) != 0
    }

    /// True if a program with this executable, of this user, is excluded from recording. `exe` is
    /// called only if there is a list.
    #[cold]
    pub(crate) fn excludes<'a>(&self, exe: impl FnOnce() -> &'a [u8], user: u32) -> bool {
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

    /// Wakes the log-client if it sleeps and the filter allows the system call; otherwise the
    /// log-client sweeps later by itself. Costs a system call if it sleeps, else a load.
    pub(crate) fn wake_log_client(&self) {
        let sleeping = &self.0[word::SLEEPING / 8];
        if sleeping.load(Relaxed) != 0
            && let Some(_pass) = gate::permit(Calls::WAKE)
        {
            // SAFETY: the reference requires
            // - an aligned pointer to four live bytes: the low half of a `u64` atomic in the page,
            //   which holds the futex;
            // - shared access only: both are atomics.
            let futex = unsafe { &*std::ptr::from_ref(sleeping).cast::<AtomicU32>() };
            let _ = rustix::thread::futex::wake(futex, rustix::thread::futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::control::Settings;
    use miot_proto::op::posix;

    /// At each moment of a change by the log-client.
    #[test]
    fn requests_are_wanted_while_the_doorbell_changes() {
        let page = Control(std::array::from_fn(|_| AtomicU64::new(0)));
        let plain = &Settings::default();
        let doorbell = &Settings { doorbell: true, ..plain.clone() };
        let filter = &Settings { min_duration_ns: 1000, ..plain.clone() };
        let off = &Settings { enabled: false, ..plain.clone() };
        let store = |settings: &Settings, check: &dyn Fn()| {
            for (at, value) in settings.words(1 << 30) {
                page.0[at / 8].store(value, Relaxed);
                check();
            }
        };
        store(plain, &|| ());
        let wanted = || assert!(page.wants(posix::PWRITE) && page.may_want(posix::PWRITE));
        for settings in [doorbell, plain, doorbell, filter, doorbell, plain, filter, plain] {
            store(settings, &wanted);
            assert_eq!(page.has_filter(), settings.doorbell || settings.min_duration_ns > 0);
        }
        store(off, &|| ());
        assert!(!page.wants(posix::PWRITE) && !page.may_want(posix::PWRITE) && page.ignores(posix::PWRITE));
    }

    /// By a program with the library of an earlier version, which looks at these two words.
    #[test]
    fn filter_and_operations_overlap_while_the_doorbell_changes() {
        let page = Control(std::array::from_fn(|_| AtomicU64::new(0)));
        let plain = Settings::default();
        plain.words(1 << 30).for_each(|(at, value)| page.0[at / 8].store(value, Relaxed));
        for settings in [Settings { doorbell: true, ..plain.clone() }, plain] {
            for (at, value) in settings.words(1 << 30) {
                page.0[at / 8].store(value, Relaxed);
                assert!(page.records(posix::PWRITE) || page.has_filter(), "{at}");
            }
        }
    }
}
