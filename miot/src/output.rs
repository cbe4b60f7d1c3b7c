//! Events as text, JSON lines or CSV.

use crate::errno;
use crate::filter::{Candidate, Matcher};
use crate::message::{message, prefix};
use anyhow::Context as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch, StringArray};
use clap::ValueEnum;
use jiff::Timestamp;
use miot_proto::event::flag;
use miot_trace_store::Corrections;
use serde::Serialize;
use std::fmt;
use std::io::Write;

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

/// One event with its names resolved, in the order and under the names of the documentation.
#[derive(Debug, Serialize)]
pub(crate) struct Row<'a> {
    pub(crate) time: String,
    pub(crate) duration: i64,
    pub(crate) node: &'a str,
    pub(crate) process: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comm: Option<&'a str>,
    pub(crate) layer: &'a str,
    pub(crate) op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path2: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset2: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arg: Option<i64>,
    pub(crate) result: i64,
    pub(crate) flags: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file2: Option<u64>,
    pub(crate) stream: u64,
    pub(crate) seq: u64,
    pub(crate) request: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enclosing: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caller_tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caller_uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mpi_rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mpi_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etypes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) type_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) type_extent: Option<i64>,
    /// What a message of a debug log says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

const CSV_HEADER: &str = "time,duration,node,process,pid,tid,comm,layer,op,path,path2,offset,offset2,length,arg,result,flags,handle,file,file2,stream,seq,request,enclosing,cpu_time,caller_tid,caller_uid,mpi_rank,mpi_size,etypes,type_size,type_extent,message";

/// Prints batches of rows.
pub(crate) struct Printer<W: Write> {
    out: W,
    format: Format,
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

    /// When the event of a row completed, nanoseconds in merged time.
    pub(crate) fn completion(&self, i: usize) -> i64 {
        self.time.value(i)
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
            time: time(self.time.value(i)),
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

/// Terminal control characters in names of files must not reach the terminal.
pub(crate) fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(char::is_control) {
        text.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
            .collect()
    } else {
        text.into()
    }
}

/// When and where an event was, with a space after it.
pub(crate) struct Where<'a>(pub(crate) &'a Row<'a>);

impl fmt::Display for Where<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Where(row) = self;
        write!(out, "{} {} {}/{} ", row.time, row.node, row.pid, row.tid)
    }
}

/// What an event was.
pub(crate) struct What<'a>(pub(crate) &'a Row<'a>);

impl fmt::Display for What<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What(row) = self;
        write!(out, "{:<6} {:<10} ", row.layer, row.op)?;
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
        Printer { out, format, header_due: format == Format::Csv, node_times }
    }

    /// Prints the rows that match, at most `limit` of them. Returns how many.
    pub(crate) fn print(
        &mut self,
        batch: &RecordBatch,
        matcher: &Matcher,
        limit: u64,
    ) -> anyhow::Result<u64> {
        if std::mem::take(&mut self.header_due) {
            writeln!(self.out, "{CSV_HEADER}")?;
        }
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
                && let Some(own) = corrections.node_time(row.node, columns.time.value(i), row.flags)
            {
                row.time = time(own);
            }
            match self.format {
                Format::Text => self.text(&row)?,
                Format::Json => {
                    serde_json::to_writer(&mut self.out, &row)?;
                    writeln!(self.out)?;
                }
                Format::Csv => self.csv(&row)?,
            }
            printed += 1;
        }
        Ok(printed)
    }

    fn text(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        Ok(writeln!(self.out, "{}{}", Where(row), What(row))?)
    }

    fn csv(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        let mut line = csv::Writer::from_writer(&mut self.out);
        let text = |v: Option<&dyn ToString>| v.map(ToString::to_string).unwrap_or_default();
        fn some<T: ToString>(v: &Option<T>) -> Option<&dyn ToString> {
            v.as_ref().map(|v| v as &dyn ToString)
        }
        line.write_record([
            row.time.clone(),
            row.duration.to_string(),
            row.node.to_owned(),
            row.process.to_string(),
            row.pid.to_string(),
            row.tid.to_string(),
            text(some(&row.comm)),
            row.layer.to_owned(),
            row.op.to_owned(),
            text(some(&row.path)),
            text(some(&row.path2)),
            text(some(&row.offset)),
            text(some(&row.offset2)),
            text(some(&row.length)),
            text(some(&row.arg)),
            row.result.to_string(),
            row.flags.to_string(),
            text(some(&row.handle)),
            text(some(&row.file)),
            text(some(&row.file2)),
            row.stream.to_string(),
            row.seq.to_string(),
            row.request.to_string(),
            text(some(&row.enclosing)),
            text(some(&row.cpu_time)),
            text(some(&row.caller_tid)),
            text(some(&row.caller_uid)),
            text(some(&row.mpi_rank)),
            text(some(&row.mpi_size)),
            text(some(&row.etypes)),
            text(some(&row.type_size)),
            text(some(&row.type_extent)),
            text(some(&row.message)),
        ])?;
        line.flush()?;
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
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
