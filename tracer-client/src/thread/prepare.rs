//! Whatever a thread lacks when a request begins: a log-client, a lane, a larger lane.

use super::{NO_LOG_CLIENT, Thread, care};
use crate::lane::{Lane, Producer};
use crate::{clock, gate, node, process};
use miot_proto::control::WhenFull;
use miot_proto::op::Op;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};

/// Requests that a dormant thread lets pass before it looks for a log-client again: as many as it makes in about
/// [`LOOK_TICKS`], within these bounds. A look costs a system call.
const DORMANT_REQUESTS: std::ops::RangeInclusive<u32> = 64..=1 << 20;

/// Some hundredths of a second, in ticks of any clock.
const LOOK_TICKS: u64 = 100_000_000;

/// Requests that a thread without a lane lets pass before it tries again.
const LANELESS_REQUESTS: u32 = 256;

/// What a thread gets ready for.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// A request of this operation.
    Request(Op),
    /// A record that names a file.
    File,
    /// Whatever may come, recorded now or later: afterwards no lane may be to be had.
    Anything,
}

impl Wanted {
    fn by(self, control: &node::Control) -> bool {
        match self {
            Wanted::Request(op) => control.wants(op),
            Wanted::File => control.is_on(),
            Wanted::Anything => !control.closed(),
        }
    }
}

/// The slow part of a begin: whatever keeps the thread from being ready. False: do not record.
#[cold]
#[inline(never)]
pub(super) fn prepare(thread: *mut Thread, wanted: Wanted) -> bool {
    // SAFETY: the calling thread's own state; `BUSY` keeps its signal handlers out.
    let thread = unsafe { &mut *thread };
    if thread.care & care::BUSY != 0 {
        if thread.valid() {
            // SAFETY: valid.
            unsafe { thread.lane().0.count_nested() };
        }
        return false;
    }
    if thread.has_no_clock() {
        process::count_no_lane();
        return false;
    }
    if !thread.valid() && !thread.may_set_up() {
        return false;
    }
    // Not for each request of a thread that a filter sends here.
    let _signals = (!thread.valid()).then(process::SignalsOff::new);
    thread.care |= care::BUSY;
    compiler_fence(SeqCst);
    let ready = prepare_locked(thread, wanted);
    compiler_fence(SeqCst);
    thread.care &= !care::BUSY;
    ready
}

fn prepare_locked(thread: &mut Thread, wanted: Wanted) -> bool {
    if thread.valid() {
        // SAFETY: a valid state has a control page, which is never unmapped.
        let control = unsafe { &*thread.control };
        if !wanted.by(control) {
            if control.closed() {
                thread.look_for_successor();
                thread.rest();
            }
            return false;
        }
        thread.follow(control);
        if thread.producer.needs_care() {
            thread.relieve(control);
        }
        return true;
    }
    thread.laneless = false;
    let Some(control) = node::attach() else {
        thread.rest();
        return false;
    };
    if !wanted.by(control) {
        if control.closed() {
            node::detach();
            thread.rest();
        }
        return false;
    }
    if process::is_left_out(control) {
        thread.rest();
        return false;
    }
    let (first, largest) = control.lane_slots();
    let slots = if matches!(wanted, Wanted::Anything) { CONFINED_SLOTS.clamp(first, largest) } else { first };
    match process::claim_lane(control, slots) {
        Some(claimed) => {
            // What enclosed the next request did so in the parent's thread, or in another life of this one.
            (thread.enclosing, thread.mpi) = (0, 0);
            thread.adopt(claimed, control);
            retire_at_exit(thread);
            true
        }
        None => {
            process::count_no_lane();
            thread.laneless = true;
            thread.skip = LANELESS_REQUESTS;
            false
        }
    }
}

impl Thread {
    fn adopt(&mut self, claimed: process::Claimed, control: &node::Control) {
        self.lane = claimed.lane;
        self.slots = claimed.slots.as_ptr();
        self.producer = claimed.producer;
        self.control = control;
        self.skip = 0;
        self.tag = process::epoch_word();
        let clock = if clock::is_tsc() { 0 } else { care::OTHER_CLOCK };
        self.care = self.care & (care::BUSY | care::NO_CLOCK) | clock;
        self.follow(control);
    }

    /// True if the time cannot be asked for: it is forbidden, or takes a system call that is denied.
    pub(super) fn has_no_clock(&self) -> bool {
        self.care & care::NO_CLOCK != 0
            || self.care & care::OTHER_CLOCK != 0 && !gate::may(gate::Calls::CLOCK)
    }

    /// True if there may be something to record with: a log-client, and no filter that forbids the calls it takes. Asks, if
    /// nobody did; nothing has been called that the loader did not call before.
    #[cold]
    fn may_set_up(&mut self) -> bool {
        if clock::is_blocked() {
            process::count_no_lane();
            return false;
        }
        if gate::is_unasked() {
            if !node::is_there() {
                self.rest();
                return false;
            }
            gate::ask();
        }
        if gate::may(gate::SET_UP) || process::has_segment() {
            return true;
        }
        self.rest();
        false
    }

    /// There is no log-client: lets requests pass until it is worth another look.
    fn rest(&mut self) {
        let now = clock::ticks();
        let was_short = now.saturating_sub(self.looked) < LOOK_TICKS;
        let patience = if was_short { self.patience.saturating_mul(2) } else { self.patience / 2 };
        self.looked = now;
        self.patience = patience.clamp(*DORMANT_REQUESTS.start(), *DORMANT_REQUESTS.end());
        self.skip = self.patience | NO_LOG_CLIENT;
    }

    /// Takes note of whether there is a filter, and whether CPU time is wanted.
    fn follow(&mut self, control: &node::Control) {
        self.care &= !(care::FILTER | care::CPU_TIME);
        if control.filters() {
            self.care |= care::FILTER;
        }
        if control.wants_cpu_time() {
            self.care |= care::CPU_TIME;
        }
    }

    /// The lane is more than half full: look again, move to a larger one, wake the log-client.
    fn relieve(&mut self, control: &node::Control) {
        // SAFETY: only called on a valid state.
        let (lane, _) = unsafe { self.lane() };
        self.producer.refresh(lane);
        if !self.producer.needs_care() {
            return;
        }
        if control.when_full() != WhenFull::OverwriteOldest && self.grow(lane, control) {
            return control.ring();
        }
        self.producer.look_later();
        if !control.is_flight_recorder() {
            control.ring();
        }
    }

    fn grow(&mut self, lane: &Lane, control: &node::Control) -> bool {
        let largest = control.lane_slots().1;
        if self.grown || self.producer.capacity() >= largest || control.is_full() {
            return false;
        }
        self.move_to_lane_of((self.producer.capacity() * 4).min(largest), lane, control)
    }

    fn move_to_lane_of(&mut self, slots: u64, lane: &Lane, control: &node::Control) -> bool {
        let _signals = process::SignalsOff::new();
        let claimed = process::claim_lane(control, slots);
        match claimed {
            Some(claimed) => {
                lane.move_to(claimed.lane, &self.producer);
                self.adopt(claimed, control);
            }
            None => self.grown = true,
        }
        !self.grown
    }

    /// The log-client has ended: see whether another one has taken the node over.
    fn look_for_successor(&mut self) {
        node::detach();
        if let Some(successor) = node::attach() {
            self.control = successor;
        }
    }
}

/// Slots of a confined thread's lane: it can neither grow nor wake the log-client, which comes by itself some times a second.
const CONFINED_SLOTS: u64 = 8192;

/// Gets the process ready for a filter that may deny all that takes a system call: finds out whether it is under one
/// already, and sets up what recording needs, for this thread and some others.
#[cold]
pub fn prepare_for_filter() {
    let thread = crate::tls::thread();
    gate::ask();
    if !prepare(thread, Wanted::Anything) {
        return;
    }
    // SAFETY: the calling thread's own state; `BUSY` keeps its signal handlers out. A state that is prepared is valid.
    unsafe {
        let thread = &mut *thread;
        let control = &*thread.control;
        thread.care |= care::BUSY;
        compiler_fence(SeqCst);
        let (lane, _) = thread.lane();
        let slots = CONFINED_SLOTS.min(control.lane_slots().1);
        if thread.producer.capacity() < slots && !control.is_full() {
            thread.move_to_lane_of(slots, lane, control);
        }
        compiler_fence(SeqCst);
        thread.care &= !care::BUSY;
        let _signals = process::SignalsOff::new();
        process::reserve(control);
    }
}

/// Says whether the calling thread may read the time stamp counter: the kernel can forbid it, in strict mode and by
/// `PR_SET_TSC`, and kills whoever reads it. Threads that it will make cannot either.
#[cold]
pub fn forbid_clock(forbidden: bool, for_new_threads: bool) {
    // SAFETY: the calling thread's own state.
    let thread = unsafe { &mut *crate::tls::thread() };
    if forbidden {
        thread.care |= care::NO_CLOCK;
    } else {
        thread.care &= !care::NO_CLOCK;
    }
    if for_new_threads {
        clock::block(forbidden);
    }
}

/// The pthread key whose destructor retires a thread's lane; 0 = none yet, else key + 1.
#[unsafe(link_section = ".data.miot")]
static KEY: AtomicU32 = AtomicU32::new(0);

/// Keys whose values each thread has room for.
const INLINE_KEYS: u32 = 32;

fn retire_at_exit(thread: &mut Thread) {
    let mut key = KEY.load(Relaxed);
    if key == 0 {
        let mut new = 0;
        // SAFETY: an out-pointer and a function of the right type.
        if unsafe { libc::pthread_key_create(&raw mut new, Some(retire)) } != 0 {
            // No key left in this process: its lanes are drained when it ends.
            return;
        }
        key = match KEY.compare_exchange(0, new + 1, Relaxed, Relaxed) {
            Ok(_) => new + 1,
            Err(other) => {
                // SAFETY: made above, used by nobody.
                unsafe { libc::pthread_key_delete(new) };
                other
            }
        };
    }
    // libc allocates room for the values of further keys.
    if key > INLINE_KEYS && !gate::may(gate::Calls::MAP | gate::Calls::BREAK) {
        return;
    }
    // SAFETY: an existing key; the value is this thread's block, which outlives its destructors.
    unsafe { libc::pthread_setspecific(key - 1, std::ptr::from_mut(thread).cast()) };
}

/// Runs when the thread ends. What it records after that claims a lane anew, and runs this again.
extern "C" fn retire(thread: *mut libc::c_void) {
    // SAFETY: the value set above: the state of the thread that is ending, which runs this.
    let thread = unsafe { &mut *thread.cast::<Thread>() };
    if thread.valid() && thread.care & care::BUSY == 0 {
        // SAFETY: valid.
        unsafe { thread.lane().0.retire(&thread.producer) };
        thread.tag = 0;
        thread.producer = Producer::none();
    }
}
