//! Gathers the columns of merged rows from the columns of their batches.

use crate::store::merge::{BatchSlice, RowRef};
use miot_proto::batch::Columns;

/// Values of a column of merged rows. Most columns of most steps have one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Values<T> {
    Same(T),
    Each(Vec<T>),
}

impl<T: Copy> Values<T> {
    pub(super) fn map<U>(self, to: impl Fn(T) -> U) -> Values<U> {
        match self {
            Values::Same(value) => Values::Same(to(value)),
            Values::Each(values) => Values::Each(values.into_iter().map(to).collect()),
        }
    }

    /// Value of a row.
    #[inline]
    pub(super) fn get(&self, row: usize) -> T {
        match self {
            Values::Same(value) => *value,
            Values::Each(values) => values[row],
        }
    }
}

impl Values<u64> {
    /// Finds out whether all values are the same.
    pub(super) fn of(values: Vec<u64>) -> Values<u64> {
        match values.split_first() {
            Some((first, rest)) if *rest == values[..rest.len()] => Values::Same(*first),
            _ => Values::Each(values),
        }
    }
}

/// The rows of a step: their batches, and their order.
pub(super) struct Gather<'a> {
    pub(super) sources: &'a [BatchSlice],
    pub(super) order: &'a [RowRef],
}

impl Gather<'_> {
    pub(super) fn column<V: Copy + PartialEq>(&self, of: impl Fn(&Columns) -> &Vec<V>) -> Values<V> {
        self.column_of(of, |value| value)
    }

    /// The same, of another type.
    pub(super) fn column_of<V: Copy + PartialEq, T: Copy>(
        &self,
        of: impl Fn(&Columns) -> &Vec<V>,
        to: impl Fn(V) -> T,
    ) -> Values<T> {
        let columns: Vec<&[V]> = self.sources.iter().map(|source| of(&source.columns).as_slice()).collect();
        // The comparison costs less than gathering, and stops at the first source that differs.
        let mut taken =
            self.sources.iter().zip(&columns).map(|(s, column)| &column[s.start..s.start + s.len]);
        match columns.first().and_then(|column| column.get(self.sources[0].start)) {
            Some(first) if taken.all(|taken| is_all(taken, first)) => Values::Same(to(*first)),
            _ => Values::Each(
                self.order.iter().map(|at| to(columns[at.source as usize][at.row as usize])).collect(),
            ),
        }
    }

    /// Column of a value that the rows of a source share.
    pub(super) fn constant<V: Copy + PartialEq>(&self, by_source: impl Iterator<Item = V>) -> Values<V> {
        let values: Vec<V> = by_source.collect();
        match values.first() {
            Some(first) if values.iter().all(|v| v == first) => Values::Same(*first),
            _ => Values::Each(self.order.iter().map(|at| values[at.source as usize]).collect()),
        }
    }
}

/// Compares in groups, without a branch per value.
fn is_all<V: Copy + PartialEq>(values: &[V], value: &V) -> bool {
    values.chunks(64).all(|group| group.iter().fold(true, |all, v| all & (v == value)))
}
