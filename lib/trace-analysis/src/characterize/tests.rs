//! The rules of Darshan, one by one, on hand-made requests.

use super::counters::{Access, BIN_NAMES, Counters, MetaKind, SyncKind, bin};
use super::ranks::Variance;

const BLOCK: u32 = 4096;

/// Returns the counters of `(offset, bytes)` accesses, each 10 ns long and 100 ns after the
/// previous one.
fn of(is_write: bool, accesses: &[(i64, u64)]) -> Counters {
    let mut counters = Counters::default();
    for (number, (offset, bytes)) in accesses.iter().enumerate() {
        let begin = 100 * number as i64;
        let _ = counters.access(is_write, &at(Some(*offset), *bytes), 0, begin, begin + 10);
    }
    counters
}

fn at(offset: Option<i64>, bytes: u64) -> Access {
    Access { offset, last: None, bytes, is_timed: true, is_unaligned_in_memory: false, block: BLOCK }
}

/// Returns the sequential and consecutive counts.
fn order(accesses: &[(i64, u64)]) -> (u64, u64) {
    let counters = of(false, accesses);
    let both = of(true, accesses);
    let reads = (counters.reads().sequential, counters.reads().consecutive);
    assert_eq!(reads, (both.writes().sequential, both.writes().consecutive), "writes follow the same rules");
    reads
}

#[test]
fn a_first_access_at_0_is_neither_sequential_nor_consecutive() {
    assert_eq!(order(&[(0, 100)]), (0, 0));
}

#[test]
fn a_first_access_at_1_is_both() {
    assert_eq!(order(&[(1, 100)]), (1, 1));
    assert_eq!(order(&[(2, 100)]), (1, 0));
}

#[test]
fn offset_1_after_one_byte_at_0_is_consecutive() {
    let counters = of(false, &[(0, 1), (1, 1), (3, 1)]);
    assert_eq!((counters.reads().sequential, counters.reads().consecutive), (2, 1));
    // The last byte read was 0, which Darshan cannot distinguish from no byte; then it was 1.
    assert_eq!(counters.data().stride.most()[0], (1, 1));
    // A gap after one byte at 0 has no stride either.
    assert_eq!(of(false, &[(0, 1), (50, 1)]).data().stride.most()[0], (0, 0));
}

#[test]
fn sequential_is_strictly_above_the_last_byte() {
    assert_eq!(order(&[(0, 100), (99, 10)]), (0, 0), "the last byte was 99");
    assert_eq!(order(&[(0, 100), (100, 10)]), (1, 1));
    assert_eq!(order(&[(0, 100), (101, 10)]), (1, 0));
    assert_eq!(order(&[(0, 100), (100, 10), (50, 10), (60, 10)]), (2, 2), "going back, then on");
}

#[test]
fn an_empty_read_moves_the_last_byte_back() {
    // At the end of the file: last byte = 200 + 0 - 1.
    assert_eq!(order(&[(0, 200), (200, 0), (200, 0)]), (2, 2));
    // At 0 it becomes -1, so that the next read at 0 is both.
    assert_eq!(order(&[(0, 0), (0, 10)]), (1, 1));
}

#[test]
fn strides_are_gaps_from_end_to_begin() {
    let counters = of(true, &[(0, 100), (300, 100), (600, 100), (650, 10), (700, 1)]);
    assert_eq!(counters.data().stride.most(), [(200, 2), (40, 1), (0, 0), (0, 0)]);
}

#[test]
fn reads_and_writes_share_tables_but_not_the_last_byte() {
    let mut counters = Counters::default();
    for (number, (is_write, offset)) in
        [(false, 0), (true, 0), (false, 200), (true, 300)].into_iter().enumerate()
    {
        let begin = 100 * number as i64;
        let _ = counters.access(is_write, &at(Some(offset), 100), 0, begin, begin + 10);
    }
    assert_eq!(counters.data().stride.most(), [(200, 1), (100, 1), (0, 0), (0, 0)]);
    assert_eq!(counters.data().access.most()[0], (100, 4));
}

#[test]
fn open_resets_the_position_and_dup_does_not() {
    for (kind, consecutive) in [(MetaKind::Open, 0), (MetaKind::Dup, 1)] {
        let mut counters = of(false, &[(0, 100)]);
        let _ = counters.meta(kind, 0, 1);
        let _ = counters.access(false, &at(Some(100), 100), 0, 500, 510);
        assert_eq!(counters.reads().consecutive, consecutive, "{kind:?}");
        assert_eq!((counters.reads().sequential, counters.meta.opens), (1, 1));
        assert_eq!(counters.data().stride.most()[0], (0, 0));
    }
}

#[test]
fn upper_bounds_of_bins_belong_to_them() {
    let bounds = [100, 1024, 10_240, 102_400, 1_048_576, 4_194_304, 10_485_760, 104_857_600, 1_073_741_824];
    for (number, bound) in bounds.into_iter().enumerate() {
        assert_eq!((bin(bound), bin(bound + 1)), (number, number + 1), "{}", BIN_NAMES[number]);
    }
    assert_eq!((bin(0), bin(u64::MAX)), (0, 9));
}

#[test]
fn switches_are_changes_between_reading_and_writing() {
    let mut counters = Counters::default();
    for (number, is_write) in [true, true, false, true, false, false].into_iter().enumerate() {
        let _ = counters.access(is_write, &at(Some(0), 1), 0, number as i64, number as i64 + 1);
    }
    assert_eq!(counters.data().switches, 3);
    assert_eq!(of(false, &[(0, 1), (0, 1)]).data().switches, 0);
}

#[test]
fn alignment_is_of_the_offset_and_of_the_memory() {
    let mut counters = of(true, &[(0, 10), (4096, 10), (8191, 10), (10, 1)]);
    assert_eq!(counters.data().file_not_aligned, 2);
    let unaligned = Access { is_unaligned_in_memory: true, ..at(None, 5) };
    let _ = counters.access(false, &unaligned, 0, 1, 2);
    assert_eq!((counters.data().memory_not_aligned, counters.data().file_not_aligned), (1, 2));
}

#[test]
fn without_offset_only_independent_counters_change() {
    let mut counters = of(false, &[(0, 100)]);
    let _ = counters.access(false, &at(None, 7), 0, 100, 110);
    let _ = counters.access(false, &at(Some(100), 100), 0, 200, 210);
    let reads = counters.reads();
    assert_eq!(
        (reads.count, reads.bytes, reads.consecutive, reads.sequential, reads.max_byte),
        (3, 207, 1, 1, 199)
    );
    assert_eq!(counters.data().without_offset, 1);
}

#[test]
fn overlapping_time_is_counted_once() {
    let mut counters = Counters::default();
    for (begin, took) in [(0, 100), (50, 100), (60, 40), (150, 50), (1000, 1)] {
        let _ = counters.access(false, &at(Some(0), 1), 0, begin, begin + took);
    }
    // 0-100, 100-150, nothing, 150-200, 1000-1001.
    assert_eq!(counters.reads().time.total, 201);
    let _ = counters.access(true, &at(Some(0), 1), 0, 0, 1000);
    assert_eq!((counters.writes().time.total, counters.time()), (1000, 1201), "each kind has its own end");
}

#[test]
fn sync_time_is_write_time() {
    let mut counters = Counters::default();
    let _ = counters.sync(SyncKind::Fsync, 0, 30);
    let _ = counters.sync(SyncKind::Fdatasync, 100, 110);
    let _ = counters.meta(MetaKind::Open, 200, 205);
    let _ = counters.meta(MetaKind::Other, 300, 400);
    let _ = counters.meta(MetaKind::Mmap, 500, 507);
    assert_eq!(
        (counters.writes().time.total, counters.meta_time.total, counters.other_time.total),
        (40, 5, 107)
    );
    assert_eq!((counters.meta.fsyncs, counters.meta.fdsyncs, counters.writes().count), (1, 1, 0));
    assert!(counters.writes().span.is_empty(), "a sync is not a write");
    assert_eq!(counters.time(), 45);
}

#[test]
fn the_slowest_request_is_the_first_of_the_longest() {
    let mut counters = Counters::default();
    for (begin, took, bytes) in [(0, 10, 1), (100, 50, 2), (200, 50, 3), (300, 20, 4)] {
        let _ = counters.access(true, &at(Some(0), bytes), 0, begin, begin + took);
    }
    assert_eq!((counters.writes().longest, counters.writes().longest_size), (50, 2));
    assert_eq!((counters.writes().span.begin, counters.writes().span.end), (0, 320));
}

#[test]
fn merging_adds_counts_and_times_and_keeps_extremes() {
    let mut one = of(false, &[(0, 100), (100, 100)]);
    let other = of(false, &[(5000, 300)]);
    one.merge(&other);
    let reads = one.reads();
    assert_eq!(
        (reads.count, reads.bytes, reads.max_byte, reads.consecutive, reads.sequential),
        (3, 500, 5299, 1, 2)
    );
    assert_eq!((reads.time.total, reads.longest, reads.latencies.quantiles().count), (30, 10, 3));
    assert_eq!(one.data().access.most()[..2], [(100, 2), (300, 1)]);
    assert_eq!((reads.span.begin, reads.span.end), (0, 110));
}

#[test]
fn extreme_values_saturate() {
    let mut counters = of(true, &[(i64::MAX, u64::MAX), (i64::MAX, u64::MAX), (0, 0)]);
    assert_eq!(counters.writes().bytes, u64::MAX);
    assert_eq!(counters.writes().max_byte, i64::MAX as u64 - 1);
    let _ = counters.access(true, &at(Some(3), 1), u64::MAX, i64::MIN, i64::MAX);
    let same = counters.clone();
    counters.merge(&same);
    assert_eq!(counters.writes().bytes, u64::MAX);
    assert!(counters.time() >= i64::MAX as u64);
}

#[test]
fn variance_is_that_of_the_population() {
    let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    assert!((Variance::population(&values) - 4.0).abs() < 1e-12);
    assert!((Variance::population(&values[..3]) - 8.0 / 9.0).abs() < 1e-12, "not a power of two");
    assert_eq!((Variance::population(&[3.0]), Variance::population(&[])), (0.0, 0.0));
}
