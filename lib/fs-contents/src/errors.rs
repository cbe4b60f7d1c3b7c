//! Failures of a walk, by kind.

use miot_proto::errno;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Number of paths that are kept as examples of each kind of failure.
const EXAMPLES: usize = 5;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailedStep {
    /// Reading the attributes of an entry, which is then counted only as an entry of its directory.
    Stat,
    /// Opening a directory, which is counted without its entries.
    Open,
    /// Reading a directory. Entries that were read before are counted.
    Read,
    /// Reading a symbolic link.
    ReadLink,
}

impl FailedStep {
    /// Returns the name of the step in snapshots.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FailedStep::Stat => "stat",
            FailedStep::Open => "open",
            FailedStep::Read => "read",
            FailedStep::ReadLink => "read_link",
        }
    }
}

/// One failure.
#[derive(Debug)]
pub(crate) struct Failure {
    step: FailedStep,
    errno: i32,
    path: Vec<u8>,
}

impl Failure {
    pub(crate) fn new(step: FailedStep, errno: Errno, path: Vec<u8>) -> Failure {
        Failure { step, errno: errno.raw_os_error(), path }
    }
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// The step that failed.
    pub step: FailedStep,
    /// Name of the error, such as `EACCES`, or its number.
    pub error: String,
    /// Number of failures.
    pub count: u64,
    /// Some of the paths, from the root of the walk, escaped.
    pub examples: Vec<String>,
}

/// All failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errors {
    /// Failures by step and error.
    pub rows: Vec<ErrorRow>,
}

impl Errors {
    pub(crate) fn add(&mut self, failed: Failure) {
        let error = errno::name(failed.errno.into()).map_or_else(|| failed.errno.to_string(), str::to_owned);
        let path = miot_trace_store::escape::path(&failed.path).0.into_owned();
        self.add_row(ErrorRow { step: failed.step, error, count: 1, examples: vec![path] });
    }

    fn add_row(&mut self, row: ErrorRow) {
        let key = |row: &ErrorRow| (row.step, row.error.clone());
        match self.rows.binary_search_by_key(&key(&row), key) {
            Ok(at) => {
                let known = &mut self.rows[at];
                known.count += row.count;
                known.examples.extend(row.examples);
                known.examples.truncate(EXAMPLES);
            }
            Err(at) => self.rows.insert(at, row),
        }
    }

    pub(crate) fn merge(&mut self, other: &Errors) {
        other.rows.iter().for_each(|row| self.add_row(row.clone()));
    }
}
