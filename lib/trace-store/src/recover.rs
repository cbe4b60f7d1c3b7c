//! The state that a writer needs to continue a trace: the next ids, and the end of each stream.

use crate::carried::{self, RemovedParts, value};
use crate::error::Error;
use crate::ids::{self, DenseIds};
use crate::layout::Layout;
use crate::ledger::Counts;
use crate::losses::{self, LossRow};
use crate::parquet_file::{self, Batches};
use crate::ranges;
use crate::schema::{DAMAGED, FILTERED, Table, column, text};
use crate::stream_spans::{StreamSpan, spans_of};
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use parquet::file::statistics::Statistics;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::PathBuf;

/// Key of [`StreamEnds::to_text`] in the metadata of a sealed events file.
pub(crate) const STREAMS_KEY: &str = "miot.streams";
/// Streams below this number are kept in an array (at most 8 MiB), which is faster per row than a
/// map.
const DENSE: u64 = 1 << 20;
/// In a batch of a live part that covers more time, the latest event of each stream is searched;
/// otherwise its time is that of the batch. Nanoseconds.
const LONG_BATCH_NS: i64 = 1_000_000_000;

/// State of a trace that a writer continues; returned by [`crate::Writer::open`].
#[derive(Clone, Debug, Default)]
pub struct RecoveredTrace {
    /// The first unused process id.
    pub next_process: u64,
    /// The first unused stream id.
    pub next_stream: u64,
    /// The first unused file id.
    pub next_file: u64,
    /// Every process of the trace, by id.
    pub processes: Vec<RecoveredProcess>,
    /// Every stream of the trace, by id.
    pub streams: Vec<RecoveredStream>,
    /// Time of the latest event, nanoseconds since 1970; 0 without events.
    pub last_time: i64,
    /// Time of the latest event of removed and sealed parts, nanoseconds since 1970; 0 without any.
    pub sealed_until: i64,
    /// Torn tails that were truncated. They contain no committed rows.
    pub cut: Vec<TornTail>,
    /// Events that the ledger counts in live parts and that are missing. They have rows in `losses`
    /// now.
    pub lost: u64,
    /// Parts that were not sealed yet; their sealing continues.
    pub unsealed: Vec<u64>,
    /// Sealed parts whose events cannot be read. The ledger has the ends of their streams, so the
    /// trace continues. A repair recovers their readable rows and records the losses.
    pub damaged: Vec<DamagedPart>,
    /// What retention has removed.
    pub removed: RemovedParts,
}

/// A sealed part whose events cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DamagedPart {
    /// Number of the part.
    pub part: u64,
    /// What is wrong with its file of events.
    pub error: String,
}

/// A process of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredProcess {
    /// Its id.
    pub process: u64,
    /// Name of the node.
    pub node: String,
    /// Process id on the node.
    pub pid: u32,
    /// See `boot` in [`crate::schema`].
    pub boot: Option<String>,
    /// See `nonce` in [`crate::schema`].
    pub nonce: Option<u64>,
    /// Time of its first traced request, nanoseconds since 1970.
    pub started: i64,
}

/// A stream of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredStream {
    /// Its id.
    pub stream: u64,
    /// Id of the process.
    pub process: u64,
    /// Name of the node.
    pub node: String,
    /// Process id on the node.
    pub pid: u32,
    /// Thread id on the node.
    pub tid: u32,
    /// Lane.
    pub lane: u32,
    /// Incarnation of the lane.
    pub incarnation: u32,
    /// The first attempt number for which the trace has no event, loss or handle record.
    pub next_seq: u64,
    /// First and last attempt numbers of losses and handle records beyond `next_seq`. Side tables
    /// become durable before events, so after a crash the events before them may be missing.
    pub beyond: Vec<(u64, u64)>,
    /// Time of its latest event in live parts, nanoseconds since 1970, at most a second too late;
    /// 0 without one.
    pub live_until: i64,
}

/// A torn tail of a live stream: bytes after the last whole message.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TornTail {
    /// The live stream.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
}

/// For each stream the attempt number after its last one.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamEnds {
    ids: DenseIds,
    dense: Vec<u64>,
    sparse: HashMap<u64, u64>,
}

impl StreamEnds {
    /// Raises the end of a stream to `next`.
    pub(crate) fn raise(&mut self, stream: u64, next: u64) {
        let number = self.ids.add(stream);
        let end = if number < DENSE {
            let index = number as usize;
            if index >= self.dense.len() {
                self.dense.resize(index + 1, 0);
            }
            &mut self.dense[index]
        } else {
            self.sparse.entry(stream).or_default()
        };
        *end = next.max(*end);
    }

    /// Returns the streams that have an end.
    pub(crate) fn streams(&self) -> impl Iterator<Item = u64> {
        let dense = self.dense.iter().zip(0..).filter(|(next, _)| **next > 0);
        dense.map(|(_, number)| self.ids.id(number)).chain(self.sparse.keys().copied())
    }

    pub(crate) fn get(&self, stream: u64) -> u64 {
        match usize::try_from(self.ids.get(stream)).ok().and_then(|i| self.dense.get(i)) {
            Some(next) => *next,
            None => self.sparse.get(&stream).copied().unwrap_or(0),
        }
    }

    /// Adds the rows of a batch with `stream` and `seq`.
    pub(crate) fn add_batch(&mut self, batch: &RecordBatch) {
        self.add_spans(&spans_of(batch));
    }

    /// Adds the rows of a batch that has these spans.
    pub(crate) fn add_spans(&mut self, spans: &[StreamSpan]) {
        spans.iter().for_each(|span| self.raise(span.stream, span.last.saturating_add(1)));
    }

    /// Returns `stream:next` in order of stream, the streams as differences: `1:500 1:730 4:12` are
    /// streams 1, 2 and 6.
    pub(crate) fn to_text(&self) -> String {
        let dense = self.dense.iter().zip(0..).map(|(next, number)| (self.ids.id(number), *next));
        let mut all: Vec<_> =
            dense.chain(self.sparse.iter().map(|(s, n)| (*s, *n))).filter(|(_, n)| *n > 0).collect();
        all.sort_unstable();
        let (mut text, mut last) = (String::new(), 0);
        for (stream, next) in all {
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{space}{}:{next}", stream - last);
            last = stream;
        }
        text
    }

    /// Adds the ends of a text of [`StreamEnds::to_text`]. Returns false if it is invalid.
    pub(crate) fn add_text(&mut self, text: &str) -> bool {
        let mut stream = 0u64;
        for pair in text.split(' ').filter(|p| !p.is_empty()) {
            let parsed = pair.split_once(':').and_then(|(s, n)| Some((s.parse().ok()?, n.parse().ok()?)));
            let Some((more, next)) = parsed else { return false };
            let Some(sum) = stream.checked_add(more) else { return false };
            stream = sum;
            self.raise(stream, next);
        }
        true
    }
}

/// Collects a [`RecoveredTrace`] from all tables.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) found: RecoveredTrace,
    /// Ends of the streams by their events.
    ends: StreamEnds,
    /// See [`RecoveredStream::live_until`].
    live_until: StreamEnds,
    /// Stream, first and last number of each loss and record.
    accounted: Vec<(u64, u64, u64)>,
    /// Stream, first and last number of each gap between the events of the live part that is being
    /// read.
    gaps: Vec<(u64, u64, u64)>,
    /// Process, stream and file id after the largest one in the ledger.
    ids: [u64; 3],
}

impl Recovery {
    /// Begins with the first ids of a partition.
    pub(crate) fn new(partition: u16) -> Recovery {
        Recovery { ids: [ids::first(partition); 3], ..Recovery::default() }
    }

    /// Adds the rows carried over from the parts before `first`.
    pub(crate) fn carried(&mut self, layout: &Layout, first: u64) -> Result<(), Error> {
        if first == 0 {
            return Ok(());
        }
        self.found.removed = RemovedParts::read(layout, first)?;
        self.add_sealed_time(self.found.removed.until);
        for table in [Table::Processes, Table::Threads, Table::Files, Table::Losses] {
            carried::read(layout, table, first)?.iter().for_each(|batch| self.add_batch(table, batch));
        }
        self.ends = carried::ends(layout, first)?;
        Ok(())
    }

    /// Adds a sealed part. If its events cannot be read, the counts of the ledger are used.
    pub(crate) fn sealed(&mut self, layout: &Layout, part: u64, known: Option<&Counts>) -> Result<(), Error> {
        self.sealed_sides(layout, part)?;
        match (self.sealed_events(layout, part), known) {
            (Err(error @ Error::Damaged { .. }), Some(known)) => {
                self.add_counts(known);
                self.found.damaged.push(DamagedPart { part, error: error.to_string() });
                Ok(())
            }
            (result, _) => result,
        }
    }

    /// Adds the side tables of a sealed part.
    pub(crate) fn sealed_sides(&mut self, layout: &Layout, part: u64) -> Result<(), Error> {
        for table in Table::SIDE {
            let path = layout.sealed(table, part);
            if !matches!(table, Table::Clocks | Table::Devices) && path.exists() {
                for batch in Batches::all(table, &path)? {
                    self.add_batch(table, &batch?);
                }
            }
        }
        Ok(())
    }

    fn sealed_events(&mut self, layout: &Layout, part: u64) -> Result<(), Error> {
        let path = layout.sealed(Table::Events, part);
        let builder = parquet_file::open(Table::Events, &path)?;
        let metadata = builder.metadata();
        for group in metadata.row_groups() {
            if let Some(Statistics::Int64(times)) = group.column(0).statistics() {
                self.add_sealed_time(times.max_opt().copied().unwrap_or(0));
            }
        }
        let ends = value(metadata, STREAMS_KEY);
        if !ends.is_some_and(|text| self.ends.add_text(text)) {
            for batch in Batches::some(Table::Events, &path, &["stream", "seq"], |_| true)? {
                self.ends.add_batch(&batch?);
            }
        }
        Ok(())
    }

    fn add_sealed_time(&mut self, time: i64) {
        self.found.sealed_until = self.found.sealed_until.max(time);
        self.found.last_time = self.found.last_time.max(time);
    }

    /// Adds a batch of a side table.
    pub(crate) fn add_batch(&mut self, table: Table, batch: &RecordBatch) {
        match table {
            Table::Files => {
                self.add_accounted(batch, "seq", "seq");
                let files = column::<UInt64Type>(batch, "file");
                let max = files.and_then(|f| f.values().iter().max().copied());
                self.ids[2] = self.ids[2].max(max.map_or(0, |max| max.saturating_add(1)));
            }
            Table::Losses => self.add_accounted(batch, "first_seq", "last_seq"),
            Table::Processes => {
                let _ = self.add_processes(batch);
            }
            Table::Threads => {
                let _ = self.add_threads(batch);
            }
            Table::Events | Table::Clocks | Table::Devices => {}
        }
    }

    /// Adds events of a live part, which have these spans, and collects gaps between them.
    pub(crate) fn add_live_events(&mut self, batch: &RecordBatch, spans: &[StreamSpan]) {
        let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
        let times = batch.column(0).as_primitive_opt::<TimestampNanosecondType>();
        let (Some(streams), Some(seqs), Some(times)) = (streams, seqs, times) else { return };
        for (stream, seq) in streams.values().iter().zip(seqs.values()) {
            let next = self.ends.get(*stream);
            if next < *seq {
                self.gaps.push((*stream, next, seq - 1));
            }
            self.ends.raise(*stream, seq.saturating_add(1));
        }
        let times = times.values();
        let (Some(earliest), Some(latest)) = (times.iter().min().copied(), times.iter().max().copied())
        else {
            return;
        };
        self.found.last_time = self.found.last_time.max(latest);
        let mut raise =
            |stream: u64, time: i64| self.live_until.raise(stream, u64::try_from(time).unwrap_or(0));
        if latest.saturating_sub(earliest) <= LONG_BATCH_NS {
            spans.iter().for_each(|span| raise(span.stream, latest));
        } else {
            streams.values().iter().zip(times).for_each(|(stream, time)| raise(*stream, *time));
        }
    }

    /// Adds the ledger's counts of a part that was added or is missing.
    pub(crate) fn add_counts(&mut self, counts: &Counts) {
        counts.streams.iter().for_each(|(stream, span)| self.ends.raise(*stream, span.next));
        self.raise_ids(counts.ids);
    }

    /// Raises the ids to those of the ledger.
    pub(crate) fn raise_ids(&mut self, ids: [u64; 3]) {
        self.ids.iter_mut().zip(ids).for_each(|(id, known)| *id = known.max(*id));
    }

    /// Must be called after the last batch of a live part.
    pub(crate) fn end_of_part(&mut self) {
        self.gaps.clear();
    }

    /// Limits the counts of a live part to the attempt numbers before the first missing event. Side
    /// tables become durable before events, so the numbers beyond may be of events that were never
    /// written.
    pub(crate) fn limit_to_contiguous(&mut self, counts: &mut Counts) {
        self.accounted.sort_unstable();
        counts.streams.retain(|stream, span| {
            let mut next = self.ends.get(*stream);
            let from = self.accounted.partition_point(|(id, _, _)| id < stream);
            let of_stream = self.accounted[from..].iter().take_while(|(id, _, _)| id == stream);
            for (_, first, last) in of_stream {
                if *first <= next {
                    next = next.max(last.saturating_add(1));
                }
            }
            span.next = span.next.min(next);
            span.first < span.next
        });
    }

    /// Returns rows of `losses` for what the ledger counts in a live part and is missing; `None` if
    /// nothing is.
    pub(crate) fn losses_of(
        &mut self,
        known: &Counts,
        counts: &Counts,
    ) -> Result<Option<RecordBatch>, Error> {
        let mut gaps: Vec<(u64, u64, u64)> = Vec::new();
        for (stream, first, last) in &self.gaps {
            if let Some(span) = known.streams.get(stream) {
                gaps.push((*stream, (*first).max(span.first), (*last).min(span.next.saturating_sub(1))));
            }
        }
        for (stream, span) in &known.streams {
            let end = self.ends.get(*stream).max(span.first);
            gaps.push((*stream, end, span.next.saturating_sub(1)));
        }
        gaps.retain(|(_, first, last)| first <= last);
        let mut accounted: HashMap<u64, Vec<(u64, u64)>> =
            gaps.iter().map(|(stream, _, _)| (*stream, Vec::new())).collect();
        for (stream, first, last) in &self.accounted {
            if let Some(ranges) = accounted.get_mut(stream) {
                ranges.push((*first, *last));
            }
        }
        accounted.values_mut().for_each(|ranges| *ranges = ranges::merged(std::mem::take(ranges)));
        let mut of_stream: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for (stream, first, last) in gaps {
            of_stream.entry(stream).or_default().push((first, last));
        }
        let owners: HashMap<u64, (u64, &str)> = self
            .found
            .streams
            .iter()
            .filter(|found| of_stream.contains_key(&found.stream))
            .map(|found| (found.stream, (found.process, found.node.as_str())))
            .collect();
        let mut rows = Vec::new();
        for (stream, gaps) in &of_stream {
            let owner = owners.get(stream).copied();
            let missing =
                ranges::without(&ranges::merged(gaps.clone()), accounted.get(stream).map_or(&[], |r| r));
            rows.extend(missing.into_iter().map(|range| LossRow::of_stream(*stream, owner, range)));
        }
        rows.extend(LossRow::unranged(DAMAGED, known.unranged.saturating_sub(counts.unranged)));
        rows.extend(LossRow::unranged(FILTERED, known.filtered.saturating_sub(counts.filtered)));
        if rows.is_empty() {
            return Ok(None);
        }
        let lost = rows.iter().filter(|row| row.place == DAMAGED).map(|row| row.count);
        self.found.lost = lost.fold(self.found.lost, u64::saturating_add);
        losses::batch(&rows).map(Some)
    }

    fn add_accounted(&mut self, batch: &RecordBatch, first: &str, last: &str) {
        let [streams, firsts, lasts] = ["stream", first, last].map(|name| column::<UInt64Type>(batch, name));
        let (Some(streams), Some(firsts), Some(lasts)) = (streams, firsts, lasts) else { return };
        for ((stream, first), last) in streams.iter().zip(&firsts).zip(&lasts) {
            if let (Some(stream), Some(first), Some(last)) = (stream, first, last) {
                self.accounted.push((stream, first, last));
            }
        }
    }

    fn add_processes(&mut self, batch: &RecordBatch) -> Option<()> {
        let (ids, nonces) = (column::<UInt64Type>(batch, "process")?, text(batch, "nonce")?);
        let pids = column::<UInt32Type>(batch, "pid")?;
        let started = column::<TimestampNanosecondType>(batch, "started")?;
        let (nodes, boots) = (text(batch, "node")?, text(batch, "boot")?);
        self.found.processes.extend((0..batch.num_rows()).map(|row| RecoveredProcess {
            process: ids.value(row),
            node: nodes.value(row).to_owned(),
            pid: pids.value(row),
            boot: boots.is_valid(row).then(|| boots.value(row).to_owned()),
            nonce: nonces.is_valid(row).then(|| nonces.value(row).parse().ok()).flatten(),
            started: started.value(row),
        }));
        Some(())
    }

    fn add_threads(&mut self, batch: &RecordBatch) -> Option<()> {
        let (ids, processes) =
            (column::<UInt64Type>(batch, "stream")?, column::<UInt64Type>(batch, "process")?);
        let (pids, tids) = (column::<UInt32Type>(batch, "pid")?, column::<UInt32Type>(batch, "tid")?);
        let (lanes, incarnations) =
            (column::<UInt64Type>(batch, "lane")?, column::<UInt64Type>(batch, "incarnation")?);
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let nodes = text(batch, "node")?;
        self.found.streams.extend((0..batch.num_rows()).map(|row| RecoveredStream {
            stream: ids.value(row),
            process: processes.value(row),
            node: nodes.value(row).to_owned(),
            pid: pids.value(row),
            tid: tids.value(row),
            lane: narrow(lanes.value(row)),
            incarnation: narrow(incarnations.value(row)),
            next_seq: 0,
            beyond: Vec::new(),
            live_until: 0,
        }));
        Some(())
    }

    /// Returns the state, after all parts were added.
    pub(crate) fn finish(mut self) -> RecoveredTrace {
        self.found.streams.sort_by_key(|s| s.stream);
        self.accounted.sort_unstable();
        for stream in &mut self.found.streams {
            stream.next_seq = self.ends.get(stream.stream);
            stream.live_until = i64::try_from(self.live_until.get(stream.stream)).unwrap_or(i64::MAX);
            let from = self.accounted.partition_point(|(id, _, _)| *id < stream.stream);
            for (_, first, last) in
                self.accounted[from..].iter().take_while(|(id, _, _)| *id == stream.stream)
            {
                if *first <= stream.next_seq {
                    stream.next_seq = stream.next_seq.max(last.saturating_add(1));
                } else {
                    stream.beyond.push((*first, *last));
                }
            }
        }
        self.found.processes.sort_by_key(|p| p.process);
        let removed = self.found.removed;
        let (process, stream) = (self.found.processes.last(), self.found.streams.last());
        // Rows with larger ids may be lost although other rows still use these ids.
        let [next_process, next_stream, next_file] = self.ids;
        let after = |id: u64| id.saturating_add(1);
        self.found.next_process =
            process.map_or(0, |p| after(p.process)).max(removed.next_process).max(next_process);
        self.found.next_stream =
            stream.map_or(0, |s| after(s.stream)).max(removed.next_stream).max(next_stream);
        self.found.next_file = removed.next_file.max(next_file);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::{DENSE, RecoveredStream, Recovery, StreamEnds};

    #[test]
    fn numbers_after_a_missing_event_do_not_extend_a_stream() {
        let mut recovery = Recovery::default();
        for (stream, events) in [(1, 5), (2, 3), (3, 0)] {
            recovery.ends.raise(stream, events);
            recovery.found.streams.push(RecoveredStream {
                stream,
                process: 1,
                node: String::new(),
                pid: 1,
                tid: 1,
                lane: 0,
                incarnation: 1,
                next_seq: 0,
                beyond: Vec::new(),
                live_until: 0,
            });
        }
        // 5..=7 follow the events of stream 1; in stream 2 event 3 is missing before 4..=6.
        recovery.accounted = vec![(3, 0, 0), (1, 7, 7), (2, 8, 8), (1, 2, 3), (2, 4, 6), (1, 5, 6)];
        let found = recovery.finish();
        let ends: Vec<_> = found.streams.iter().map(|s| (s.next_seq, s.beyond.as_slice())).collect();
        assert_eq!(ends, [(8, &[][..]), (3, &[(4, 6), (8, 8)]), (1, &[])]);
    }

    #[test]
    fn stream_ends_survive_conversion_to_text() {
        let mut ends = StreamEnds::default();
        for (stream, next) in [(1, 500), (2, 730), (DENSE + 7, u64::MAX), (6, 12), (2, 5)] {
            ends.raise(stream, next);
        }
        let text = ends.to_text();
        assert!(text.starts_with("1:500 1:730 4:12 "), "{text}");
        let mut again = StreamEnds::default();
        assert!(again.add_text(&text));
        for stream in [0, 1, 2, 3, 6, DENSE, DENSE + 7] {
            assert_eq!(again.get(stream), ends.get(stream), "{stream}");
        }
        assert_eq!(again.get(2), 730);
        assert!(!StreamEnds::default().add_text("1:2 x"));
    }
}
