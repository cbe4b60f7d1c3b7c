//! The command line of `miot-query`.

use clap::{Parser, ValueEnum};
use miot_proto::units::{format_bytes, parse_bytes};
use std::path::PathBuf;

/// Least memory limit, bytes: the engine needs more than this for any query.
const LEAST_MEMORY: usize = 16 << 20;

/// Query a trace in SQL
#[derive(Clone, Debug, Parser)]
#[command(
    name = "miot-query",
    bin_name = "miot query",
    version,
    after_help = "Examples:\n  miot query miot-trace 'SELECT op, count(*) FROM events GROUP BY op'\n  miot query miot-trace                                 interactive shell\n  miot query miot-trace < report.sql                    several statements\n  miot query -t mon -t tue 'SELECT trace, sum(bytes) FROM io GROUP BY trace'\n  miot query miot-trace 'SELECT * FROM io' --format parquet -o io.parquet\n  miot query s3://traces/mon 'SELECT * FROM job_stats'  sealed parts only\n  miot query s3://traces/mon --copy mon                 a copy, for all other commands\n\nTables: events processes threads files losses clocks devices\nViews:  io file_stats job_stats paths\n\nExit codes: 0 success, 1 the trace or the query failed, 2 wrong usage, or invalid SQL, 4 the result lacks data that is damaged or missing in the trace (it is named on standard error)."
)]
pub struct Options {
    /// The trace: a directory, file://, s3://bucket/prefix, or http(s):// of a server that can list
    /// folders (WebDAV). With --trace, the SQL
    #[arg(value_name = "TRACE", allow_hyphen_values = true)]
    pub first: Option<String>,
    /// Statements, separated by semicolons; - or nothing: from standard input, on a terminal
    /// interactively
    #[arg(value_name = "SQL", allow_hyphen_values = true)]
    pub second: Option<String>,
    /// One of several traces; column `trace` has the name of its directory
    #[arg(short, long = "trace", value_name = "TRACE")]
    pub traces: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Write to this file instead of standard output; it appears when it is complete
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Instead of SQL: copy the sealed parts of a trace in an object store into this new directory,
    /// which all other commands read
    #[arg(long, value_name = "DIR")]
    pub copy: Option<PathBuf>,
    /// Do not verify the checksums of sealed events first, which reads all of them: damaged pages
    /// may then give wrong values
    #[arg(long)]
    pub no_verify: bool,
    /// Default; see --no-verify
    #[arg(long, hide = true, conflicts_with = "no_verify")]
    #[allow(dead_code, reason = "scripts of earlier versions give it")]
    verify: bool,
    /// Memory for sorting, grouping and joining, e.g. 512MiB; operations that need more use
    /// temporary files
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub memory_limit: usize,
    /// Directory for temporary files [default: $TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text table.
    #[default]
    #[value(alias = "text")]
    Table,
    /// One JSON object per line, without null values.
    Json,
    /// Comma-separated values with a header line.
    Csv,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC stream.
    Arrow,
}

impl Format {
    /// Returns true for a format that is not text.
    #[must_use]
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Parquet | Format::Arrow)
    }
}

impl Options {
    /// Returns the traces, and the SQL if it was given.
    ///
    /// # Errors
    /// A text for the user if no trace is given, or SQL is given more than once.
    pub fn split(&self) -> Result<(Vec<String>, Option<String>), &'static str> {
        let (traces, sql) = match (self.traces.as_slice(), &self.first, &self.second) {
            ([], None, _) => return Err("no trace given: miot query TRACE 'SQL'"),
            ([], Some(trace), sql) => (vec![trace.clone()], sql.clone()),
            (traces, sql, None) => (traces.to_vec(), sql.clone()),
            _ => return Err("with --trace, give only the SQL: miot query --trace A --trace B 'SQL'"),
        };
        Ok((traces, sql.filter(|sql| sql != "-")))
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    match parse_bytes(text).map(usize::try_from) {
        Ok(Ok(bytes)) if bytes >= LEAST_MEMORY => Ok(bytes),
        Ok(Ok(_)) => Err(format!("at least {} are needed", format_bytes(LEAST_MEMORY as u64))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn split(line: &[&str]) -> Result<(Vec<String>, Option<String>), &'static str> {
        Options::try_parse_from([&["miot-query"], line].concat()).unwrap().split()
    }

    #[test]
    fn with_trace_options_the_argument_is_sql() {
        let of = |traces: &[&str], sql: Option<&str>| {
            Ok((traces.iter().map(ToString::to_string).collect(), sql.map(str::to_owned)))
        };
        assert_eq!(split(&["a"]), of(&["a"], None));
        assert_eq!(split(&["a", "SELECT 1"]), of(&["a"], Some("SELECT 1")));
        assert_eq!(split(&["a", "-"]), of(&["a"], None));
        assert_eq!(split(&["-t", "a", "-t", "b", "SELECT 1"]), of(&["a", "b"], Some("SELECT 1")));
        assert_eq!(
            split(&["a", "--format", "csv", "-- all\nSELECT 1"]),
            of(&["a"], Some("-- all\nSELECT 1"))
        );
        assert_eq!(
            split(&["a", "-- all\nSELECT 1", "--format", "csv"]),
            of(&["a"], Some("-- all\nSELECT 1"))
        );
        assert!(split(&[]).is_err());
        assert!(split(&["-t", "a", "b", "SELECT 1"]).is_err());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for wrong in ["", "MiB", "1", "12 parsecs", "99999999999999999999g", "18446744073709551615g"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
