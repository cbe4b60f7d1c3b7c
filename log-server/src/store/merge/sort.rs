//! Sorts the rows of a step by time.

use super::RowRef;

/// Runs from which on rows are sorted by digits: below, the sort of std merges the runs as fast.
const MANY_RUNS: usize = 32;
/// Maximum bits of a digit: its counters fit into a first-level cache.
const MAX_DIGIT_BITS: u32 = 12;
/// Maximum number of digits. Rows that are further apart are few per time, and cost more elsewhere.
const MAX_DIGITS: u32 = 3;

/// Sorts rows, which consist of `runs` sorted runs, by time. Rows of the same time keep their
/// order. `spare` is a buffer.
pub(super) fn by_time(rows: &mut Vec<RowRef>, runs: usize, spare: &mut Vec<RowRef>) {
    let (least, greatest) =
        rows.iter().fold((i64::MAX, i64::MIN), |(a, b), row| (a.min(row.time), b.max(row.time)));
    let bits = u64::BITS - greatest.wrapping_sub(least).cast_unsigned().leading_zeros();
    let digits = bits.div_ceil(MAX_DIGIT_BITS);
    if runs < MANY_RUNS || rows.len() < 1 << 10 || digits > MAX_DIGITS {
        // It finds existing runs: with one stream it costs one comparison per row.
        rows.sort_by_key(|row| row.time);
        return;
    }
    // Radix sort from the lowest digit on (Seward 1954).
    let digit_bits = bits.div_ceil(digits.max(1));
    let mask = (1usize << digit_bits) - 1;
    spare.clear();
    spare.resize(rows.len(), RowRef { time: 0, source: 0, row: 0 });
    for digit in 0..digits {
        let digit_of = |row: &RowRef| (row.time.wrapping_sub(least) >> (digit * digit_bits)) as usize & mask;
        let mut starts = vec![0u32; mask + 1];
        rows.iter().for_each(|row| starts[digit_of(row)] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += std::mem::replace(start, sum);
        }
        for row in &*rows {
            let start = &mut starts[digit_of(row)];
            spare[*start as usize] = *row;
            *start += 1;
        }
        std::mem::swap(rows, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::{MANY_RUNS, RowRef, by_time};

    #[test]
    fn rows_are_sorted_stably_whatever_their_distance() {
        let mut random = fastrand::Rng::with_seed(7);
        for bits in 0..=64u32 {
            for runs in [1, MANY_RUNS - 1, MANY_RUNS, 500] {
                let mut rows = Vec::new();
                for source in 0..runs as u32 {
                    let mask = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
                    let mut times: Vec<i64> = (0..random.u32(1..90))
                        .map(|_| ((random.u64(..) & mask) as i64).wrapping_add(1 << 60))
                        .collect();
                    times.sort_unstable();
                    rows.extend((0..).zip(times).map(|(row, time)| RowRef { time, source, row }));
                }
                let (mut sorted, mut spare) = (rows.clone(), Vec::new());
                by_time(&mut sorted, runs, &mut spare);
                rows.sort_by_key(|row| (row.time, row.source, row.row));
                assert!(sorted == rows, "{bits} bits, {runs} runs");
            }
        }
    }
}
