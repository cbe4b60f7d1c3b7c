//! The trace that a result is computed of.

use crate::Error;
use arrow_array::RecordBatch;
use miot_trace_store::{Reader, Scan, Select};
use std::ops::Range;

/// Watches the reading of a trace: shows its progress, or ends it.
pub trait Watch {
    /// A scan begins.
    fn begin(&self, scan: &Scan) {
        let _ = scan;
    }

    /// A batch of this many rows was read.
    ///
    /// # Errors
    /// [`Error::Interrupted`] ends the scan.
    fn read(&self, rows: u64) -> Result<(), Error> {
        let _ = rows;
        Ok(())
    }
}

/// Reads to the end, without a display.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// A trace, the times of the events to read, and who watches.
#[derive(Clone)]
pub struct Input<'a> {
    /// The trace.
    pub reader: &'a Reader,
    /// Only events completed within these times, nanoseconds since 1970.
    pub times: Range<i64>,
    /// Watches the reading.
    pub watch: &'a dyn Watch,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("reader", self.reader)
            .field("times", &self.times)
            .finish_non_exhaustive()
    }
}

impl<'a> Input<'a> {
    /// Selects all events of a trace, without a watch.
    #[must_use]
    pub fn whole(reader: &'a Reader) -> Input<'a> {
        Input { reader, times: i64::MIN..i64::MAX, watch: &Unwatched }
    }

    /// Returns these columns of the events, in order.
    ///
    /// # Errors
    /// [`Error::Trace`]; the items can also have [`Error::Interrupted`].
    pub fn scan(
        &self,
        columns: &[&'static str],
    ) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<'a>, Error> {
        self.scan_selected(Select::columns(columns))
    }

    /// Like [`Input::scan`], for the selected events.
    ///
    /// # Errors
    /// As [`Input::scan`].
    pub fn scan_selected(
        &self,
        select: Select,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<'a>, Error> {
        let scan = self.reader.scan(&select.between(self.times.clone()))?;
        let watch = self.watch;
        watch.begin(&scan);
        Ok(scan.map(move |batch| {
            let batch = batch?;
            watch.read(batch.num_rows() as u64)?;
            Ok(batch)
        }))
    }

    /// Passes these columns of all events to `add`.
    ///
    /// # Errors
    /// As [`Input::scan`].
    pub fn each(&self, columns: &[&'static str], mut add: impl FnMut(&RecordBatch)) -> Result<(), Error> {
        for batch in self.scan(columns)? {
            add(&batch?);
        }
        Ok(())
    }
}
