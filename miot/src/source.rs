//! Options of all analyses for their trace and time, and reading of events with a progress bar.

use crate::filter::{moment, nanoseconds};
use crate::unread;
use arrow_array::RecordBatch;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use miot_trace_results::{Error, Input, Watch};
use miot_trace_store::{Reader, Scan, Select};
use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Options that select a trace and a time range.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// Trace directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Only events completed at or after this time, e.g. 2026-11-21T12:00:00Z, or an age such as
    /// 10m, 90s, 2h, 1d
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only events completed before this time or age
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
}

impl Source {
    /// Selects all of a trace.
    pub(crate) fn whole(dir: &Path) -> Source {
        Source { dir: dir.to_owned(), since: None, until: None }
    }

    /// Returns the time range, nanoseconds since 1970.
    pub(crate) fn times(&self) -> Range<i64> {
        self.since.map_or(i64::MIN, nanoseconds)..self.until.map_or(i64::MAX, nanoseconds)
    }

    /// Opens the trace; see [`unread::open`].
    pub(crate) fn open(&self) -> anyhow::Result<Reader> {
        unread::open(&self.dir)
    }

    /// Returns the input of an analysis, with a progress bar on a terminal.
    pub(crate) fn input<'a>(&self, reader: &'a Reader, progress: &'a Progress) -> Input<'a> {
        Input { reader, times: self.times(), watch: progress }
    }

    /// Passes these columns of the events in order, with a progress bar on a terminal.
    pub(crate) fn scan(
        &self,
        reader: &Reader,
        columns: &[&'static str],
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<RecordBatch>> + use<>> {
        self.scan_selected(reader, Select::columns(columns))
    }

    /// Like [`Source::scan`], for the selected events.
    pub(crate) fn scan_selected(
        &self,
        reader: &Reader,
        select: Select,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<RecordBatch>> + use<>> {
        let scan = reader.scan(&select.between(self.times()))?;
        let bar = bar_of(&scan);
        Ok(scan.map(move |batch| {
            let batch = batch?;
            bar.inc(batch.num_rows() as u64);
            Ok(batch)
        }))
    }
}

/// Shows the progress of reading events.
#[derive(Debug, Default)]
pub(crate) struct Progress(RefCell<Option<ProgressBar>>);

impl Watch for Progress {
    fn begin(&self, scan: &Scan) {
        *self.0.borrow_mut() = Some(bar_of(scan));
    }

    fn read(&self, rows: u64) -> Result<(), Error> {
        if let Some(bar) = &*self.0.borrow() {
            bar.inc(rows);
        }
        Ok(())
    }
}

/// Returns a progress bar of reading events. Their number is read only if it is shown.
fn bar_of(scan: &Scan) -> ProgressBar {
    let rows = if std::io::stderr().is_terminal() { scan.rows() } else { 0 };
    bar(rows, "events")
}

/// Returns a progress bar on standard error, if that is a terminal. Dropping the bar removes it.
pub(crate) fn bar(total: u64, what: &'static str) -> ProgressBar {
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = "{bar:30} {percent:>3} %  {human_pos} of {human_len} {msg}, {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar.with_finish(indicatif::ProgressFinish::AndClear)
}
