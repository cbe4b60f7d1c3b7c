//! Requests of known times and bytes.

use super::{Bursts, Spread};
use crate::idle::Silence;
use miot_trace_events::testing::event;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;

fn spread(interval: i64, most: usize, requests: &[(&'static str, i64, i64, i64)]) -> Bursts {
    let mut spread = Spread::bounded(interval as u64, most);
    requests.iter().for_each(|(op, begin, took, bytes)| spread.request(&event(op, *begin, *took, *bytes)));
    spread.finish()
}

#[test]
fn bytes_are_distributed_over_the_duration() {
    let bursts = spread(
        10,
        100,
        &[
            ("read", 0, 10, 100),
            ("write", 25, 10, 7),
            ("read", 5, 40, 80),
            ("fsync", 71, 5, 0),
            ("read", 90, 0, 3),
        ],
    );
    let rows: Vec<_> =
        bursts.series.iter().map(|one| (one.begin, one.read, one.written, one.requests)).collect();
    // 80 bytes in 40 ns are 2 per ns; 7 bytes from 25 to 35: 3.5 until 30, rounded down.
    let expected = [
        (0, 110, 0, 2),
        (10, 20, 0, 1),
        (20, 20, 3, 2),
        (30, 20, 4, 2),
        (40, 10, 0, 1),
        (70, 0, 0, 1),
        (90, 3, 0, 1),
    ];
    assert_eq!(rows, expected);
    assert_eq!((bursts.begin, bursts.end, bursts.intervals), (0, 90, 10));
    assert_eq!((bursts.read.bytes, bursts.written.bytes, bursts.total.bytes), (183, 7, 190));
    // 110 bytes in 10 ns.
    assert_eq!((bursts.total.peak, bursts.total.peak_at, bursts.total.active), (110.0 / 1e-8, Some(0), 6));
    // 110, 20, 23, 24, 10 and 3 bytes, and 4 intervals without bytes: all but 110 are below a
    // quarter, 10 and 3 below a tenth.
    let below: Vec<_> = bursts.total.below.iter().map(|row| (row.of_peak, row.share)).collect();
    assert_eq!(below[..5], [(0.01, 0.4), (0.05, 0.5), (0.1, 0.6), (0.25, 0.9), (0.33, 0.9)]);
    let quantiles: Vec<_> =
        bursts.total.quantiles.iter().map(|row| (row.share, (row.rate * 1e-8).round())).collect();
    assert_eq!(
        quantiles[3..],
        [(0.25, 0.0), (0.5, 3.0), (0.75, 23.0), (0.9, 24.0), (0.95, 110.0), (0.99, 110.0)]
    );
}

/// Carns et al. 2011, section IV: "For 98% of the time, the I/O system was utilized at less than
/// 33% of peak"; the mean is 1,984 and the peak 35,890 MiB/s.
#[test]
fn figures_of_intrepid_are_reproduced() {
    const MIB: i64 = 1 << 20;
    let minute = 60 * SECOND;
    let mut requests = vec![("read", 0, minute, 35_890 * 60 * MIB)];
    // 20 of 1000 minutes are above a third of the peak, and all together have the mean.
    requests.extend((1..20).map(|i| ("write", i * minute, minute, 12_000 * 60 * MIB)));
    let rest = (1_984 * 1000 - 35_890 - 19 * 12_000) * 60 * MIB / 980;
    requests.extend((20..1000).map(|i| ("read", i * minute, minute, rest)));
    let bursts = spread(minute, 1 << 20, &requests);
    let below = bursts.total.below.iter().find(|row| row.of_peak == 0.33).unwrap();
    assert_eq!(below.share, 0.98);
    assert_eq!(bursts.total.peak, 35_890.0 * MIB as f64);
    assert!((bursts.total.mean / MIB as f64 - 1_984.0).abs() < 0.001, "{}", bursts.total.mean);
    let median = bursts.total.quantiles.iter().find(|row| row.share == 0.5).unwrap();
    assert!((median.rate - rest as f64 / 60.0).abs() < 1.0);
}

/// Table III: a period is a run of minutes below 5 % of the peak.
#[test]
fn idle_periods_are_runs_of_quiet_intervals() {
    let minute = 60 * SECOND;
    let mut requests = Vec::new();
    // Minutes 0 and 100: 1000 bytes. 10 to 20: 49 bytes, below the threshold; 21: 50 bytes, not
    // below. No other bytes.
    requests.push(("read", 0, minute, 1000));
    requests.extend((10..=20).map(|i| ("read", i * minute, minute, 49)));
    requests.push(("read", 21 * minute, minute, 50));
    requests.push(("read", 100 * minute, minute, 1000));
    let mut silence = Silence::default();
    requests.iter().for_each(|(_, begin, took, _)| silence.put(*begin, begin + took));
    let idle = silence.finish(&spread(minute, 1 << 20, &requests));
    let [calm, silent, none] = &idle.definitions[..] else { panic!() };
    // 1 to 20 and 22 to 99.
    assert_eq!((calm.count, calm.idle, calm.total), (2, 98 * 60_000_000_000, 101 * 60_000_000_000));
    assert_eq!(calm.longest.map(|one| (one.begin, one.length)), Some((22 * minute, 78 * 60_000_000_000)));
    assert!((calm.threshold.unwrap() - 50.0 / 60.0).abs() < 1e-9);
    let rows: Vec<_> = calm.at_least.iter().map(|row| (row.length / 60_000_000_000, row.count)).collect();
    assert_eq!(rows, [(1, 2), (2, 2), (5, 2), (10, 2), (30, 1), (60, 1)]);
    let hour = calm.at_least.iter().find(|row| row.length == 3_600_000_000_000).unwrap();
    assert_eq!((hour.count, hour.time, hour.share), (1, 78 * 60_000_000_000, 78.0 / 101.0));
    // 1 to 9 and 22 to 99.
    assert_eq!((silent.count, silent.idle), (2, 87 * 60_000_000_000));
    assert_eq!((none.count, none.idle), (2, 87 * 60_000_000_000));
}

#[test]
fn too_many_intervals_are_merged_in_pairs() {
    let requests: Vec<_> = (0..1000).map(|i| ("read", i * 20, 10, 1 + i)).collect();
    let bursts = spread(10, 64, &requests);
    assert!(bursts.series.len() <= 64 && bursts.interval > 10 && bursts.asked == 10, "{bursts:?}");
    assert_eq!(bursts.total.bytes, 1000 * 1001 / 2);
    assert_eq!(bursts.series.iter().map(|one| one.requests).sum::<u64>(), 1000);
    // The interval of the last request is one too many.
    let last = spread(1, 5, &[("write", 3984, 2161, 0), ("write", 9371, 870, 0), ("write", 0, 0, 0)]);
    assert!(last.series.len() <= 5, "{last:?}");
    let long = spread(1, 64, &[("read", i64::MIN, i64::MAX, i64::MAX), ("read", 0, i64::MAX, i64::MAX)]);
    assert_eq!(long.read.bytes, 2 * i64::MAX as u64);
    assert_eq!(long.series.iter().map(|one| one.read).sum::<u64>(), 2 * i64::MAX as u64);
}

proptest! {
    #[test]
    fn no_byte_is_lost_or_counted_twice(
        requests in prop::collection::vec((any::<bool>(), 0i64..10_000, 0i64..3_000, 0i64..1_000_000), 1..200),
        interval in 1i64..2_000,
        most in 4usize..100,
    ) {
        let requests: Vec<_> = requests
            .into_iter()
            .map(|(reads, begin, took, bytes)| (if reads { "read" } else { "write" }, begin, took, bytes))
            .collect();
        let bursts = spread(interval, most, &requests);
        let sum = |op: &str| requests.iter().filter(|one| one.0 == op).map(|one| one.3 as u64).sum::<u64>();
        prop_assert_eq!(bursts.read.bytes, sum("read"));
        prop_assert_eq!(bursts.written.bytes, sum("write"));
        prop_assert!(bursts.series.len() <= most);
        let step = bursts.interval as i64;
        prop_assert!(bursts.series.windows(2).all(|pair| pair[0].begin < pair[1].begin));
        prop_assert!(bursts.series.iter().all(|one| one.begin % step == 0));
        prop_assert!(bursts.total.below.windows(2).all(|pair| pair[0].share <= pair[1].share));
        prop_assert!(bursts.total.quantiles.windows(2).all(|pair| pair[0].rate <= pair[1].rate));
        prop_assert!(bursts.total.mean <= bursts.total.peak * (1.0 + 1e-12));
    }

    #[test]
    fn idle_periods_match_a_plain_model(
        requests in prop::collection::vec((0i64..2_000, 0i64..100), 1..60),
        shortest in 1u64..20,
        most in 2usize..40,
    ) {
        let mut silence = Silence::bounded(shortest, most);
        requests.iter().for_each(|(begin, took)| silence.put(*begin, begin + took));
        let idle = silence.finish(&Bursts::default());
        let none = &idle.definitions[2];
        let mut busy = vec![false; 2_100];
        requests.iter().for_each(|(begin, took)| busy[*begin as usize..(begin + took) as usize].fill(true));
        let begin = requests.iter().map(|one| one.0).min().unwrap();
        let end = requests.iter().map(|one| one.0 + one.1).max().unwrap();
        prop_assert_eq!(none.total, (end - begin) as u64);
        // Expected idle moments, without pauses below the shortest; a request without duration ends
        // a pause, too.
        let mut cuts: Vec<i64> = requests.iter().filter(|one| one.1 == 0).map(|one| one.0).collect();
        cuts.sort_unstable();
        let mut pauses = Vec::new();
        let mut length = 0u64;
        for moment in begin..end {
            if busy[moment as usize] || cuts.binary_search(&moment).is_ok() {
                pauses.push(std::mem::take(&mut length));
            }
            length += u64::from(!busy[moment as usize]);
        }
        pauses.push(length);
        let long: Vec<u64> = pauses.into_iter().filter(|pause| *pause >= none.shortest).collect();
        prop_assert_eq!((none.count, none.idle), (long.len() as u64, long.iter().sum()));
        prop_assert!(none.shortest >= shortest && none.count < most as u64);
    }
}
