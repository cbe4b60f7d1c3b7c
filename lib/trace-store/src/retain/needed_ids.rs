//! Ids of removed parts that are still needed.

use super::KnownIds;
use crate::carried::value;
use crate::error::Error;
use crate::layout::Layout;
use crate::parquet_file::{self, Batches};
use crate::recover::{RecoveredTrace, STREAMS_KEY, StreamEnds};
use crate::schema::{Table, column};
use crate::seal::foreign_files::{FILES_KEY, from_text};
use arrow_array::types::UInt64Type;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Ids that kept parts use, and those that the owner of the writer knows.
#[derive(Debug)]
pub(super) struct NeededIds {
    known: Option<Arc<KnownIds>>,
    processes: HashSet<u64>,
    streams: HashSet<u64>,
    files: HashSet<u64>,
    /// Process of each stream.
    process_of: HashMap<u64, u64>,
    /// Ends of the streams in the removed parts.
    ends: HashMap<u64, u64>,
    /// One stream of each process.
    stream_of: HashMap<u64, u64>,
}

impl NeededIds {
    pub(super) fn new(known: Option<Arc<KnownIds>>, removed: &RecoveredTrace) -> NeededIds {
        let mut needs = NeededIds {
            known,
            processes: HashSet::new(),
            streams: HashSet::new(),
            files: HashSet::new(),
            process_of: HashMap::new(),
            ends: HashMap::new(),
            stream_of: HashMap::new(),
        };
        for stream in &removed.streams {
            needs.process_of.insert(stream.stream, stream.process);
            needs.ends.insert(stream.stream, stream.next_seq);
            needs.stream_of.entry(stream.process).or_insert(stream.stream);
        }
        needs
    }

    /// Adds the ids that a kept sealed part uses.
    pub(super) fn add_part(&mut self, layout: &Layout, part: u64) -> Result<(), Error> {
        for (table, names) in
            [(Table::Threads, ["stream", "process"]), (Table::Losses, ["stream", "process"])]
        {
            let path = layout.sealed(table, part);
            if !path.exists() {
                continue;
            }
            for batch in Batches::some(table, &path, &names, |_| true)? {
                let batch = batch?;
                let [streams, processes] = names.map(|name| column::<UInt64Type>(&batch, name));
                let (Some(streams), Some(processes)) = (streams, processes) else { continue };
                for (stream, process) in streams.iter().zip(&processes) {
                    self.processes.extend(process);
                    self.streams.extend(stream.filter(|_| table == Table::Losses));
                    if let (Table::Threads, Some(stream), Some(process)) = (table, stream, process) {
                        self.stream_of.entry(process).or_insert(stream);
                        self.process_of.insert(stream, process);
                    }
                }
            }
        }
        let path = layout.sealed(Table::Events, part);
        let builder = parquet_file::open(Table::Events, &path)?;
        let mut ends = StreamEnds::default();
        if !value(builder.metadata(), STREAMS_KEY).is_some_and(|text| ends.add_text(text)) {
            for batch in Batches::some(Table::Events, &path, &["stream", "seq"], |_| true)? {
                ends.add_batch(&batch?);
            }
        }
        self.streams.extend(ends.streams());
        match value(builder.metadata(), FILES_KEY).and_then(from_text) {
            Some(files) => self.files.extend(files),
            None => {
                for batch in Batches::some(Table::Events, &path, &["file", "file2"], |_| true)? {
                    let batch = batch?;
                    for name in ["file", "file2"] {
                        let files = column::<UInt64Type>(&batch, name);
                        self.files.extend(files.iter().flat_map(|files| files.iter().flatten()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Must be called after the last part.
    pub(super) fn finish(&mut self) {
        self.processes.extend(self.streams.iter().filter_map(|stream| self.process_of.get(stream)));
    }

    pub(super) fn process(&self, process: u64) -> bool {
        self.processes.contains(&process) || self.knows(process)
    }

    fn knows(&self, process: u64) -> bool {
        self.known.as_ref().is_none_or(|known| known.processes.contains_key(&process))
    }

    pub(super) fn stream(&self, stream: u64) -> bool {
        self.streams.contains(&stream) || self.process_of.get(&stream).is_some_and(|p| self.knows(*p))
    }

    pub(super) fn file(&self, file: u64) -> bool {
        self.files.contains(&file) || self.known.as_ref().is_none_or(|known| known.files.contains(&file))
    }

    /// Returns whether to keep a row of `losses`: one that a node may report again, or that lies
    /// beyond the end of its stream.
    pub(super) fn loss(&self, process: Option<u64>, stream: Option<u64>, last: Option<u64>) -> bool {
        let of_known = stream.map_or_else(
            || process.is_some_and(|process| self.knows(process)),
            |stream| self.process_of.get(&stream).is_some_and(|process| self.knows(*process)),
        );
        let is_beyond_end = || last > stream.and_then(|stream| self.ends.get(&stream).copied());
        of_known && (last.is_none() || is_beyond_end())
    }

    /// Returns whether to keep the handle records of a stream, because it is unknown whether the
    /// handles are open.
    pub(super) fn record(&self, stream: u64) -> bool {
        let Some(known) = &self.known else { return true };
        let process = self.process_of.get(&stream).and_then(|process| known.processes.get(process));
        process.is_some_and(Option::is_none)
    }

    /// Returns stream, handle and file of each open handle.
    pub(super) fn handles(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let known = self.known.iter().flat_map(|known| &known.processes);
        known.flat_map(|(process, handles)| {
            let stream = self.stream_of.get(process);
            let handles = handles.iter().flatten();
            stream.into_iter().flat_map(move |stream| handles.clone().map(|(h, file)| (*stream, *h, *file)))
        })
    }
}
