//! Models for loom: the producer of this crate and a consumer with exactly the orders that are
//! necessary.
//!
//! `tests/loom.sh` runs them, and then each mutant of `order`, which must make them fail.

use super::state::InFlight;
use super::sync::{AtomicU64, Word};
use super::{Lane, LaneOwner, Producer, RequestArgs, Ring, Slot, order};
use loom::sync::Arc;
use loom::thread;
use miot_proto::segment::LaneState;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

struct Shared {
    lane: Lane,
    slots: Vec<Slot>,
}

fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

fn in_flight() -> InFlight {
    InFlight { request: zero(), begin: zero(), handle: zero(), offset: zero(), length: zero() }
}

fn shared(capacity: u64) -> Arc<Shared> {
    with_words(capacity, Word::new)
}

fn with_words(capacity: u64, word: fn() -> Word) -> Arc<Shared> {
    let lane = Lane {
        tail: zero(),
        lost_full: zero(),
        lost_nested: zero(),
        attempts: zero(),
        in_flight: in_flight(),
        enclosing: in_flight(),
        oldest: zero(),
        filtered: zero(),
        state: zero(),
        tid: Word::new(),
        slots_at: zero(),
        slots: AtomicU64::new(capacity),
        start: Word::new(),
        claimed_ticks: Word::new(),
        comm: std::array::from_fn(|_| Word::new()),
        head: zero(),
        drained: zero(),
        _reader: std::array::from_fn(|_| zero()),
    };
    let slots = (0..capacity).map(|_| Slot(std::array::from_fn(|_| word()))).collect();
    Arc::new(Shared { lane, slots })
}

fn owner(tid: u64) -> LaneOwner {
    LaneOwner { tid, comm: [0; 2], ticks: 0 }
}

fn push(shared: &Shared, producer: &mut Producer, value: u64) -> bool {
    producer.mark(&shared.lane);
    if !producer.fits(1) {
        producer.refresh(&shared.lane);
    }
    if !producer.fits(1) {
        producer.drop_record(&shared.lane);
        return false;
    }
    producer.slot(Ring::new(&shared.slots), 0).set(0, value);
    producer.commit(&shared.lane, 1);
    true
}

/// The log-client's side.
struct Consumer {
    head: u64,
    taken: Vec<u64>,
}

impl Consumer {
    fn new() -> Consumer {
        Consumer { head: 0, taken: Vec::new() }
    }

    /// Copies the committed slots, frees them, and returns the tail word that it read.
    fn drain(&mut self, shared: &Shared) -> u64 {
        let word = shared.lane.tail.load(order::see_tail());
        while self.head < word >> 1 {
            let slot = &shared.slots[(self.head & (shared.slots.len() as u64 - 1)) as usize];
            self.taken.push(slot.0[0].get());
            self.head += 1;
        }
        shared.lane.head.store(self.head, order::free());
        word
    }
}

#[test]
fn loom_commit_and_drain() {
    loom::model(|| {
        let shared = shared(2);
        let mut producer = shared.lane.claim(&owner(1));
        let other = shared.clone();
        let writer = thread::spawn(move || {
            (1..=3).filter(|value| push(&other, &mut producer, *value)).collect::<Vec<_>>()
        });
        let mut consumer = Consumer::new();
        consumer.drain(&shared);
        consumer.drain(&shared);
        let kept = writer.join().unwrap();
        consumer.drain(&shared);
        assert_eq!(consumer.taken, kept);
        assert_eq!(shared.lane.lost_full.load(Relaxed) as usize, 3 - kept.len());
    });
}

#[test]
fn loom_claim_retire_reuse() {
    // loom backtracks only to the last access before a store, which is the producer's own load of
    // the state. Both sides yield before the steps whose order matters; otherwise loom would run
    // one side after the other only.
    loom::model(|| {
        // One slot, which both incarnations write.
        let shared = shared(1);
        let other = shared.clone();
        let writer = thread::spawn(move || {
            for tid in 1..=2 {
                if tid == 2 {
                    thread::yield_now();
                    if !other.lane.is_reusable() {
                        return 1;
                    }
                }
                let mut producer = other.lane.claim(&owner(tid));
                thread::yield_now();
                assert!(push(&other, &mut producer, 10 * tid), "a lane that is claimed again must be empty");
                other.lane.retire(&producer);
            }
            2
        });
        // The consumer attributes records to an incarnation and ends the first one. After that it
        // does not read the identity until it sees the next incarnation.
        let (mut consumer, mut ended) = (Consumer::new(), 0);
        for _ in 0..2 {
            thread::yield_now();
            let state = shared.lane.state.load(order::see_state());
            let incarnation = state >> 32;
            if incarnation == ended {
                continue;
            }
            assert_eq!(shared.lane.tid.get(), incarnation, "the state is visible before the identity");
            assert_eq!(shared.lane.start.get(), incarnation - 1);
            consumer.drain(&shared);
            if state as u32 == LaneState::Retired as u32 && incarnation == 1 {
                assert_eq!(consumer.taken.first(), Some(&10), "the last tail of a retired lane is not final");
                ended = 1;
                shared.lane.drained.store(1, order::drained());
            }
        }
        let incarnations = writer.join().unwrap();
        consumer.drain(&shared);
        assert_eq!(consumer.taken, (1..=incarnations).map(|tid| 10 * tid).collect::<Vec<_>>());
    });
}

/// A consumer that sees a lane unmarked may set its watermark to the time that it read before. The
/// fences stand for the slack: the stores of both sides are visible before clocks are read.
#[test]
fn loom_mark_keeps_the_watermark() {
    loom::model(|| {
        let shared = shared(4);
        let clock = Arc::new(AtomicU64::new(1));
        let mut producer = shared.lane.claim(&owner(1));
        let (other, ticking) = (shared.clone(), clock.clone());
        let writer = thread::spawn(move || {
            if !order::mutant("no-mark") {
                producer.mark(&other.lane);
            }
            loom::sync::atomic::fence(SeqCst);
            let completed = ticking.load(SeqCst);
            producer.slot(Ring::new(&other.slots), 0).set(0, completed);
            producer.commit(&other.lane, 1);
        });
        let mut consumer = Consumer::new();
        let now = clock.fetch_add(1, SeqCst) + 1;
        loom::sync::atomic::fence(SeqCst);
        let seen = consumer.drain(&shared);
        let drained = consumer.taken.len();
        writer.join().unwrap();
        consumer.drain(&shared);
        if seen & 1 == 0 {
            assert!(
                consumer.taken[drained..].iter().all(|completed| *completed >= now),
                "{:?} before {now}",
                consumer.taken
            );
        }
    });
}

/// A consumer that is overtaken discards exactly the slots that were overwritten during its copy.
/// The rest is whole, in order, and ends with the newest record. Both sides yield as in
/// [`loom_claim_retire_reuse`].
#[test]
fn loom_overwrite_oldest() {
    loom::model(|| {
        let shared = with_words(2, Word::overwritten);
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let mut producer = other.lane.claim(&owner(1));
            for value in 1..=4 {
                thread::yield_now();
                producer.mark(&other.lane);
                if !producer.fits(1) {
                    producer.overwrite(&other.lane, Ring::new(&other.slots), 1);
                }
                let slot = producer.slot(Ring::new(&other.slots), 0);
                slot.set(1, value);
                slot.set(2, value);
                producer.commit(&other.lane, 1);
            }
        });
        let (mut head, mut taken) = (0, Vec::new());
        let mut drain = |last: bool| {
            thread::yield_now();
            let tail = shared.lane.tail.load(order::see_tail()) >> 1;
            thread::yield_now();
            let from = shared.lane.oldest.load(Relaxed).max(head);
            let copy: Vec<_> = (from..tail)
                .map(|at| &shared.slots[(at & 1) as usize].0)
                .map(|words| (words[1].get(), words[2].get()))
                .collect();
            order::fence(order::recheck());
            let sound = shared.lane.oldest.load(Relaxed).max(from);
            for (at, (first, second)) in (from..tail).zip(copy).filter(|(at, _)| *at >= sound) {
                assert_eq!((first, second), (at + 1, at + 1), "torn or overwritten");
                taken.push(first);
            }
            head = tail.max(sound);
            assert!(!last || taken.last() == Some(&4));
        };
        drain(false);
        writer.join().unwrap();
        drain(true);
        assert!(taken.is_sorted_by(|a, b| a < b));
    });
}

/// A reader of a request in flight sees its arguments, or those of a later one. Both sides yield as
/// in [`loom_claim_retire_reuse`].
#[test]
fn loom_request_in_flight() {
    loom::model(|| {
        let shared = shared(2);
        let other = shared.clone();
        let writer = thread::spawn(move || {
            for request in 1..=2 {
                thread::yield_now();
                let args = RequestArgs { handle: request, offset: request, length: request };
                other.lane.in_flight.show(request, request, Some(&args));
            }
        });
        let shown = &shared.lane.in_flight;
        for _ in 0..2 {
            thread::yield_now();
            let request = shown.request.load(order::see_shown());
            for word in [&shown.begin, &shown.handle, &shown.offset, &shown.length] {
                assert!(word.load(Relaxed) >= request, "argument of an earlier request");
            }
        }
        writer.join().unwrap();
    });
}

/// A reader that sees a request counted as lost does not see it in flight. Both sides yield as
/// above.
#[test]
fn loom_lost_or_in_flight() {
    loom::model(|| {
        let shared = shared(1);
        let mut producer = shared.lane.claim(&owner(1));
        let other = shared.clone();
        let writer = thread::spawn(move || {
            for request in 1..=2 {
                thread::yield_now();
                other.lane.in_flight.show(request, request, None);
                other.lane.in_flight.clear();
                producer.drop_record(&other.lane);
            }
        });
        for _ in 0..2 {
            thread::yield_now();
            let lost = shared.lane.attempts.load(order::see_count());
            let shown = shared.lane.in_flight.request.load(Relaxed);
            assert!(shown == 0 || shown > lost, "request {shown} is shown, {lost} are lost");
        }
        writer.join().unwrap();
    });
}
