//! Processes that have ended and still have rows to merge, and processes that returned.

use super::Store;
use super::merge::MergeStep;
use super::sessions::Ticket;
use crate::error::Error;
use crate::ids::ProcessId;
use crate::ids::history::load_handles;
use miot_proto::wire::ProcessLoss;
use std::collections::{HashMap, HashSet};

/// End of a process that still has rows to merge.
#[derive(Debug)]
pub(super) struct Ending {
    /// Nanoseconds since 1970.
    pub(super) time: i64,
    pub(super) lost: ProcessLoss,
    /// The process was defined again after this end: only its log-client had ended.
    pub(super) returned: bool,
    pub(super) ticket: Option<Ticket>,
}

/// State of processes besides the catalog.
#[derive(Debug, Default)]
pub(super) struct Processes {
    endings: HashMap<ProcessId, Vec<Ending>>,
    /// Processes whose endings may have no more rows to wait for.
    candidates: HashSet<ProcessId>,
    /// Processes of an earlier server or log-client that returned, and whose handles were not read.
    returned: HashSet<ProcessId>,
}

impl Processes {
    pub(super) fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    pub(super) fn add_ending(&mut self, process: ProcessId, ending: Ending) {
        self.endings.entry(process).or_default().push(ending);
        self.candidates.insert(process);
    }

    /// Records that the process was defined again.
    pub(super) fn defined_again(&mut self, process: ProcessId) {
        self.endings.get_mut(&process).into_iter().flatten().for_each(|ending| ending.returned = true);
    }

    /// Requests that the handles of the process are read from the trace.
    pub(super) fn needs_handles(&mut self, process: ProcessId) {
        self.returned.insert(process);
    }
}

impl Store {
    /// Checks the endings of processes whose streams have no more rows after `step`.
    pub(super) fn check_endings_after<T>(&mut self, step: &MergeStep<T>) {
        if self.processes.has_endings() {
            let streams = step.emptied.iter().chain(step.ended.iter().map(|ended| &ended.stream));
            let streams = streams.filter_map(|stream| self.catalog.streams.get(stream));
            self.processes.candidates.extend(streams.map(|stream| stream.process));
        }
    }

    /// Ends the processes whose rows have all been merged.
    pub(super) fn end_processes(&mut self) {
        for id in std::mem::take(&mut self.processes.candidates) {
            let process = self.catalog.processes.get(&id);
            if process.is_some_and(|p| p.streams.iter().any(|stream| self.merge.is_waiting(*stream))) {
                continue;
            }
            for Ending { time, lost, returned, ticket } in
                self.processes.endings.remove(&id).unwrap_or_default()
            {
                for (place, count) in self.catalog.process_ended(id, lost, returned) {
                    self.add_total(time, id, None, place, count);
                }
                self.uncommitted.extend(ticket);
            }
        }
    }

    /// Reads the handles of processes that returned: without them, their rows would have no files.
    pub(super) fn read_handles(&mut self) -> Result<(), Error> {
        let returned = std::mem::take(&mut self.processes.returned);
        if returned.is_empty() {
            return Ok(());
        }
        self.commit()?;
        if let Err(error) = load_handles(&self.settings.config.trace, &returned, &mut self.catalog) {
            tracing::warn!(%error, "names of files opened before the restart are unknown");
        }
        Ok(())
    }
}
