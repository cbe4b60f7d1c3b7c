//! Regions of one thread: when each of them was open, and what the thread did.

use super::RegionKind;
use crate::intervals::{Interval, Intervals};
use miot_trace_events::IdMap;
use std::collections::BTreeSet;

/// A region, or several that end at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) begin: i64,
    pub(super) end: i64,
    /// Index of the row that the region belongs to.
    pub(super) row: u32,
    pub(super) kind: RegionKind,
}

/// A time in which the set of open regions does not change.
#[derive(Clone, Copy, Debug)]
struct Segment {
    begin: i64,
    end: i64,
    /// Range of its rows in [`Scope::open`].
    first: u32,
    last: u32,
}

/// The regions of a thread.
#[derive(Debug, Default)]
pub(super) struct Scope {
    segments: Vec<Segment>,
    open: Vec<u32>,
    /// Times of each row.
    pub(super) rows: IdMap<u32, RowTimes>,
    /// Times of each kind but [`RegionKind::Other`]: those in which the innermost region of another
    /// kind than that is of this kind.
    compute: Vec<Interval>,
    fetch: Vec<Interval>,
    checkpoint: Vec<Interval>,
    io: Vec<Interval>,
}

/// Regions of one row.
#[derive(Debug)]
pub(super) struct RowTimes {
    pub(super) count: u64,
    /// Sum of durations, nanoseconds.
    pub(super) time: u64,
    pub(super) open: Intervals,
}

impl Default for RowTimes {
    fn default() -> RowTimes {
        // Regions are stored one by one anyway, so that this is not the limit of memory.
        RowTimes { count: 0, time: 0, open: Intervals::new(1, usize::MAX) }
    }
}

impl Scope {
    /// Returns the regions of a thread.
    pub(super) fn of(mut spans: Vec<Span>) -> Scope {
        let mut scope = Scope::default();
        spans.sort_by_key(|span| (span.end, span.begin));
        for span in &spans {
            let row = scope.rows.entry(span.row).or_default();
            row.count += 1;
            row.time = row.time.saturating_add(span.end.abs_diff(span.begin));
            row.open.add(span.begin, span.end);
        }
        scope.sweep(&spans);
        scope
    }

    /// Finds the segments.
    fn sweep(&mut self, spans: &[Span]) {
        let mut edges: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * spans.len());
        for (index, span) in spans.iter().enumerate().filter(|(_, span)| span.begin < span.end) {
            edges.extend([(span.begin, true, index), (span.end, false, index)]);
        }
        edges.sort_unstable();
        // By begin: the last one is the innermost.
        let mut open: BTreeSet<(i64, usize)> = BTreeSet::new();
        for (at, (time, begins, index)) in edges.iter().enumerate() {
            let key = (spans[*index].begin, *index);
            if *begins {
                open.insert(key);
            } else {
                open.remove(&key);
            }
            let end = edges.get(at + 1).map_or(*time, |next| next.0);
            if end > *time && !open.is_empty() {
                self.add_segment((*time, end), &open, spans);
            }
        }
    }

    fn add_segment(&mut self, (begin, end): Interval, open: &BTreeSet<(i64, usize)>, spans: &[Span]) {
        let first = self.open.len();
        for (_, index) in open {
            let row = spans[*index].row;
            if !self.open[first..].contains(&row) {
                self.open.push(row);
            }
        }
        self.segments.push(Segment { begin, end, first: first as u32, last: self.open.len() as u32 });
        let kinds = open.iter().rev().map(|(_, index)| spans[*index].kind);
        let of_kind = match kinds.into_iter().find(|kind| *kind != RegionKind::Other) {
            Some(RegionKind::Compute) => &mut self.compute,
            Some(RegionKind::Fetch) => &mut self.fetch,
            Some(RegionKind::Checkpoint) => &mut self.checkpoint,
            Some(RegionKind::Io) => &mut self.io,
            Some(RegionKind::Other) | None => return,
        };
        match of_kind.last_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ => of_kind.push((begin, end)),
        }
    }

    /// Returns the rows whose regions were open at the completion of a request.
    pub(super) fn rows_at(&self, time: i64) -> &[u32] {
        let at = self.segments.partition_point(|segment| segment.end < time);
        let segment = self.segments.get(at).filter(|segment| segment.begin <= time);
        segment.map_or(&[], |segment| &self.open[segment.first as usize..segment.last as usize])
    }

    /// Returns the times of a kind.
    pub(super) fn of_kind(&self, kind: RegionKind) -> &[Interval] {
        match kind {
            RegionKind::Compute => &self.compute,
            RegionKind::Fetch => &self.fetch,
            RegionKind::Checkpoint => &self.checkpoint,
            RegionKind::Io => &self.io,
            RegionKind::Other => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(row: u32, kind: RegionKind, begin: i64, end: i64) -> Span {
        Span { begin, end, row, kind }
    }

    #[test]
    fn innermost_region_determines_what_the_thread_does() {
        let scope = Scope::of(vec![
            span(0, RegionKind::Other, 0, 100),
            span(1, RegionKind::Compute, 10, 60),
            span(2, RegionKind::Fetch, 20, 30),
            span(3, RegionKind::Other, 35, 40),
            span(2, RegionKind::Fetch, 60, 70),
            span(4, RegionKind::Compute, 70, 70),
        ]);
        assert_eq!(scope.of_kind(RegionKind::Compute), [(10, 20), (30, 60)]);
        assert_eq!(scope.of_kind(RegionKind::Fetch), [(20, 30), (60, 70)]);
        assert_eq!(scope.rows_at(36), [0, 1, 3]);
        assert_eq!(scope.rows_at(60), [0, 1], "a request that completes as a region ends was within it");
        assert_eq!(scope.rows_at(100), [0]);
        assert_eq!((scope.rows_at(101), scope.rows_at(-1)), (&[][..], &[][..]));
        assert_eq!((scope.rows[&2].count, scope.rows[&2].time), (2, 20));
        assert_eq!(scope.rows[&4].count, 1);
    }

    #[test]
    fn regions_of_coroutines_may_overlap() {
        let scope = Scope::of(vec![span(0, RegionKind::Fetch, 0, 20), span(1, RegionKind::Compute, 10, 30)]);
        assert_eq!(scope.of_kind(RegionKind::Fetch), [(0, 10)]);
        assert_eq!(scope.of_kind(RegionKind::Compute), [(10, 30)]);
        assert_eq!((scope.rows_at(15), scope.rows_at(25)), (&[0, 1][..], &[1][..]));
    }
}
