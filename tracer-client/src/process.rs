//! The segment of this process: creation at the first traced request, lanes for its threads, `fork`.
//!
//! What belongs to this process image and not to a forked child stands in one private page that the
//! kernel wipes in the child ([`MADV_WIPEONFORK`]): a wiped page reads as "no segment", whether the child
//! came from `fork`, from `clone` or from a runtime that calls neither. The segment's mapping itself is not
//! inherited (`MADV_DONTFORK`), so a child cannot write into its parent's lanes.
//!
//! Everything here is the slow path: it may make system calls, never libc calls that can be hooked.

use crate::file::File;
use crate::gate::{self, Calls, Pass, SET_UP};
use crate::identity::{self, Text};
use crate::lane::{Identity, Lane, Producer, Slot};
use crate::{clock, node::Control};
use miot_proto::segment::{
    HEADER_BYTES, LANE_BYTES, MAGIC, MAJOR, MAX_LANE_SLOTS, MAX_LANES, MIN_LANE_SLOTS, MINOR, SLOTS_OFFSET,
    SUFFIX, fit_strings, header,
};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const PAGE: usize = 4096;
const SLOT: u64 = miot_proto::event::SLOT_BYTES as u64;
/// What a segment needs besides slots: the header and the first page of the lane table.
const FIRST_BYTES: u64 = (HEADER_BYTES + PAGE) as u64;
const LANES_PER_PAGE: usize = PAGE / LANE_BYTES;

/// The state of this process image, a page of its own. All zero: nothing set up, which is what a forked child
/// finds.
#[repr(C, align(4096))]
struct Process {
    /// 0 = no segment; else the epoch of this image. Read at every request.
    epoch: AtomicU64,
    _alone: [u64; 7],
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
    /// Records lost for want of a lane before there was a segment to count them in.
    lost_early: AtomicU64,
    /// The exception of the control page that holds for this process: changes of the exceptions when it was looked for, and
    /// its number + 1, or 0 for none, in the low [`EXCEPTION_BITS`].
    exception: AtomicU64,
    /// Whether this image is one that is not to be recorded: 0 = not looked yet, else [`RECORDED`] or [`LEFT_OUT`].
    judged: AtomicU32,
}

const RECORDED: u32 = 1;
const LEFT_OUT: u32 = 2;

const _: () = assert!(size_of::<Process>() == PAGE);

static PROCESS: Process = Process {
    epoch: AtomicU64::new(0),
    _alone: [0; 7],
    next_handle: AtomicU64::new(0),
    lock: AtomicBool::new(false),
    base: AtomicPtr::new(std::ptr::null_mut()),
    mapped: AtomicU64::new(0),
    size: AtomicU64::new(0),
    lanes: AtomicU32::new(0),
    nonce: AtomicU64::new(0),
    pid: AtomicU32::new(0),
    lost_early: AtomicU64::new(0),
    exception: AtomicU64::new(0),
    judged: AtomicU32::new(0),
};

const EXCEPTION_BITS: u32 = 8;

/// The exception that was found when the exceptions had changed so often; `None` if none was looked for then.
pub(crate) fn exception(changes: u64) -> Option<Option<usize>> {
    let known = PROCESS.exception.load(Relaxed);
    (known >> EXCEPTION_BITS == changes << EXCEPTION_BITS >> EXCEPTION_BITS && known != 0)
        .then(|| (known as usize & ((1 << EXCEPTION_BITS) - 1)).checked_sub(1))
}

/// Remembers it, until they change again or this process is another one.
pub(crate) fn remember_exception(changes: u64, entry: Option<usize>) {
    let entry = entry.map_or(0, |entry| entry as u64 + 1);
    PROCESS.exception.store(changes << EXCEPTION_BITS | entry, Relaxed);
}

/// The random number of this process's segment; `None` while it has none.
pub(crate) fn nonce() -> Option<u64> {
    (PROCESS.epoch.load(Acquire) != 0).then(|| PROCESS.nonce.load(Relaxed))
}

/// True once the kernel wipes [`PROCESS`] in forked children, and in theirs.
#[unsafe(link_section = ".data.miot")]
static WIPED: AtomicBool = AtomicBool::new(false);

/// Counts process images along a line of forks; not wiped, so a child's differs from its parent's.
#[unsafe(link_section = ".data.miot")]
static EPOCHS: AtomicU32 = AtomicU32::new(0);

/// Changes when the process forks; 0 as long as the process has no segment.
#[inline(always)]
#[must_use]
pub fn epoch() -> u32 {
    PROCESS.epoch.load(Relaxed) as u32
}

/// True if this process or one that it was forked from has had a segment.
#[inline(always)]
pub(crate) fn descends() -> bool {
    EPOCHS.load(Relaxed) != 0
}

/// The mark of a thread's state that is valid in this process image; 0 as long as it has no segment.
#[inline(always)]
pub(crate) fn epoch_word() -> u64 {
    PROCESS.epoch.load(Relaxed)
}

/// True if this process image has a segment.
pub(crate) fn has_segment() -> bool {
    PROCESS.epoch.load(Acquire) != 0
}

/// A new file handle: counts up from 1 in each process image; 0 as long as children would repeat it.
#[must_use]
pub fn new_handle() -> u64 {
    if !WIPED.load(Relaxed) {
        return 0;
    }
    PROCESS.next_handle.fetch_add(1, Relaxed) + 1
}

/// A lane and its slots, claimed for the calling thread.
pub(crate) struct Claimed {
    pub(crate) lane: &'static Lane,
    pub(crate) slots: &'static [Slot],
    pub(crate) producer: Producer,
}

/// True if this program, or its user, is one that the log-client says is not to be recorded: looked at once for each
/// process image, before it has a segment.
#[cold]
pub(crate) fn is_left_out(control: &Control) -> bool {
    // Without the kernel's wiping a child would take its parent's word.
    let Some(process) = own_page() else { return false };
    match process.judged.load(Relaxed) {
        0 => {
            let Some(_pass) = gate::pass(SET_UP) else { return true };
            let mut room = [0; 1024];
            let Some(user) = identity::asked(libc::SYS_geteuid) else { return true };
            let left_out = control.is_excluded(|| identity::exe(&mut room), user);
            process.judged.store(if left_out { LEFT_OUT } else { RECORDED }, Relaxed);
            left_out
        }
        judged => judged == LEFT_OUT,
    }
}

/// Claims a lane of at least `wanted` slots, creating the segment if there is none yet.
///
/// `None` if memory, the budget or the number of lanes does not allow it, or system calls are denied and no lane is in
/// reserve; that is counted in the segment where there is one.
#[cold]
pub(crate) fn claim_lane(control: &Control, wanted: u64) -> Option<Claimed> {
    let wanted = wanted.clamp(MIN_LANE_SLOTS, MAX_LANE_SLOTS).next_power_of_two();
    let process = own_page()?;
    let _guard = Guard::lock(&process.lock);
    let pass = gate::pass(SET_UP);
    let created = if process.base.load(Relaxed).is_null() {
        let _allowed = pass.as_ref()?;
        Some(create_segment(process, control, wanted)?)
    } else {
        None
    };
    let who = Identity { tid: identity::tid(), comm: identity::comm(), ticks: clock::ticks() };
    let place = || {
        let _allowed = pass.as_ref()?;
        if control.is_full() { None } else { place(process, wanted, created) }
    };
    let lane = reuse(process, wanted).or_else(place).or_else(|| spare(process, wanted))?;
    let (at, slots) = lane.geometry();
    let producer = lane.claim(&who);
    // SAFETY: `place` checked that the lane's slots lie in the claimed part of the mapping, which is never
    // unmapped in this image; only this thread writes to them until it retires the lane.
    let slots = unsafe {
        std::slice::from_raw_parts(process.base.load(Relaxed).add(at as usize).cast::<Slot>(), slots as usize)
    };
    Some(Claimed { lane, slots, producer })
}

/// Keeps lanes ready for threads that will not be able to make the calls that a new one takes.
#[cold]
pub(crate) fn reserve(control: &Control) {
    let (Some(process), Some(_pass)) = (own_page(), gate::pass(SET_UP)) else { return };
    let _guard = Guard::lock(&process.lock);
    if process.base.load(Relaxed).is_null() {
        return;
    }
    let slots = RESERVED_SLOTS.clamp(control.lane_slots().0, control.lane_slots().1).next_power_of_two();
    let ready = (0..process.lanes.load(Relaxed) as usize).filter(|at| lane_at(process, *at).is_unclaimed());
    for _ in ready.count()..RESERVED_LANES {
        if control.is_full() || place(process, slots, None).is_none() {
            return;
        }
    }
}

/// Counts a record of a thread that has no lane. A process that never gets a segment has nowhere to report it.
#[cold]
pub(crate) fn count_no_lane() {
    let counter = header_word(&PROCESS, header::LOST_NO_LANE).unwrap_or(&PROCESS.lost_early);
    counter.fetch_add(1, Relaxed);
}

fn header_word(process: &Process, at: usize) -> Option<&'static AtomicU64> {
    let base = process.base.load(Acquire);
    // SAFETY: a header page is claimed before the base is published; `at` is one of its aligned offsets.
    (!base.is_null()).then(|| unsafe { &*base.add(at).cast::<AtomicU64>() })
}

/// The state of this process image, once the kernel wipes it on fork. `None` before Linux 4.14: a child would write
/// into its parent's lanes.
fn own_page() -> Option<&'static Process> {
    if !WIPED.load(Relaxed) {
        let page = (&raw const PROCESS).cast_mut().cast();
        let _pass = gate::pass(Calls::ADVISE)?;
        // SAFETY: a whole page that starts as zero, so it is anonymous memory, which is what the kernel asks for. It
        // holds nothing but atomics, for which zero is a value.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork).ok()? };
        WIPED.store(true, Relaxed);
    }
    Some(&PROCESS)
}

/// Lanes kept ready before a filter is installed, and their slots: for what a confined program may start threads for.
const RESERVED_LANES: usize = 4;
const RESERVED_SLOTS: u64 = 2048;

/// Holds the lock of the slow path. Its thread has its [`SignalsOff`], so the holder is always another thread that
/// makes progress.
struct Guard(&'static AtomicBool);

impl Guard {
    fn lock(lock: &'static AtomicBool) -> Guard {
        /// Looks at the lock before the holder, which may have a lower priority, is given time.
        const PATIENCE: u32 = 32;
        const NAP: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 };
        let mut looked = 0;
        while lock.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            looked += 1;
            match gate::pass(Calls::YIELD | Calls::NAP) {
                Some(_pass) if looked < PATIENCE => rustix::thread::sched_yield(),
                Some(_pass) => _ = rustix::thread::nanosleep(&NAP),
                None => std::hint::spin_loop(),
            }
        }
        Guard(lock)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Keeps all signals off the calling thread until it is dropped: a handler that leaves by `siglongjmp`, or an
/// asynchronous cancellation, would leave the lock of the slow path behind, and with it all threads that come after.
///
/// Where the call is denied, they stay on.
pub(crate) struct SignalsOff {
    before: Option<(u64, Pass)>,
}

impl SignalsOff {
    pub(crate) fn new() -> SignalsOff {
        // Kept: who has put them off can also put them on again.
        SignalsOff { before: gate::pass(Calls::SIGNALS).map(|pass| (set_signals(u64::MAX), pass)) }
    }
}

impl Drop for SignalsOff {
    fn drop(&mut self) {
        if let Some((before, _)) = &self.before {
            set_signals(*before);
        }
    }
}

/// Sets the signals that are kept off the thread, and says which were. Past libc, which never keeps off those that
/// it uses itself.
fn set_signals(blocked: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both pointers are to a set of the size that is given. It cannot fail, so that `errno` stays.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const blocked,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
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
fn create_segment(process: &Process, control: &Control, first_lane: u64) -> Option<File> {
    let clock = clock::choose();
    let created = clock::ticks();
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    let nonce = u64::from_ne_bytes(random);
    let pid = identity::asked(libc::SYS_getpid)?;

    let needed = SLOTS_OFFSET as u64 + first_lane * SLOT;
    let mapped =
        control.process_bytes().clamp(needed, miot_proto::segment::MAX_SEGMENT_BYTES) & !(PAGE as u64 - 1);
    let path = segment_path(pid, nonce);
    let path = path.as_c_str()?;
    let file =
        File::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).ok()?;
    let base = map(&file, mapped);
    let Some(base) = base else {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
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
    word(header::VERSION, u64::from(MAJOR) << 32 | u64::from(MINOR));
    word(header::NONCE, nonce);
    word(header::PID, u64::from(pid));
    word(header::PPID, u64::from(identity::asked(libc::SYS_getppid).unwrap_or(0)));
    word(header::CLOCK, clock as u64);
    word(header::CREATED_TICKS, created);
    word(header::CREATED_BOOT_NS, clock::boottime());
    word(header::RANK, identity::rank());
    word(header::PID_NAMESPACE, identity::pid_namespace());
    word(header::LOST_NO_LANE, process.lost_early.swap(0, Relaxed));
    word(header::UID, u64::from(identity::asked(libc::SYS_geteuid)?));
    write_strings(base);

    let epoch = EPOCHS.fetch_add(1, Relaxed) + 1;
    // SAFETY: as above.
    unsafe { (*base.add(header::MAGIC).cast::<AtomicU64>()).store(MAGIC, Release) };
    process.base.store(base, Release);
    process.epoch.store(u64::from(epoch), Release);
    Some(file)
}

/// Maps the file and claims its first pages.
fn map(file: &File, mapped: u64) -> Option<*mut u8> {
    let fd = file.fd()?;
    allocate(fd, 0, FIRST_BYTES)?;
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

/// Claims memory for a part of the file. Not where the program's limit of file sizes forbids it: the kernel would send it
/// SIGXFSZ.
fn allocate(fd: BorrowedFd<'_>, at: u64, bytes: u64) -> Option<()> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let none = std::ptr::null::<libc::rlimit64>();
    // SAFETY: an out-pointer of the right type. A failure leaves a limit of zero; `errno` is put back.
    unsafe {
        let before = *libc::__errno_location();
        libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, none, &raw mut limit);
        *libc::__errno_location() = before;
    }
    if at + bytes > limit.rlim_cur {
        return None;
    }
    rustix::fs::fallocate(fd, FallocateFlags::empty(), at, bytes).ok()
}

fn write_strings(base: *mut u8) {
    let (mut exe, mut line, mut cwd) = ([0; 1024], [0; 2048], [0; 1024]);
    let strings = fit_strings(
        identity::exe(&mut exe),
        identity::cmdline(&mut line, descends()),
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

/// A lane that was [`reserve`]d, or any retired one: where no other is to be had.
fn spare(process: &Process, wanted: u64) -> Option<&'static Lane> {
    (0..process.lanes.load(Relaxed) as usize)
        .map(|index| lane_at(process, index))
        .filter(|lane| lane.geometry().1 >= wanted)
        .find(|lane| lane.is_unclaimed() || lane.reusable())
}

/// Claims memory for a new lane at the end of the file, so that a full file system is an error here and
/// not a SIGBUS later. `created`: the file, if it is open already.
fn place(process: &Process, slots: u64, created: Option<File>) -> Option<&'static Lane> {
    let index = process.lanes.load(Relaxed) as usize;
    let at = process.size.load(Relaxed).max(SLOTS_OFFSET as u64);
    let end = at + slots * SLOT;
    if index >= MAX_LANES || end > process.mapped.load(Relaxed) {
        return None;
    }
    let file = match created {
        Some(file) => file,
        None => {
            let path = segment_path(process.pid.load(Relaxed), process.nonce.load(Relaxed));
            File::open(path.as_c_str()?, OFlags::RDWR, Mode::empty()).ok()?
        }
    };
    let table_at = HEADER_BYTES + index * LANE_BYTES;
    // The first page of the table comes with the header.
    if index != 0 && index.is_multiple_of(LANES_PER_PAGE) {
        allocate(file.fd()?, table_at as u64, PAGE as u64)?;
    }
    allocate(file.fd()?, at, end - at)?;
    // SAFETY: inside the mapping (checked above) and inside the file (claimed above). Only touches the pages
    // now, so that the first events do not pay for it; failing to is no harm.
    unsafe {
        let slots = process.base.load(Relaxed).add(at as usize);
        if index == 0 {
            // A process that lives for a moment needs no more than a page, for which a fault is cheaper.
            slots.write_volatile(0);
        } else {
            let _ = madvise(slots.cast(), (end - at) as usize, Advice::LinuxPopulateWrite);
        }
    }
    process.size.store(end, Relaxed);
    let lane = lane_at(process, index);
    lane.place(at, slots);
    process.lanes.store(index as u32 + 1, Relaxed);
    // The reader sees the entry as free until it is claimed.
    header_word(process, header::LANES)?.store(index as u64 + 1, Release);
    Some(lane)
}
