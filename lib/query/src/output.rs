//! Results in the requested format.

#![expect(clippy::disallowed_types, reason = "flag for the exit code: some rows could not be read")]

use anyhow::Context as _;
use datafusion::arrow::array::{AsArray as _, RecordBatch};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::display::FormatOptions;
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use miot_proto::text::printable_lines;
use miot_query::cli::Format;
use std::io::{self, BufWriter, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard output. It records that the reader has closed the pipe.
pub(crate) struct Out;

static UNREAD: AtomicBool = AtomicBool::new(false);

impl Out {
    /// Returns whether the reader has closed the pipe: `miot query … | head`.
    pub(crate) fn is_unread() -> bool {
        UNREAD.load(Ordering::Relaxed)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stdout().write(bytes).inspect_err(record_closed_pipe)
    }

    fn flush(&mut self) -> io::Result<()> {
        stdout().flush().inspect_err(record_closed_pipe)
    }
}

fn record_closed_pipe(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        UNREAD.store(true, Ordering::Relaxed);
    }
}

/// Maximum number of rows of one table. Columns are as wide as the content of these rows; further
/// rows start another table.
const TABLE_ROWS: usize = 10_000;

/// Writes the rows of one statement.
pub(crate) struct Output<W: Write + Send>(RowWriter<W>);

enum RowWriter<W: Write + Send> {
    Table { out: W, schema: SchemaRef, rows: Vec<RecordBatch>, held: usize, printed: bool },
    Json(LineDelimitedWriter<W>),
    Csv(Box<csv::Writer<W>>),
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<StreamWriter<BufWriter<W>>>),
}

impl<W: Write + Send> Output<W> {
    pub(crate) fn new(format: Format, out: W, schema: SchemaRef) -> anyhow::Result<Output<W>> {
        Ok(Output(match format {
            Format::Table => RowWriter::Table { out, schema, rows: Vec::new(), held: 0, printed: false },
            Format::Json => RowWriter::Json(LineDelimitedWriter::new(out)),
            Format::Csv => {
                let mut csv = csv::WriterBuilder::new().with_header(true).build(out);
                // Write the header even without rows.
                csv.write(&RecordBatch::new_empty(schema))?;
                RowWriter::Csv(Box::new(csv))
            }
            Format::Parquet => {
                let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
                let properties = WriterProperties::builder().set_compression(zstd).build();
                RowWriter::Parquet(Box::new(ArrowWriter::try_new(out, schema, Some(properties))?))
            }
            Format::Arrow => RowWriter::Arrow(Box::new(StreamWriter::try_new_buffered(out, &schema)?)),
        }))
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        match &mut self.0 {
            RowWriter::Table { out, schema, rows, held, printed } => {
                let mut at = 0;
                while at < batch.num_rows() {
                    let taken = (TABLE_ROWS - *held).min(batch.num_rows() - at);
                    rows.push(batch.slice(at, taken));
                    (at, *held) = (at + taken, *held + taken);
                    if *held == TABLE_ROWS {
                        table(out, schema, rows)?;
                        (*held, *printed) = (0, true);
                    }
                }
            }
            RowWriter::Json(json) => json.write(batch)?,
            RowWriter::Csv(csv) => csv.write(batch)?,
            RowWriter::Parquet(parquet) => parquet.write(batch)?,
            RowWriter::Arrow(arrow) => arrow.write(batch)?,
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self.0 {
            RowWriter::Table { mut out, schema, mut rows, held, printed } => {
                if held > 0 || !printed {
                    table(&mut out, &schema, &mut rows)?;
                }
                out.flush()?;
            }
            RowWriter::Json(mut json) => {
                json.finish()?;
                json.into_inner().flush()?;
            }
            RowWriter::Csv(csv) => csv.into_inner().flush()?,
            RowWriter::Parquet(parquet) => parquet.into_inner()?.flush()?,
            RowWriter::Arrow(mut arrow) => arrow.finish()?,
        }
        Ok(())
    }
}

/// Prints the rows and clears them.
fn table(out: &mut impl Write, schema: &SchemaRef, rows: &mut Vec<RecordBatch>) -> anyhow::Result<()> {
    let mut rows = std::mem::take(rows);
    if schema.fields().iter().map(|field| field.name().as_str()).eq(["plan_type", "plan"]) {
        return plans(out, &rows);
    }
    if rows.is_empty() {
        rows.push(RecordBatch::new_empty(schema.clone()));
    }
    let options = FormatOptions::new().with_null("");
    let text = pretty_format_batches_with_options(&rows, &options).context("the rows cannot be shown")?;
    Ok(writeln!(out, "{}", printable_lines(&text.to_string()))?)
}

/// Prints the result of `EXPLAIN`, which already consists of lines.
fn plans(out: &mut impl Write, rows: &[RecordBatch]) -> anyhow::Result<()> {
    for batch in rows {
        let (Some(kinds), Some(plans)) =
            (batch.column(0).as_string_opt::<i32>(), batch.column(1).as_string_opt::<i32>())
        else {
            continue;
        };
        for (kind, plan) in kinds.iter().zip(plans) {
            let (kind, plan) = (kind.unwrap_or_default(), plan.unwrap_or_default());
            writeln!(out, "{kind}:\n{}", printable_lines(plan.trim_end()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, StringArray};
    use std::sync::Arc;

    fn printed(format: Format, rows: usize) -> String {
        let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|_| "a\u{1b}[2Jb")));
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let mut out = Vec::new();
        let mut output = Output::new(format, &mut out, batch.schema()).unwrap();
        output.write(&batch).unwrap();
        output.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn control_characters_are_escaped() {
        assert!(printed(Format::Table, 1).contains("| a\\u{1b}[2Jb"));
    }

    #[test]
    fn result_without_rows_has_header() {
        assert_eq!(printed(Format::Csv, 0), "x\n");
        assert_eq!(printed(Format::Table, 0), "+---+\n| x |\n+---+\n+---+\n");
        assert_eq!(printed(Format::Json, 0), "");
    }

    #[test]
    fn many_rows_become_several_tables() {
        let text = printed(Format::Table, 2 * TABLE_ROWS + 1);
        assert_eq!(text.matches("| x ").count(), 3);
        assert_eq!(text.matches("[2J").count(), 2 * TABLE_ROWS + 1);
    }
}
