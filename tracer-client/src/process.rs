//! The segment of this process: creation at the first traced request, lanes for its threads, `fork`.
//!
//! What belongs to this process image and not to a forked child stands in one private page that the
//! kernel wipes in the child ([`MADV_WIPEONFORK`]): a wiped page reads as "no segment", whether the child
//! came from `fork`, from `clone` or from a runtime that calls neither. The segment's mapping itself is not
//! inherited (`MADV_DONTFORK`), so a child cannot write into its parent's lanes.
//!
//! Everything here is the slow path: it may make system calls, never libc calls that can be hooked.

use crate::file::File;
use crate::identity::{self, Text};
use crate::lane::{Identity, Lane, Producer, Slot};
use crate::{clock, node::Control};
use miot_proto::segment::{
    HEADER_BYTES, LANE_BYTES, MAGIC, MAJOR, MAX_LANE_SLOTS, MAX_LANES, MIN_LANE_SLOTS, MINOR, SLOTS_OFFSET,
    SUFFIX, fit_strings, header,
};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const PAGE: usize = 4096;
const SLOT: u64 = miot_proto::event::SLOT_BYTES as u64;
/// What a segment needs besides slots: the header and the first page of the lane table.
const FIRST_BYTES: u64 = (HEADER_BYTES + PAGE) as u64;
const LANES_PER_PAGE: usize = PAGE / LANE_BYTES;

/// The state of this process image. All zero: nothing set up, which is what a forked child finds.
#[repr(C, align(64))]
struct Process {
    /// 0 = no segment; else the epoch of this image. Read at every request, so it stands alone.
    epoch: AtomicU64,
    next_handle: AtomicU64,
    lock: AtomicBool,
    /// Start of the mapped segment, null if there is none.
    base: AtomicPtr<u8>,
    /// Bytes mapped: the most this segment may grow to.
    mapped: AtomicU64,
    /// Bytes of the file so far.
    size: AtomicU64,
    /// Lanes placed so far.
    lanes: AtomicU32,
    /// Random number in the file's name.
    nonce: AtomicU64,
    pid: AtomicU32,
}

const _: () = assert!(size_of::<Process>() <= PAGE);

/// Stands in until the page exists; never leaves the all-zero state.
static NOBODY: Process = Process {
    epoch: AtomicU64::new(0),
    next_handle: AtomicU64::new(0),
    lock: AtomicBool::new(false),
    base: AtomicPtr::new(std::ptr::null_mut()),
    mapped: AtomicU64::new(0),
    size: AtomicU64::new(0),
    lanes: AtomicU32::new(0),
    nonce: AtomicU64::new(0),
    pid: AtomicU32::new(0),
};

static PROCESS: AtomicPtr<Process> = AtomicPtr::new((&raw const NOBODY).cast_mut());

/// Counts process images along a line of forks; not wiped, so a child's differs from its parent's.
static EPOCHS: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn process() -> &'static Process {
    // SAFETY: points to NOBODY or to a page that is never unmapped.
    unsafe { &*PROCESS.load(Relaxed) }
}

/// Changes when the process forks; 0 as long as the process has no segment.
#[inline(always)]
#[must_use]
pub fn epoch() -> u32 {
    process().epoch.load(Relaxed) as u32
}

/// The mark of a thread's state that is valid in this process image. Differs from zero, which is what an
/// unused state holds, and from the mark of a wiped page.
#[inline(always)]
pub(crate) fn tag() -> u64 {
    process().epoch.load(Relaxed) + 1
}

/// A new file handle: counts up from 1 in each process image.
#[must_use]
pub fn new_handle() -> u64 {
    let process = process();
    if std::ptr::eq(process, &raw const NOBODY) {
        return 0;
    }
    process.next_handle.fetch_add(1, Relaxed) + 1
}

/// A lane and its slots, claimed for the calling thread.
pub(crate) struct Claimed {
    pub(crate) lane: &'static Lane,
    pub(crate) slots: &'static [Slot],
    pub(crate) producer: Producer,
}

/// Claims a lane of at least `wanted` slots, creating the segment if there is none yet.
///
/// `None` if memory, the budget or the number of lanes does not allow it; that is counted in the segment
/// where there is one.
#[cold]
pub(crate) fn claim_lane(control: &Control, wanted: u64) -> Option<Claimed> {
    let wanted = wanted.clamp(MIN_LANE_SLOTS, MAX_LANE_SLOTS).next_power_of_two();
    let process = own_page()?;
    let _guard = Guard::lock(&process.lock);
    if process.base.load(Relaxed).is_null() {
        create_segment(process, control, wanted)?;
    }
    let who = Identity {
        tid: rustix::thread::gettid().as_raw_nonzero().get() as u64,
        comm: identity::comm(),
        ticks: clock::ticks(),
    };
    let lane = reuse(process, wanted).or_else(|| place(process, wanted))?;
    let (at, slots) = lane.geometry();
    let producer = lane.claim(&who);
    // SAFETY: `place` checked that the lane's slots lie in the claimed part of the mapping, which is never
    // unmapped in this image; only this thread writes to them until it retires the lane.
    let slots = unsafe {
        std::slice::from_raw_parts(process.base.load(Relaxed).add(at as usize).cast::<Slot>(), slots as usize)
    };
    Some(Claimed { lane, slots, producer })
}

/// Counts a record of a thread that has no lane. Without a segment there is nowhere to count.
#[cold]
pub(crate) fn count_no_lane() {
    let process = process();
    if let Some(word) = header_word(process, header::LOST_NO_LANE) {
        word.fetch_add(1, Relaxed);
    }
}

fn header_word(process: &Process, at: usize) -> Option<&'static AtomicU64> {
    let base = process.base.load(Acquire);
    // SAFETY: a header page is claimed before the base is published; `at` is one of its aligned offsets.
    (!base.is_null()).then(|| unsafe { &*base.add(at).cast::<AtomicU64>() })
}

/// The page that the kernel wipes on fork, made at the first call in a process and kept by its children.
fn own_page() -> Option<&'static Process> {
    if !std::ptr::eq(process(), &raw const NOBODY) {
        return Some(process());
    }
    // SAFETY: a new anonymous mapping at an address the kernel chooses; zero is a value of all its fields.
    let page = unsafe {
        let page =
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .ok()?;
        if madvise(page, PAGE, Advice::LinuxWipeOnFork).is_err() {
            // Before Linux 4.14: a child would write into its parent's lanes.
            let _ = munmap(page, PAGE);
            return None;
        }
        page.cast::<Process>()
    };
    let nobody = (&raw const NOBODY).cast_mut();
    if PROCESS.compare_exchange(nobody, page, Release, Relaxed).is_err() {
        // SAFETY: made above and seen by nobody.
        let _ = unsafe { munmap(page.cast(), PAGE) };
    }
    Some(process())
}

/// Holds the lock of the slow path. The thread's `busy` flag keeps its own signal handlers out, so the
/// holder is always another thread that makes progress.
struct Guard(&'static AtomicBool);

impl Guard {
    fn lock(lock: &'static AtomicBool) -> Guard {
        while lock.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
        Guard(lock)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

fn segment_path(pid: u32, nonce: u64) -> Text<320> {
    let mut name = Text::<64>::new();
    let mut digits = [0u8; 10];
    let mut rest = pid;
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    name.push(&digits[at..]);
    name.push(b"-");
    let hex: [u8; 16] = std::array::from_fn(|i| b"0123456789abcdef"[(nonce >> (60 - 4 * i) & 15) as usize]);
    name.push(&hex);
    name.push(SUFFIX.as_bytes());
    identity::path_in_dir(name.as_bytes())
}

/// Creates, claims and maps the file, and fills the header. On failure nothing is left behind.
fn create_segment(process: &Process, control: &Control, first_lane: u64) -> Option<()> {
    let clock = clock::choose();
    let created = clock::ticks();
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    let nonce = u64::from_ne_bytes(random);
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;

    let needed = SLOTS_OFFSET as u64 + first_lane * SLOT;
    let mapped =
        control.process_bytes().clamp(needed, miot_proto::segment::MAX_SEGMENT_BYTES) & !(PAGE as u64 - 1);
    let path = segment_path(pid, nonce);
    let path = path.as_c_str()?;
    let file =
        File::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).ok()?;
    let base = map(&file, mapped);
    let Some(base) = base else {
        let _ = rustix::fs::unlink(path);
        return None;
    };
    process.size.store(FIRST_BYTES, Relaxed);
    process.lanes.store(0, Relaxed);
    process.mapped.store(mapped, Relaxed);
    process.nonce.store(nonce, Relaxed);
    process.pid.store(pid, Relaxed);

    let word = |at: usize, value: u64| {
        // SAFETY: an aligned offset in the header page, which `map` claimed; nobody else writes to it.
        unsafe { (*base.add(at).cast::<AtomicU64>()).store(value, Relaxed) };
    };
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    word(header::VERSION, u64::from(MAJOR) << 32 | u64::from(MINOR));
    word(header::NONCE, nonce);
    word(header::PID, u64::from(pid));
    word(header::PPID, rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get() as u64));
    word(header::CLOCK, clock as u64);
    word(header::CREATED_TICKS, created);
    word(header::CREATED_BOOT_NS, boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64);
    word(header::RANK, identity::rank());
    word(header::UID, u64::from(rustix::process::geteuid().as_raw()));
    write_strings(base);

    let epoch = EPOCHS.fetch_add(1, Relaxed) + 1;
    // SAFETY: as above.
    unsafe { (*base.add(header::MAGIC).cast::<AtomicU64>()).store(MAGIC, Release) };
    process.base.store(base, Release);
    process.epoch.store(u64::from(epoch), Release);
    Some(())
}

/// Maps the file and claims its first pages.
fn map(file: &File, mapped: u64) -> Option<*mut u8> {
    let fd = file.fd()?;
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, FIRST_BYTES).ok()?;
    // SAFETY: a new mapping at an address the kernel chooses. It is longer than the file; what lies past
    // the end is not touched before `place` has claimed it. Nobody truncates the file: it is ours, mode
    // 0600, and whoever can is this user.
    let base = unsafe {
        mmap(
            std::ptr::null_mut(),
            mapped as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
            fd,
            0,
        )
        .ok()?
    };
    // SAFETY: exactly the mapping made above.
    unsafe {
        if madvise(base, mapped as usize, Advice::LinuxDontFork).is_err() {
            let _ = munmap(base, mapped as usize);
            return None;
        }
    }
    Some(base.cast())
}

fn write_strings(base: *mut u8) {
    let (mut exe, mut line, mut cwd) = ([0; 1024], [0; 2048], [0; 1024]);
    let strings = fit_strings(
        identity::exe(&mut exe),
        identity::cmdline(&mut line),
        identity::job(),
        identity::cwd(&mut cwd),
    );
    let mut at = header::STRINGS;
    for string in strings {
        let length = (string.len() as u16).to_le_bytes();
        for bytes in [&length[..], string] {
            // SAFETY: `fit_strings` keeps the sum within the header page; nobody reads it before the magic.
            unsafe { base.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            at += bytes.len();
        }
    }
}

fn lane_at(process: &Process, index: usize) -> &'static Lane {
    // SAFETY: the caller passes an index below MAX_LANES whose page of the table is claimed.
    unsafe { &*process.base.load(Relaxed).add(HEADER_BYTES + index * LANE_BYTES).cast::<Lane>() }
}

/// A retired and drained lane that is large enough, but not wastefully so.
fn reuse(process: &Process, wanted: u64) -> Option<&'static Lane> {
    (0..process.lanes.load(Relaxed) as usize)
        .map(|index| lane_at(process, index))
        .filter(|lane| (wanted..=wanted * 4).contains(&lane.geometry().1))
        .find(|lane| lane.reusable())
}

/// Claims memory for a new lane at the end of the file, so that a full file system is an error here and
/// not a SIGBUS later.
fn place(process: &Process, slots: u64) -> Option<&'static Lane> {
    let index = process.lanes.load(Relaxed) as usize;
    let at = process.size.load(Relaxed).max(SLOTS_OFFSET as u64);
    let end = at + slots * SLOT;
    if index >= MAX_LANES || end > process.mapped.load(Relaxed) {
        return None;
    }
    let path = segment_path(process.pid.load(Relaxed), process.nonce.load(Relaxed));
    let file = File::open(path.as_c_str()?, OFlags::RDWR, Mode::empty()).ok()?;
    let table_at = HEADER_BYTES + index * LANE_BYTES;
    if index.is_multiple_of(LANES_PER_PAGE) {
        rustix::fs::fallocate(file.fd()?, FallocateFlags::empty(), table_at as u64, PAGE as u64).ok()?;
    }
    rustix::fs::fallocate(file.fd()?, FallocateFlags::empty(), at, end - at).ok()?;
    // SAFETY: inside the mapping (checked above) and inside the file (claimed above). Only touches the pages
    // now, so that the first events do not pay for it; failing to is no harm.
    let _ = unsafe {
        madvise(
            process.base.load(Relaxed).add(at as usize).cast(),
            (end - at) as usize,
            Advice::LinuxPopulateWrite,
        )
    };
    process.size.store(end, Relaxed);
    let lane = lane_at(process, index);
    lane.place(at, slots);
    process.lanes.store(index as u32 + 1, Relaxed);
    // The reader sees the entry as free until it is claimed.
    header_word(process, header::LANES)?.store(index as u64 + 1, Release);
    Some(lane)
}
