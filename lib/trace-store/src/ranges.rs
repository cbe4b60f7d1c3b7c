//! Sets of numbers as sorted ranges.

/// First and last number, both included.
pub(crate) type Range = (u64, u64);

/// Returns the ranges sorted, with overlapping and adjacent ones joined.
pub(crate) fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}

/// Returns the numbers in `ranges` that are not in `others`. Both must be sorted and without
/// overlap.
pub(crate) fn without(ranges: &[Range], others: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let mut skip = 0;
    for (first, last) in ranges {
        let mut first = *first;
        while others.get(skip).is_some_and(|o| o.1 < first) {
            skip += 1;
        }
        let mut covered = false;
        for other in &others[skip..] {
            if other.0 > *last {
                break;
            }
            if other.0 > first {
                out.push((first, other.0 - 1));
            }
            match other.1.checked_add(1) {
                Some(next) if next <= *last => first = next,
                _ => {
                    covered = true;
                    break;
                }
            }
        }
        if !covered {
            out.push((first, *last));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{merged, without};

    #[test]
    fn ranges_are_joined_and_subtracted() {
        assert_eq!(merged(vec![(5, 6), (0, 1), (2, 3), (5, 9)]), [(0, 3), (5, 9)]);
        assert_eq!(without(&[(0, 9), (20, 29)], &[]), [(0, 9), (20, 29)]);
        assert_eq!(without(&[(0, 9), (20, 29)], &[(0, 9), (20, 40)]), []);
        assert_eq!(
            without(&[(0, 9), (20, 29)], &[(3, 4), (9, 21), (25, 25)]),
            [(0, 2), (5, 8), (22, 24), (26, 29)]
        );
        assert_eq!(without(&[(3, 5)], &[(0, u64::MAX)]), []);
        assert_eq!(without(&[(3, 5), (7, 7)], &[(0, 2), (6, 6)]), [(3, 5), (7, 7)]);
    }
}
