//! Rows as text, JSON lines or CSV.

use crate::columns::EventColumns;
use crate::format::Format;
use crate::row::{self, COLUMNS, Column, EventRow, Value, serialize_columns};
use crate::text::{LineHead, LineTail};
use arrow_array::RecordBatch;
use miot_trace_store::Corrections;
use serde::Serialize;
use std::io::{self, Write};

/// Prints batches of events in the schema of [`miot_trace_store::schema::rows`].
///
/// The type of the writer is not a parameter, so that the code is compiled here, with the
/// optimization of this crate, and not in the commands.
pub struct RowPrinter<'w> {
    out: Output<'w>,
    /// Buffer for one line.
    line: Vec<u8>,
    columns: Vec<&'static Column>,
    header_due: bool,
    /// `Some` to print the times of the nodes.
    node_times: Option<Corrections>,
}

enum Output<'w> {
    Text(Box<dyn Write + 'w>),
    Json(Box<dyn Write + 'w>),
    Csv(Box<csv::Writer<Box<dyn Write + 'w>>>),
}

impl std::fmt::Debug for RowPrinter<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RowPrinter").finish_non_exhaustive()
    }
}

impl<'w> RowPrinter<'w> {
    /// Returns a printer. With `node_times` it prints the nodes' own times instead of the merged
    /// ones.
    pub fn new(out: impl Write + 'w, format: Format, node_times: Option<Corrections>) -> Self {
        let out: Box<dyn Write + 'w> = Box::new(out);
        let (out, is_csv) = match format {
            Format::Text => (Output::Text(out), false),
            Format::Json => (Output::Json(out), false),
            Format::Csv => (Output::Csv(Box::new(csv::Writer::from_writer(out))), true),
        };
        RowPrinter {
            out,
            line: Vec::new(),
            columns: COLUMNS.iter().collect(),
            header_due: is_csv,
            node_times,
        }
    }

    /// Restricts the output to these columns, in this order. [`Format::Text`] ignores columns.
    #[must_use]
    pub fn with_columns(self, columns: Vec<&'static Column>) -> Self {
        RowPrinter { columns, ..self }
    }

    /// Prints the rows for which `is_wanted` is true, at most `limit` of them. Returns their
    /// number.
    ///
    /// # Errors
    /// Errors of writing; [`io::ErrorKind::InvalidData`] if the batch has another schema.
    pub fn print(
        &mut self,
        batch: &RecordBatch,
        limit: u64,
        is_wanted: &dyn Fn(&EventColumns<'_>, usize) -> bool,
    ) -> io::Result<u64> {
        self.header()?;
        let columns = row::columns(batch)?;
        let mut printed = 0;
        for i in 0..columns.rows() {
            if printed >= limit {
                break;
            }
            if !is_wanted(&columns, i) {
                continue;
            }
            let mut row = EventRow::of(&columns, i);
            if let Some(corrections) = &self.node_times {
                row.use_node_time(corrections);
            }
            self.row(&row)?;
            printed += 1;
        }
        Ok(printed)
    }

    /// Prints the header line if it was not printed yet.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn header(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.header_due)
            && let Output::Csv(lines) = &mut self.out
        {
            lines.write_record(self.columns.iter().map(|column| column.name))?;
        }
        Ok(())
    }

    fn row(&mut self, row: &EventRow<'_>) -> io::Result<()> {
        match &mut self.out {
            Output::Text(out) => {
                self.line.clear();
                writeln!(self.line, "{}{}", LineHead(row), LineTail(row))?;
                out.write_all(&self.line)?;
            }
            Output::Json(out) => {
                self.line.clear();
                let mut json = serde_json::Serializer::new(&mut self.line);
                serialize_columns(row, self.columns.iter().copied(), &mut json)?;
                self.line.push(b'\n');
                out.write_all(&self.line)?;
            }
            Output::Csv(lines) => {
                let mut digits = itoa::Buffer::new();
                for column in &self.columns {
                    match column.value(row) {
                        None => lines.write_field("")?,
                        Some(Value::Time(time)) => lines.write_field(crate::text::time(time))?,
                        Some(Value::Signed(number)) => lines.write_field(digits.format(number))?,
                        Some(Value::Unsigned(number)) => lines.write_field(digits.format(number))?,
                        Some(Value::Text(text)) => lines.write_field(text.as_ref())?,
                    }
                }
                lines.write_record(None::<&[u8]>)?;
            }
        }
        Ok(())
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Output::Text(out) | Output::Json(out) => out.flush(),
            Output::Csv(lines) => lines.flush(),
        }
    }
}

/// Prints records for programs, as CSV or as one JSON object per line.
///
/// # Errors
/// Errors of writing; a record that cannot be serialized.
pub fn records<T: Serialize>(
    out: &mut impl Write,
    format: Format,
    with_header: bool,
    records: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    if format == Format::Csv {
        let mut lines = csv::WriterBuilder::new().has_headers(with_header).from_writer(out);
        for record in records {
            lines.serialize(record)?;
        }
        return lines.flush();
    }
    for record in records {
        serde_json::to_writer(&mut *out, &record)?;
        writeln!(out)?;
    }
    Ok(())
}
