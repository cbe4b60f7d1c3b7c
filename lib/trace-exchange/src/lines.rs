//! Events as comma-separated values or JSON lines, with a choice of columns.

use arrow_array::RecordBatch;
use miot_trace_events::row::{COLUMNS, Column};
use miot_trace_events::{Format, RowPrinter};
use std::io::{self, Write};

/// No column has this name.
#[derive(Debug, thiserror::Error)]
#[error("no such column; there are {}", all_columns())]
pub struct UnknownColumn;

fn all_columns() -> String {
    COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// Returns the column of this name.
///
/// # Errors
/// [`UnknownColumn`], with the names of all columns.
pub fn column(name: &str) -> Result<&'static Column, UnknownColumn> {
    Column::named(name).ok_or(UnknownColumn)
}

/// Writes events, one per line.
#[derive(Debug)]
pub struct Lines<'w> {
    printer: RowPrinter<'w>,
}

impl<'w> Lines<'w> {
    /// Starts the output. `columns` are the columns to write, in this order; all if it is empty.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn new(to: impl Write + 'w, format: Format, columns: Vec<&'static Column>) -> io::Result<Lines<'w>> {
        let mut printer = RowPrinter::new(to, format, None);
        if !columns.is_empty() {
            printer = printer.with_columns(columns);
        }
        printer.header()?;
        Ok(Lines { printer })
    }

    /// Writes events in the schema of [`miot_trace_store::schema::rows`].
    ///
    /// # Errors
    /// Errors of writing; missing columns.
    pub fn add(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.printer.print(batch, u64::MAX, &|_, _| true).map(drop)
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> io::Result<()> {
        self.printer.flush()
    }
}
