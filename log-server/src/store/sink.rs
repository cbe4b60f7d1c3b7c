//! The writer of the trace directory, with retries: rows that cannot be written are kept and
//! written again.

use arrow_array::RecordBatch;
use miot_trace_store::{Error, KnownIds, Options, Summary, Table, Writer};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two attempts to write to a directory that cannot be written.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Writes rows to the trace directory, see the module.
#[derive(Debug)]
pub struct Sink {
    writer: Writer,
    /// Rows that could not be written yet.
    waiting: VecDeque<(Table, RecordBatch)>,
    /// The last write error, and the time of the next attempt.
    failing: Option<(Error, Instant)>,
    /// Events appended since the last commit.
    uncommitted: u64,
    committed: u64,
    /// A sealing error was logged and none has succeeded since.
    seal_failing: bool,
    /// A retention error was logged and none has succeeded since.
    retain_failing: bool,
}

impl Sink {
    /// Writes through `writer`.
    #[must_use]
    pub fn new(writer: Writer) -> Sink {
        Sink {
            writer,
            waiting: VecDeque::new(),
            failing: None,
            uncommitted: 0,
            committed: 0,
            seal_failing: false,
            retain_failing: false,
        }
    }

    /// Changes when parts are sealed and removed.
    pub fn set_options(&mut self, options: Options) {
        self.writer.set_options(options);
    }

    /// True while the directory cannot be written. The caller must not append more rows then.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Reason why the directory cannot be written, if it cannot.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failing.as_ref().map(|(error, _)| format!("the trace directory cannot be written: {error}"))
    }

    /// Number of durable events.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Number of events that were appended and are not durable.
    #[must_use]
    pub fn uncommitted(&self) -> u64 {
        self.uncommitted
    }

    /// Appends rows. They are durable after the next commit that succeeds.
    ///
    /// # Errors
    /// If the rows do not have the schema of the table: a bug of this program.
    pub fn append(&mut self, table: Table, batch: RecordBatch) -> Result<(), Error> {
        if table == Table::Events {
            self.uncommitted += batch.num_rows() as u64;
        }
        if self.waiting.is_empty() {
            match self.writer.append(table, &batch) {
                Ok(()) => return Ok(()),
                Err(error @ Error::Io { .. }) => self.fail(error),
                Err(error) => return Err(error),
            }
        }
        self.waiting.push_back((table, batch));
        Ok(())
    }

    /// Makes all appended rows durable. Returns false if that is not possible at present.
    ///
    /// # Errors
    /// Those of [`Sink::append`]; [`Error::Replaced`] if the trace was deleted, renamed or
    /// replaced.
    pub fn commit(&mut self) -> Result<bool, Error> {
        while let Some((table, batch)) = self.waiting.front() {
            match self.writer.append(*table, batch) {
                Ok(()) => {
                    self.waiting.pop_front();
                }
                Err(error @ Error::Io { .. }) => {
                    self.fail(error);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        match self.writer.commit() {
            Ok(()) => {}
            // Only a new writer can continue.
            Err(error @ Error::Replaced { .. }) => return Err(error),
            Err(error) => {
                self.fail(error);
                return Ok(false);
            }
        }
        if self.failing.take().is_some() {
            tracing::info!(events = self.uncommitted, "trace directory is writable again");
        }
        self.committed += std::mem::take(&mut self.uncommitted);
        Ok(true)
    }

    /// Number of the live part.
    #[must_use]
    pub fn part(&self) -> u64 {
        self.writer.part()
    }

    /// True if it is time to write to a failing directory again.
    #[must_use]
    pub fn retry_due(&self, now: Instant) -> bool {
        self.failing.as_ref().is_some_and(|(_, at)| now >= *at)
    }

    /// Syncs the ledger if it is due.
    pub fn sync_ledger_if_due(&mut self) {
        if self.is_failing() {
            return;
        }
        if let Err(error) = self.writer.sync_ledger_if_due() {
            self.fail(error);
        }
    }

    /// Seals the live part if it is due. `known` is called only if retention is configured: it
    /// returns the ids that later events may refer to.
    pub fn seal_if_due(&mut self, known: impl FnOnce() -> KnownIds) {
        if self.is_failing() || !self.writer.seal_due() {
            return;
        }
        if self.writer.retains() {
            self.writer.set_known_ids(known());
        }
        match self.writer.seal() {
            Ok(()) => self.seal_failing = false,
            Err(error @ Error::Seal { .. }) => {
                if !std::mem::replace(&mut self.seal_failing, true) {
                    tracing::error!(%error, "sealing failed, nothing is lost, retrying");
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes expired parts if the check is due.
    pub fn retain_if_due(&mut self) {
        if !self.writer.retain_due() {
            return;
        }
        match self.writer.retain() {
            Ok(()) => self.retain_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.retain_failing, true) {
                    tracing::error!(%error, "retention failed, retrying");
                }
            }
        }
        if let Some(removed) = self.writer.removed() {
            tracing::info!("{removed}");
        }
    }

    /// Seals the live part and ends.
    ///
    /// # Errors
    /// Those of [`Writer::finish`].
    pub fn finish(self) -> Result<Summary, Error> {
        self.writer.finish()
    }

    /// Returns the error because of which the directory cannot be written, if it cannot.
    #[must_use]
    pub fn into_failure(self) -> Option<Error> {
        self.failing.map(|(error, _)| error)
    }

    fn fail(&mut self, error: Error) {
        if self.failing.is_none() {
            let hint = if error.is_disk_full() { "free some space" } else { "check the trace directory" };
            tracing::error!(
                %error,
                "the trace cannot be written: no events are acknowledged, so the nodes keep them; {hint}; retrying every \
                 second"
            );
        }
        self.failing = Some((error, Instant::now() + RETRY_EVERY));
    }
}
