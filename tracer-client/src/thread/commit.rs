//! The end of a request: a record in the lane, or a count of why there is none.

use super::{Begun, Done, Thread, care};
use crate::clock::{self, counter, ticks};
use crate::gate::{self, Calls};
use crate::lane::{Lane, Producer, Slot};
use crate::{lap, node, process, tls};
use miot_proto::control::WhenFull;
use miot_proto::event::{self, Event, Ext, MAX_DURATION, RecordKind};
use miot_proto::segment::in_flight;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

pub(super) fn put(kind: RecordKind, begun: Begun, mut done: Done, at: Option<u64>, ext: &Ext<'_>) -> bool {
    let ((path1, cut1), (path2, cut2)) = (event::truncate_path(ext.path1), event::truncate_path(ext.path2));
    done.flags |= cut1 | cut2;
    // SAFETY: the calling thread's own state.
    let wanted = unsafe { (*tls::thread()).wants_cpu_time(kind, &done) };
    let cpu_time = ext.cpu_time.or_else(|| wanted.then(clock::thread_cpu).flatten());
    let ext = Ext { path1, path2, cpu_time, ..*ext };
    let slots = event::slots_for(&ext) as u64;
    commit(kind, begun, done, slots, at, |producer, room| {
        if slots > 1 {
            event::write_ext(&ext, |slot, word, value| producer.slot(room, slot as u64).put(word, value));
        }
    })
}

/// A record to be written.
#[derive(Clone, Copy)]
struct Record {
    kind: RecordKind,
    begun: Begun,
    done: Done,
    slots: u64,
}

impl Record {
    /// Writes and publishes it. There must be room.
    #[inline(always)]
    fn write(
        &self,
        producer: &mut Producer,
        lane: &Lane,
        room: &[Slot],
        end: u64,
        duration: u64,
        rest: impl FnOnce(&Producer, &[Slot]),
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
        producer.slot(room, 0).fill(event.slot(kind, slots as u8, producer.attempt()));
        rest(producer, room);
        producer.commit(lane, slots);
    }
}

/// Ends a request, now or at a time that the caller knows.
#[inline(always)]
pub(super) fn commit(
    kind: RecordKind,
    begun: Begun,
    done: Done,
    slots: u64,
    at: Option<u64>,
    rest: impl FnOnce(&Producer, &[Slot]),
) -> bool {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state; `BUSY` keeps its signal handlers out while it changes. With room it is
    // valid.
    unsafe {
        let record = Record { kind, begun, done, slots };
        if at.is_some() || !(*thread).plain(begun.request, slots) {
            // A copy: the address of the record itself would keep it in memory also where it is plain.
            return with_care(thread, &{ record }, at, rest);
        }
        (*thread).care = care::BUSY;
        compiler_fence(SeqCst);
        let (lane, room) = (*thread).lane();
        let producer = &mut (*thread).producer;
        producer.mark(lane);
        let end = counter();
        record.write(producer, lane, room, end, duration(begun.begin, end), rest);
        compiler_fence(SeqCst);
        (*thread).care = 0;
        true
    }
}

/// Ticks between two times.
#[inline(always)]
fn duration(begin: u64, end: u64) -> u64 {
    /// Clocks of two processors that disagree, or three days and more.
    #[cold]
    fn odd(begin: u64, end: u64) -> u64 {
        end.saturating_sub(begin)
    }
    let ticks = end.wrapping_sub(begin);
    if ticks <= MAX_DURATION { ticks } else { odd(begin, end) }
}

/// [`commit`] where anything is out of the ordinary.
///
/// # Safety
/// `thread` must be the calling thread's state.
#[cold]
#[inline(never)]
unsafe fn with_care(
    thread: *mut Thread,
    record: &Record,
    at: Option<u64>,
    rest: impl FnOnce(&Producer, &[Slot]),
) -> bool {
    // SAFETY: the calling thread's own state; `BUSY` keeps its signal handlers out.
    let thread = unsafe { &mut *thread };
    let begun = record.begun;
    if record.slots == 1 && thread.wants_cpu_time(record.kind, &record.done) {
        return put(record.kind, begun, record.done, at, &Ext::default());
    }
    let encloses = thread.enclosing == begun.request && begun.request != 0;
    if encloses {
        thread.leave(&begun);
    }
    if !thread.valid() {
        // The process forked between begin and end, or the thread is being torn down.
        return false;
    }
    if thread.has_no_clock() {
        process::count_no_lane();
        return false;
    }
    // SAFETY: valid.
    let (lane, room) = unsafe { thread.lane() };
    if thread.care & care::BUSY != 0 {
        lane.count_nested();
        return false;
    }
    thread.care |= care::BUSY;
    compiler_fence(SeqCst);
    let committed = thread.decide(lane, room, record, at, encloses && begun.enclosing == 0, rest);
    compiler_fence(SeqCst);
    thread.care &= !care::BUSY;
    committed
}

impl Thread {
    /// True if the record is to have the CPU time of the thread. That of an asynchronous request would be the time of whoever
    /// learned of its end.
    fn wants_cpu_time(&self, kind: RecordKind, done: &Done) -> bool {
        self.care & care::CPU_TIME != 0 && kind == RecordKind::Request && done.flags & event::flag::ASYNC == 0
    }

    /// Writes the record, or counts why not. `outermost`: the request is shown as the one that encloses others.
    fn decide(
        &mut self,
        lane: &Lane,
        room: &[Slot],
        record: &Record,
        at: Option<u64>,
        outermost: bool,
        rest: impl FnOnce(&Producer, &[Slot]),
    ) -> bool {
        // SAFETY: a valid state has a control page, which is never unmapped.
        let control = unsafe { &*self.control };
        let (begun, slots) = (record.begun, record.slots);
        let filters = self.care & care::FILTER != 0 && record.kind != RecordKind::File;
        let producer = &mut self.producer;
        let committed =
            if !filters && control.when_full() == WhenFull::DropNewest && !fits(producer, lane, slots) {
                // What is to be dropped whenever it ended needs no mark and no time.
                control.ring();
                hide(lane, outermost);
                producer.drop_record(lane);
                false
            } else {
                producer.mark(lane);
                let end = at.unwrap_or_else(ticks);
                let duration = duration(begun.begin, end);
                if outermost {
                    lane.enclosing.stamp(in_flight::word(begun.op, begun.request, Some(producer.tail())));
                }
                if filters && !keeps(control, &begun, duration) {
                    hide(lane, outermost);
                    lane.count_filtered();
                    producer.withdraw(lane);
                    false
                } else if make_room(producer, lane, room, control, slots, &mut self.stuck) {
                    record.write(producer, lane, room, end, duration, rest);
                    true
                } else {
                    hide(lane, outermost);
                    producer.drop_record(lane);
                    false
                }
            };
        if outermost {
            lane.enclosing.clear();
        }
        committed
    }
}

/// Shows a request that will not be recorded no longer in flight, before it is counted.
fn hide(lane: &Lane, outermost: bool) {
    lane.in_flight.clear();
    if outermost {
        lane.enclosing.clear();
    }
}

/// True if so many slots fit, looking for what the consumer has freed only if need be.
fn fits(producer: &mut Producer, lane: &Lane, slots: u64) -> bool {
    producer.fits(slots) || producer.refresh(lane) && producer.fits(slots)
}

/// True if the filter keeps a request of this duration in ticks.
fn keeps(control: &node::Control, begun: &Begun, duration: u64) -> bool {
    let least = control.min_duration(clock::is_tsc());
    lot(begun.begin, begun.request) & control.sample() == 0 && duration >= least
}

/// The lot of a request in sampling. The number alone would not do: a loop of four requests would always have the same
/// one in a sample of 1/4, and all short programs the same ones of their first requests.
fn lot(begin: u64, request: u32) -> u64 {
    // As SplitMix64 does it: each bit of the result depends on each bit of time and number.
    let mixed = begin.wrapping_add(u64::from(request).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Makes room for a record as the policy says. False: there is none.
fn make_room(
    producer: &mut Producer,
    lane: &Lane,
    room: &[Slot],
    control: &node::Control,
    slots: u64,
    stuck: &mut bool,
) -> bool {
    if producer.fits(slots) {
        return true;
    }
    let moved = producer.refresh(lane);
    if producer.fits(slots) {
        *stuck = false;
        return true;
    }
    if !control.is_flight_recorder() {
        control.ring();
    }
    match control.when_full() {
        WhenFull::DropNewest => false,
        WhenFull::OverwriteOldest => {
            producer.overwrite(lane, room, slots);
            lap::overwritten(lane, producer);
            true
        }
        WhenFull::Wait => {
            *stuck &= !moved;
            if !*stuck {
                *stuck = !wait(producer, lane, control, slots);
            }
            !*stuck
        }
    }
}

/// Waits until so many slots fit. False: in vain.
fn wait(producer: &mut Producer, lane: &Lane, control: &node::Control, slots: u64) -> bool {
    /// Short beside what the log-client needs to drain half a lane, long beside a system call.
    const NAP_NS: u64 = 50_000;
    let mut waited = 0;
    // All of it may change meanwhile: whoever finds programs waiting chooses another policy.
    while control.when_full() == WhenFull::Wait && waited < control.wait_ns() && !control.closed() {
        let Some(_pass) = gate::pass(Calls::NAP) else { return false };
        let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NS as i64 };
        let _ = rustix::thread::nanosleep(&nap);
        waited += NAP_NS;
        if fits(producer, lane, slots) {
            return true;
        }
        control.ring();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::lot;

    /// Of 2¹⁶ requests in step with the clock, each of the kinds a loop of four makes is in the sample as often as one
    /// in so many is, give or take five standard deviations.
    #[test]
    fn a_sample_favours_no_step_of_a_loop() {
        for shift in [1, 2, 4, 6] {
            let mask = (1 << shift) - 1;
            for (start, period) in [(1u64 << 40, 100u64), (7, 64), (u64::MAX - 5, 1 << 32), (99, 0)] {
                let mut kept = [0u32; 4];
                for request in 1..=1u32 << 16 {
                    let begin = period.wrapping_mul(u64::from(request)).wrapping_add(start);
                    kept[request as usize % 4] += u32::from(lot(begin, request) & mask == 0);
                }
                let (n, p) = (f64::from(1 << 14), 1.0 / f64::from(1 << shift));
                let (mean, bound) = (n * p, 5.0 * (n * p * (1.0 - p)).sqrt());
                let fair = |count: &u32| (f64::from(*count) - mean).abs() <= bound;
                assert!(kept.iter().all(fair), "1/{}, every {period} ticks: {kept:?}", mask + 1);
            }
        }
    }
}
