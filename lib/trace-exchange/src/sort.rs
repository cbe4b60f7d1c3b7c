//! Sorts more events than fit in memory: sorted runs are written to an unnamed file and merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// An event in the form in which it is sorted. The first two words determine the order: completion
/// time, then arrival.
pub(crate) type Record = [u64; WORDS];
pub(crate) const WORDS: usize = 16;
const BYTES: usize = WORDS * 8;

/// Number of records in memory: 64 MiB. More records are written to the file as a run.
const RUN: usize = 512 << 10;
/// Number of records of a run that are read at once: with 64 KiB per run, a billion events are
/// merged in 128 MiB.
const READ: usize = 512;

/// Accepts records in any order.
#[derive(Debug)]
pub(crate) struct Sorter {
    run: usize,
    waiting: Vec<Record>,
    file: Option<File>,
    /// First record of each run in the file, and the record after its last.
    runs: Vec<(u64, u64)>,
    total: u64,
}

/// Returns the sort key of a record. The time is a signed number.
fn key(record: &Record) -> (i64, u64) {
    (record[0] as i64, record[1])
}

impl Sorter {
    pub(crate) fn new() -> Sorter {
        Sorter::with_run(RUN)
    }

    fn with_run(run: usize) -> Sorter {
        Sorter { run, waiting: Vec::new(), file: None, runs: Vec::new(), total: 0 }
    }

    /// Returns the number of records added.
    pub(crate) fn len(&self) -> u64 {
        self.total
    }

    /// Adds a record. The file is created in `dir` when it is needed.
    pub(crate) fn push(&mut self, record: Record, dir: &Path) -> io::Result<()> {
        if self.waiting.len() >= self.run {
            self.spill(dir)?;
        }
        self.waiting.push(record);
        self.total += 1;
        Ok(())
    }

    fn spill(&mut self, dir: &Path) -> io::Result<()> {
        self.waiting.sort_unstable_by_key(key);
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(dir)?),
        };
        let mut out = io::BufWriter::with_capacity(1 << 20, file);
        for word in self.waiting.iter().flatten() {
            out.write_all(&word.to_le_bytes())?;
        }
        out.flush()?;
        let begin = self.runs.last().map_or(0, |run| run.1);
        self.runs.push((begin, begin + self.waiting.len() as u64));
        self.waiting.clear();
        Ok(())
    }

    /// Returns all records in order.
    pub(crate) fn finish(mut self) -> io::Result<Sorted> {
        self.waiting.sort_unstable_by_key(key);
        let mut runs: Vec<Run> =
            self.runs.iter().map(|(next, end)| Run { next: *next, end: *end, read: Vec::new() }).collect();
        // The last run is read from memory, in reverse.
        self.waiting.reverse();
        runs.push(Run { next: 0, end: 0, read: self.waiting });
        let mut sorted = Sorted { file: self.file, heap: BinaryHeap::new(), runs };
        for run in 0..sorted.runs.len() {
            sorted.refill(run)?;
        }
        Ok(sorted)
    }
}

#[derive(Debug)]
struct Run {
    next: u64,
    end: u64,
    /// Records that were read and not returned yet, the next one last.
    read: Vec<Record>,
}

/// Records in order.
#[derive(Debug)]
pub(crate) struct Sorted {
    file: Option<File>,
    /// Next record of each run.
    heap: BinaryHeap<Reverse<((i64, u64), usize)>>,
    runs: Vec<Run>,
}

impl Sorted {
    /// Returns the next record.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        let Some(Reverse((_, run))) = self.heap.pop() else { return Ok(None) };
        let record = self.runs[run].read.pop();
        self.refill(run)?;
        Ok(record)
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let state = &mut self.runs[run];
        if state.read.is_empty()
            && state.next < state.end
            && let Some(file) = &self.file
        {
            let count = (state.end - state.next).min(READ as u64) as usize;
            let mut bytes = vec![0; count * BYTES];
            file.read_exact_at(&mut bytes, state.next * BYTES as u64)?;
            state.next += count as u64;
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let records =
                bytes.chunks_exact(BYTES).map(|record| std::array::from_fn(|i| word(&record[i * 8..][..8])));
            state.read.extend(records.rev());
        }
        if let Some(record) = state.read.last() {
            self.heap.push(Reverse((key(record), run)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, Sorter, key};
    use proptest::prelude::*;

    fn sorted(times: &[i64], run: usize) -> Vec<Record> {
        let dir = std::env::temp_dir();
        let mut sorter = Sorter::with_run(run);
        for (arrival, time) in times.iter().enumerate() {
            let mut record = [7; super::WORDS];
            (record[0], record[1], record[15]) = (*time as u64, arrival as u64, !arrival as u64);
            sorter.push(record, &dir).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        std::iter::from_fn(|| sorted.next().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn records_are_sorted_by_time_and_arrival(times in prop::collection::vec(-9i64..9, 0..3000), run in 1usize..1200) {
            let records = sorted(&times, run);
            prop_assert_eq!(records.len(), times.len());
            prop_assert!(records.is_sorted_by_key(key));
            for record in records {
                prop_assert_eq!(record[0] as i64, times[record[1] as usize]);
                prop_assert_eq!(record[15], !(record[1] as usize) as u64);
            }
        }
    }
}
