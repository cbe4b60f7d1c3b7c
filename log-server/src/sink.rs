//! The trace directory, with patience: what cannot be written is kept and tried again.

use arrow_array::RecordBatch;
use miot_trace_store::{Error, Known, Options, Summary, Table, Writer};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Between two attempts to write to a directory that cannot be written.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Sink {
    writer: Writer,
    /// Rows the writer did not take.
    waiting: VecDeque<(Table, RecordBatch)>,
    /// The error that made it fail, and when it is tried again.
    failing: Option<(Error, Instant)>,
    /// Events given since the last commit.
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

    /// When parts are sealed and removed, from now on.
    pub fn set_options(&mut self, options: Options) {
        self.writer.set_options(options);
    }

    /// True while the directory cannot be written: nothing more should be given.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Why it is.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failing.as_ref().map(|(error, _)| format!("the trace directory cannot be written: {error}"))
    }

    /// Events that were made durable.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Events that were given and are not durable.
    #[must_use]
    pub fn uncommitted(&self) -> u64 {
        self.uncommitted
    }

    /// Takes rows: they are in the trace after the next commit that succeeds.
    ///
    /// # Errors
    /// If the rows are not what the table needs: a fault of this program.
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

    /// Makes durable what was given. Returns false if that is not possible at present.
    ///
    /// # Errors
    /// As [`Sink::append`]; [`Error::Gone`] if the trace was taken away.
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
            // Only another writer can go on.
            Err(error @ Error::Gone { .. }) => return Err(error),
            Err(error) => {
                self.fail(error);
                return Ok(false);
            }
        }
        if self.failing.take().is_some() {
            tracing::info!(events = self.uncommitted, "the trace directory can be written again");
        }
        self.committed += std::mem::take(&mut self.uncommitted);
        Ok(true)
    }

    /// Number of the live part.
    #[must_use]
    pub fn part(&self) -> u64 {
        self.writer.part()
    }

    /// True if a failing directory should be tried again.
    #[must_use]
    pub fn retry_due(&self, now: Instant) -> bool {
        self.failing.as_ref().is_some_and(|(_, at)| now >= *at)
    }

    /// Makes durable what the ledger has, if it is time.
    pub fn sync_ledger_if_due(&mut self) {
        if self.is_failing() {
            return;
        }
        if let Err(error) = self.writer.sync_ledger_if_due() {
            self.fail(error);
        }
    }

    /// Seals the live part if it is time. `known` is asked then if old parts are to be removed some day.
    pub fn seal_if_due(&mut self, known: impl FnOnce() -> Known) {
        if self.is_failing() || !self.writer.seal_due() {
            return;
        }
        if self.writer.retains() {
            self.writer.know(known());
        }
        match self.writer.seal() {
            Ok(()) => self.seal_failing = false,
            Err(error @ Error::Seal { .. }) => {
                if !std::mem::replace(&mut self.seal_failing, true) {
                    tracing::error!(%error, "sealing failed, nothing is lost, it will be tried again");
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes parts that are not to be kept, if it is time to look.
    pub fn retain_if_due(&mut self) {
        if !self.writer.retain_due() {
            return;
        }
        match self.writer.retain() {
            Ok(()) => self.retain_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.retain_failing, true) {
                    tracing::error!(%error, "retention failed, it will be tried again");
                }
            }
        }
        if let Some(removed) = self.writer.removed() {
            tracing::info!("{removed}");
        }
    }

    /// Seals everything.
    ///
    /// # Errors
    /// Those of [`Writer::finish`].
    pub fn finish(self) -> Result<Summary, Error> {
        self.writer.finish()
    }

    /// Why the directory cannot be written, if so.
    #[must_use]
    pub fn into_failure(self) -> Option<Error> {
        self.failing.map(|(error, _)| error)
    }

    fn fail(&mut self, error: Error) {
        if self.failing.is_none() {
            let hint = if error.is_disk_full() { "free some space" } else { "see to the trace directory" };
            tracing::error!(
                %error,
                "the trace cannot be written; nothing more is acknowledged, so the nodes keep their events; {hint}, \
                 it is tried again every second"
            );
        }
        self.failing = Some((error, Instant::now() + RETRY_EVERY));
    }
}
