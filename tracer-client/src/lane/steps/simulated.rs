//! Threads and their lanes in private memory: the producer as in `thread`, without clocks and
//! mappings.

use super::{Filter, LANE_SLOTS, THREADS, paths};
use crate::lane::{Lane, LaneOwner, Producer, RequestArgs, Ring, Slot};
use miot_proto::control::WhenFull;
use miot_proto::event::{Event, Ext, NONE, RecordKind, SLOT_BYTES, slots_for, write_ext};
use miot_proto::op::{self, Op};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, MAGIC, MAJOR, MAX_LANES, SLOTS_OFFSET, header, in_flight,
};

const LANE_SLOT_BYTES: usize = LANE_SLOTS as usize * SLOT_BYTES;

/// A traced process and its segment.
#[derive(Default)]
pub struct SimulatedProcess {
    lanes: Vec<(Lane, Vec<Slot>)>,
    threads: [Option<Thread>; THREADS],
    when_full: Option<WhenFull>,
    filter: Filter,
    now: u64,
}

struct Thread {
    lane: usize,
    producer: Producer,
    request: u32,
    enclosing: u32,
    begun: Vec<Begun>,
}

#[derive(Clone, Copy)]
struct Begun {
    op: Op,
    request: u32,
    enclosing: u32,
    begin: u64,
}

/// The lane is full, and its thread waits for the consumer.
#[derive(Debug)]
pub struct LaneFull;

impl std::fmt::Debug for SimulatedProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedProcess").field("now", &self.now).finish_non_exhaustive()
    }
}

impl SimulatedProcess {
    /// Returns the current time, ticks.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// See [`super::Subject::set`].
    pub fn set(&mut self, when_full: WhenFull, filter: Filter) {
        self.when_full = Some(when_full);
        self.filter = filter;
    }

    /// See [`super::Subject::begin`].
    pub fn begin(&mut self, thread: usize, encloses: bool, tag: u64) {
        self.now += 1;
        let begin = self.now;
        let (lane, _, thread) = self.lane_of(thread);
        thread.request += 1;
        let (request, enclosing) = (thread.request, thread.enclosing);
        let op = if encloses { op::client::OPEN } else { op::client::READ };
        let args = RequestArgs { handle: 1, offset: tag, length: 0 };
        if encloses && enclosing == 0 {
            lane.in_flight.clear();
            lane.enclosing.show(in_flight::word(op, request, None), begin, Some(&args));
        } else {
            let word = in_flight::word(op, request, Some(thread.producer.tail()));
            lane.in_flight.show(word, begin, Some(&args));
        }
        if encloses {
            thread.enclosing = request;
        }
        thread.begun.push(Begun { op, request, enclosing, begin });
    }

    /// See [`super::Subject::cancel`].
    pub fn cancel(&mut self, thread: usize) {
        let (lane, _, thread) = self.lane_of(thread);
        let Some(begun) = thread.begun.pop() else { return };
        let encloses = thread.enclosing == begun.request;
        if encloses {
            thread.enclosing = begun.enclosing;
        }
        if encloses && begun.enclosing == 0 { lane.enclosing.clear() } else { lane.in_flight.clear() }
    }

    /// See [`super::Subject::end`].
    ///
    /// # Errors
    /// [`LaneFull`]: the thread waits. Call again after the consumer has read.
    pub fn end(&mut self, thread: usize, slots: u64, tag: u64) -> Result<bool, LaneFull> {
        let filter = self.filter;
        let (lane, _, state) = self.lane_of(thread);
        let Some(begun) = state.begun.last().copied() else { return Ok(false) };
        let outermost = state.enclosing == begun.request && begun.enclosing == 0;
        let kept = if filter == Filter::TooShort {
            state.producer.mark(lane);
            lane.count_filtered();
            state.producer.withdraw(lane);
            false
        } else {
            self.write_record(thread, RecordKind::Request, begun, slots, tag)?
        };
        let (lane, _, state) = self.lane_of(thread);
        state.begun.pop();
        if state.enclosing == begun.request {
            state.enclosing = begun.enclosing;
        }
        if outermost {
            lane.enclosing.clear();
        }
        Ok(kept)
    }

    /// See [`super::Subject::file`].
    ///
    /// # Errors
    /// [`LaneFull`]: the thread waits. Call again after the consumer has read.
    pub fn file(&mut self, thread: usize, slots: u64, tag: u64) -> Result<bool, LaneFull> {
        let begin = self.now;
        let (_, _, state) = self.lane_of(thread);
        let begun = Begun { op: op::posix::OPEN, request: 0, enclosing: state.enclosing, begin };
        self.write_record(thread, RecordKind::File, begun, slots, tag)
    }

    /// See [`super::Subject::exit`].
    pub fn exit(&mut self, thread: usize) {
        if let Some(thread) = self.threads[thread].take() {
            self.lanes[thread.lane].0.retire(&thread.producer);
        }
    }

    fn write_record(
        &mut self,
        thread: usize,
        kind: RecordKind,
        begun: Begun,
        slots: u64,
        tag: u64,
    ) -> Result<bool, LaneFull> {
        self.now += 1;
        let (end, when_full) = (self.now, self.when_full);
        let (lane, ring, Thread { producer, .. }) = self.lane_of(thread);
        producer.mark(lane);
        if !producer.fits(slots) {
            producer.refresh(lane);
        }
        if !producer.fits(slots) {
            match when_full {
                Some(WhenFull::Wait) => return Err(LaneFull),
                Some(WhenFull::OverwriteOldest) => producer.overwrite(lane, ring, slots),
                _ => {
                    producer.drop_record(lane);
                    return Ok(false);
                }
            }
        }
        let (handle, offset) = if kind == RecordKind::File { (tag, NONE) } else { (1, tag) };
        let event = Event {
            op: begun.op,
            request: begun.request,
            enclosing: begun.enclosing,
            end,
            duration: end - begun.begin,
            flags: 0,
            handle,
            offset,
            length: 0,
            result: 0,
        };
        producer.slot(ring, 0).set_all(event.slot(kind, slots as u8, producer.attempt()));
        if slots > 1 {
            let (path1, path2) = paths(slots, tag);
            let ext = Ext { path1: &path1, path2: &path2, ..Ext::default() };
            assert_eq!(slots_for(&ext) as u64, slots);
            write_ext(&ext, |slot, word, value| producer.slot(ring, slot as u64).set(word, value));
        }
        producer.commit(lane, slots);
        Ok(true)
    }

    /// Returns the thread's lane, after claiming one if it has none.
    fn lane_of(&mut self, thread: usize) -> (&Lane, Ring<'_>, &mut Thread) {
        let SimulatedProcess { lanes, threads, now, .. } = self;
        let thread = threads[thread].get_or_insert_with(|| {
            let lane = lanes.iter().position(|(lane, _)| lane.is_reusable()).unwrap_or_else(|| {
                let lane = Lane::new();
                lane.set_slots((SLOTS_OFFSET + lanes.len() * LANE_SLOT_BYTES) as u64, LANE_SLOTS);
                lanes.push((lane, (0..LANE_SLOTS).map(|_| Slot::new()).collect()));
                lanes.len() - 1
            });
            let producer = lanes[lane].0.claim(&LaneOwner { tid: 1, comm: [0; 2], ticks: *now });
            Thread { lane, producer, request: 0, enclosing: 0, begun: Vec::new() }
        });
        let (lane, slots) = &lanes[thread.lane];
        (lane, Ring::new(slots), thread)
    }

    /// Returns the size of the segment, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        SLOTS_OFFSET + self.lanes.len() * LANE_SLOT_BYTES
    }

    /// Returns the word at a byte offset of the segment; `None` if there is none.
    #[must_use]
    pub fn word(&self, at: usize) -> Option<u64> {
        if at < HEADER_BYTES {
            return Some(match at {
                header::MAGIC => MAGIC,
                header::VERSION => u64::from(MAJOR) << 32,
                header::NONCE => 7,
                header::PID => 4711,
                header::CLOCK => Clock::MonotonicRaw as u64,
                header::LANES => self.lanes.len() as u64,
                _ => 0,
            });
        }
        if let Some(at) = at.checked_sub(SLOTS_OFFSET) {
            let (_, slots) = self.lanes.get(at / LANE_SLOT_BYTES)?;
            let slot = slots.get(at % LANE_SLOT_BYTES / SLOT_BYTES)?;
            return slot.0.get(at % SLOT_BYTES / 8).map(|word| word.get());
        }
        let (lane, word) = ((at - HEADER_BYTES) / LANE_BYTES, (at - HEADER_BYTES) % LANE_BYTES);
        self.lanes.get(lane).map_or((lane < MAX_LANES).then_some(0), |(lane, _)| lane.word(word))
    }

    /// Stores a word of a lane that belongs to the consumer; `None` if the offset is not one.
    pub fn store(&self, at: usize, value: u64) -> Option<()> {
        let (lane, word) = (at.checked_sub(HEADER_BYTES)? / LANE_BYTES, (at - HEADER_BYTES) % LANE_BYTES);
        self.lanes.get(lane)?.0.store(word, value)
    }
}
