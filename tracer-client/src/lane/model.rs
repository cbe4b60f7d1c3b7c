//! Models for loom: the producer of this crate against a consumer with just the orders that are needed.
//!
//! Run by `tests/loom.sh`, together with the mutants of `order`, each of which must fail here.

use super::sync::{AtomicU64, Word};
use super::{Identity, Lane, Producer, Slot};
use loom::sync::Arc;
use loom::thread;
use miot_proto::segment::LaneState;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

struct Shared {
    lane: Lane,
    slots: Vec<Slot>,
}

fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

fn shared(capacity: u64) -> Arc<Shared> {
    let lane = Lane {
        tail: zero(),
        lost_full: zero(),
        lost_nested: zero(),
        attempts: zero(),
        in_flight: std::array::from_fn(|_| zero()),
        _producer: std::array::from_fn(|_| zero()),
        state: zero(),
        tid: zero(),
        slots_at: zero(),
        slots: AtomicU64::new(capacity),
        start: zero(),
        claimed_ticks: zero(),
        comm: std::array::from_fn(|_| zero()),
        head: zero(),
        drained: zero(),
        _reader: std::array::from_fn(|_| zero()),
    };
    let slots = (0..capacity).map(|_| Slot(std::array::from_fn(|_| Word::new()))).collect();
    Arc::new(Shared { lane, slots })
}

fn who(tid: u64) -> Identity {
    Identity { tid, comm: [0; 2], ticks: 0 }
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
    producer.slot(&shared.slots, 0).put(0, value);
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

    /// Copies what is committed, frees it, and returns the tail word it saw.
    fn drain(&mut self, shared: &Shared) -> u64 {
        let word = shared.lane.tail.load(Acquire);
        while self.head < word >> 1 {
            let slot = &shared.slots[(self.head & (shared.slots.len() as u64 - 1)) as usize];
            self.taken.push(slot.0[0].get());
            self.head += 1;
        }
        shared.lane.head.store(self.head, Release);
        word
    }
}

#[test]
fn loom_commit_and_drain() {
    loom::model(|| {
        let shared = shared(2);
        let mut producer = shared.lane.claim(&who(1));
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
    // loom goes back only to the last access before a store, which is the producer's own load of the state:
    // both sides give way where the other's step matters, or it would run one after the other and nothing else.
    loom::model(|| {
        // One slot, which both incarnations write.
        let shared = shared(1);
        let other = shared.clone();
        let writer = thread::spawn(move || {
            for tid in 1..=2 {
                if tid == 2 {
                    thread::yield_now();
                    if !other.lane.reusable() {
                        return 1;
                    }
                }
                let mut producer = other.lane.claim(&who(tid));
                thread::yield_now();
                assert!(push(&other, &mut producer, 10 * tid), "a lane that is claimed again is empty");
                other.lane.retire(&producer);
            }
            2
        });
        // What the consumer attributes to whom, and the end of the first incarnation.
        let mut consumer = Consumer::new();
        for _ in 0..2 {
            thread::yield_now();
            let state = shared.lane.state.load(Acquire);
            if state == 0 {
                continue;
            }
            assert!(shared.lane.tid.load(Relaxed) >= state >> 32, "the identity is there when the state is");
            consumer.drain(&shared);
            if state as u32 == LaneState::Retired as u32 && state >> 32 == 1 {
                assert_eq!(consumer.taken.first(), Some(&10), "the last tail of a retired lane is final");
                shared.lane.drained.store(1, Release);
            }
        }
        let incarnations = writer.join().unwrap();
        consumer.drain(&shared);
        assert_eq!(consumer.taken, (1..=incarnations).map(|tid| 10 * tid).collect::<Vec<_>>());
    });
}

/// A consumer that sees a lane unmarked may promise that nothing completes before the time it took
/// before it looked. The fences stand for the slack: both sides' stores are visible before clocks are read.
#[test]
fn loom_mark_keeps_the_watermark() {
    loom::model(|| {
        let shared = shared(4);
        let clock = Arc::new(AtomicU64::new(1));
        let mut producer = shared.lane.claim(&who(1));
        let (other, ticking) = (shared.clone(), clock.clone());
        let writer = thread::spawn(move || {
            if !super::order::mutant("no-mark") {
                producer.mark(&other.lane);
            }
            loom::sync::atomic::fence(SeqCst);
            let completed = ticking.load(SeqCst);
            producer.slot(&other.slots, 0).put(0, completed);
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
