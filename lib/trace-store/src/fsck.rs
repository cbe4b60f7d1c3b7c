//! Check of a trace directory:
//!
//! - Parts are numbered without gaps, from the first that retention has kept.
//! - Events are ordered by time, within and across parts, except those marked late.
//! - In each stream, attempt numbers increase strictly and times never decrease.
//! - Every gap in a stream has rows of `losses` or records of `files`, and these cover no number of
//!   an event.
//! - Every process, stream and file of an event is in its table, in the same part or an earlier
//!   one.
//! - Every file can be read to its end, and its bytes are those that were written.
//! - Every row that the ledger counts exists, and every stream reaches the end that the ledger has.
//!
//! A live stream with an incomplete last message is normal: its writer is running, or was killed.
//! It is reported, but not as a problem.

mod report;
mod set;
mod streams;

pub(crate) use report::counted;
pub use report::{CheckReport, DamagedRows, Problem, ProblemKind};
pub use set::{MissingNumbers, SetReport, check_set};

use crate::error::Error;
use crate::layout::{Layout, Parts};
use crate::ledger::{self, Ledger};
use crate::live::StopReason;
use crate::manifest::{LEDGER_SCHEMA, LedgerCoverage};
use crate::parquet_file;
use crate::reader::Reader;
use crate::schema::{DAMAGED, FILTERED, TABLES, Table, column, is_loss, text};
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use miot_proto::event::flag;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use streams::Streams;

/// Prefix of problems of a ledger that is damaged or incomplete.
const UNPROVEN: &str = "completeness cannot be proven";
/// How often a trace is read if retention removes parts during the check.
const MAX_ATTEMPTS: u32 = 5;

/// Checks a trace directory. Reads every row once; memory grows with the number of streams and
/// files.
#[must_use]
pub fn check(dir: impl AsRef<Path>) -> CheckReport {
    let dir = dir.as_ref();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut check = Check::default();
        // The ledger first: all that it counts is in the trace that is read afterwards.
        let layout = Layout::new(dir);
        match layout.first().and_then(|first| Ledger::read(&layout, first)) {
            Ok(ledger) => check.ledger = ledger,
            Err(error) => check.report.add(ProblemKind::Ledger, None, format!("{UNPROVEN}: {error}")),
        }
        match Reader::open(dir) {
            Ok(reader) => {
                check.run(&reader);
                // Parts that were removed in between appear to be missing.
                if attempts < MAX_ATTEMPTS
                    && reader.layout().first().is_ok_and(|first| first != reader.first())
                {
                    continue;
                }
            }
            Err(error) => check.report.add(ProblemKind::Unreadable, None, error.to_string()),
        }
        return check.report;
    }
}

#[derive(Default)]
struct Check {
    report: CheckReport,
    processes: HashMap<u64, ()>,
    /// Process of each stream.
    threads: HashMap<u64, u64>,
    /// Hash of the path of each file, to detect a second path.
    files: HashMap<u64, u64>,
    streams: Streams,
    latest: i64,
    ledger: Ledger,
    /// Number of rows of each part and table.
    rows: BTreeMap<u64, [u64; TABLES]>,
}

impl Check {
    fn run(&mut self, reader: &Reader) {
        let parts: Vec<_> = reader.parts().collect();
        self.latest = i64::MIN;
        self.check_carried(reader);
        self.check_part_numbers(reader);
        for part in self.ledger.parts().filter(|part| *part >= reader.first()).collect::<Vec<_>>() {
            let Some(counts) = self.ledger.counts(part) else { continue };
            counts.streams.iter().for_each(|(stream, span)| self.streams.add_ledger_span(*stream, span));
        }
        for (part, sealed) in &parts {
            self.report.parts += 1;
            self.report.sealed_parts += u64::from(*sealed);
            for table in Table::SIDE.into_iter().chain([Table::Events]) {
                if let Err(error) = self.check_table(reader, *part, table) {
                    self.report.add(ProblemKind::Unreadable, Some(*part), error.to_string());
                }
            }
        }
        match reader.torn() {
            Ok(torn) => {
                for (cut, stop) in torn {
                    if stop == StopReason::Damaged {
                        let text =
                            format!("{}: the last {} bytes are no message", cut.path.display(), cut.bytes);
                        self.report.add(ProblemKind::Unreadable, None, text);
                    } else {
                        self.report.unfinished.push(cut);
                    }
                }
            }
            // Already reported with the part.
            Err(error) => drop(error),
        }
        // Without the oldest parts the starts of the streams are unknown.
        let from_start = parts.first().is_none_or(|(first, _)| *first == reader.first())
            || self.ledger.counts(reader.first()).is_some();
        self.check_ledger(reader);
        self.report.streams = self.streams.len() as u64;
        self.streams.report_gaps(from_start, &mut self.report);
    }

    /// Checks that all rows that the ledger counts exist, and that the ledger counts all parts.
    fn check_ledger(&mut self, reader: &Reader) {
        let ledger = std::mem::take(&mut self.ledger);
        let parts: BTreeMap<u64, bool> = reader.parts().collect();
        for (part, (path, damage)) in ledger.damaged.range(reader.first()..) {
            let text = format!("{UNPROVEN}: {}: {damage}", path.display());
            self.report.add(ProblemKind::Ledger, Some(*part), text);
        }
        let missing = reader.missing_parts().unwrap_or_default();
        for part in ledger.parts().filter(|part| *part >= reader.first()) {
            let Some(counts) = ledger.counts(part) else { continue };
            for table in Table::ALL.into_iter().filter(|table| *table != Table::Events) {
                let rows = counts.gone[table as usize];
                if rows > 0 {
                    self.report.gone.push(DamagedRows { part, table, rows });
                }
            }
            let found = self.rows.get(&part);
            if found.is_none()
                && missing.ranges().iter().all(|range| !range.contains(&part))
                && !counts.is_empty()
            {
                self.report.add(ProblemKind::MissingPart, Some(part), "the ledger has it".to_owned());
            }
            for table in Table::ALL {
                let found = found.map_or(0, |rows| rows[table as usize]);
                let counted = counts.rows[table as usize];
                if found < counted {
                    let text = format!("{found} of {counted} rows of {table} exist, by the ledger");
                    self.report.add(ProblemKind::Incomplete, Some(part), text);
                }
            }
            if let Some(entry) = ledger.sealed.get(&part).filter(|_| parts.get(&part) == Some(&true)) {
                self.check_sealed_files(reader, part, entry);
            }
        }
        let Some(counted) = &reader.manifest().counted else {
            self.report.unproven = Some(format!("completeness unknown before schema {LEDGER_SCHEMA}"));
            return;
        };
        if counted.from > reader.first() && parts.keys().next().is_some_and(|part| *part < counted.from) {
            let LedgerCoverage { from, reason } = counted;
            self.report.unproven = Some(format!("completeness unknown before part {from}, {reason}"));
        }
        for part in parts.keys().filter(|part| **part >= counted.from) {
            let known = ledger.counts(*part).is_some() || ledger.damaged.contains_key(part);
            let layout = reader.layout();
            // The part may have begun after the ledger was read.
            if !known && !layout.ledger_live(*part).exists() && !layout.ledger_sealed(*part).exists() {
                let text = format!("{UNPROVEN}: the ledger does not have this part");
                self.report.add(ProblemKind::Ledger, Some(*part), text);
            }
        }
    }

    /// Checks that the files of a sealed part are those that were sealed.
    fn check_sealed_files(&mut self, reader: &Reader, part: u64, entry: &ledger::SealedEntry) {
        for (table, known) in &entry.files {
            let path = reader.layout().sealed(*table, part);
            let text = match ledger::sum_of(&path) {
                Ok((bytes, crc)) if (bytes, crc) == (known.bytes, known.crc32c) => continue,
                Ok((bytes, _)) if bytes != known.bytes => {
                    format!("{} has {bytes} of {} bytes", path.display(), known.bytes)
                }
                Ok(_) => format!("{} is not the file that was sealed", path.display()),
                Err(error) => error.to_string(),
            };
            self.report.add(ProblemKind::Altered, Some(part), text);
        }
    }

    /// Checks the rows carried over from removed parts.
    fn check_carried(&mut self, reader: &Reader) {
        let read = reader.removed().and_then(|removed| {
            self.report.removed = removed;
            let ends = reader.carried_ends()?;
            ends.streams().for_each(|stream| self.streams.set_begin(stream, ends.get(stream)));
            Ok(())
        });
        if let Err(error) = read {
            self.report.add(ProblemKind::Unreadable, None, error.to_string());
        }
        for table in Table::SIDE {
            let path = reader.layout().carried(table, reader.first());
            if reader.first() > 0
                && let Err(error) = self.check_sums(table, None, &path)
            {
                self.report.add(ProblemKind::Unreadable, None, error.to_string());
                continue;
            }
            match reader.carried(table) {
                Ok(batches) => batches.for_each(|batch| self.check_side_rows(table, None, &batch)),
                Err(error) => self.report.add(ProblemKind::Unreadable, None, error.to_string()),
            }
        }
    }

    /// Checks that the bytes of a sealed file are those that were written.
    fn check_sums(&mut self, table: Table, part: Option<u64>, path: &Path) -> Result<(), Error> {
        let (good, _) = parquet_file::verify(table, path)?;
        for (group, _) in good.iter().enumerate().filter(|(_, good)| !**good) {
            let text = format!("{}: row group {group} is not what was written", path.display());
            self.report.add(ProblemKind::Unreadable, part, text);
        }
        Ok(())
    }

    /// Checks that parts are numbered without gaps.
    fn check_part_numbers(&mut self, reader: &Reader) {
        // Reported elsewhere: the folder cannot be listed.
        let (Ok(missing), Ok(Parts { sides, .. })) = (reader.missing_parts(), reader.layout().parts()) else {
            return;
        };
        for range in missing.ranges() {
            let (first, last) = (*range.start(), *range.end());
            let known = sides.range(range.clone()).count();
            let text = match (first == last, known) {
                (true, 0) => "there are later parts".to_owned(),
                (true, _) => "its side tables exist, its events do not".to_owned(),
                (false, known) => {
                    format!(
                        "and all up to {last}: there are later parts, and side tables of {known} of these"
                    )
                }
            };
            self.report.add(ProblemKind::MissingPart, Some(first), text);
        }
    }

    /// Checks a table of a part.
    fn check_table(&mut self, reader: &Reader, part: u64, table: Table) -> Result<(), Error> {
        let path = reader.layout().sealed(table, part);
        if path.exists() {
            self.check_sums(table, Some(part), &path)?;
        }
        let mut row = 0;
        self.rows.entry(part).or_default();
        for batch in reader.batches_of(part, table)? {
            let batch = batch?;
            match table {
                Table::Events => self.check_events(part, row, &batch),
                _ => self.check_side_rows(table, Some(part), &batch),
            }
            row += batch.num_rows() as u64;
            self.rows.entry(part).or_default()[table as usize] = row;
        }
        Ok(())
    }

    /// Checks rows of a side table. `part`: `None` for carried rows.
    fn check_side_rows(&mut self, table: Table, part: Option<u64>, batch: &RecordBatch) {
        match table {
            Table::Processes => self.check_processes(part, batch),
            Table::Threads => self.check_threads(part, batch),
            Table::Files => self.check_files(part, batch),
            Table::Losses => self.check_losses(part, batch),
            Table::Clocks | Table::Devices | Table::Events => {}
        }
    }

    fn check_processes(&mut self, part: Option<u64>, batch: &RecordBatch) {
        for id in column::<UInt64Type>(batch, "process").iter().flat_map(|ids| ids.values()) {
            if self.processes.insert(*id, ()).is_some() {
                self.report.add(ProblemKind::Duplicate, part, format!("process {id} has two rows"));
            }
        }
    }

    fn check_threads(&mut self, part: Option<u64>, batch: &RecordBatch) {
        let (Some(ids), Some(processes)) =
            (column::<UInt64Type>(batch, "stream"), column::<UInt64Type>(batch, "process"))
        else {
            return;
        };
        for (id, process) in ids.values().iter().zip(processes.values()) {
            if self.threads.insert(*id, *process).is_some() {
                self.report.add(ProblemKind::Duplicate, part, format!("stream {id} has two rows in threads"));
            }
            if !self.processes.contains_key(process) {
                let text = format!("stream {id} belongs to process {process}, which is not in processes");
                self.report.add(ProblemKind::Dangling, part, text);
            }
        }
    }

    fn check_files(&mut self, part: Option<u64>, batch: &RecordBatch) {
        let (Some(ids), Some(paths)) = (column::<UInt64Type>(batch, "file"), text(batch, "path")) else {
            return;
        };
        for row in 0..batch.num_rows() {
            let (id, hash) = (ids.value(row), hash(paths.value(row)));
            match self.files.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(hash);
                }
                Entry::Occupied(entry) if *entry.get() != hash => {
                    self.report.add(ProblemKind::Duplicate, part, format!("file {id} has two paths"));
                }
                Entry::Occupied(_) => {}
            }
        }
        let (Some(streams), Some(seqs)) =
            (column::<UInt64Type>(batch, "stream"), column::<UInt64Type>(batch, "seq"))
        else {
            return;
        };
        for (stream, seq) in streams.iter().zip(&seqs) {
            if let (Some(stream), Some(seq)) = (stream, seq) {
                self.streams.add_accounted(stream, seq, seq);
            }
        }
    }

    fn check_losses(&mut self, part: Option<u64>, batch: &RecordBatch) {
        let [stream, count, first, last] =
            ["stream", "count", "first_seq", "last_seq"].map(|name| column::<UInt64Type>(batch, name));
        let places = text(batch, "place");
        let (Some(stream), Some(count), Some(first), Some(last), Some(places)) =
            (stream, count, first, last, places)
        else {
            return;
        };
        for row in 0..batch.num_rows() {
            let count = count.value(row);
            let total = match places.value(row) {
                FILTERED => &mut self.report.filtered,
                place if is_loss(place) => &mut self.report.lost,
                _ => &mut self.report.elsewhere,
            };
            *total = total.saturating_add(count);
            if places.value(row) == DAMAGED {
                self.report.damaged = self.report.damaged.saturating_add(count);
            }
            if stream.is_null(row) || first.is_null(row) || last.is_null(row) {
                continue;
            }
            let (stream, first, last) = (stream.value(row), first.value(row), last.value(row));
            if last < first || last - first != count.wrapping_sub(1) {
                let text =
                    format!("stream {stream}: {count} lost events do not match the range {first} to {last}");
                self.report.add(ProblemKind::Loss, part, text);
            } else {
                self.streams.add_accounted(stream, first, last);
            }
        }
    }

    fn check_events(&mut self, part: u64, first_row: u64, batch: &RecordBatch) {
        let [process, file, file2, stream, seq] =
            ["process", "file", "file2", "stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
        let (Some(process), Some(file), Some(file2), Some(stream), Some(seq)) =
            (process, file, file2, stream, seq)
        else {
            return;
        };
        let times = batch.column(0).as_primitive::<TimestampNanosecondType>();
        let Some(flags) = column::<UInt32Type>(batch, "flags") else { return };
        self.report.events += batch.num_rows() as u64;
        for row in 0..batch.num_rows() {
            let (time, stream, seq, late) = (
                times.value(row),
                stream.value(row),
                seq.value(row),
                flags.value(row) & u32::from(flag::LATE) != 0,
            );
            let at = || format!("row {}, stream {stream}, number {seq}", first_row + row as u64);
            self.report.late += u64::from(late);
            if time < self.latest && !late {
                let text = format!("{}: {} ns earlier than a previous row", at(), self.latest - time);
                self.report.add(ProblemKind::Disorder, Some(part), text);
            }
            self.latest = self.latest.max(time);
            if let Err((kind, text)) = self.streams.add_event(stream, seq, time) {
                self.report.add(kind, Some(part), format!("{}: {text}", at()));
            }
            match self.threads.get(&stream) {
                Some(of) if *of == process.value(row) => {}
                Some(of) => {
                    let text = format!(
                        "{}: of process {}, but its stream is of process {of}",
                        at(),
                        process.value(row)
                    );
                    self.report.add(ProblemKind::Dangling, Some(part), text);
                }
                None => self.report.add(
                    ProblemKind::Dangling,
                    Some(part),
                    format!("{}: stream is not in threads", at()),
                ),
            }
            for file in [&file, &file2] {
                if file.is_valid(row) && !self.files.contains_key(&file.value(row)) {
                    let text = format!("{}: file {} is not in files", at(), file.value(row));
                    self.report.add(ProblemKind::Dangling, Some(part), text);
                }
            }
        }
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
