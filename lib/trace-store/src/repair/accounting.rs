//! Accounting of a repair: rows of `losses` for what is missing, and the update of the ledger.

use super::{LostRows, Repair};
use crate::carried::{self, value};
use crate::error::Error;
use crate::fsck;
use crate::layout::sync_folder;
use crate::ledger::{self, Counts, FileEntry, LiveLedger, SealedEntry};
use crate::live::LiveWriter;
use crate::losses::{self, LossRow};
use crate::manifest::{LedgerCoverage, Manifest};
use crate::parquet_file;
use crate::ranges::{self, Range};
use crate::reader::Reader;
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{DAMAGED, FILTERED, Table, column, text};
use crate::seal;
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;

/// The counts of a part before and after the repair.
struct Recount {
    sealed: bool,
    /// Its files are those that the ledger has.
    same: bool,
    /// Counts of the ledger.
    known: Option<Counts>,
    /// Counts of the rows that exist; `None` if some cannot be decoded.
    counts: Option<Counts>,
}

impl Repair {
    /// Records missing events in `losses` and updates the ledger.
    pub(super) fn account(&mut self, dir: &Path, lock: &mut File) -> Result<(), Error> {
        let report = fsck::check(dir);
        let reader = Reader::open(dir)?;
        let counted = reader.manifest().counted.clone();
        let recounted = self.recount(&reader)?;
        let mut gaps =
            if self.incomplete.is_empty() && !report.known_gaps { Vec::new() } else { report.gaps };
        if counted.as_ref().is_none_or(|counted| counted.from > reader.first()) {
            gaps.extend(self.lost_ends(&reader)?);
        }
        let gaps = self.without_undecodable(gaps, &recounted);
        let mut rows = self.loss_rows(&gaps, &reader)?;
        let (mut unranged, mut filtered) = (0u64, 0u64);
        for (known, found) in recounted.values().filter_map(|r| Some((r.known.as_ref()?, r.counts.as_ref()?)))
        {
            unranged = unranged.saturating_add(known.unranged).saturating_sub(found.unranged);
            filtered = filtered.saturating_add(known.filtered).saturating_sub(found.filtered);
        }
        rows.extend(LossRow::unranged(DAMAGED, unranged));
        rows.extend(LossRow::unranged(FILTERED, filtered));
        let newest = self.incomplete.last().copied().or_else(|| recounted.keys().next_back().copied());
        let Some(part) = newest else { return Ok(()) };
        let losses = if rows.is_empty() { None } else { Some(losses::batch(&rows)?) };
        if let Some(losses) = &losses {
            self.add_losses(part, losses, &reader)?;
            let lost = rows.iter().filter(|row| row.place == DAMAGED).map(|row| row.count);
            let count = lost.fold(0, u64::saturating_add);
            let text = format!("{count} events that were in the trace are recorded in losses as `{DAMAGED}`");
            self.add(Some(part), text, Some(LostRows::Rows(count)));
        }
        drop(reader);
        self.update_ledger(dir, recounted, part, losses.as_ref(), counted, lock)
    }

    /// Counts the rows of all parts.
    fn recount(&self, reader: &Reader) -> Result<BTreeMap<u64, Recount>, Error> {
        let mut recounted = BTreeMap::new();
        for (part, sealed) in reader.parts() {
            let known =
                if sealed { self.ledger.counts(part) } else { self.ledger.counts_of_live(part) }.cloned();
            let files = self.file_sums(part, sealed)?;
            let same = match self.ledger.sealed.get(&part).filter(|_| sealed) {
                Some(entry) => entry
                    .files
                    .iter()
                    .map(|(table, file)| (*table, (file.bytes, file.crc32c)))
                    .eq(files.iter().map(|(table, sum)| (*table, *sum))),
                None => false,
            };
            let mut counts = Counts::default();
            let mut decoded = true;
            for table in Table::ALL {
                match reader.batches_of(part, table) {
                    Ok(mut batches) => {
                        for batch in batches.by_ref() {
                            match batch {
                                Ok(batch) => counts.add_batch(table, &batch),
                                Err(_) => decoded = false,
                            }
                        }
                    }
                    Err(_) => decoded = false,
                }
            }
            let counts = decoded.then_some(counts);
            recounted.insert(part, Recount { sealed, same, known, counts });
        }
        Ok(recounted)
    }

    /// Returns the bytes and checksums of the files of a sealed part.
    fn file_sums(&self, part: u64, sealed: bool) -> Result<BTreeMap<Table, (u64, u32)>, Error> {
        let mut files = BTreeMap::new();
        for table in Table::ALL.into_iter().filter(|_| sealed) {
            let path = self.layout.sealed(table, part);
            if path.exists() {
                files.insert(table, ledger::sum_of(&path)?);
            }
        }
        Ok(files)
    }

    /// Removes gaps in intact parts that this version cannot decode: these numbers are not missing.
    fn without_undecodable(
        &self,
        gaps: Vec<(u64, u64, u64)>,
        recounted: &BTreeMap<u64, Recount>,
    ) -> BTreeMap<u64, Vec<Range>> {
        let mut of_stream: BTreeMap<u64, Vec<Range>> = BTreeMap::new();
        let undecodable: Vec<&Recount> = recounted.values().filter(|r| r.counts.is_none()).collect();
        if undecodable.iter().any(|r| r.known.is_none()) {
            return of_stream;
        }
        for (stream, first, last) in gaps {
            of_stream.entry(stream).or_default().push((first, last));
        }
        for (stream, gaps) in &mut of_stream {
            let there = undecodable.iter().filter_map(|r| r.known.as_ref()?.streams.get(stream));
            let there = ranges::merged(there.map(|span| (span.first, span.next.saturating_sub(1))).collect());
            *gaps = ranges::without(&ranges::merged(std::mem::take(gaps)), &there);
        }
        of_stream
    }

    /// Returns a row of `losses` for each gap.
    fn loss_rows(&self, gaps: &BTreeMap<u64, Vec<Range>>, reader: &Reader) -> Result<Vec<LossRow>, Error> {
        let mut streams: HashMap<u64, (u64, String)> = HashMap::new();
        for batch in reader.batches(Table::Threads) {
            // Damaged rows are already reported.
            let Ok(batch) = batch else { break };
            let [ids, processes] = ["stream", "process"].map(|name| column::<UInt64Type>(&batch, name));
            if let (Some(ids), Some(processes), Some(nodes)) = (ids, processes, text(&batch, "node")) {
                let rows = (0..batch.num_rows())
                    .map(|row| (ids.value(row), (processes.value(row), nodes.value(row).to_owned())));
                streams.extend(rows);
            }
        }
        let mut rows = Vec::new();
        for (stream, ranges) in gaps {
            let owner = streams.get(stream).map(|(process, node)| (*process, node.as_str()));
            rows.extend(ranges.iter().map(|range| LossRow::of_stream(*stream, owner, *range)));
        }
        Ok(rows)
    }

    /// Adds rows to `losses` of a part; of a live part, to its stream.
    fn add_losses(&self, part: u64, rows: &RecordBatch, reader: &Reader) -> Result<(), Error> {
        if reader.parts().any(|found| found == (part, true)) {
            let path = self.layout.sealed(Table::Losses, part);
            let mut all: Vec<RecordBatch> =
                reader.batches_of(part, Table::Losses)?.collect::<Result<_, _>>()?;
            all.push(rows.clone());
            carried::write(Table::Losses, &path, &all, Vec::new())?;
            return sync_folder(&self.layout.folder(Table::Losses));
        }
        let path = self.layout.live(Table::Losses, part);
        let (mut live, _) = LiveWriter::recover(Table::Losses, &path, |_| Ok(()))?;
        live.append(rows)?;
        live.write_out()?;
        live.sync()?;
        sync_folder(&self.layout.live_folder())
    }

    /// Updates the ledger to the rows that exist and those that are missing.
    fn update_ledger(
        &mut self,
        dir: &Path,
        recounted: BTreeMap<u64, Recount>,
        losses_in: u64,
        losses: Option<&RecordBatch>,
        counted: Option<LedgerCoverage>,
        lock: &mut File,
    ) -> Result<(), Error> {
        let from = counted.as_ref().map_or(u64::MAX, |counted| counted.from);
        let mut unknown = None;
        for (part, recount) in recounted {
            let damaged = self.ledger.damaged.contains_key(&part)
                && (!recount.sealed || !self.ledger.sealed.contains_key(&part));
            let losses = losses.filter(|_| part == losses_in);
            let Recount { sealed, same, known, counts } = recount;
            let Some(mut counts) = counts else { continue };
            let lacks = known.as_ref().is_some_and(|known| counts.lacks(known).is_some());
            let is_known = known.is_some() && !damaged;
            if from <= part && !is_known {
                unknown = Some(part);
            }
            let good = if sealed { same } else { !lacks };
            if losses.is_none() && is_known && good || counted.is_none() {
                continue;
            }
            if let Some(known) = &known {
                counts.limit_to(known);
                counts.add_missing_rows(known);
            }
            if let Some(losses) = losses {
                counts.add_batch(Table::Losses, losses);
            }
            if sealed {
                let sums = self.file_sums(part, true)?;
                let rows = counts.rows;
                let files = sums.into_iter().map(|(table, (bytes, crc32c))| {
                    (table, FileEntry { rows: rows[table as usize], bytes, crc32c })
                });
                SealedEntry { counts, files: files.collect() }.write(&self.layout, part)?;
                seal::remove(&self.layout.ledger_live(part))?;
            } else {
                LiveLedger::with(&self.layout, part, counts).rewrite()?;
                seal::remove(&self.layout.ledger_sealed(part))?;
            }
            self.add(Some(part), "the ledger was updated".to_owned(), None);
        }
        if let Some(part) = unknown {
            let reason = "before the ledger was repaired".to_owned();
            Manifest::read(dir)?.count_from(dir, part + 1, reason, lock)?;
            let text =
                "the ledger was damaged: it is unknown whether rows up to this part are missing".to_owned();
            self.add(Some(part), text, Some(LostRows::Unknown));
        }
        Ok(())
    }

    /// Returns the missing numbers at the ends of streams, by the metadata of the sealed files.
    fn lost_ends(&self, reader: &Reader) -> Result<Vec<(u64, u64, u64)>, Error> {
        let mut recorded = StreamEnds::default();
        for (part, _) in reader.parts().filter(|(part, sealed)| *sealed && self.incomplete.contains(part)) {
            let events = parquet_file::open(Table::Events, &self.layout.sealed(Table::Events, part))?;
            if let Some(text) = value(events.metadata(), STREAMS_KEY) {
                recorded.add_text(text);
            }
        }
        let mut found = StreamEnds::default();
        let carried = reader.carried_ends()?;
        carried.streams().for_each(|stream| found.raise(stream, carried.get(stream)));
        for batch in reader.events() {
            found.add_batch(&batch?);
        }
        let mut ends: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for stream in recorded.streams() {
            let (found, recorded) = (found.get(stream), recorded.get(stream));
            if found < recorded {
                ends.insert(stream, (found, recorded - 1));
            }
        }
        Ok(ends.into_iter().map(|(stream, (first, last))| (stream, first, last)).collect())
    }
}
