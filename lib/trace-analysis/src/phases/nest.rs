//! Sequences of offsets as nested loops, built while they come: memory for the loops, not for the offsets.
//!
//! A request after another is a loop of two; a third at the same distance lengthens it; two loops of the same shape one
//! after the other are a loop around that shape, and so on. What fits nothing stays a term of its own.

use serde::{Deserialize, Serialize};

/// So many repetitions, so far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loop {
    /// Repetitions.
    pub count: u64,
    /// From the begin of one to the begin of the next, bytes.
    pub stride: i64,
}

/// Numbers that nested loops make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Nest {
    /// The first number.
    pub start: i64,
    /// Innermost loop first; none: just the first number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<Loop>,
}

impl Nest {
    /// One number.
    #[must_use]
    pub fn one(start: i64) -> Nest {
        Nest { start, loops: Vec::new() }
    }

    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.loops.iter().fold(1, |all, it| all.saturating_mul(it.count))
    }

    /// Never: there is a first number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The number at this place, from 0; places beyond the end continue the outermost loop.
    #[must_use]
    pub fn at(&self, place: u64) -> i64 {
        self.start.saturating_add(distance(&self.loops, place))
    }

    /// All of these numbers as one nest, if they are one.
    #[must_use]
    pub fn of(numbers: impl IntoIterator<Item = i64>) -> Option<Nest> {
        let mut sequence = Sequence::<()>::default();
        numbers.into_iter().for_each(|number| sequence.push(number, ()));
        match sequence.terms.as_slice() {
            [term] if !sequence.is_irregular => Some(term.nest.clone()),
            _ => None,
        }
    }
}

/// From the first number of these loops to the one at a place.
pub(crate) fn distance(loops: &[Loop], place: u64) -> i64 {
    let (mut left, mut value) = (place, 0i64);
    for (level, it) in loops.iter().enumerate() {
        let count = if level + 1 == loops.len() { u64::MAX } else { it.count.max(1) };
        let times = i64::try_from(left % count).unwrap_or(i64::MAX);
        value = value.saturating_add(times.saturating_mul(it.stride));
        left /= count;
    }
    value
}

/// What a term sums up beside its offsets.
pub(crate) trait Sum {
    /// Takes in what came later.
    fn add(&mut self, later: &Self);
}

impl Sum for () {
    fn add(&mut self, (): &()) {}
}

/// Offsets that nested loops make, and what belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term<T> {
    pub(crate) nest: Nest,
    pub(crate) sum: T,
}

/// Terms of a sequence that is still regular: far more than programs with a pattern have, in a few kilobytes.
const MOST_TERMS: usize = 128;

/// The same if all have the same innermost loop, as blocks of an array have that lie here and there.
pub(crate) const MOST_SAME: usize = 1 << 13;

/// Terms at the end that may not be complete: one for each level of loops, with room.
const INCOMPLETE: usize = 8;

/// A sequence of offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence<T> {
    /// If it became irregular, one term with all that came before that.
    pub(crate) terms: Vec<Term<T>>,
    pub(crate) is_irregular: bool,
}

impl<T> Default for Sequence<T> {
    fn default() -> Sequence<T> {
        Sequence { terms: Vec::new(), is_irregular: false }
    }
}

impl<T: Sum> Sequence<T> {
    /// The next offset.
    pub(crate) fn push(&mut self, offset: i64, sum: T) {
        if self.is_irregular {
            self.terms[0].sum.add(&sum);
            return;
        }
        self.terms.push(Term { nest: Nest::one(offset), sum });
        while self.join() {}
        // Looked at as often as the number doubles.
        let terms = self.terms.len();
        if terms > MOST_TERMS && (terms - 1).is_power_of_two() && (terms > MOST_SAME || !self.is_uniform()) {
            self.give_up();
        }
    }

    /// The same innermost loop everywhere, but for what may not be complete.
    fn is_uniform(&self) -> bool {
        let first = self.terms[0].nest.loops.first();
        let complete = &self.terms[..self.terms.len().saturating_sub(INCOMPLETE)];
        first.is_some() && complete.iter().all(|term| term.nest.loops.first() == first)
    }

    /// Only the sums count from now on.
    pub(crate) fn give_up(&mut self) {
        self.is_irregular = true;
        let rest: Vec<_> = self.terms.drain(1..).collect();
        rest.iter().for_each(|term| self.terms[0].sum.add(&term.sum));
        self.terms[0].nest.loops.clear();
    }

    /// Joins the last two terms if they are part of a loop.
    fn join(&mut self) -> bool {
        let [.., before, last] = self.terms.as_mut_slice() else { return false };
        let shape = &last.nest.loops;
        let depth = shape.len();
        let (one, other) = (&before.nest, &last.nest);
        let joined = if one.loops.len() == depth + 1 && one.loops[..depth] == shape[..] {
            let outer = one.loops[depth];
            let times = i64::try_from(outer.count).ok();
            let next = times.and_then(|times| outer.stride.checked_mul(times)?.checked_add(one.start));
            (next == Some(other.start)).then_some(Loop { count: outer.count + 1, ..outer })
        } else if one.loops == *shape {
            other.start.checked_sub(one.start).map(|stride| Loop { count: 2, stride })
        } else {
            None
        };
        let Some(outer) = joined else { return false };
        before.nest.loops.truncate(depth);
        before.nest.loops.push(outer);
        before.sum.add(&last.sum);
        self.terms.pop();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Loop, MOST_TERMS, Nest, Sequence, Sum};
    use proptest::prelude::*;

    impl Sum for u64 {
        fn add(&mut self, later: &u64) {
            *self += later;
        }
    }

    fn sequence(offsets: impl IntoIterator<Item = i64>) -> Sequence<u64> {
        let mut sequence = Sequence::default();
        offsets.into_iter().for_each(|offset| sequence.push(offset, 1));
        sequence
    }

    fn nest(start: i64, loops: &[(u64, i64)]) -> Nest {
        Nest { start, loops: loops.iter().map(|&(count, stride)| Loop { count, stride }).collect() }
    }

    #[test]
    fn loops_are_found() {
        for (offsets, expected) in [
            (vec![5], nest(5, &[])),
            (vec![0, 8], nest(0, &[(2, 8)])),
            (vec![0, 8, 16, 24], nest(0, &[(4, 8)])),
            (vec![7, 7, 7], nest(7, &[(3, 0)])),
            (vec![30, 20, 10], nest(30, &[(3, -10)])),
            (vec![0, 1, 2, 10, 11, 12, 20, 21, 22], nest(0, &[(3, 1), (3, 10)])),
            (vec![0, 1, 10, 11, 100, 101, 110, 111], nest(0, &[(2, 1), (2, 10), (2, 100)])),
        ] {
            assert_eq!(Nest::of(offsets.clone()), Some(expected), "{offsets:?}");
        }
        assert_eq!(Nest::of([0, 1, 2, 10]), None);
    }

    #[test]
    fn what_has_no_pattern_takes_bounded_memory_and_loses_nothing() {
        let mut random = fastrand::Rng::with_seed(1);
        let offsets = (0..100_000).map(|_| random.i64(0..1 << 44));
        let sequence = sequence(offsets);
        assert!(sequence.is_irregular);
        assert_eq!((sequence.terms.len(), sequence.terms[0].sum), (1, 100_000));
    }

    #[test]
    fn a_million_requests_of_a_pattern_are_one_term() {
        let sequence = sequence((0..1_000_000).map(|i| (i % 1000) * 3 + (i / 1000) * 1_000_000));
        assert_eq!(sequence.terms.len(), 1);
        assert_eq!(sequence.terms[0].nest, nest(0, &[(1000, 3), (1000, 1_000_000)]));
        assert_eq!(sequence.terms[0].sum, 1_000_000);
    }

    #[test]
    fn extreme_offsets_do_not_overflow() {
        let sequence = sequence([i64::MIN, i64::MAX, i64::MIN, i64::MAX, 0, i64::MAX, i64::MAX - 1]);
        let count: u64 = sequence.terms.iter().map(|term| term.sum).sum();
        assert_eq!(count, 7);
        assert_eq!(nest(i64::MAX, &[(3, i64::MAX)]).at(2), i64::MAX);
    }

    proptest! {
        /// Whatever comes, the terms say again what came, as long as they are regular.
        #[test]
        fn terms_say_what_was_pushed(offsets in prop::collection::vec(-3i64..4, 0..MOST_TERMS)) {
            let sequence = sequence(offsets.iter().copied());
            prop_assert!(!sequence.is_irregular);
            let again: Vec<i64> = sequence.terms.iter()
                .flat_map(|term| (0..term.nest.len()).map(|place| term.nest.at(place)))
                .collect();
            prop_assert_eq!(again, offsets);
        }

        /// Loops that were made are found, in any nesting without strides that run into each other.
        #[test]
        fn made_loops_are_found(start in -1000i64..1000, counts in prop::collection::vec(3u64..6, 1..4)) {
            let loops: Vec<(u64, i64)> =
                counts.iter().enumerate().map(|(level, count)| (*count, 7 * 10i64.pow(level as u32 + 1))).collect();
            let made = nest(start, &loops);
            let numbers: Vec<i64> = (0..made.len()).map(|place| made.at(place)).collect();
            prop_assert_eq!(Nest::of(numbers), Some(made));
        }
    }
}
