//! Set-up at the start of a request: attaches to a log-client, claims a lane, replaces it by a
//! larger one.

use super::{NO_LOG_CLIENT, Thread, slow_path};
use crate::lane::{Lane, Producer};
use crate::{clock, gate, node, process};
use miot_proto::control::WhenFull;
use miot_proto::op::Op;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Requests that a dormant thread skips before it looks for a log-client again: as many as it makes
/// in about [`ATTACH_INTERVAL_TICKS`], within these bounds. An attempt costs a system call.
const DORMANT_REQUESTS: std::ops::RangeInclusive<u32> = 64..=1 << 20;

/// Some hundredths of a second, in ticks of any supported clock.
const ATTACH_INTERVAL_TICKS: u64 = 100_000_000;

/// Requests that a thread without a lane skips before it tries to claim one again.
const NO_LANE_REQUESTS: u32 = 256;

/// The record for which a thread prepares.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// A request of this operation.
    Request(Op),
    /// A record that names a file.
    File,
    /// Any request, recorded now or later: afterwards it may be impossible to claim a lane.
    FutureRequests,
}

impl Purpose {
    fn is_served_by(self, control: &node::Control) -> bool {
        match self {
            Purpose::Request(op) => control.wants(op),
            Purpose::File => control.is_on(),
            Purpose::FutureRequests => !control.is_closed(),
        }
    }
}

/// Slow path of the start of a request: removes the obstacles to recording. Returns false if the
/// request must not be recorded.
#[cold]
#[inline(never)]
pub(super) fn prepare(thread: *mut Thread, purpose: Purpose) -> bool {
    // SAFETY: the reference requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - no signal handler changes the state at the same time: `BUSY` keeps handlers out.
    let thread = unsafe { &mut *thread };
    if thread.borrowed != 0 {
        return false;
    }
    if thread.is_busy() {
        if thread.has_lane() {
            // SAFETY: `Thread::lane` requires
            // - the thread has a lane: checked above.
            unsafe { thread.lane().0.count_nested() };
        }
        return false;
    }
    if thread.lacks_clock() {
        process::count_no_lane();
        return false;
    }
    if !thread.has_lane() && !thread.can_set_up() {
        return false;
    }
    // Only without a lane: a filter sends every request here, and each would pay for two system
    // calls.
    let _signals = (!thread.has_lane()).then(process::SignalsBlocked::new);
    thread.enter_busy();
    let prepared = if thread.has_lane() {
        prepare_with_lane(thread, purpose)
    } else {
        attach_and_claim(thread, purpose)
    };
    thread.leave_busy();
    prepared
}

/// [`prepare`] for a thread that has a lane. Returns false if the request must not be recorded.
fn prepare_with_lane(thread: &mut Thread, purpose: Purpose) -> bool {
    // SAFETY: dereferencing `control` requires
    // - a pointer to a live page: a thread with a lane has attached to a control page, and
    //   control pages are never unmapped.
    let control = unsafe { &*thread.control };
    if !purpose.is_served_by(control) {
        if control.is_closed() && !thread.attach_successor() {
            thread.go_dormant();
        }
        return false;
    }
    thread.update_slow_path(control);
    if thread.producer.needs_maintenance() {
        thread.maintain_lane(control);
    }
    control.ring_doorbell();
    true
}

/// [`prepare`] for a thread without a lane. Returns false if the request must not be recorded.
fn attach_and_claim(thread: &mut Thread, purpose: Purpose) -> bool {
    thread.lane_unavailable = false;
    let Some(control) = node::attach() else {
        thread.go_dormant();
        return false;
    };
    if !purpose.is_served_by(control) {
        if control.is_closed() {
            node::detach();
            thread.go_dormant();
        }
        return false;
    }
    if process::is_excluded(control) {
        thread.go_dormant();
        return false;
    }
    let (first, largest) = control.lane_slots();
    let slots =
        if matches!(purpose, Purpose::FutureRequests) { CONFINED_SLOTS.clamp(first, largest) } else { first };
    match process::claim_lane(control, slots) {
        Some(claimed) => {
            // A parent from before belongs to the parent process's thread, or to an earlier lane of
            // this thread.
            (thread.parent, thread.mpi_request) = (0, 0);
            thread.switch_to_lane(claimed, control);
            retire_lane_at_exit(thread);
            control.ring_doorbell();
            !control.is_closed()
        }
        None => {
            process::count_no_lane();
            thread.lane_unavailable = true;
            thread.skips_left = NO_LANE_REQUESTS;
            false
        }
    }
}

impl Thread {
    fn switch_to_lane(&mut self, claimed: process::ClaimedLane, control: &node::Control) {
        self.lane = claimed.lane;
        self.slots = claimed.slots.as_ptr();
        self.producer = claimed.producer;
        self.control = control;
        self.skips_left = 0;
        self.epoch = process::epoch_word();
        let clock = if clock::is_tsc() { 0 } else { slow_path::NOT_TSC };
        self.slow_path = self.slow_path & (slow_path::BUSY | slow_path::CLOCK_DENIED) | clock;
        self.update_slow_path(control);
    }

    /// True if the thread cannot read the clock: the kernel denies it, or it takes a system call
    /// that a filter denies.
    pub(super) fn lacks_clock(&self) -> bool {
        self.slow_path & slow_path::CLOCK_DENIED != 0
            || self.slow_path & slow_path::NOT_TSC != 0 && !gate::allows(gate::Calls::CLOCK)
    }

    /// True if setting up may succeed: there is a log-client, and no filter denies the necessary
    /// system calls. Looks for an inherited filter if that was not done yet. Up to then only system
    /// calls have been made that the loader made before.
    #[cold]
    fn can_set_up(&mut self) -> bool {
        if clock::is_denied_to_new_threads() {
            process::count_no_lane();
            return false;
        }
        if gate::is_undetected() {
            if !node::page_exists() {
                self.go_dormant();
                return false;
            }
            gate::detect_inherited_filter();
        }
        if gate::allows(gate::SET_UP) || process::has_segment() {
            return true;
        }
        self.go_dormant();
        false
    }

    /// Makes the thread dormant: it skips requests until the next attempt to attach is worthwhile.
    #[unsafe(link_section = ".text.startup")]
    fn go_dormant(&mut self) {
        let now = clock::ticks();
        let was_recent = now.saturating_sub(self.last_attach) < ATTACH_INTERVAL_TICKS;
        let interval = if was_recent { self.skip_interval.saturating_mul(2) } else { self.skip_interval / 2 };
        self.last_attach = now;
        self.skip_interval = interval.clamp(*DORMANT_REQUESTS.start(), *DORMANT_REQUESTS.end());
        self.skips_left = self.skip_interval | NO_LOG_CLIENT;
    }

    /// Updates [`Thread::slow_path`] from the control page: filter and CPU time.
    fn update_slow_path(&mut self, control: &node::Control) {
        self.slow_path &= !(slow_path::FILTER | slow_path::CPU_TIME);
        if control.has_filter() {
            self.slow_path |= slow_path::FILTER;
        }
        if control.wants_cpu_time() {
            self.slow_path |= slow_path::CPU_TIME;
        }
    }

    /// Handles a lane that is more than half full: reads the consumer's position, moves to a larger
    /// lane, wakes the log-client.
    fn maintain_lane(&mut self, control: &node::Control) {
        // SAFETY: `Thread::lane` requires
        // - the thread has a lane: only called by `prepare_with_lane`, which is only called with
        //   one.
        let (lane, _) = unsafe { self.lane() };
        self.producer.refresh(lane);
        if !self.producer.needs_maintenance() {
            return;
        }
        if control.when_full() != WhenFull::OverwriteOldest && self.grow_lane(lane, control) {
            return control.wake_log_client();
        }
        self.producer.defer_maintenance();
        if !control.is_flight_recorder() {
            control.wake_log_client();
        }
    }

    fn grow_lane(&mut self, lane: &Lane, control: &node::Control) -> bool {
        let largest = control.lane_slots().1;
        if self.growth_refused || self.producer.capacity() >= largest || control.is_node_full() {
            return false;
        }
        self.move_to_larger_lane((self.producer.capacity() * 4).min(largest), lane, control)
    }

    fn move_to_larger_lane(&mut self, slots: u64, lane: &Lane, control: &node::Control) -> bool {
        let _signals = process::SignalsBlocked::new();
        let claimed = process::claim_lane(control, slots);
        match claimed {
            Some(claimed) => {
                lane.move_to(claimed.lane, &self.producer);
                self.switch_to_lane(claimed, control);
            }
            None => self.growth_refused = true,
        }
        !self.growth_refused
    }

    /// The log-client has ended: attaches to its successor. Returns false if there is none yet.
    fn attach_successor(&mut self) -> bool {
        node::detach();
        node::attach().is_some_and(|control| {
            self.control = control;
            // The page of the log-client that has ended may still be there.
            !control.is_closed()
        })
    }
}

/// Looks for a log-client when the program starts. Without one the calling thread becomes dormant,
/// so that its first requests need not look: they touch nothing else of this library. Returns
/// whether there is one.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn look_for_log_client() -> bool {
    if node::find_at_start() {
        process::touch();
        return true;
    }
    // SAFETY: dereferencing requires
    // - the calling thread's own block, which lives as long as the thread: `tls::thread` returns
    //   it;
    // - no other reference to it: the thread has made no request yet, or is between two.
    unsafe { (*crate::tls::thread()).go_dormant() };
    false
}

/// Slots of the lane of a confined thread. It can neither grow the lane nor wake the log-client,
/// which sweeps by itself several times per second.
const CONFINED_SLOTS: u64 = 8192;

/// Prepares the process for a filter that may deny all system calls of the tracer: finds out
/// whether a filter is already installed, and sets up recording for this thread and some others.
#[cold]
pub fn prepare_for_filter() {
    let thread = crate::tls::thread();
    gate::detect_inherited_filter();
    if !prepare(thread, Purpose::FutureRequests) {
        return;
    }
    // SAFETY: the references and `Thread::lane` require
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - no signal handler changes the state at the same time: `BUSY` keeps handlers out;
    // - the thread has a lane and a control page: `prepare` has returned true.
    unsafe {
        let thread = &mut *thread;
        let control = &*thread.control;
        thread.enter_busy();
        let (lane, _) = thread.lane();
        let slots = CONFINED_SLOTS.min(control.lane_slots().1);
        if thread.producer.capacity() < slots && !control.is_node_full() {
            thread.move_to_larger_lane(slots, lane, control);
        }
        thread.leave_busy();
        let _signals = process::SignalsBlocked::new();
        process::reserve_lanes(control);
    }
}

/// Whether a thread may read the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockAccess {
    /// The kernel kills a thread that reads the counter.
    Denied,
    /// Threads may read the counter.
    Allowed,
}

/// The threads to which a [`ClockAccess`] applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockScope {
    /// The calling thread only.
    ThisThread,
    /// The calling thread and threads that have not recorded yet.
    NewThreads,
}

/// Sets whether the calling thread may read the time stamp counter, and, with
/// [`ClockScope::NewThreads`], whether threads that it creates may. The kernel can deny the
/// counter, in seccomp's strict mode and by `PR_SET_TSC`, and kills a thread that reads it.
#[cold]
pub fn set_clock_access(access: ClockAccess, scope: ClockScope) {
    // SAFETY: the reference requires
    // - `thread` returns the calling thread's own block, which lives as long as the thread;
    // - no other reference to it is live in this thread.
    let thread = unsafe { &mut *crate::tls::thread() };
    match access {
        ClockAccess::Denied => thread.slow_path |= slow_path::CLOCK_DENIED,
        ClockAccess::Allowed => thread.slow_path &= !slow_path::CLOCK_DENIED,
    }
    thread.set_gates();
    if scope == ClockScope::NewThreads {
        clock::deny_new_threads(access == ClockAccess::Denied);
    }
}

/// The pthread key whose destructor retires a thread's lane, plus 1; 0 if there is none yet.
#[unsafe(link_section = ".data.miot")]
static KEY: AtomicU32 = AtomicU32::new(0);

/// Keys whose values lie in the thread's control block, so that setting them does not allocate
/// (glibc).
const INLINE_KEYS: u32 = 32;

fn retire_lane_at_exit(thread: &mut Thread) {
    let mut key = KEY.load(Relaxed);
    if key == 0 {
        let mut new = 0;
        // SAFETY: `pthread_key_create` requires
        // - a valid out-pointer: a local variable;
        // - a destructor that is sound for each value of the key: the only value is set below.
        if unsafe { libc::pthread_key_create(&raw mut new, Some(retire_lane)) } != 0 {
            // The process has no key left: the log-client drains its lanes when the process ends.
            return;
        }
        key = match KEY.compare_exchange(0, new + 1, Relaxed, Relaxed) {
            Ok(_) => new + 1,
            Err(other) => {
                // SAFETY: `pthread_key_delete` requires
                // - an existing key that is not in use: created above, published nowhere.
                unsafe { libc::pthread_key_delete(new) };
                other
            }
        };
    }
    // libc allocates memory for the values of further keys.
    if key > INLINE_KEYS && !gate::allows(gate::Calls::MAP | gate::Calls::BREAK) {
        return;
    }
    // SAFETY: `pthread_setspecific` requires
    // - an existing key: created above or by another thread, never deleted;
    // - a value that the destructor can use: this thread's block, which outlives the destructors of
    //   its keys.
    unsafe { libc::pthread_setspecific(key - 1, std::ptr::from_mut(thread).cast()) };
}

/// Runs when the thread ends. A record after that claims a lane again, and this runs again.
extern "C" fn retire_lane(thread: *mut libc::c_void) {
    // SAFETY: the reference requires
    // - `thread` is a `Thread`: the only value of the key is the state of the ending thread;
    // - no other reference to it is live: the ending thread itself runs this.
    let thread = unsafe { &mut *thread.cast::<Thread>() };
    if thread.has_lane() && !thread.is_busy() {
        // SAFETY: `Thread::lane` requires
        // - the thread has a lane: checked above.
        unsafe { thread.lane().0.retire(&thread.producer) };
        thread.epoch = 0;
        thread.producer = Producer::none();
        thread.set_gates();
    }
}
