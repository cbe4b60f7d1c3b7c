//! The lane against an oracle, one step at a time.

use super::sync::Word;
use super::{Identity, Lane, Producer, Slot};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

fn zeroed() -> Lane {
    // SAFETY: atomics of integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The consumer as the log-client does it, on the same structures.
struct Consumer {
    head: u64,
}

impl Consumer {
    fn drain(&mut self, lane: &Lane, slots: &[Slot], max: u64) -> Vec<u64> {
        let tail = lane.tail.load(Acquire) >> 1;
        let n = (tail - self.head).min(max);
        let out =
            (0..n).map(|i| slots[((self.head + i) & (slots.len() as u64 - 1)) as usize].0[0].get()).collect();
        self.head += n;
        lane.head.store(self.head, Release);
        out
    }
}

fn new(capacity: u64) -> (Lane, Vec<Slot>, Producer) {
    let lane = zeroed();
    lane.place(0, capacity);
    let producer = lane.claim(&Identity { tid: 1, comm: [0; 2], ticks: 0 });
    let slots = (0..capacity).map(|_| Slot(std::array::from_fn(|_| Word::new()))).collect();
    (lane, slots, producer)
}

fn push(lane: &Lane, slots: &[Slot], producer: &mut Producer, n: u64, value: u64) -> bool {
    producer.mark(lane);
    if !producer.fits(n) {
        producer.refresh(lane);
    }
    if !producer.fits(n) {
        producer.drop_record(lane);
        return false;
    }
    (0..n).for_each(|slot| producer.slot(slots, slot).put(0, value));
    producer.commit(lane, n);
    true
}

/// Every mixture of records and drains against a queue that cannot be wrong.
#[test]
fn a_lane_is_a_bounded_queue_that_counts_what_it_refuses() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for _ in 0..200 {
        let (lane, slots, mut producer) = new(8);
        let (mut consumer, mut oracle, mut lost) = (Consumer { head: 0 }, VecDeque::new(), 0u64);
        for step in 0..500 {
            if random(3) > 0 {
                let n = 1 + random(3);
                let fits = oracle.len() as u64 + n <= 8;
                assert_eq!(push(&lane, &slots, &mut producer, n, step), fits);
                (0..if fits { n } else { 0 }).for_each(|_| oracle.push_back(step));
                lost += u64::from(!fits);
            } else {
                for value in consumer.drain(&lane, &slots, random(9)) {
                    assert_eq!(Some(value), oracle.pop_front());
                }
            }
            assert_eq!(lane.lost_full.load(Relaxed), lost);
            assert_eq!(lane.tail.load(Relaxed) & 1, 0, "no mark left behind");
        }
    }
}

#[test]
fn a_senseless_head_only_fills_the_lane() {
    let (lane, slots, mut producer) = new(4);
    lane.head.store(u64::MAX / 2, Relaxed);
    let taken = (0..10).filter(|i| push(&lane, &slots, &mut producer, 1, *i)).count();
    assert_eq!((taken, lane.lost_full.load(Relaxed)), (4, 6));
}

#[test]
fn a_lane_is_claimed_again_only_when_drained() {
    let (lane, slots, mut producer) = new(4);
    push(&lane, &slots, &mut producer, 1, 7);
    assert!(!lane.reusable());
    lane.retire(&producer);
    assert!(!lane.reusable());
    lane.head.store(1, Relaxed);
    lane.drained.store(1, Release);
    assert!(lane.reusable());
    let second = lane.claim(&Identity { tid: 2, comm: [0; 2], ticks: 0 });
    assert_eq!((second.tail, second.attempts, lane.start.load(Relaxed)), (1, 0, 1));
    assert!(!lane.reusable());
}
