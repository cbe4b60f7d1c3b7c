//! Times, durations, lines and tables for people.

use crate::message::prefix;
use crate::row::EventRow;
use jiff::Timestamp;
use miot_proto::errno;
use miot_proto::event::flag;
pub use miot_proto::text::printable;
use std::fmt;
use std::io::Write;

/// Formats nanoseconds since 1970 as `2026-11-21T04:12:33.123456789Z`.
#[must_use]
pub fn time(nanoseconds: i64) -> String {
    Timestamp::from_nanosecond(i128::from(nanoseconds))
        .map_or_else(|_| nanoseconds.to_string(), |t| format!("{t:.9}"))
}

/// Formats a duration in nanoseconds with about three digits and a unit.
#[must_use]
pub fn duration(nanoseconds: i64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        ..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.2}s", ns / 1e9),
    }
}

/// First half of the line of an event: time, node, process and thread, with a space at the end.
#[derive(Debug)]
pub struct LineHead<'a>(pub &'a EventRow<'a>);

impl fmt::Display for LineHead<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineHead(row) = self;
        write!(out, "{} {} {}/{} ", time(row.time), printable(row.node), row.pid, row.tid)
    }
}

/// Second half of the line of an event: layer, operation, range, result, duration, and paths,
/// message, or name and attributes of a region.
#[derive(Debug)]
pub struct LineTail<'a>(pub &'a EventRow<'a>);

impl fmt::Display for LineTail<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineTail(row) = self;
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
        if (row.layer, row.op) == ("app", "region") {
            let attributes = row.message.as_deref().unwrap_or_default();
            return write!(out, " {} {}", printable(row.path.unwrap_or_default()), printable(attributes));
        }
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

/// Prints a table whose columns are as wide as their widest cell.
///
/// # Errors
/// Errors of writing.
pub fn table<const N: usize>(
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
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("/äö"), "/äö");
    }

    #[test]
    fn table_columns_are_aligned() {
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
