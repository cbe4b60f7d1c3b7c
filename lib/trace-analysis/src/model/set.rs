//! Sets of numbers in the notation `0-15`, `1-23:2,40`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Evenly spaced numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Span {
    start: u64,
    count: u64,
    step: u64,
}

/// Numbers in ascending order, written as ranges, with a step after a colon if it is not 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set(Vec<Span>);

/// Maximum number of elements. A larger set is a mistake: no machine has as many processes, and no
/// trace as many phases.
const MOST: u64 = 1 << 40;

impl Set {
    /// Returns `count` numbers from `start` on.
    #[must_use]
    pub fn range(start: u64, count: u64) -> Set {
        Set(if count == 0 { Vec::new() } else { vec![Span { start, count, step: 1 }] })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|span| span.count).sum()
    }

    /// Returns true if the set has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|span| (0..span.count).map(|i| span.start + i * span.step))
    }

    /// Returns the largest number.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.0.last().map(|span| span.start + (span.count - 1) * span.step)
    }

    /// Returns the place of a number, from 0.
    #[must_use]
    pub fn place(&self, number: u64) -> Option<u64> {
        let mut before = 0;
        for span in &self.0 {
            let into = number.checked_sub(span.start);
            if let Some(into) = into
                && into.is_multiple_of(span.step)
                && into / span.step < span.count
            {
                return Some(before + into / span.step);
            }
            before += span.count;
        }
        None
    }
}

impl FromIterator<u64> for Set {
    /// Collects ascending numbers.
    fn from_iter<T: IntoIterator<Item = u64>>(numbers: T) -> Set {
        let mut spans: Vec<Span> = Vec::new();
        for number in numbers {
            match spans.last_mut() {
                Some(last) if last.count == 1 && number > last.start => {
                    (last.count, last.step) = (2, number - last.start);
                }
                Some(last) if last.count > 1 && number == last.start + last.count * last.step => {
                    last.count += 1;
                }
                _ => spans.push(Span { start: number, count: 1, step: 1 }),
            }
            // Two numbers are not a range: the second may begin one.
            if let [.., Span { count: 1, .. }, _] | [_] = spans.as_slice() {
                continue;
            }
            if let [.., before, last] = spans.as_mut_slice()
                && before.count == 2
                && before.step > 1
                && last.count == 1
            {
                let second = before.start + before.step;
                (before.count, before.step) = (1, 1);
                *last = Span { start: second, count: 2, step: last.start - second };
            }
        }
        Set(spans)
    }
}

impl fmt::Display for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, span) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let last = span.start + (span.count - 1) * span.step;
            match (span.count, span.step) {
                (1, _) => write!(out, "{comma}{last}")?,
                (2, step) if step > 1 => write!(out, "{comma}{},{last}", span.start)?,
                (_, 1) => write!(out, "{comma}{}-{last}", span.start)?,
                (_, step) => write!(out, "{comma}{}-{last}:{step}", span.start)?,
            }
        }
        Ok(())
    }
}

/// Text is not a set of numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a set of numbers in ascending order such as 0-15 or 1-23:2,40")]
pub struct InvalidSet(String);

impl FromStr for Set {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Set, InvalidSet> {
        let wrong = || InvalidSet(text.to_owned());
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let mut spans: Vec<Span> = Vec::new();
        let mut after = None;
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, number(step)?),
                None => (part, 1),
            };
            let (start, last) = match range.split_once('-') {
                Some((start, last)) => (number(start)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            if step == 0 || last < start || after.is_some_and(|after| start <= after) || last - start >= MOST
            {
                return Err(wrong());
            }
            let count = (last - start) / step + 1;
            spans.push(Span { start, count, step });
            after = Some(last);
        }
        Ok(Set(spans))
    }
}

impl Serialize for Set {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Set, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::Set;
    use proptest::prelude::*;

    #[test]
    fn sets_are_written_as_ranges() {
        let of = |numbers: &[u64]| numbers.iter().copied().collect::<Set>().to_string();
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[3]), "3");
        assert_eq!(of(&[0, 1, 2, 3]), "0-3");
        assert_eq!(of(&[1, 3, 5, 7, 40]), "1-7:2,40");
        assert_eq!(of(&[0, 5, 6, 7]), "0,5-7");
    }

    #[test]
    fn invalid_sets_are_refused() {
        for text in ["a", "3-1", "1-5:0", "5,4", "0-99999999999999999"] {
            assert!(text.parse::<Set>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_sets_are_read_back(numbers in prop::collection::btree_set(0u64..60, 0..40)) {
            let set: Set = numbers.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), numbers.iter().copied().collect::<Vec<_>>());
            let again: Set = set.to_string().parse().unwrap();
            prop_assert_eq!(again.iter().collect::<Vec<_>>(), set.iter().collect::<Vec<_>>());
            for (place, number) in numbers.iter().enumerate() {
                prop_assert_eq!(set.place(*number), Some(place as u64));
            }
            prop_assert_eq!(set.place(61), None);
            prop_assert_eq!(set.last(), numbers.last().copied());
        }
    }
}
