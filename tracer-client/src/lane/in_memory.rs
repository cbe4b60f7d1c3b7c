//! For tests: a lane in private memory, and access to its words by their offset.

use super::state::InFlight;
use super::sync::{AtomicU64, Word};
use super::{Lane, Slot};
use miot_proto::segment::{IN_FLIGHT_BYTES, in_flight, lane as at};
use std::array::from_fn;
use std::sync::atomic::Ordering::{Acquire, Release};

impl Slot {
    /// Zeros.
    pub(crate) fn new() -> Slot {
        Slot(from_fn(|_| Word::new()))
    }
}

impl InFlight {
    fn new() -> InFlight {
        let zero = || AtomicU64::new(0);
        InFlight { request: zero(), begin: zero(), handle: zero(), offset: zero(), length: zero() }
    }

    fn word(&self, at: usize) -> Option<u64> {
        let word = match at {
            in_flight::REQUEST => &self.request,
            in_flight::BEGIN => &self.begin,
            in_flight::HANDLE => &self.handle,
            in_flight::OFFSET => &self.offset,
            in_flight::LENGTH => &self.length,
            _ => return None,
        };
        Some(word.load(Acquire))
    }
}

impl Lane {
    /// Zeros: never used.
    pub(crate) fn new() -> Lane {
        let zero = || AtomicU64::new(0);
        Lane {
            tail: zero(),
            lost_full: zero(),
            lost_nested: zero(),
            attempts: zero(),
            in_flight: InFlight::new(),
            enclosing: InFlight::new(),
            oldest: zero(),
            filtered: zero(),
            state: zero(),
            tid: Word::new(),
            slots_at: zero(),
            slots: zero(),
            start: Word::new(),
            claimed_ticks: Word::new(),
            comm: from_fn(|_| Word::new()),
            head: zero(),
            drained: zero(),
            _reader: from_fn(|_| zero()),
        }
    }

    /// Returns the word at this byte offset of the lane's table entry; `None` if there is none.
    pub(crate) fn word(&self, at: usize) -> Option<u64> {
        const IN_FLIGHT_END: usize = at::IN_FLIGHT + IN_FLIGHT_BYTES;
        const SECOND_COMM: usize = at::COMM + 8;
        const ENCLOSING_END: usize = at::ENCLOSING + IN_FLIGHT_BYTES;
        let atomic = match at {
            at::IN_FLIGHT..IN_FLIGHT_END => return self.in_flight.word(at - at::IN_FLIGHT),
            at::ENCLOSING..ENCLOSING_END => return self.enclosing.word(at - at::ENCLOSING),
            at::TID => return Some(self.tid.get()),
            at::START => return Some(self.start.get()),
            at::CLAIMED_TICKS => return Some(self.claimed_ticks.get()),
            at::COMM => return Some(self.comm[0].get()),
            SECOND_COMM => return Some(self.comm[1].get()),
            at::TAIL => &self.tail,
            at::LOST_FULL => &self.lost_full,
            at::LOST_NESTED => &self.lost_nested,
            at::ATTEMPTS => &self.attempts,
            at::OLDEST => &self.oldest,
            at::FILTERED => &self.filtered,
            at::STATE => &self.state,
            at::SLOTS_AT => &self.slots_at,
            at::SLOTS => &self.slots,
            _ => self.consumer_word(at)?,
        };
        Some(atomic.load(Acquire))
    }

    /// Stores a word that belongs to the consumer; `None` if the offset is not one.
    pub(crate) fn store(&self, at: usize, value: u64) -> Option<()> {
        self.consumer_word(at).map(|word| word.store(value, Release))
    }

    fn consumer_word(&self, at: usize) -> Option<&AtomicU64> {
        match at {
            at::HEAD => Some(&self.head),
            at::DRAINED => Some(&self.drained),
            _ => self._reader.get(at.checked_sub(at::NEXT)? / 8),
        }
    }
}
