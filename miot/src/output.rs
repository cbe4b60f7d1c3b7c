//! Events as text, JSON lines or CSV.

use crate::filter::{Candidate, Matcher};
use anyhow::Context as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch, StringArray};
use clap::ValueEnum;
use jiff::Timestamp;
use miot_proto::errno;
use miot_proto::event::flag;
use miot_proto::text::{Escape, Escaping};
use miot_trace_analysis::message::{message, prefix};
use miot_trace_store::Corrections;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal as _, LineWriter, StdoutLock, Write, stdout};
use std::path::Path;

/// A pipe, a device: no file that could be replaced.
pub(crate) fn is_special(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| !found.is_file())
}

/// The directory that a file is in.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fails if a file cannot be made or replaced: better before long work than after it.
pub(crate) fn check_writable(file: &Path) -> anyhow::Result<()> {
    if is_special(file) {
        return Ok(());
    }
    let folder = folder_of(file);
    let made = tempfile::tempfile_in(folder);
    made.map(drop).with_context(|| format!("cannot write into {}", folder.display()))
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines or a table, for people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// A JSON object per line.
    Json,
    /// Comma-separated values with a header line.
    Csv,
}

/// One event with its names resolved.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    /// Nanoseconds since 1970.
    pub(crate) time: i64,
    pub(crate) duration: i64,
    pub(crate) node: &'a str,
    pub(crate) process: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) comm: Option<&'a str>,
    pub(crate) layer: &'a str,
    pub(crate) op: &'a str,
    pub(crate) path: Option<&'a str>,
    pub(crate) path2: Option<&'a str>,
    pub(crate) offset: Option<i64>,
    pub(crate) offset2: Option<i64>,
    pub(crate) length: Option<i64>,
    pub(crate) arg: Option<i64>,
    pub(crate) result: i64,
    pub(crate) flags: u16,
    pub(crate) handle: Option<u64>,
    pub(crate) file: Option<u64>,
    pub(crate) file2: Option<u64>,
    pub(crate) stream: u64,
    pub(crate) seq: u64,
    pub(crate) request: u32,
    pub(crate) enclosing: Option<u32>,
    pub(crate) cpu_time: Option<i64>,
    pub(crate) caller_tid: Option<u32>,
    pub(crate) caller_uid: Option<u32>,
    pub(crate) mpi_rank: Option<u32>,
    pub(crate) mpi_size: Option<u32>,
    pub(crate) etypes: Option<i64>,
    pub(crate) type_size: Option<i64>,
    pub(crate) type_extent: Option<i64>,
    /// What a message of a debug log says.
    pub(crate) message: Option<String>,
}

/// What a column holds of a row.
pub(crate) enum Cell<'a> {
    None,
    Signed(i64),
    Unsigned(u64),
    Text(Cow<'a, str>),
}

trait IntoCell {
    fn cell(&self) -> Cell<'_>;
}

macro_rules! cells {
    ($($kind:ident: $($number:ty)*;)*) => {
        $($(impl IntoCell for $number {
            fn cell(&self) -> Cell<'_> {
                Cell::$kind((*self).into())
            }
        })*)*
    };
}

cells! { Signed: i64; Unsigned: u16 u32 u64; }

impl IntoCell for &str {
    fn cell(&self) -> Cell<'_> {
        Cell::Text((*self).into())
    }
}

impl IntoCell for String {
    fn cell(&self) -> Cell<'_> {
        Cell::Text(self.as_str().into())
    }
}

impl<T: IntoCell> IntoCell for Option<T> {
    fn cell(&self) -> Cell<'_> {
        self.as_ref().map_or(Cell::None, IntoCell::cell)
    }
}

/// A column of events as they are printed for programs.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    cell: for<'a> fn(&'a Row<'a>) -> Cell<'a>,
}

impl fmt::Debug for Column {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

macro_rules! columns {
    ($($name:ident)*) => {
        &[
            Column { name: "time", cell: |row| Cell::Text(time(row.time).into()) },
            $(Column { name: stringify!($name), cell: |row| row.$name.cell() },)*
        ]
    };
}

/// All of them, in the order of the documentation.
pub(crate) const COLUMNS: &[Column] = columns! {
    duration node process pid tid comm layer op path path2 offset offset2 length arg result flags handle file file2 stream
    seq request enclosing cpu_time caller_tid caller_uid mpi_rank mpi_size etypes type_size type_extent message
};

/// An object; what there is nothing of is left out.
impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        object(self, COLUMNS, to)
    }
}

fn object<'c, S: Serializer>(
    row: &Row<'_>,
    columns: impl IntoIterator<Item = &'c Column>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut object = to.serialize_map(None)?;
    for column in columns {
        match (column.cell)(row) {
            Cell::None => {}
            Cell::Signed(number) => object.serialize_entry(column.name, &number)?,
            Cell::Unsigned(number) => object.serialize_entry(column.name, &number)?,
            Cell::Text(text) => object.serialize_entry(column.name, &text)?,
        }
    }
    object.end()
}

/// Where rows go.
enum Rows<W: Write> {
    Text(W),
    Json(W),
    Csv(Box<csv::Writer<W>>),
}

/// Prints batches of rows.
pub(crate) struct Printer<W: Write> {
    out: Rows<W>,
    columns: Vec<&'static Column>,
    header_due: bool,
    /// Given: times are those of the nodes.
    node_times: Option<Corrections>,
}

/// The columns of a batch in the schema of `miot_trace_store::schema::rows`.
pub(crate) struct Columns<'a> {
    time: &'a PrimitiveArray<TimestampNanosecondType>,
    duration: &'a PrimitiveArray<Int64Type>,
    node: Names<'a>,
    process: &'a PrimitiveArray<UInt64Type>,
    pid: &'a PrimitiveArray<UInt32Type>,
    tid: &'a PrimitiveArray<UInt32Type>,
    comm: Names<'a>,
    layer: Names<'a>,
    op: Names<'a>,
    path: Names<'a>,
    path2: Names<'a>,
    offset: &'a PrimitiveArray<Int64Type>,
    offset2: &'a PrimitiveArray<Int64Type>,
    length: &'a PrimitiveArray<Int64Type>,
    arg: &'a PrimitiveArray<Int64Type>,
    result: &'a PrimitiveArray<Int64Type>,
    flags: &'a PrimitiveArray<UInt16Type>,
    handle: &'a PrimitiveArray<UInt64Type>,
    file: &'a PrimitiveArray<UInt64Type>,
    file2: &'a PrimitiveArray<UInt64Type>,
    stream: &'a PrimitiveArray<UInt64Type>,
    seq: &'a PrimitiveArray<UInt64Type>,
    request: &'a PrimitiveArray<UInt32Type>,
    enclosing: &'a PrimitiveArray<UInt32Type>,
    cpu_time: &'a PrimitiveArray<Int64Type>,
    caller_tid: &'a PrimitiveArray<UInt32Type>,
    caller_uid: &'a PrimitiveArray<UInt32Type>,
    mpi_rank: &'a PrimitiveArray<UInt32Type>,
    mpi_size: &'a PrimitiveArray<UInt32Type>,
    etypes: &'a PrimitiveArray<Int64Type>,
    type_size: &'a PrimitiveArray<Int64Type>,
    type_extent: &'a PrimitiveArray<Int64Type>,
}

/// A column of strings, plain or by dictionary.
struct Names<'a> {
    keys: Option<Vec<Option<usize>>>,
    values: &'a StringArray,
}

impl<'a> Names<'a> {
    fn of(batch: &'a RecordBatch, name: &str) -> anyhow::Result<Names<'a>> {
        let column = batch.column_by_name(name).with_context(|| format!("the trace has no column {name}"))?;
        if let Some(values) = column.as_string_opt::<i32>() {
            return Ok(Names { keys: None, values });
        }
        let dictionary =
            column.as_any_dictionary_opt().with_context(|| format!("column {name} is no string"))?;
        let values =
            dictionary.values().as_string_opt().with_context(|| format!("column {name} is no string"))?;
        let keys = dictionary.keys();
        let narrow = |i: usize| {
            let wide = keys.as_primitive_opt::<UInt8Type>().map(|k| usize::from(k.value(i)));
            wide.or_else(|| keys.as_primitive_opt::<UInt16Type>().map(|k| usize::from(k.value(i))))
                .or_else(|| keys.as_primitive_opt::<UInt32Type>().map(|k| k.value(i) as usize))
        };
        let keys = (0..keys.len()).map(|i| if keys.is_null(i) { None } else { narrow(i) }).collect();
        Ok(Names { keys: Some(keys), values })
    }

    fn get(&self, row: usize) -> Option<&'a str> {
        let at = match &self.keys {
            Some(keys) => keys.get(row).copied().flatten()?,
            None => row,
        };
        (at < self.values.len() && !self.values.is_null(at)).then(|| self.values.value(at))
    }
}

fn column<'a, T: arrow_array::ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> anyhow::Result<&'a PrimitiveArray<T>> {
    batch.column_by_name(name).and_then(|c| c.as_primitive_opt()).with_context(|| {
        format!("the trace has no column {name} of the expected type: is it of another version?")
    })
}

fn value<T: arrow_array::ArrowPrimitiveType>(column: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

impl<'a> Columns<'a> {
    pub(crate) fn of(batch: &'a RecordBatch) -> anyhow::Result<Columns<'a>> {
        Ok(Columns {
            time: column(batch, "time")?,
            duration: column(batch, "duration")?,
            node: Names::of(batch, "node")?,
            process: column(batch, "process")?,
            pid: column(batch, "pid")?,
            tid: column(batch, "tid")?,
            comm: Names::of(batch, "comm")?,
            layer: Names::of(batch, "layer")?,
            op: Names::of(batch, "op")?,
            path: Names::of(batch, "path")?,
            path2: Names::of(batch, "path2")?,
            offset: column(batch, "offset")?,
            offset2: column(batch, "offset2")?,
            length: column(batch, "length")?,
            arg: column(batch, "arg")?,
            result: column(batch, "result")?,
            flags: column(batch, "flags")?,
            handle: column(batch, "handle")?,
            file: column(batch, "file")?,
            file2: column(batch, "file2")?,
            stream: column(batch, "stream")?,
            seq: column(batch, "seq")?,
            request: column(batch, "request")?,
            enclosing: column(batch, "enclosing")?,
            cpu_time: column(batch, "cpu_time")?,
            caller_tid: column(batch, "caller_tid")?,
            caller_uid: column(batch, "caller_uid")?,
            mpi_rank: column(batch, "mpi_rank")?,
            mpi_size: column(batch, "mpi_size")?,
            etypes: column(batch, "etypes")?,
            type_size: column(batch, "type_size")?,
            type_extent: column(batch, "type_extent")?,
        })
    }

    pub(crate) fn matches(&self, matcher: &Matcher, i: usize) -> bool {
        matcher.matches(&Candidate {
            time: self.time.value(i),
            op: self.op.get(i).unwrap_or(""),
            layer: self.layer.get(i).unwrap_or(""),
            node: self.node.get(i).unwrap_or(""),
            pid: self.pid.value(i),
            process: self.process.value(i),
            paths: [self.path.get(i), self.path2.get(i)],
        })
    }

    pub(crate) fn row(&self, i: usize) -> Row<'a> {
        Row {
            time: self.time.value(i),
            duration: self.duration.value(i),
            node: self.node.get(i).unwrap_or(""),
            process: self.process.value(i),
            pid: self.pid.value(i),
            tid: self.tid.value(i),
            comm: self.comm.get(i),
            layer: self.layer.get(i).unwrap_or(""),
            op: self.op.get(i).unwrap_or(""),
            path: self.path.get(i),
            path2: self.path2.get(i),
            offset: value(self.offset, i),
            offset2: value(self.offset2, i),
            length: value(self.length, i),
            arg: value(self.arg, i),
            result: self.result.value(i),
            flags: self.flags.value(i),
            handle: value(self.handle, i),
            file: value(self.file, i),
            file2: value(self.file2, i),
            stream: self.stream.value(i),
            seq: self.seq.value(i),
            request: self.request.value(i),
            enclosing: value(self.enclosing, i),
            cpu_time: value(self.cpu_time, i),
            caller_tid: value(self.caller_tid, i),
            caller_uid: value(self.caller_uid, i),
            mpi_rank: value(self.mpi_rank, i),
            mpi_size: value(self.mpi_size, i),
            etypes: value(self.etypes, i),
            type_size: value(self.type_size, i),
            type_extent: value(self.type_extent, i),
            message: message(
                self.layer.get(i).unwrap_or(""),
                self.op.get(i).unwrap_or(""),
                self.path.get(i),
                self.path2.get(i),
            ),
        }
    }
}

/// Nanoseconds since 1970 as `2026-11-21T04:12:33.123456789Z`.
pub(crate) fn time(nanoseconds: i64) -> String {
    Timestamp::from_nanosecond(i128::from(nanoseconds))
        .map_or_else(|_| nanoseconds.to_string(), |t| format!("{t:.9}"))
}

/// A duration with three digits and a unit.
pub(crate) fn duration(nanoseconds: i64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        ..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.2}s", ns / 1e9),
    }
}

pub(crate) use miot_proto::text::printable;

/// Standard output. On a terminal, what names hold to steer it is shown and not obeyed, in every format.
pub(crate) enum Out {
    Plain(StdoutLock<'static>),
    Terminal(Escaping<LineWriter<StdoutLock<'static>>>),
}

impl Out {
    /// In this format. A JSON string stays the same string.
    pub(crate) fn new(is_json: bool) -> Out {
        let out = stdout();
        if !out.is_terminal() {
            return Out::Plain(out.lock());
        }
        let escape = if is_json { Escape::Json } else { Escape::Braces };
        Out::Terminal(Escaping::new(LineWriter::new(out.lock()), escape))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Terminal(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Terminal(out) => out.flush(),
        }
    }
}

/// When and where an event was, with a space after it.
pub(crate) struct Where<'a>(pub(crate) &'a Row<'a>);

impl fmt::Display for Where<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Where(row) = self;
        write!(out, "{} {} {}/{} ", time(row.time), printable(row.node), row.pid, row.tid)
    }
}

/// What an event was.
pub(crate) struct What<'a>(pub(crate) &'a Row<'a>);

impl fmt::Display for What<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What(row) = self;
        write!(out, "{:<6} {:<10} ", printable(row.layer), printable(row.op))?;
        if let Some(length) = row.length {
            write!(out, "{length}")?;
            if let Some(offset) = row.offset {
                write!(out, "@{offset}")?;
            }
            write!(out, " ")?;
        } else if let Some(offset) = row.offset {
            write!(out, "@{offset} ")?;
        }
        match errno::name(row.result.saturating_neg()) {
            Some(name) if row.result < 0 => write!(out, "= {name}")?,
            _ => write!(out, "= {}", row.result)?,
        }
        if row.flags & flag::INTERRUPTED != 0 {
            write!(out, " interrupted")?;
        }
        write!(out, " {}", duration(row.duration))?;
        if let Some(message) = &row.message {
            let mask = row.arg.unwrap_or(0);
            return write!(out, " [{} {mask:#x}] {}", prefix(row.flags), printable(message.trim_end()));
        }
        if let Some(path) = row.path {
            write!(out, " {}", printable(path))?;
        }
        if let Some(path2) = row.path2 {
            write!(out, " -> {}", printable(path2))?;
        }
        Ok(())
    }
}

/// Prints records for programs: as JSON, one per line, or as CSV.
pub(crate) fn records<T: Serialize>(
    out: &mut impl Write,
    format: Format,
    with_header: bool,
    rows: impl IntoIterator<Item = T>,
) -> anyhow::Result<()> {
    if format == Format::Csv {
        let mut lines = csv::WriterBuilder::new().has_headers(with_header).from_writer(out);
        for row in rows {
            lines.serialize(row)?;
        }
        return Ok(lines.flush()?);
    }
    for row in rows {
        serde_json::to_writer(&mut *out, &row)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Prints a table whose columns are as wide as what is in them.
pub(crate) fn table<const N: usize>(
    out: &mut impl Write,
    header: [String; N],
    rows: Vec<[String; N]>,
) -> std::io::Result<()> {
    let lines: Vec<_> = std::iter::once(header).chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
    });
    for line in &lines {
        let padded = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

impl<W: Write> Printer<W> {
    /// `node_times`: print the nodes' own times instead of the merged ones.
    pub(crate) fn new(out: W, format: Format, node_times: Option<Corrections>) -> Self {
        let (out, is_csv) = match format {
            Format::Text => (Rows::Text(out), false),
            Format::Json => (Rows::Json(out), false),
            Format::Csv => (Rows::Csv(Box::new(csv::Writer::from_writer(out))), true),
        };
        Printer { out, columns: COLUMNS.iter().collect(), header_due: is_csv, node_times }
    }

    /// Only these columns, in this order. Lines for people have no columns.
    pub(crate) fn with_columns(self, columns: Vec<&'static Column>) -> Self {
        Printer { columns, ..self }
    }

    /// Prints the rows that match, at most `limit` of them. Returns how many.
    pub(crate) fn print(
        &mut self,
        batch: &RecordBatch,
        matcher: &Matcher,
        limit: u64,
    ) -> anyhow::Result<u64> {
        self.header()?;
        let columns = Columns::of(batch)?;
        let mut printed = 0;
        for i in 0..batch.num_rows() {
            if printed >= limit {
                break;
            }
            if !columns.matches(matcher, i) {
                continue;
            }
            let mut row = columns.row(i);
            if let Some(corrections) = &self.node_times
                && let Some(own) = corrections.node_time(row.node, row.time, row.flags)
            {
                row.time = own;
            }
            self.row(&row)?;
            printed += 1;
        }
        Ok(printed)
    }

    /// The line before all others, if it is due.
    pub(crate) fn header(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.header_due)
            && let Rows::Csv(lines) = &mut self.out
        {
            lines.write_record(self.columns.iter().map(|column| column.name))?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        match &mut self.out {
            Rows::Text(out) => writeln!(out, "{}{}", Where(row), What(row))?,
            Rows::Json(out) => {
                let mut json = serde_json::Serializer::new(&mut *out);
                object(row, self.columns.iter().copied(), &mut json)?;
                writeln!(out)?;
            }
            Rows::Csv(lines) => {
                let mut digits = itoa::Buffer::new();
                for column in &self.columns {
                    match (column.cell)(row) {
                        Cell::None => lines.write_field("")?,
                        Cell::Signed(number) => lines.write_field(digits.format(number))?,
                        Cell::Unsigned(number) => lines.write_field(digits.format(number))?,
                        Cell::Text(text) => lines.write_field(text.as_ref())?,
                    }
                }
                lines.write_record(None::<&[u8]>)?;
            }
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        match &mut self.out {
            Rows::Text(out) | Rows::Json(out) => out.flush()?,
            Rows::Csv(lines) => lines.flush()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        assert_eq!(
            [999, 1_500, 2_000_000, 61_000_000_000].map(duration),
            ["999ns", "1.5us", "2.0ms", "61.00s"]
        );
    }

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("/äö"), "/äö");
    }

    #[test]
    fn a_table_is_aligned() {
        let mut out = Vec::new();
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        table(&mut out, row(["A", "B", "C"]), vec![row(["1234", "x", ""]), row(["1", "äö", "end"])]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "A     B   C\n1234  x\n1     äö  end\n");
    }

    #[test]
    fn times_have_nine_digits() {
        assert_eq!(time(1_700_000_000_000_000_001), "2023-11-14T22:13:20.000000001Z");
    }
}
