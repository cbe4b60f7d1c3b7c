//! The attempt numbers of each stream in a batch of events, found in one pass over the rows.

use crate::id_map::IdMap;
use crate::schema::column;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::NullBuffer;

/// Maximum distance of the stream ids of a batch for a table by id.
const MAX_TABLE: u64 = 1 << 16;

/// The events of one stream in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSpan {
    pub(crate) stream: u64,
    /// Least attempt number.
    pub(crate) first: u64,
    /// Greatest attempt number.
    pub(crate) last: u64,
    /// Number of events.
    pub(crate) events: u64,
}

impl StreamSpan {
    fn new(stream: u64) -> StreamSpan {
        StreamSpan { stream, first: u64::MAX, last: 0, events: 0 }
    }

    #[inline]
    fn add(&mut self, seq: u64) {
        self.first = self.first.min(seq);
        self.last = self.last.max(seq);
        self.events += 1;
    }
}

/// Returns one span for each stream of a batch with the columns `stream` and `seq`. Rows without
/// one of them are left out.
pub(crate) fn spans_of(batch: &RecordBatch) -> Vec<StreamSpan> {
    let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
    let (Some(streams), Some(seqs)) = (streams, seqs) else { return Vec::new() };
    if let Some(valid) = NullBuffer::union(streams.nulls(), seqs.nulls()) {
        let of_valid = |values: &[u64]| valid.valid_indices().map(|row| values[row]).collect::<Vec<_>>();
        return spans_of_rows(&of_valid(streams.values()), &of_valid(seqs.values()));
    }
    spans_of_rows(streams.values(), seqs.values())
}

fn spans_of_rows(streams: &[u64], seqs: &[u64]) -> Vec<StreamSpan> {
    let least = streams.iter().copied().min().unwrap_or(0);
    let distance = streams.iter().copied().max().unwrap_or(0) - least;
    let rows = streams.iter().zip(seqs);
    let mut spans: Vec<StreamSpan> = Vec::new();
    if distance < MAX_TABLE {
        // Ids are assigned in order, so the streams of a batch are usually close to each other.
        spans.extend((least..=least + distance).map(StreamSpan::new));
        rows.for_each(|(stream, seq)| spans[(stream - least) as usize].add(*seq));
        spans.retain(|span| span.events > 0);
    } else {
        let mut indices = IdMap::<u64, usize>::default();
        for (stream, seq) in rows {
            let index = *indices.entry(*stream).or_insert(spans.len());
            if index == spans.len() {
                spans.push(StreamSpan::new(*stream));
            }
            spans[index].add(*seq);
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{MAX_TABLE, StreamSpan, spans_of};
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use std::sync::Arc;

    #[test]
    fn every_stream_has_one_span() {
        for far in [7, 3 + MAX_TABLE, 1 << 52] {
            let far = far as i64;
            let streams = vec![Some(far), Some(3), Some(far), Some(5), Some(3), None, Some(3)];
            let seqs = vec![Some(9), Some(0), Some(7), Some(i64::MAX), Some(1), Some(8), None];
            let columns = [("stream", streams), ("seq", seqs)]
                .map(|(name, rows)| (name, Arc::new(Int64Array::from(rows)) as ArrayRef));
            let mut spans = spans_of(&RecordBatch::try_from_iter(columns).unwrap());
            spans.sort_by_key(|span| span.stream);
            let greatest = i64::MAX as u64;
            let expected = [(3, 0, 1, 2), (5, greatest, greatest, 1), (far as u64, 7, 9, 2)]
                .map(|(stream, first, last, events)| StreamSpan { stream, first, last, events });
            assert_eq!(spans, expected);
        }
        let empty = ["stream", "seq"].map(|name| (name, Arc::new(Int64Array::from(vec![0; 0])) as ArrayRef));
        assert_eq!(spans_of(&RecordBatch::try_from_iter(empty).unwrap()), []);
    }
}
