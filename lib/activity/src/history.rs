//! Activity of the cluster in each second of the last hour.

use super::latencies::{self, RANGES};
use super::table::Tally;
use miot_proto::activity::{ActivityHistory, MAX_HISTORY_SECONDS as SECONDS};
use std::collections::VecDeque;

/// Rows of a heat map: durations by power of two. The first row holds durations below [`FIRST_ROW`]
/// nanoseconds, the last row has no upper end.
const ROWS: usize = 30;
/// End of the first row of a heat map, nanoseconds.
const FIRST_ROW: u64 = 128;

/// Activity of one second.
#[derive(Clone, Debug)]
struct Second {
    /// Seconds since 1970.
    second: i64,
    tally: Tally,
    rows: [u32; ROWS],
}

/// Ring of seconds. Seconds without requests take no memory.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    seconds: VecDeque<Second>,
}

/// Returns the row of a range of durations.
fn row(range: usize) -> usize {
    let first = latencies::first(range);
    if first < FIRST_ROW { 0 } else { ((first / FIRST_ROW).ilog2() as usize + 1).min(ROWS - 1) }
}

impl Ring {
    /// Adds a finished second, which must be later than all earlier ones.
    pub(crate) fn push(&mut self, second: i64, tally: Tally, counts: &[u32; RANGES]) {
        let mut rows = [0u32; ROWS];
        for (range, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            rows[row(range)] = rows[row(range)].saturating_add(*count);
        }
        self.seconds.push_back(Second { second, tally, rows });
        let kept = second - SECONDS as i64;
        while self.seconds.front().is_some_and(|first| first.second <= kept) {
            self.seconds.pop_front();
        }
    }

    /// Returns the last `steps` steps of `step` seconds before `end` (seconds since 1970), or as
    /// many as are kept.
    pub(crate) fn read(&self, end: i64, step: u32, steps: usize) -> ActivityHistory {
        let step = step.clamp(1, SECONDS as u32);
        let width = i64::from(step);
        // Steps begin at multiples of their width, so that a bar does not change once its step is
        // over.
        let end = end.div_euclid(width) * width;
        let steps = steps.clamp(1, SECONDS / step as usize);
        let begin = end - steps as i64 * width;
        let zeros = || vec![0u64; steps];
        let mut history = ActivityHistory {
            begin,
            step,
            requests: zeros(),
            failed: zeros(),
            bytes_read: zeros(),
            bytes_written: zeros(),
            lost: zeros(),
            max: zeros(),
            first_row: FIRST_ROW,
            latencies: vec![Vec::new(); steps],
        };
        let from = self.seconds.partition_point(|second| second.second < begin);
        for second in self.seconds.range(from..).take_while(|second| second.second < end) {
            let at = ((second.second - begin) / width) as usize;
            let tally = &second.tally;
            history.requests[at] += tally.requests;
            history.failed[at] += tally.failed;
            history.bytes_read[at] += tally.bytes_read;
            history.bytes_written[at] += tally.bytes_written;
            history.lost[at] += tally.lost;
            history.max[at] = history.max[at].max(tally.longest);
            let used = second.rows.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
            let rows = &mut history.latencies[at];
            rows.resize(rows.len().max(used), 0);
            rows.iter_mut().zip(&second.rows).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_add_up_to_steps_and_expire_after_an_hour() {
        let mut ring = Ring::default();
        let tally =
            |requests| Tally { requests, bytes_read: 10 * requests, longest: requests, ..Tally::default() };
        let mut counts = [0; RANGES];
        counts[usize::from(latencies::range(100))] = 1;
        counts[usize::from(latencies::range(128))] = 2;
        counts[usize::from(latencies::range(1 << 20))] = 3;
        for second in [1_000, 1_001, 1_009, 1_010, 1_019] {
            ring.push(second, tally(second as u64 - 999), &counts);
        }
        let read = ring.read(1_019, 10, 3);
        assert_eq!((read.begin, read.step), (980, 10));
        assert_eq!(read.requests, [0, 0, 1 + 2 + 10]);
        assert_eq!((read.bytes_read[2], read.max[2]), (130, 10));
        assert_eq!((read.latencies[2][0], read.latencies[2][1], read.latencies[2][14]), (3, 6, 9));
        assert_eq!(read.latencies.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 15]);
        assert_eq!(ring.read(1_020, 10, 2).requests, [13, 11 + 20]);
        assert_eq!(ring.read(1_002, 1, 4).requests, [0, 0, 1, 2]);
        ring.push(1_000 + SECONDS as i64, tally(1), &counts);
        assert_eq!(ring.seconds.len(), 5);
        assert_eq!(ring.read(2_000_000, 1, usize::MAX).requests.len(), SECONDS);
    }

    #[test]
    fn every_range_has_a_row() {
        assert_eq!(row(usize::from(latencies::range(127))), 0);
        assert_eq!(row(usize::from(latencies::range(128))), 1);
        assert_eq!(row(usize::from(latencies::range(255))), 1);
        assert_eq!(row(usize::from(latencies::range(1_000_000_000))), 23);
        assert_eq!(row(RANGES - 1), ROWS - 1);
    }
}
