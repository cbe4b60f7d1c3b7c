//! State from which omitted fields of records are derived.

use super::Record;
use std::collections::HashMap;

/// Key of a file: whether its records are logical, and its number. Numbers of files are unique only
/// within a process.
pub(super) type FileKey = (bool, u64);

/// The last record of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct File {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) operation: u64,
    /// Time of the last use, of the writer's clock.
    pub(super) used: u64,
}

impl File {
    /// Returns the offset at which a sequential access begins; `None` if it exceeds the range of
    /// numbers.
    pub(super) fn next(&self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }
}

/// State of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) last_file: Option<u64>,
    pub(super) files: HashMap<FileKey, File>,
    pub(super) used: u64,
}

/// State of the trace up to some record.
#[derive(Clone, Debug, Default)]
pub(super) struct CodecState {
    pub(super) start: u64,
    pub(super) last_process: Option<u64>,
    pub(super) processes: HashMap<u64, Process>,
}

impl CodecState {
    /// Returns the last record of a file.
    pub(super) fn file(&self, process: u64, key: FileKey) -> Option<&File> {
        self.processes.get(&process)?.files.get(&key)
    }

    /// Applies a record at this time of the writer's clock. Returns its process.
    pub(super) fn see(&mut self, record: &Record, now: u64) -> &mut Process {
        self.start = record.start;
        self.last_process = Some(record.process);
        let process = self.processes.entry(record.process).or_default();
        let Record { offset, length, operation, .. } = *record;
        process
            .files
            .insert((record.kind.is_logical(), record.file), File { offset, length, operation, used: now });
        process.last_file = Some(record.file);
        process.used = now;
        process
    }
}
