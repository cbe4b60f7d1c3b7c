//! The end of a request: writes the record to the lane, or counts why it is not written.

use super::{Completion, PackedRequest, StartedRequest, Thread, slow_path};
use crate::clock::{self, counter, ticks};
use crate::gate::{self, Calls};
use crate::lane::{Lane, Producer, Ring};
use crate::{lap, node, process, tls};
use miot_proto::control::WhenFull;
use miot_proto::event::{self, Event, Ext, MAX_DURATION, OnePath, RecordKind, WORDS};
use miot_proto::op::Op;
use miot_proto::segment::in_flight;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

pub(super) fn commit_with_ext(
    kind: RecordKind,
    begun: StartedRequest,
    mut done: Completion,
    end_ticks: Option<u64>,
    ext: &Ext<'_>,
) -> bool {
    let ((path1, cut1), (path2, cut2)) = (event::truncate_path(ext.path1), event::truncate_path(ext.path2));
    done.flags |= cut1 | cut2;
    // SAFETY: dereferencing the pointer requires
    // - the calling thread's own block, which lives as long as the thread: `tls::thread` returns
    //   it.
    let wants_cpu_time = unsafe { (*tls::thread()).wants_cpu_time(kind, &done) };
    let cpu_time = ext.cpu_time.or_else(|| wants_cpu_time.then(clock::thread_cpu).flatten());
    let ext = Ext { path1, path2, cpu_time, ..*ext };
    let slots = event::slots_for(&ext) as u64;
    commit(kind, begun, done, slots, end_ticks, &|ring, tail| {
        if slots > 1 {
            event::write_ext(&ext, |slot, word, value| {
                ring.at(tail.wrapping_add(slot as u64)).set(word, value);
            });
        }
    })
}

/// Ends a request that has only a second path.
#[inline(always)]
pub(super) fn commit_with_second_path(begun: StartedRequest, done: Completion, path: &[u8]) -> bool {
    let thread = tls::thread();
    let slots = 1 + event::path_slots(path) as u64;
    let StartedRequest { begin, op, request, enclosing } = begun;
    let (number, parent) = (u64::from(request) << 32, Some(u64::from(enclosing) << 32));
    let record = FastRecord { kind: RecordKind::Request, op, begin, number, parent, slots };
    // SAFETY: dereferencing `thread` and `FastRecord::commit` require
    // - the calling thread's own block, which lives as long as the thread.
    let committed = unsafe {
        !path.is_empty()
            && path.len() <= event::MAX_PATH
            && (*thread).enclosing() != request
            && record.commit(thread, &|| done, &|ring, tail| ring.set_path(tail + 1, OnePath::Second(path)))
    };
    committed
        || commit_with_ext(RecordKind::Request, begun, done, None, &Ext { path2: path, ..Ext::default() })
}

/// Whether a request is the outermost one of its thread that makes requests of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    /// The lane shows the request, if at all, in its `in_flight` entry.
    Other,
    /// The lane shows the request in its `enclosing` entry.
    Outermost,
}

/// A record to write.
#[derive(Clone, Copy)]
struct Record {
    kind: RecordKind,
    begun: StartedRequest,
    done: Completion,
    slots: u64,
}

impl Record {
    /// Writes and publishes the record. The lane must have space for it.
    fn write(
        &self,
        producer: &mut Producer,
        lane: &Lane,
        ring: Ring<'_>,
        end: u64,
        duration: u64,
        write_ext: &impl Fn(Ring<'_>, u64),
    ) {
        let Record { kind, begun, done, slots } = *self;
        let event = Event {
            op: begun.op,
            request: begun.request,
            enclosing: begun.enclosing,
            end,
            duration,
            flags: done.flags,
            handle: done.handle,
            offset: done.offset,
            length: done.length,
            result: done.result,
        };
        producer.slot(ring, 0).set_all(event.slot(kind, slots as u8, producer.attempt()));
        write_ext(ring, producer.tail());
        producer.commit(lane, slots);
    }
}

/// Ends a request now, or at `end_ticks` if the caller knows the time. `write_ext` writes the slots
/// after the first.
#[inline(always)]
pub(super) fn commit(
    kind: RecordKind,
    begun: StartedRequest,
    done: Completion,
    slots: u64,
    end_ticks: Option<u64>,
    write_ext: &impl Fn(Ring<'_>, u64),
) -> bool {
    let thread = tls::thread();
    let StartedRequest { begin, op, request, enclosing } = begun;
    let (number, parent) = (u64::from(request) << 32, Some(u64::from(enclosing) << 32));
    let record = FastRecord { kind, op, begin, number, parent, slots };
    // SAFETY: dereferencing `thread`, `FastRecord::commit` and `commit_slow` require
    // - the calling thread's own block, which lives as long as the thread.
    unsafe {
        end_ticks.is_none()
            && (*thread).enclosing() != begun.request
            && record.commit(thread, &|| done, write_ext)
            || commit_slow(thread, kind, &PackedRequest::new(begun, done), slots, end_ticks, write_ext)
    }
}

/// A record of one request, as the fast path commits it.
#[derive(Clone, Copy)]
pub(super) struct FastRecord {
    pub(super) kind: RecordKind,
    pub(super) op: Op,
    pub(super) begin: u64,
    /// Number of the request, in the high half.
    pub(super) number: u64,
    /// Number of its parent, in the high half; `None`: the thread's present one.
    pub(super) parent: Option<u64>,
    pub(super) slots: u64,
}

impl FastRecord {
    /// Ends the request now. `done` is called after the time was taken, and `write_ext` writes the
    /// slots after the first, which is at its second argument. Returns false, and has changed
    /// nothing, if the fast path is closed or has no space, if the process has forked since the
    /// begin, if the clocks of two processors disagree, or if the request took three days and more.
    ///
    /// # Safety
    /// - `thread` must be the calling thread's state.
    #[inline(always)]
    pub(super) unsafe fn commit(
        &self,
        thread: *mut Thread,
        done: &impl Fn() -> Completion,
        write_ext: &impl Fn(Ring<'_>, u64),
    ) -> bool {
        // SAFETY: `take_tail`, dereferencing `thread` and calling `Thread::lane` require
        // - `thread` is the calling thread's own block, which lives as long as the thread;
        // - no signal handler changes the state at the same time: they do not while the tail is
        //   taken, and nothing is used that was read before;
        // - the thread has a lane: its state is of this process image, and not the empty one, into
        //   which no record fits.
        let (tail, producer, (lane, ring)) = unsafe {
            let tail = Thread::take_tail(thread);
            let thread = &mut *thread;
            if tail + self.slots > thread.commit_up_to || thread.epoch != process::epoch_word() {
                thread.producer.put_tail(tail);
                return false;
            }
            let lane = thread.lane();
            (tail, &mut thread.producer, lane)
        };
        lane.mark(tail);
        let end = counter();
        let duration = end.wrapping_sub(self.begin);
        if duration > MAX_DURATION {
            producer.put_tail(tail);
            return false;
        }
        let Completion { handle, offset, length, result, flags } = done();
        let (op, request, enclosing) = (self.op, 0, 0);
        let event = Event { op, request, enclosing, end, duration, flags, handle, offset, length, result };
        let mut slot = event.slot(self.kind, self.slots as u8, producer.attempt());
        slot[0] |= self.number;
        // SAFETY: as above; `producer` does not refer to the parent.
        slot[WORDS - 1] |= self.parent.unwrap_or_else(|| unsafe { (*thread).parent });
        ring.at(tail).set_all(slot);
        write_ext(ring, tail);
        producer.count_attempt();
        lane.publish(tail + self.slots);
        compiler_fence(SeqCst);
        producer.put_tail(tail + self.slots);
        true
    }
}

/// [`commit`] for every case that the fast path does not cover.
///
/// # Safety
/// - `thread` must be the calling thread's state.
#[cold]
#[inline(never)]
unsafe fn commit_slow(
    thread: *mut Thread,
    kind: RecordKind,
    request: &PackedRequest,
    slots: u64,
    end_ticks: Option<u64>,
    write_ext: &impl Fn(Ring<'_>, u64),
) -> bool {
    let (begun, done) = request.unpack();
    let record = &Record { kind, begun, done, slots };
    // SAFETY: the reference requires
    // - `thread` is the calling thread's own block: required by this function;
    // - no signal handler changes the state at the same time: `BUSY` keeps handlers out.
    let thread = unsafe { &mut *thread };
    if record.slots == 1 && thread.wants_cpu_time(record.kind, &record.done) {
        return commit_with_ext(record.kind, begun, record.done, end_ticks, &Ext::default());
    }
    let encloses = thread.enclosing() == begun.request && begun.request != 0;
    if encloses {
        thread.pop_parent(&begun);
    }
    if thread.is_busy() {
        if let Some(lane) = thread.current_lane() {
            // SAFETY: dereferencing `lane` requires
            // - a lane in this process's segment: the thread has it.
            unsafe { (*lane).count_nested() };
        }
        return false;
    }
    // What follows is of the state after this: a handler in between may have moved the lane.
    thread.enter_busy();
    let nesting = if encloses && begun.enclosing == 0 { Nesting::Outermost } else { Nesting::Other };
    let committed = if !thread.has_lane() {
        // The process forked between begin and end, or the thread is being torn down.
        false
    } else if thread.lacks_clock() {
        process::count_no_lane();
        false
    } else {
        // SAFETY: `Thread::lane` requires
        // - the thread has a lane: checked.
        let (lane, ring) = unsafe { thread.lane() };
        thread.commit_or_count(lane, ring, record, end_ticks, nesting, write_ext)
    };
    thread.leave_busy();
    committed
}

impl Thread {
    /// True if the record gets the CPU time of the thread. An asynchronous request gets none: it
    /// would be the CPU time of the thread that received the completion.
    fn wants_cpu_time(&self, kind: RecordKind, done: &Completion) -> bool {
        self.slow_path & slow_path::CPU_TIME != 0
            && kind == RecordKind::Request
            && done.flags & event::flag::ASYNC == 0
    }

    /// Writes the record, or counts why it is not written. With [`Nesting::Outermost`] the lane
    /// shows the request in its `enclosing` entry.
    fn commit_or_count(
        &mut self,
        lane: &Lane,
        ring: Ring<'_>,
        record: &Record,
        end_ticks: Option<u64>,
        nesting: Nesting,
        write_ext: &impl Fn(Ring<'_>, u64),
    ) -> bool {
        // SAFETY: dereferencing `control` requires
        // - a pointer to a live page: the caller has checked that the thread has a lane, so it has
        //   attached to a control page, and control pages are never unmapped.
        let control = unsafe { &*self.control };
        let (begun, slots) = (record.begun, record.slots);
        let filters = self.slow_path & slow_path::FILTER != 0 && record.kind != RecordKind::File;
        let producer = &mut self.producer;
        let committed =
            if !filters && control.when_full() == WhenFull::DropNewest && !has_space(producer, lane, slots) {
                // A record that is dropped anyway needs neither mark nor completion time.
                control.wake_log_client();
                clear_in_flight(lane, nesting);
                producer.drop_record(lane);
                false
            } else {
                producer.mark(lane);
                let end = end_ticks.unwrap_or_else(ticks);
                // Zero if the clocks of two processors disagree.
                let duration = end.saturating_sub(begun.begin);
                if nesting == Nesting::Outermost {
                    lane.enclosing.stamp(in_flight::word(begun.op, begun.request, Some(producer.tail())));
                }
                if filters && !passes_filter(control, &begun, duration) {
                    clear_in_flight(lane, nesting);
                    lane.count_filtered();
                    producer.withdraw(lane);
                    false
                } else if make_space(producer, lane, ring, control, slots, &mut self.wait_timed_out) {
                    record.write(producer, lane, ring, end, duration, write_ext);
                    true
                } else {
                    clear_in_flight(lane, nesting);
                    producer.drop_record(lane);
                    false
                }
            };
        if nesting == Nesting::Outermost {
            lane.enclosing.clear();
        }
        committed
    }
}

/// Removes a request that will not be recorded from the in-flight entries, before it is counted.
fn clear_in_flight(lane: &Lane, nesting: Nesting) {
    lane.in_flight.clear();
    if nesting == Nesting::Outermost {
        lane.enclosing.clear();
    }
}

/// True if `slots` slots fit. Reads the consumer's position only if necessary.
fn has_space(producer: &mut Producer, lane: &Lane, slots: u64) -> bool {
    producer.fits(slots) || producer.refresh(lane) && producer.fits(slots)
}

/// True if a request of this duration, in ticks, passes the filter.
fn passes_filter(control: &node::Control, begun: &StartedRequest, duration: u64) -> bool {
    let min_duration = control.min_duration_ticks(clock::is_tsc());
    sample_hash(begun.begin, begun.request) & control.sample_mask() == 0 && duration >= min_duration
}

/// Hash by which the sampling filter selects requests. The request number alone would select badly:
/// of a loop of four requests a sample of 1/4 would always contain the same one, and all short
/// programs would record the same ones of their first requests.
fn sample_hash(begin: u64, request: u32) -> u64 {
    // The output function of SplitMix64: each bit of the result depends on each bit of time and
    // number.
    let mixed = begin.wrapping_add(u64::from(request).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Frees space for a record according to the `when_full` policy. Returns false if there is none.
fn make_space(
    producer: &mut Producer,
    lane: &Lane,
    ring: Ring<'_>,
    control: &node::Control,
    slots: u64,
    wait_timed_out: &mut bool,
) -> bool {
    if producer.fits(slots) {
        return true;
    }
    let moved = producer.refresh(lane);
    if producer.fits(slots) {
        *wait_timed_out = false;
        return true;
    }
    if !control.is_flight_recorder() {
        control.wake_log_client();
    }
    match control.when_full() {
        WhenFull::DropNewest => false,
        WhenFull::OverwriteOldest => {
            producer.overwrite(lane, ring, slots);
            lap::count_overwritten(lane, producer);
            true
        }
        WhenFull::Wait => {
            *wait_timed_out &= !moved;
            if !*wait_timed_out {
                *wait_timed_out = !wait_for_space(producer, lane, control, slots);
            }
            !*wait_timed_out
        }
    }
}

/// Waits until `slots` slots fit. Returns false after `wait_ns`, or if the wait is not possible any
/// more.
fn wait_for_space(producer: &mut Producer, lane: &Lane, control: &node::Control, slots: u64) -> bool {
    /// Much shorter than the log-client takes to drain half a lane, much longer than a system call.
    const NAP_NS: u64 = 50_000;
    let mut waited = 0;
    // The control page may change during the wait, e.g. to another policy.
    while control.when_full() == WhenFull::Wait && waited < control.wait_ns() && !control.is_closed() {
        let Some(_permit) = gate::permit(Calls::NAP) else { return false };
        let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NS as i64 };
        let _ = rustix::thread::nanosleep(&nap);
        waited += NAP_NS;
        if has_space(producer, lane, slots) {
            return true;
        }
        control.wake_log_client();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::sample_hash;

    /// Of 2¹⁶ requests at a constant interval, the sample contains each of the four requests of a
    /// loop at the sampling rate, within five standard deviations.
    #[test]
    fn sample_takes_each_request_of_a_loop_equally_often() {
        for shift in [1, 2, 4, 6] {
            let mask = (1 << shift) - 1;
            for (start, period) in [(1u64 << 40, 100u64), (7, 64), (u64::MAX - 5, 1 << 32), (99, 0)] {
                let mut kept = [0u32; 4];
                for request in 1..=1u32 << 16 {
                    let begin = period.wrapping_mul(u64::from(request)).wrapping_add(start);
                    kept[request as usize % 4] += u32::from(sample_hash(begin, request) & mask == 0);
                }
                let (n, p) = (f64::from(1 << 14), 1.0 / f64::from(1 << shift));
                let (mean, bound) = (n * p, 5.0 * (n * p * (1.0 - p)).sqrt());
                let fair = |count: &u32| (f64::from(*count) - mean).abs() <= bound;
                assert!(kept.iter().all(fair), "1/{}, every {period} ticks: {kept:?}", mask + 1);
            }
        }
    }
}
