//! Whatever a thread lacks when a request begins: a log-client, a lane, a larger lane.

use super::{NO_LOG_CLIENT, Thread, care};
use crate::lane::{Lane, Producer};
use crate::{clock, node, process};
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
}

impl Wanted {
    fn by(self, control: &node::Control) -> bool {
        match self {
            Wanted::Request(op) => control.wants(op),
            Wanted::File => control.is_on(),
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
    match process::claim_lane(control, control.lane_slots().0) {
        Some(claimed) => {
            // What enclosed the next request did so in the parent's thread, or in another life of this one.
            thread.enclosing = 0;
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
        self.care = self.care & care::BUSY | clock;
        self.follow(control);
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
        let _signals = process::SignalsOff::new();
        let claimed = process::claim_lane(control, (self.producer.capacity() * 4).min(largest));
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

/// The pthread key whose destructor retires a thread's lane; 0 = none yet, else key + 1.
#[unsafe(link_section = ".data.miot")]
static KEY: AtomicU32 = AtomicU32::new(0);

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
