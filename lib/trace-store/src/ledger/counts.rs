//! Counts of the rows of a part.

use crate::id_map::IdHasher;
use crate::schema::{TABLES, Table, column, is_loss, text};
use crate::stream_spans::{StreamSpan, spans_of};
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::BuildHasherDefault;

/// Attempt numbers of one stream: of its events, handle records, and losses with a range.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// The least number.
    pub(crate) first: u64,
    /// The number after the greatest.
    pub(crate) next: u64,
    /// Number of events.
    pub(crate) events: u64,
    /// The `next` that the file of the ledger has.
    recorded: u64,
}

impl PartialEq for Span {
    fn eq(&self, other: &Span) -> bool {
        (self.first, self.next, self.events) == (other.first, other.next, other.events)
    }
}

/// Counts of the rows of a part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Rows of each table, in the order of [`Table::ALL`].
    pub(crate) rows: [u64; TABLES],
    /// Lost rows of each table that a repair or a restarted writer has recorded.
    pub(crate) gone: [u64; TABLES],
    /// Lost events of losses without a range.
    pub(crate) unranged: u64,
    /// Filtered requests of losses without a range.
    pub(crate) filtered: u64,
    /// Process, stream and file id after the greatest one.
    pub(crate) ids: [u64; 3],
    pub(crate) streams: HashMap<u64, Span, BuildHasherDefault<IdHasher>>,
    /// Streams with numbers that the file of the ledger does not have yet.
    unrecorded: Vec<u64>,
}

impl PartialEq for Counts {
    fn eq(&self, other: &Counts) -> bool {
        self.rows == other.rows
            && (self.unranged, self.filtered) == (other.unranged, other.filtered)
            && self.streams == other.streams
    }
}

/// [`Counts`] in the JSON of a line: with all streams, or with those that have new numbers.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CountsJson {
    rows: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<u64>,
    unranged: u64,
    filtered: u64,
    ids: Vec<u64>,
    /// `stream:first:next:events` in order of stream, the streams as differences.
    streams: String,
}

impl Counts {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == [0; TABLES]
    }

    /// Counts rows of a table.
    pub(crate) fn add_batch(&mut self, table: Table, batch: &RecordBatch) {
        if table == Table::Events {
            return self.add_events(batch, &spans_of(batch));
        }
        self.rows[table as usize] += batch.num_rows() as u64;
        match table {
            Table::Processes => self.add_ids(0, batch, "process"),
            Table::Threads => self.add_ids(1, batch, "stream"),
            Table::Files => {
                self.add_ids(2, batch, "file");
                let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
                let (Some(streams), Some(seqs)) = (streams, seqs) else { return };
                for (stream, seq) in streams.iter().zip(&seqs) {
                    if let (Some(stream), Some(seq)) = (stream, seq) {
                        self.add_span(stream, seq, seq, 0);
                    }
                }
            }
            Table::Losses => self.add_losses(batch),
            Table::Events | Table::Clocks | Table::Devices => {}
        }
    }

    /// Adds the counts of other rows of the part.
    pub(crate) fn join(&mut self, other: Counts) {
        self.rows.iter_mut().zip(other.rows).for_each(|(rows, more)| *rows += more);
        self.ids.iter_mut().zip(other.ids).for_each(|(id, other)| *id = (*id).max(other));
        self.unranged += other.unranged;
        self.filtered += other.filtered;
        for (stream, span) in other.streams {
            self.add_span(stream, span.first, span.next.saturating_sub(1), span.events);
        }
    }

    /// Counts a batch of events that has these spans.
    pub(crate) fn add_events(&mut self, batch: &RecordBatch, spans: &[StreamSpan]) {
        self.rows[Table::Events as usize] += batch.num_rows() as u64;
        spans.iter().for_each(|span| self.add_span(span.stream, span.first, span.last, span.events));
    }

    fn add_losses(&mut self, batch: &RecordBatch) {
        let [streams, counts, firsts, lasts] =
            ["stream", "count", "first_seq", "last_seq"].map(|name| column::<UInt64Type>(batch, name));
        let (Some(streams), Some(counts), Some(firsts), Some(lasts), Some(places)) =
            (streams, counts, firsts, lasts, text(batch, "place"))
        else {
            return;
        };
        for row in 0..batch.num_rows() {
            if streams.is_valid(row) && firsts.is_valid(row) && lasts.is_valid(row) {
                self.add_span(streams.value(row), firsts.value(row), lasts.value(row), 0);
            } else {
                let total = if is_loss(places.value(row)) { &mut self.unranged } else { &mut self.filtered };
                *total = total.saturating_add(counts.value(row));
            }
        }
    }

    fn add_ids(&mut self, which: usize, batch: &RecordBatch, name: &str) {
        let ids = column::<UInt64Type>(batch, name);
        let max = ids.and_then(|ids| ids.values().iter().max().copied());
        self.ids[which] = self.ids[which].max(max.map_or(0, |id| id.saturating_add(1)));
    }

    fn add_span(&mut self, stream: u64, first: u64, last: u64, events: u64) {
        let next = last.saturating_add(1);
        let span = self.streams.entry(stream).or_insert(Span { first, ..Span::default() });
        if span.next == span.recorded && next > span.next {
            self.unrecorded.push(stream);
        }
        span.first = span.first.min(first);
        span.next = span.next.max(next);
        span.events += events;
    }

    /// Returns the totals and the streams with unrecorded numbers.
    pub(super) fn unrecorded(&self) -> CountsJson {
        let mut streams = self.unrecorded.clone();
        streams.sort_unstable();
        self.to_json(streams)
    }

    /// Must be called when the counts are in the file of the ledger.
    pub(super) fn set_recorded(&mut self) {
        for stream in self.unrecorded.drain(..) {
            if let Some(span) = self.streams.get_mut(&stream) {
                span.recorded = span.next;
            }
        }
    }

    /// Returns the totals and all streams.
    pub(super) fn all(&self) -> CountsJson {
        let mut streams: Vec<u64> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        self.to_json(streams)
    }

    fn to_json(&self, streams: Vec<u64>) -> CountsJson {
        let (mut text, mut previous) = (String::new(), 0);
        for stream in streams {
            let Some(span) = self.streams.get(&stream) else { continue };
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{space}{}:{}:{}:{}", stream - previous, span.first, span.next, span.events);
            previous = stream;
        }
        let gone = if self.gone == [0; TABLES] { Vec::new() } else { self.gone.to_vec() };
        CountsJson {
            rows: self.rows.to_vec(),
            gone,
            unranged: self.unranged,
            filtered: self.filtered,
            ids: self.ids.to_vec(),
            streams: text,
        }
    }

    /// Replaces the totals and adds the streams of a later line. Returns false if the line is
    /// invalid.
    pub(super) fn apply(&mut self, written: &CountsJson) -> bool {
        let mut stream = 0u64;
        for text in written.streams.split(' ').filter(|text| !text.is_empty()) {
            let mut numbers = text.split(':').map(str::parse::<u64>);
            let (Some(Ok(more)), Some(Ok(first)), Some(Ok(next)), Some(Ok(events)), None) =
                (numbers.next(), numbers.next(), numbers.next(), numbers.next(), numbers.next())
            else {
                return false;
            };
            let Some(sum) = stream.checked_add(more) else { return false };
            stream = sum;
            self.streams.insert(stream, Span { first, next, events, recorded: next });
        }
        let fill = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        fill(&mut self.rows, &written.rows);
        fill(&mut self.gone, &written.gone);
        fill(&mut self.ids, &written.ids);
        (self.unranged, self.filtered) = (written.unranged, written.filtered);
        true
    }

    /// Limits the numbers of streams to those of the ledger, and takes over its recorded losses.
    pub(crate) fn limit_to(&mut self, ledger: &Counts) {
        self.streams.retain(|stream, span| {
            span.next = span.next.min(ledger.streams.get(stream).map_or(0, |known| known.next));
            span.first < span.next
        });
        self.gone = ledger.gone;
    }

    /// Records rows as lost that the ledger counts and that are not in these counts.
    pub(crate) fn add_missing_rows(&mut self, ledger: &Counts) {
        for ((gone, found), counted) in self.gone.iter_mut().zip(self.rows).zip(ledger.rows) {
            *gone += counted.saturating_sub(found);
        }
    }

    /// Describes the first difference by which these counts are less than those of the ledger.
    pub(crate) fn lacks(&self, ledger: &Counts) -> Option<String> {
        for table in Table::ALL {
            let (found, counted) = (self.rows[table as usize], ledger.rows[table as usize]);
            if found < counted {
                return Some(format!("{found} of {counted} rows of {table}"));
            }
        }
        let mut streams: Vec<_> = ledger.streams.iter().collect();
        streams.sort_unstable_by_key(|(stream, _)| **stream);
        streams.into_iter().find_map(|(stream, counted)| {
            let next = self.streams.get(stream).map_or(0, |found| found.next);
            (next < counted.next).then(|| format!("stream {stream} up to number {next} of {}", counted.next))
        })
    }
}
