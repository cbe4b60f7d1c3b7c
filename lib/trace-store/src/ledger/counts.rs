//! What the rows of a part add up to.

use crate::schema::{FILTERED, TABLES, Table, column, text};
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers of one stream: of its events, of records that named a handle, of losses with a range.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// The least of them.
    pub(crate) first: u64,
    /// The number after the largest.
    pub(crate) next: u64,
    /// How many of them are events.
    pub(crate) events: u64,
    /// The `next` that the ledger has been given.
    told: u64,
}

impl PartialEq for Span {
    fn eq(&self, other: &Span) -> bool {
        (self.first, self.next, self.events) == (other.first, other.next, other.events)
    }
}

/// Ids are small numbers that a log-server gives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, id: u64) {
        let product = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Rows of each table, in the order of [`Table::ALL`].
    pub(crate) rows: [u64; TABLES],
    /// Rows that were there once and are gone, of which a repair has told.
    pub(crate) gone: [u64; TABLES],
    /// What losses without a range count, without what was filtered out.
    pub(crate) unranged: u64,
    /// The same of what was filtered out.
    pub(crate) filtered: u64,
    /// The id after the largest: of a process, a stream, a file.
    pub(crate) ids: [u64; 3],
    pub(crate) streams: HashMap<u64, Span, BuildHasherDefault<IdHasher>>,
    /// Streams of which the ledger has not been given everything.
    news: Vec<u64>,
}

impl PartialEq for Counts {
    fn eq(&self, other: &Counts) -> bool {
        self.rows == other.rows
            && (self.unranged, self.filtered) == (other.unranged, other.filtered)
            && self.streams == other.streams
    }
}

/// [`Counts`] as they are written: all, or what is new of the streams.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Written {
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

    /// Takes in rows of a table.
    pub(crate) fn see(&mut self, table: Table, batch: &RecordBatch) {
        self.rows[table as usize] += batch.num_rows() as u64;
        match table {
            Table::Events => self.see_events(batch),
            Table::Processes => self.see_ids(0, batch, "process"),
            Table::Threads => self.see_ids(1, batch, "stream"),
            Table::Files => {
                self.see_ids(2, batch, "file");
                let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
                let (Some(streams), Some(seqs)) = (streams, seqs) else { return };
                for (stream, seq) in streams.iter().zip(seqs) {
                    if let (Some(stream), Some(seq)) = (stream, seq) {
                        self.put(stream, seq, seq, 0);
                    }
                }
            }
            Table::Losses => self.see_losses(batch),
            Table::Clocks | Table::Devices => {}
        }
    }

    fn see_events(&mut self, batch: &RecordBatch) {
        let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
        let (Some(streams), Some(seqs)) = (streams, seqs) else { return };
        let (streams, seqs) = (streams.values(), seqs.values());
        let mut row = 0;
        while let (Some(&stream), Some(&seq)) = (streams.get(row), seqs.get(row)) {
            let (start, mut first, mut last) = (row, seq, seq);
            row += 1;
            while let (Some(&next), Some(&seq)) = (streams.get(row), seqs.get(row)) {
                if next != stream {
                    break;
                }
                (first, last) = (first.min(seq), last.max(seq));
                row += 1;
            }
            self.put(stream, first, last, (row - start) as u64);
        }
    }

    fn see_losses(&mut self, batch: &RecordBatch) {
        let [streams, counts, firsts, lasts] =
            ["stream", "count", "first_seq", "last_seq"].map(|name| column::<UInt64Type>(batch, name));
        let (Some(streams), Some(counts), Some(firsts), Some(lasts), Some(places)) =
            (streams, counts, firsts, lasts, text(batch, "place"))
        else {
            return;
        };
        for row in 0..batch.num_rows() {
            if streams.is_valid(row) && firsts.is_valid(row) && lasts.is_valid(row) {
                self.put(streams.value(row), firsts.value(row), lasts.value(row), 0);
            } else {
                let total =
                    if places.value(row) == FILTERED { &mut self.filtered } else { &mut self.unranged };
                *total = total.saturating_add(counts.value(row));
            }
        }
    }

    fn see_ids(&mut self, which: usize, batch: &RecordBatch, name: &str) {
        let ids = column::<UInt64Type>(batch, name);
        let max = ids.and_then(|ids| ids.values().iter().max().copied());
        self.ids[which] = self.ids[which].max(max.map_or(0, |id| id.saturating_add(1)));
    }

    fn put(&mut self, stream: u64, first: u64, last: u64, events: u64) {
        let next = last.saturating_add(1);
        let span = self.streams.entry(stream).or_insert(Span { first, ..Span::default() });
        if span.next == span.told && next > span.next {
            self.news.push(stream);
        }
        span.first = span.first.min(first);
        span.next = span.next.max(next);
        span.events += events;
    }

    /// What is new of the streams since the last call, with the totals.
    pub(super) fn news(&self) -> Written {
        let mut streams = self.news.clone();
        streams.sort_unstable();
        self.written(streams)
    }

    /// The ledger has been given everything.
    pub(super) fn told(&mut self) {
        for stream in self.news.drain(..) {
            if let Some(span) = self.streams.get_mut(&stream) {
                span.told = span.next;
            }
        }
    }

    pub(super) fn all(&self) -> Written {
        let mut streams: Vec<u64> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        self.written(streams)
    }

    fn written(&self, streams: Vec<u64>) -> Written {
        let (mut text, mut before) = (String::new(), 0);
        for stream in streams {
            let Some(span) = self.streams.get(&stream) else { continue };
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{space}{}:{}:{}:{}", stream - before, span.first, span.next, span.events);
            before = stream;
        }
        let gone = if self.gone == [0; TABLES] { Vec::new() } else { self.gone.to_vec() };
        Written {
            rows: self.rows.to_vec(),
            gone,
            unranged: self.unranged,
            filtered: self.filtered,
            ids: self.ids.to_vec(),
            streams: text,
        }
    }

    /// Takes in what was written later than what was taken in before; false if it makes no sense.
    pub(super) fn take(&mut self, written: &Written) -> bool {
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
            self.streams.insert(stream, Span { first, next, events, told: next });
        }
        let fill = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        fill(&mut self.rows, &written.rows);
        fill(&mut self.gone, &written.gone);
        fill(&mut self.ids, &written.ids);
        (self.unranged, self.filtered) = (written.unranged, written.filtered);
        true
    }

    /// Of the numbers of streams only those stay that the ledger has; and what is gone.
    pub(crate) fn limit(&mut self, ledger: &Counts) {
        self.streams.retain(|stream, span| {
            span.next = span.next.min(ledger.streams.get(stream).map_or(0, |known| known.next));
            span.first < span.next
        });
        self.gone = ledger.gone;
    }

    /// Notes the rows that are not among these although the ledger has them.
    pub(crate) fn lose(&mut self, ledger: &Counts) {
        for ((gone, has), had) in self.gone.iter_mut().zip(self.rows).zip(ledger.rows) {
            *gone += had.saturating_sub(has);
        }
    }

    /// The first thing that these rows lack of what the ledger counts.
    pub(crate) fn lacks(&self, ledger: &Counts) -> Option<String> {
        for table in Table::ALL {
            let (has, had) = (self.rows[table as usize], ledger.rows[table as usize]);
            if has < had {
                return Some(format!("{has} of {had} rows of {table}"));
            }
        }
        let mut streams: Vec<_> = ledger.streams.iter().collect();
        streams.sort_unstable_by_key(|(stream, _)| **stream);
        streams.into_iter().find_map(|(stream, had)| {
            let next = self.streams.get(stream).map_or(0, |has| has.next);
            (next < had.next).then(|| format!("stream {stream} up to number {next} of {}", had.next))
        })
    }
}
