//! The segment of this process: creation at the first traced request, lanes for its threads,
//! `fork`.
//!
//! State that belongs to this process image and not to a forked child lies in one private page that
//! the kernel wipes in the child (`MADV_WIPEONFORK`): a wiped page reads as "no segment", whether
//! the child was created by `fork`, by `clone`, or by a runtime that calls neither. The mapping of
//! the segment is not inherited (`MADV_DONTFORK`), so a child cannot write to its parent's lanes.
//!
//! Everything here is the slow path. It may make system calls, but no libc calls that can be
//! hooked.

use crate::file::File;
use crate::gate::{self, Calls, Permit, SET_UP};
use crate::identity::{self, Text};
use crate::lane::{Lane, LaneOwner, Producer, Slot};
use crate::local::address;
use crate::pending::{PendingEntry, PendingTable};
use crate::{clock, lap, node::Control};
use miot_proto::segment::{
    HEADER_BYTES, LANE_BYTES, MAGIC, MAJOR, MAX_LANE_SLOTS, MAX_LANES, MIN_LANE_SLOTS, MINOR, PENDING_BYTES,
    PENDING_ENTRIES, SLOTS_OFFSET, SUFFIX, fit_strings, header,
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
/// Bytes of a segment without slots: the header and the first page of the lane table.
const FIRST_BYTES: u64 = (HEADER_BYTES + PAGE) as u64;
const LANES_PER_PAGE: usize = PAGE / LANE_BYTES;

/// State of this process image, in a page of its own. All zero means that nothing is set up; a
/// forked child starts like that.
#[repr(C, align(4096))]
struct ProcessState {
    /// Epoch of this image; 0 if it has no segment. Read at every request.
    epoch: AtomicU64,
    /// See [`lasting_names`].
    lasting_names: AtomicU64,
    _padding: [u64; 6],
    next_handle: AtomicU64,
    lock: AtomicBool,
    /// Start of the mapped segment, null if there is none.
    base: AtomicPtr<u8>,
    /// Bytes mapped: the maximum size of the segment.
    mapped: AtomicU64,
    /// Current bytes of the file.
    size: AtomicU64,
    /// Number of lanes in the lane table.
    lanes: AtomicU32,
    /// Random number in the file's name.
    nonce: AtomicU64,
    pid: AtomicU32,
    /// Records lost for lack of a lane before there was a segment to count them in.
    lost_early: AtomicU64,
    /// The exception of the control page that applies to this process. The low [`EXCEPTION_BITS`]
    /// hold its index + 1, or 0 for none; the other bits hold the change count of the exceptions at
    /// the time of the search.
    exception: AtomicU64,
    /// Whether this image is excluded from recording: 0 if not determined yet, else
    /// [`NOT_EXCLUDED`] or [`EXCLUDED`].
    exclusion: AtomicU32,
    /// Offset of the table of asynchronous requests in the segment: 0 if there is none yet,
    /// [`NO_TABLE`] if none can be made.
    pending: AtomicU64,
    /// Number of the last asynchronous request that was shown.
    last_pending: AtomicU32,
}

const NO_TABLE: u64 = u64::MAX;

const NOT_EXCLUDED: u32 = 1;
const EXCLUDED: u32 = 2;

const _: () = assert!(size_of::<ProcessState>() == PAGE);

static PROCESS: ProcessState = ProcessState {
    epoch: AtomicU64::new(0),
    lasting_names: AtomicU64::new(0),
    _padding: [0; 6],
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
    exclusion: AtomicU32::new(0),
    pending: AtomicU64::new(0),
    last_pending: AtomicU32::new(0),
};

const EXCEPTION_BITS: u32 = 8;

/// Returns the exception found at this change count: `Some(None)` if none applies, `None` if none
/// was searched for at this count.
pub(crate) fn cached_exception(changes: u64) -> Option<Option<usize>> {
    let known = PROCESS.exception.load(Relaxed);
    (known >> EXCEPTION_BITS == changes << EXCEPTION_BITS >> EXCEPTION_BITS && known != 0)
        .then(|| (known as usize & ((1 << EXCEPTION_BITS) - 1)).checked_sub(1))
}

/// Stores the exception found at this change count. It is valid until the exceptions change or the
/// process forks.
pub(crate) fn cache_exception(changes: u64, entry: Option<usize>) {
    let entry = entry.map_or(0, |entry| entry as u64 + 1);
    PROCESS.exception.store(changes << EXCEPTION_BITS | entry, Relaxed);
}

/// Returns the random number of this process's segment; `None` if it has none.
pub(crate) fn nonce() -> Option<u64> {
    (PROCESS.epoch.load(Acquire) != 0).then(|| PROCESS.nonce.load(Relaxed))
}

/// True after the kernel was asked to wipe [`PROCESS`] in forked children. Inherited by them.
#[unsafe(link_section = ".data.miot")]
static WIPE_ON_FORK: AtomicBool = AtomicBool::new(false);

/// Counts process images along a chain of forks. Not wiped, so a child's epoch differs from its
/// parent's.
#[unsafe(link_section = ".data.miot")]
static EPOCHS: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn state() -> &'static ProcessState {
    let process = address!(PROCESS: ProcessState);
    // SAFETY: the reference requires
    // - a static that lives forever and is only shared: `PROCESS` consists of atomics.
    unsafe { &*process }
}

/// Returns the epoch of this process image, which changes when the process forks. 0 if the process
/// has no segment.
#[inline(always)]
#[must_use]
pub fn epoch() -> u32 {
    state().epoch.load(Relaxed) as u32
}

/// Returns twice the [`epoch`] plus 1; 0 if there is none; [`FORGOTTEN`] if a lane has overwritten
/// records, so that [`is_lap_current`](crate::is_lap_current) decides whether the name of a file is
/// still known.
#[inline(always)]
#[must_use]
pub fn lasting_names() -> u32 {
    state().lasting_names.load(Relaxed) as u32
}

/// Value of [`lasting_names`] that no image has.
const FORGOTTEN: u64 = u32::MAX as u64 - 1;

/// Makes [`lasting_names`] [`FORGOTTEN`]: a lane has overwritten records.
pub(crate) fn forget_names() {
    PROCESS.lasting_names.store(FORGOTTEN, Relaxed);
}

/// True if this process, or an ancestor that it was forked from, has had a segment.
#[inline(always)]
pub(crate) fn had_segment() -> bool {
    let epochs = address!(EPOCHS: AtomicU32);
    // SAFETY: dereferencing requires
    // - a static that lives forever and is only shared: `EPOCHS` is an atomic.
    unsafe { (*epochs).load(Relaxed) != 0 }
}

/// Returns the value of [`Thread::epoch`](crate::thread::Thread) that is valid in this process
/// image; 0 if it has no segment.
#[inline(always)]
pub(crate) fn epoch_word() -> u64 {
    state().epoch.load(Relaxed)
}

/// Writes to the page of [`PROCESS`] without a change, when a program starts that will record: a
/// first access that reads would cause a page fault of its own.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn touch() {
    // Not an addition of zero, which the compiler makes a read.
    let _ = PROCESS.lost_early.compare_exchange(0, 0, Relaxed, Relaxed);
}

/// True if this process image has a segment.
pub(crate) fn has_segment() -> bool {
    PROCESS.epoch.load(Acquire) != 0
}

/// Returns a new file handle, counting from 1 in each process image. 0 if the kernel does not wipe
/// the state of this process yet, because a forked child would repeat the handle.
#[must_use]
pub fn new_handle() -> u64 {
    if !WIPE_ON_FORK.load(Relaxed) {
        return 0;
    }
    PROCESS.next_handle.fetch_add(1, Relaxed) + 1
}

/// A lane and its slots, claimed for the calling thread.
pub(crate) struct ClaimedLane {
    pub(crate) lane: &'static Lane,
    pub(crate) slots: &'static [Slot],
    pub(crate) producer: Producer,
}

/// True if the log-client excludes this program or its user from recording. Determined once per
/// process image, before it has a segment.
#[cold]
pub(crate) fn is_excluded(control: &Control) -> bool {
    // Without wiping, a child would inherit its parent's result.
    let Some(process) = process_state() else { return false };
    match process.exclusion.load(Relaxed) {
        0 => {
            let Some(_pass) = gate::permit(SET_UP) else { return true };
            let mut buffer = [0; 1024];
            let Some(user) = identity::syscall0(libc::SYS_geteuid) else { return true };
            let excluded = control.excludes(|| identity::exe(&mut buffer), user);
            process.exclusion.store(if excluded { EXCLUDED } else { NOT_EXCLUDED }, Relaxed);
            excluded
        }
        exclusion => exclusion == EXCLUDED,
    }
}

/// Claims a lane of at least `wanted` slots, after creating the segment if there is none.
///
/// `None` if memory, the budget or the number of lanes does not allow it, or if a filter denies the
/// system calls and no lane is in reserve. A caller that is left without a lane counts the loss.
#[cold]
pub(crate) fn claim_lane(control: &Control, wanted: u64) -> Option<ClaimedLane> {
    let wanted = wanted.clamp(MIN_LANE_SLOTS, MAX_LANE_SLOTS).next_power_of_two();
    let process = process_state()?;
    let _guard = SetUpLock::lock(&process.lock);
    let pass = gate::permit(SET_UP);
    let created = if process.base.load(Relaxed).is_null() {
        let _allowed = pass.as_ref()?;
        Some(create_segment(process, control, wanted)?)
    } else {
        None
    };
    let owner = LaneOwner { tid: identity::tid(), comm: identity::comm(), ticks: clock::ticks() };
    let add = || {
        let _allowed = pass.as_ref()?;
        if control.is_node_full() { None } else { add_lane(process, wanted, created) }
    };
    let lane =
        find_reusable_lane(process, wanted).or_else(add).or_else(|| find_reserved_lane(process, wanted))?;
    let (at, slots) = lane.geometry();
    let producer = lane.claim(&owner);
    // SAFETY: the slice requires
    // - `slots` valid slots at `at`: `add_lane` has checked that they lie in the allocated part of
    //   the mapping;
    // - a mapping that outlives it: the segment is never unmapped in this process image;
    // - shared access only: slots are atomics, and only this thread writes to them until it retires
    //   the lane.
    let slots = unsafe {
        std::slice::from_raw_parts(process.base.load(Relaxed).add(at as usize).cast::<Slot>(), slots as usize)
    };
    Some(ClaimedLane { lane, slots, producer })
}

/// Places lanes in reserve for threads that will not be able to make the system calls that a new
/// lane needs.
#[cold]
pub(crate) fn reserve_lanes(control: &Control) {
    let (Some(process), Some(_pass)) = (process_state(), gate::permit(SET_UP)) else { return };
    let _guard = SetUpLock::lock(&process.lock);
    if process.base.load(Relaxed).is_null() {
        return;
    }
    let slots = RESERVED_SLOTS.clamp(control.lane_slots().0, control.lane_slots().1).next_power_of_two();
    let ready = (0..process.lanes.load(Relaxed) as usize).filter(|at| lane_at(process, *at).is_unclaimed());
    for _ in ready.count()..RESERVED_LANES {
        if control.is_node_full() || add_lane(process, slots, None).is_none() {
            return;
        }
    }
}

/// Returns the table of asynchronous requests; `None` if there is none.
pub(crate) fn pending_table() -> Option<PendingTable<'static>> {
    let at = PROCESS.pending.load(Acquire);
    if at == 0 || at == NO_TABLE {
        return None;
    }
    // SAFETY: the slice requires
    // - that many valid entries at `at`: `add_pending_table` has allocated them in the mapping and
    //   aligned the offset;
    // - a mapping that outlives it: the segment is never unmapped in this process image;
    // - shared access only: entries consist of atomics.
    let entries = unsafe {
        let first = PROCESS.base.load(Relaxed).add(at as usize).cast::<PendingEntry>();
        std::slice::from_raw_parts(first, PENDING_ENTRIES)
    };
    Some(PendingTable::of_process(entries))
}

/// [`pending_table`], after making the table if there is none. The process must have a segment.
pub(crate) fn make_pending_table(control: &Control) -> Option<PendingTable<'static>> {
    if PROCESS.pending.load(Relaxed) == 0 {
        add_pending_table(control);
    }
    pending_table()
}

#[cold]
fn add_pending_table(control: &Control) {
    let Some(process) = process_state() else { return };
    let _signals = SignalsBlocked::new();
    let _guard = SetUpLock::lock(&process.lock);
    if process.base.load(Relaxed).is_null() || process.pending.load(Relaxed) != 0 {
        return;
    }
    let allocated = || {
        let _pass = gate::permit(SET_UP)?;
        let at = process.size.load(Relaxed).max(SLOTS_OFFSET as u64).next_multiple_of(PENDING_BYTES as u64);
        let end = at + (PENDING_ENTRIES * PENDING_BYTES) as u64;
        if control.is_node_full() || end > process.mapped.load(Relaxed) {
            return None;
        }
        let path = segment_path(process.pid.load(Relaxed), process.nonce.load(Relaxed));
        let file = File::open(path.as_c_str()?, OFlags::RDWR, Mode::empty()).ok()?;
        allocate_range(file.fd()?, at, end - at)?;
        process.size.store(end, Relaxed);
        header_word(process, header::PENDING)?.store(at, Release);
        Some(at)
    };
    process.pending.store(allocated().unwrap_or(NO_TABLE), Release);
}

/// Returns a new number for an asynchronous request that is shown, unlike those of other process
/// images. Never 0.
pub(crate) fn number_pending() -> u32 {
    /// An odd number: consecutive epochs start far apart.
    const SPREAD: u32 = 0x9e37_79b1;
    let number = PROCESS.last_pending.fetch_add(1, Relaxed).wrapping_add(1);
    number.wrapping_add(epoch().wrapping_mul(SPREAD)).max(1)
}

/// Stores that the first `used` entries of the table of asynchronous requests have been used.
pub(crate) fn count_pending_used(used: u64) {
    if let Some(word) = header_word(&PROCESS, header::PENDING_USED)
        && word.load(Relaxed) < used
    {
        word.fetch_max(used, Release);
    }
}

/// Counts a record that is lost because its thread has no lane. A process that never gets a segment
/// cannot report it.
#[cold]
pub(crate) fn count_no_lane() {
    let counter = header_word(&PROCESS, header::LOST_NO_LANE).unwrap_or(&PROCESS.lost_early);
    counter.fetch_add(1, Relaxed);
}

fn header_word(process: &ProcessState, at: usize) -> Option<&'static AtomicU64> {
    let base = process.base.load(Acquire);
    // SAFETY: the reference requires
    // - an aligned pointer to a live word: `at` is an aligned offset in the header page, which is
    //   allocated before the base is published;
    // - a mapping that outlives it: the segment is never unmapped in this process image.
    (!base.is_null()).then(|| unsafe { &*base.add(at).cast::<AtomicU64>() })
}

/// Returns the state of this process image, after asking the kernel to wipe it on fork. `None`
/// before Linux 4.14: a child would write to its parent's lanes.
fn process_state() -> Option<&'static ProcessState> {
    if !WIPE_ON_FORK.load(Relaxed) {
        let page = (&raw const PROCESS).cast_mut().cast();
        let _pass = gate::permit(Calls::ADVISE)?;
        // SAFETY: `madvise` requires
        // - a whole page of private anonymous memory: the page is zero at the start, so it lies in
        //   `.bss`;
        // - contents for which zero is a value: it holds only atomics.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork).ok()? };
        WIPE_ON_FORK.store(true, Relaxed);
    }
    Some(&PROCESS)
}

/// Lanes in reserve after a filter is installed, and their slots: for threads that a confined
/// program may start.
const RESERVED_LANES: usize = 4;
const RESERVED_SLOTS: u64 = 2048;

/// Holds the lock of set-up. Its thread has blocked its signals ([`SignalsBlocked`]), so the holder
/// is always another thread that makes progress.
struct SetUpLock(&'static AtomicBool);

impl SetUpLock {
    fn lock(lock: &'static AtomicBool) -> SetUpLock {
        /// Attempts after which the thread sleeps, so that a holder with a lower priority can run.
        const MAX_YIELDS: u32 = 32;
        const NAP: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 };
        let mut attempts = 0;
        while lock.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            attempts += 1;
            match gate::permit(Calls::YIELD | Calls::NAP) {
                Some(_pass) if attempts < MAX_YIELDS => rustix::thread::sched_yield(),
                Some(_pass) => _ = rustix::thread::nanosleep(&NAP),
                None => std::hint::spin_loop(),
            }
        }
        SetUpLock(lock)
    }
}

impl Drop for SetUpLock {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Blocks all signals of the calling thread until it is dropped. A handler that leaves by
/// `siglongjmp`, or an asynchronous cancellation, would otherwise leave the set-up lock taken and
/// block all later threads.
///
/// If a filter denies the system call, signals stay unblocked.
pub(crate) struct SignalsBlocked {
    before: Option<(u64, Permit)>,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // The permit is held until the signals are unblocked, so that the second call is allowed
        // too.
        SignalsBlocked { before: gate::permit(Calls::SIGNALS).map(|pass| (set_signal_mask(u64::MAX), pass)) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some((before, _)) = &self.before {
            set_signal_mask(*before);
        }
    }
}

/// Sets the signal mask of the thread and returns the previous one. Bypasses libc, which never
/// blocks the signals that it uses itself.
fn set_signal_mask(blocked: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the system call requires
    // - two valid pointers to sets of the given size: local variables of 8 bytes.
    // It cannot fail, so `errno` is not changed.
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

/// Creates, allocates and maps the segment file, and fills its header. On failure no file remains.
fn create_segment(process: &ProcessState, control: &Control, first_lane: u64) -> Option<File> {
    let clock = clock::choose_clock();
    let created = clock::ticks();
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    let nonce = u64::from_ne_bytes(random);
    let pid = identity::syscall0(libc::SYS_getpid)?;

    let needed = SLOTS_OFFSET as u64 + first_lane * SLOT;
    let mapped =
        control.process_bytes().clamp(needed, miot_proto::segment::MAX_SEGMENT_BYTES) & !(PAGE as u64 - 1);
    let path = segment_path(pid, nonce);
    let path = path.as_c_str()?;
    let file =
        File::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).ok()?;
    let base = map_segment(&file, mapped);
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
        // SAFETY: dereferencing requires
        // - an aligned pointer to a live word: `at` is an aligned offset in the header page, which
        //   `map_segment` has allocated;
        // - shared access only: the word is accessed as an atomic, and no other code writes to it.
        unsafe { (*base.add(at).cast::<AtomicU64>()).store(value, Relaxed) };
    };
    word(header::VERSION, u64::from(MAJOR) << 32 | u64::from(MINOR));
    word(header::NONCE, nonce);
    word(header::PID, u64::from(pid));
    word(header::PPID, u64::from(identity::syscall0(libc::SYS_getppid).unwrap_or(0)));
    word(header::CLOCK, clock as u64);
    word(header::CREATED_TICKS, created);
    word(header::CREATED_BOOT_NS, clock::boottime());
    word(header::RANK, identity::rank());
    word(header::PID_NAMESPACE, identity::pid_namespace());
    word(header::LOST_NO_LANE, process.lost_early.swap(0, Relaxed));
    word(header::UID, u64::from(identity::syscall0(libc::SYS_geteuid)?));
    write_header_strings(base);

    let epoch = EPOCHS.fetch_add(1, Relaxed) + 1;
    // SAFETY: dereferencing requires
    // - an aligned pointer to a live word: the offset of the magic in the header page, as above.
    unsafe { (*base.add(header::MAGIC).cast::<AtomicU64>()).store(MAGIC, Release) };
    process.base.store(base, Release);
    let lasting_names = if lap::has_overwritten() { FORGOTTEN } else { u64::from(epoch) << 1 | 1 };
    process.lasting_names.store(lasting_names, Relaxed);
    process.epoch.store(u64::from(epoch), Release);
    Some(file)
}

/// Maps the file and allocates its first pages.
fn map_segment(file: &File, mapped: u64) -> Option<*mut u8> {
    let fd = file.fd()?;
    allocate_range(fd, 0, FIRST_BYTES)?;
    // SAFETY: `mmap` requires
    // - no overlap with existing mappings: the kernel chooses the address.
    // The mapping is longer than the file; pages past the end are not touched before `add_lane` has
    // allocated them. Nobody truncates the file: it belongs to this user and has mode 0600.
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
    // SAFETY: `madvise` and `munmap` require
    // - the range of a mapping: exactly the one made above;
    // - no use after unmapping: the address is dropped then.
    unsafe {
        if madvise(base, mapped as usize, Advice::LinuxDontFork).is_err() {
            let _ = munmap(base, mapped as usize);
            return None;
        }
    }
    Some(base.cast())
}

/// Allocates memory for a range of the file. `None` if that fails, or if the program's file size
/// limit forbids it: the kernel would send the program SIGXFSZ.
fn allocate_range(fd: BorrowedFd<'_>, at: u64, bytes: u64) -> Option<()> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let none = std::ptr::null::<libc::rlimit64>();
    // SAFETY: the system call and `errno` require
    // - a null and a valid pointer to a limit: a constant and a local variable;
    // - a valid pointer to `errno`: libc returns the calling thread's.
    // A failure leaves a limit of zero; `errno` is restored.
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

fn write_header_strings(base: *mut u8) {
    let (mut exe, mut line, mut cwd) = ([0; 1024], [0; 2048], [0; 1024]);
    let strings = fit_strings(
        identity::exe(&mut exe),
        identity::cmdline(&mut line, had_segment()),
        identity::job(),
        identity::cwd(&mut cwd),
    );
    let mut at = header::STRINGS;
    for string in strings {
        let length = (string.len() as u16).to_le_bytes();
        for bytes in [&length[..], string] {
            // SAFETY: the copy requires
            // - valid, disjoint ranges: `fit_strings` keeps the sum of the lengths within the
            //   header page, and the strings lie elsewhere;
            // - no concurrent access: no process reads the page before the magic is written.
            unsafe { base.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            at += bytes.len();
        }
    }
}

fn lane_at(process: &ProcessState, index: usize) -> &'static Lane {
    // SAFETY: the reference requires
    // - an aligned pointer to a live entry: the caller passes an index below `MAX_LANES` whose page
    //   of the table is allocated;
    // - shared access only: a lane consists of atomics.
    unsafe { &*process.base.load(Relaxed).add(HEADER_BYTES + index * LANE_BYTES).cast::<Lane>() }
}

/// Finds a retired and drained lane of at least `wanted` and at most four times as many slots.
fn find_reusable_lane(process: &ProcessState, wanted: u64) -> Option<&'static Lane> {
    (0..process.lanes.load(Relaxed) as usize)
        .map(|index| lane_at(process, index))
        .filter(|lane| (wanted..=wanted * 4).contains(&lane.geometry().1))
        .find(|lane| lane.is_reusable())
}

/// Finds a lane in reserve, or any drained one that is large enough, if no other lane is available.
fn find_reserved_lane(process: &ProcessState, wanted: u64) -> Option<&'static Lane> {
    (0..process.lanes.load(Relaxed) as usize)
        .map(|index| lane_at(process, index))
        .filter(|lane| lane.geometry().1 >= wanted)
        .find(|lane| lane.is_unclaimed() || lane.is_reusable())
}

/// Allocates memory for a new lane at the end of the file, so that a full file system is an error
/// here and not a SIGBUS later. `created`: the file, if it is already open.
fn add_lane(process: &ProcessState, slots: u64, created: Option<File>) -> Option<&'static Lane> {
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
    // The first page of the table is allocated with the header.
    if index != 0 && index.is_multiple_of(LANES_PER_PAGE) {
        allocate_range(file.fd()?, table_at as u64, PAGE as u64)?;
    }
    allocate_range(file.fd()?, at, end - at)?;
    // SAFETY: the write and `madvise` require
    // - an address inside the mapping: checked above;
    // - memory behind it: allocated in the file above.
    // This only touches the pages, so that the first events do not pay for the page faults; a
    // failure does no harm.
    unsafe {
        let slots = process.base.load(Relaxed).add(at as usize);
        if index == 0 {
            // A short-lived process needs only one page, for which a fault is cheaper.
            slots.write_volatile(0);
        } else {
            let _ = madvise(slots.cast(), (end - at) as usize, Advice::LinuxPopulateWrite);
        }
    }
    process.size.store(end, Relaxed);
    let lane = lane_at(process, index);
    lane.set_slots(at, slots);
    process.lanes.store(index as u32 + 1, Relaxed);
    // The log-client sees the entry as free until it is claimed.
    header_word(process, header::LANES)?.store(index as u64 + 1, Release);
    Some(lane)
}
