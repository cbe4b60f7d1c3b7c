//! Rates of processes over their lifetimes.

use super::{PROCESSES, Rates, SAMPLES, Series, count};
use miot_trace_events::testing::event;
use proptest::prelude::*;

const MS: i64 = 1_000_000;

#[test]
fn bursts_are_counted_even_if_they_are_late() {
    let mut rates = Rates::default();
    for i in 0..100 {
        // Every 40 ms, late by up to 3 ms, each of 4 writes.
        let begin = 40 * MS * i + (i * 7919) % (3 * MS);
        for part in 0..4 {
            rates.request(&event("write", begin + part * 500_000, 400_000, 1000));
        }
    }
    let cycles = rates.finish();
    let rhythm = &cycles.processes[0];
    assert_eq!((rhythm.bytes, rhythm.cycles.len()), (400_000, 1), "{rhythm:?}");
    let cycle = rhythm.cycles[0];
    assert!(cycle.period.abs_diff(40_000_000) < 400_000, "{cycle:?}");
    assert_eq!((cycle.count, cycle.bytes), (100, 4000));
    assert_eq!(cycles.all.map(|all| all.cycles), Some(vec![cycle]));
}

#[test]
fn two_writers_have_two_cycles_together_and_one_each() {
    let mut requests = Vec::new();
    for i in 0..60 {
        requests.push((1, 50 * MS * i, 3000));
    }
    for i in 0..39 {
        requests.push((2, 77 * MS * i, 4000));
    }
    requests.sort_unstable_by_key(|(_, begin, _)| *begin);
    let mut rates = Rates::default();
    for (process, begin, bytes) in requests {
        let mut event = event("write", begin, 2 * MS, bytes);
        event.process = process;
        rates.request(&event);
    }
    let cycles = rates.finish();
    let found = |cycles: &[super::Cycle]| {
        let mut periods: Vec<u64> = cycles.iter().map(|cycle| (cycle.period + 500_000) / 1_000_000).collect();
        periods.sort_unstable();
        periods
    };
    let of = |process| {
        let one = cycles.processes.iter().find(|rhythm| rhythm.process == Some(process)).unwrap();
        (found(&one.cycles), one.cycles[0].count, one.cycles[0].bytes)
    };
    assert_eq!((of(1), of(2)), ((vec![50], 60, 3000), (vec![77], 39, 4000)));
    assert_eq!(found(&cycles.all.unwrap().cycles), [50, 77]);
}

#[test]
fn processes_with_the_fewest_bytes_are_dropped() {
    let mut rates = Rates::default();
    let processes = 3 * PROCESSES as u64;
    for process in 0..processes {
        let mut event = event("read", process as i64 * 1000, 10, 1 + process as i64);
        event.process = process;
        rates.request(&event);
    }
    assert!(rates.processes.len() <= PROCESSES);
    let cycles = rates.finish();
    assert_eq!(cycles.processes[0].process, Some(processes - 1));
    assert_eq!(cycles.not_examined + cycles.processes.len() as u64, processes);
}

#[test]
fn count_without_pauses_is_time_by_period() {
    assert_eq!(count(&[1; 100], 10.0, true), 10);
    assert_eq!(count(&[], 10.0, true), 0);
}

proptest! {
    #[test]
    fn no_byte_is_lost(
        requests in prop::collection::vec((0i64..100_000 * MS, 0i64..9_000 * MS, 1u64..1_000_000), 1..80),
    ) {
        let first = event("read", requests[0].0, requests[0].1, 1);
        let mut series = Series::new(&first);
        for (begin, took, bytes) in &requests {
            series.put(&event("read", *begin, *took, 1), *bytes);
        }
        let all: u64 = requests.iter().map(|one| one.2).sum();
        prop_assert_eq!(series.samples.iter().sum::<u64>(), all);
        prop_assert_eq!(series.bytes, all);
        prop_assert!(series.samples.len() <= SAMPLES);
    }
}

#[test]
fn extreme_times_do_not_overflow() {
    let mut rates = Rates::default();
    for (begin, took) in [(0, 0), (i64::MAX - 1, 0), (i64::MIN, i64::MAX), (0, i64::MAX)] {
        rates.request(&event("write", begin, took, i64::MAX));
    }
    let cycles = rates.finish();
    assert_eq!(cycles.all.unwrap().bytes, u64::MAX, "saturated");
}
