//! The command line of `miot-query`.

use clap::{Args, Parser, ValueEnum};
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
    after_help = "Examples:\n  miot query miot-trace 'SELECT op, count(*) FROM events GROUP BY op'\n  miot query miot-trace                                 interactive shell\n  miot query miot-trace < report.sql                    several statements\n  miot query -t mon -t tue 'SELECT trace, sum(bytes) FROM io GROUP BY trace'\n  miot query miot-trace 'SELECT * FROM io' --format parquet -o io.parquet\n  miot query s3://traces/mon 'SELECT * FROM job_stats'  sealed parts only\n  miot query s3://traces/mon --copy mon                 a copy, for all other commands\n  miot query s3://traces/mon --workers a:4750,b:4750 'SELECT * FROM file_stats'\n  miot query --workers a:4750,b:4750 --check\n\nTables: events processes threads files losses clocks devices\nViews:  io file_stats job_stats paths\n\nExit codes: 0 success, 1 the trace or the query failed, 2 wrong usage, or invalid SQL, 4 the result lacks data that is damaged or missing in the trace (it is named on standard error)."
)]
pub struct Options {
    /// The trace: a directory, file://, s3://bucket/prefix, also gs:// and az://, or http(s)://
    /// of a server that can list folders (WebDAV). With --trace, the SQL
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
    /// Run the query on these workers, which are started with `miot query worker`. They must be
    /// able to read the trace under the same name: in an object store, or in a directory that all
    /// of them mount. Sealed parts only
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub workers: Vec<String>,
    /// Instead of SQL: check that the workers answer, and have the version of this program
    #[arg(long, requires = "workers", conflicts_with_all = ["first", "second", "traces", "copy", "output"])]
    pub check: bool,
    /// Threads that the query uses on each worker, at least 2 [default: number of processors of
    /// this machine]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub worker_threads: Option<u16>,
    /// Certificate of a reader or an operator, for the workers; see `miot pki`
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_CERTIFICATE")]
    pub tls_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities of the workers
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_AUTHORITY")]
    pub tls_authority: Option<PathBuf>,
    /// Do not verify the checksums of sealed events first, which reads all of them: damaged pages
    /// may then give wrong values
    #[arg(long)]
    pub no_verify: bool,
    /// Default; see --no-verify
    #[arg(long, hide = true, conflicts_with = "no_verify")]
    #[allow(dead_code, reason = "scripts of earlier versions give it")]
    verify: bool,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    pub limits: Limits,
}

/// Memory and temporary files of queries.
#[derive(Args, Clone, Debug)]
pub struct Limits {
    /// Memory for sorting, grouping and joining, e.g. 512MiB; operations that need more use
    /// temporary files
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size, env = "MIOT_QUERY_MEMORY_LIMIT")]
    pub memory_limit: usize,
    /// Directory for temporary files [default: $TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR", env = "MIOT_QUERY_SPILL_DIR")]
    pub spill_dir: Option<PathBuf>,
}

/// Run parts of the queries of other machines
///
/// A service for `miot query --workers`. Each worker must have the same version as `miot query`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "miot-query-worker",
    bin_name = "miot query worker",
    version,
    after_help = "A worker reads only what is below its places, and writes nothing. Credentials of an object store come from its own\nenvironment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP ...\n\nWithout TLS it serves its own machine only, unless --allow-insecure is given. With TLS it has the certificate of a\nserver, serves readers and operators, and is a reader for other workers (--reader-certificate). SIGHUP reloads the files.\n\nExamples:\n  miot query worker s3://traces                                   one machine, for a try\n  miot query worker --listen 127.0.0.1:4751 s3://traces          another worker there\n  miot query worker --listen 0.0.0.0:4750 /cluster/traces --tls-certificate server.pem --tls-key server.key\\\n      --tls-authority authority.pem --reader-certificate reader.pem --reader-key reader.key\n\nExit codes: 0 stopped, 1 failed, 2 wrong options."
)]
pub struct WorkerOptions {
    /// Where traces are: s3://BUCKET/PREFIX (gs://, az://), http(s)://HOST/PREFIX, or a directory
    #[arg(value_name = "PLACE", required = true, env = "MIOT_WORKER_PLACES", value_delimiter = ' ')]
    pub places: Vec<String>,
    /// Address on which queries are accepted
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4750", env = "MIOT_WORKER_LISTEN")]
    pub listen: String,
    /// Certificate of a server
    #[arg(long, value_name = "FILE", env = "MIOT_WORKER_TLS_CERTIFICATE")]
    pub tls_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "MIOT_WORKER_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities of readers and other workers
    #[arg(long, value_name = "FILE", env = "MIOT_WORKER_TLS_AUTHORITY")]
    pub tls_authority: Option<PathBuf>,
    /// Certificate of a reader, for connections to other workers
    #[arg(long, value_name = "FILE", env = "MIOT_WORKER_READER_CERTIFICATE")]
    pub reader_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "MIOT_WORKER_READER_KEY")]
    pub reader_key: Option<PathBuf>,
    /// Without TLS, serve other machines too
    #[arg(long, env = "MIOT_WORKER_ALLOW_INSECURE")]
    pub allow_insecure: bool,
    /// Log level: error, warn, info, debug, or a filter, e.g. miot_query=debug [default: $RUST_LOG,
    /// else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_WORKER_LOG")]
    pub log: Option<String>,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    pub limits: Limits,
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
