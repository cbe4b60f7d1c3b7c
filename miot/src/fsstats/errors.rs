//! What could not be counted, and why.

use miot_proto::errno;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Paths that are named for each kind of error; the rest is counted.
const EXAMPLES: usize = 5;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Attributes of a name: it is in no figure but the entries of its directory.
    Stat,
    /// Opening a directory: it is counted, what is in it is not.
    Open,
    /// Reading a directory: what came before is counted.
    Read,
    /// Reading a symbolic link.
    ReadLink,
}

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Stat => "stat",
            Step::Open => "open",
            Step::Read => "read",
            Step::ReadLink => "read_link",
        }
    }
}

/// One failure.
#[derive(Debug)]
pub(crate) struct Failed {
    step: Step,
    errno: i32,
    path: Vec<u8>,
}

impl Failed {
    pub(crate) fn new(step: Step, errno: Errno, path: Vec<u8>) -> Failed {
        Failed { step, errno: errno.raw_os_error(), path }
    }
}

/// Failures of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorRow {
    pub(crate) step: Step,
    /// `EACCES`.
    pub(crate) error: String,
    pub(crate) count: u64,
    /// Some of the paths, from the directory of the walk.
    pub(crate) examples: Vec<String>,
}

/// All failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Errors {
    pub(crate) rows: Vec<ErrorRow>,
}

impl Errors {
    pub(crate) fn add(&mut self, failed: Failed) {
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
