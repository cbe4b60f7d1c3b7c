//! Suites of measurements and their configuration files.

use crate::pattern::{Extent, Pattern, PatternError, optional_bytes};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a run does with every extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes to a new file.
    #[default]
    Write,
    /// Overwrites existing data.
    ReWrite,
    /// Reads the data for the first time after it was written.
    Read,
    /// Reads again: the same accesses were made before the measurement.
    ReRead,
    /// Reads and writes each extent.
    ReadModifyWrite,
    /// Reads some extents and writes the others: see [`Run::read_share`].
    Mixed,
    /// Accesses nothing, which measures the overhead of the benchmark.
    None,
}

impl Operation {
    /// True if the file has content before the measurement.
    #[must_use]
    pub fn needs_content(self) -> bool {
        !matches!(self, Operation::Write | Operation::None)
    }

    /// True if extents may be read.
    #[must_use]
    pub fn reads(self) -> bool {
        self.needs_content() && self != Operation::ReWrite
    }

    /// True if extents may be written.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Operation::Read | Operation::ReRead | Operation::None)
    }
}

/// Calls that access files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// `pread` and `pwrite`.
    #[default]
    Posix,
    /// `MPI_File_read_at` and `MPI_File_write_at`.
    MpiIo,
}

/// Time that a process waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pause(#[serde(with = "miot_proto::units::duration")] pub Duration);

/// Use of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Use the cache as it is.
    #[default]
    Keep,
    /// Drop the pages of the file before the measurement (`POSIX_FADV_DONTNEED`).
    Drop,
    /// Bypass the cache (`O_DIRECT`): offsets and lengths must be multiples of 4096 bytes.
    Direct,
}

/// When data is made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// When the file system does it.
    #[default]
    Never,
    /// After the last extent of each process, within T.
    End,
    /// After each extent.
    Each,
}

/// Which bytes are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// No bytes.
    None,
    /// The first and last eight bytes of each extent that is read; all written bytes, after the
    /// measurement.
    #[default]
    Ends,
    /// All bytes that are read, which takes time within T; all written bytes, after the
    /// measurement.
    All,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    /// Name in the results.
    pub name: String,
    /// Which bytes are accessed.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// What the processes do.
    #[serde(default)]
    pub operation: Operation,
    /// Share of extents that a mixed run reads, 0 to 1. Default: 0.5.
    #[serde(default = "half")]
    pub read_share: f64,
    /// Each process has its own file, which it accesses as if it were the only process.
    #[serde(default)]
    pub file_per_process: bool,
    /// Use of the page cache.
    #[serde(default)]
    pub cache: Cache,
    /// When data is made durable.
    #[serde(default)]
    pub sync: Sync,
    /// Which bytes are verified.
    #[serde(default)]
    pub verify: Verify,
    /// Calls between two computing phases; 0: no computing.
    #[serde(default)]
    pub burst: u64,
    /// Time that the process computes after each burst.
    #[serde(default, with = "miot_proto::units::duration")]
    pub compute: Duration,
    /// Calls that access the file.
    #[serde(default)]
    pub interface: Interface,
    /// Use the collective calls of MPI-IO: all processes call together.
    #[serde(default)]
    pub collective: bool,
    /// Extents that one call of MPI-IO accesses, through a file type. Default: 1.
    #[serde(default = "one")]
    pub together: u64,
    /// Bytes of memory of each process that the calls use in turn, so that little of it stays in
    /// the processor's cache; at least those of one call, at most 1 TiB. Default: 0.
    #[serde(default, with = "miot_proto::units::bytes")]
    pub memory: u64,
    /// Reads fill memory that begins at a page, as in most benchmarks and as [`Cache::Direct`]
    /// requires. Otherwise it begins 16 bytes after a page, as large arrays from `malloc` do, which
    /// is faster on some processors. Default: true.
    #[serde(default = "yes")]
    pub aligned: bool,
    /// Consecutive repetitions that access one file, as the phases of an application do. Then a new
    /// file is created. Default: 1.
    #[serde(default = "one")]
    pub phases: u64,
    /// Bytes from the start of a phase in the file to the start of the next; `None`: the bytes of a
    /// phase.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub advance: Option<u64>,
    /// Time that each process, by rank, waits between the first barrier and its first access;
    /// processes beyond the end of the list do not wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<Pause>,
    /// Time that each process, by rank, waits between its last access and the second barrier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linger: Vec<Pause>,
}

fn half() -> f64 {
    0.5
}

fn one() -> u64 {
    1
}

/// A sequence of measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Suite {
    /// Number of processes. Default: 2.
    #[serde(default = "two")]
    pub processes: u64,
    /// Most repetitions of each measurement. Default: 10.
    #[serde(default = "ten")]
    pub repetitions: usize,
    /// A measurement is repeated, at least three times, until half of its 95 % confidence interval
    /// is at most this share of the mean. Default: 0.05.
    #[serde(default = "five_percent")]
    pub precision: f64,
    /// The measurements.
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
}

fn two() -> u64 {
    2
}

fn ten() -> usize {
    10
}

fn yes() -> bool {
    true
}

fn five_percent() -> f64 {
    0.05
}

/// Why a suite cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// Not TOML, or not the keys and values of a suite.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// The pattern of a run is invalid.
    #[error("run `{run}`: {reason}")]
    Pattern {
        /// Name of the run.
        run: String,
        /// What is wrong with the pattern.
        reason: PatternError,
    },
    /// Another setting of a run is invalid.
    #[error("run `{run}`: {reason}")]
    Run {
        /// Name of the run.
        run: String,
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// A setting of the suite is invalid.
    #[error("{0}")]
    Suite(&'static str),
}

/// Returns the text of the configuration file of a suite.
///
/// # Errors
/// If a number is too large for TOML.
pub fn to_toml(suite: &Suite) -> Result<String, toml::ser::Error> {
    toml::to_string(suite)
}

impl Suite {
    /// Creates a suite of these runs with the default settings.
    #[must_use]
    pub fn with_runs(runs: Vec<Run>) -> Suite {
        Suite { processes: two(), repetitions: ten(), precision: five_percent(), runs }
    }

    /// Parses and checks the text of a configuration file.
    ///
    /// # Errors
    /// [`SuiteError`].
    pub fn parse(text: &str) -> Result<Suite, SuiteError> {
        let suite: Suite = toml::from_str(text)?;
        suite.check()?;
        Ok(suite)
    }

    /// Checks the limits that the types do not express.
    ///
    /// # Errors
    /// [`SuiteError`].
    pub fn check(&self) -> Result<(), SuiteError> {
        if self.runs.is_empty() {
            return Err(SuiteError::Suite("nothing to measure: the suite has no [[run]]"));
        }
        if self.processes == 0 || self.repetitions == 0 {
            return Err(SuiteError::Suite("`processes` and `repetitions` must be at least 1"));
        }
        if !(self.precision > 0.0 && self.precision < 1.0) {
            return Err(SuiteError::Suite("`precision` must be a share between 0 and 1, e.g. 0.05"));
        }
        self.runs.iter().try_for_each(|run| run.check(self.processes))
    }
}

/// Maximum of [`Run::memory`], bytes.
const MAX_MEMORY: u64 = 1 << 40;

impl Run {
    /// Creates a run with the default settings.
    #[must_use]
    pub fn new(name: &str, pattern: Pattern) -> Run {
        Run {
            name: name.to_owned(),
            pattern,
            operation: Operation::default(),
            read_share: half(),
            file_per_process: false,
            cache: Cache::default(),
            sync: Sync::default(),
            verify: Verify::default(),
            burst: 0,
            compute: Duration::ZERO,
            interface: Interface::default(),
            collective: false,
            together: one(),
            memory: 0,
            aligned: true,
            phases: one(),
            advance: None,
            late: Vec::new(),
            linger: Vec::new(),
        }
    }

    /// Returns the rank and the number of processes with which the pattern is evaluated for a
    /// process: its own, or 0 of 1 with a file per process.
    #[must_use]
    pub fn pattern_rank(&self, rank: u64, processes: u64) -> (u64, u64) {
        if self.file_per_process { (0, 1) } else { (rank, processes) }
    }

    /// Returns the offset at which a phase, counted from 0, begins in a file that `sharing`
    /// processes access.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn phase_offset(&self, phase: u64, sharing: u64) -> Result<u64, PatternError> {
        let bytes = self.pattern.file_bytes(sharing)?;
        let begin = self.advance.unwrap_or(bytes).checked_mul(phase);
        let fits = |begin: &u64| begin.checked_add(bytes).is_some_and(|end| i64::try_from(end).is_ok());
        begin.filter(fits).ok_or(PatternError::TooLong)
    }

    /// Returns the size of a file that `sharing` processes access, after its last phase.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn file_bytes(&self, sharing: u64) -> Result<u64, PatternError> {
        Ok(self.phase_offset(self.phases.saturating_sub(1), sharing)? + self.pattern.file_bytes(sharing)?)
    }

    /// Checks the settings of the run.
    fn check(&self, processes: u64) -> Result<(), SuiteError> {
        let wrong = |reason| Err(SuiteError::Run { run: self.name.clone(), reason });
        let (_, sharing) = self.pattern_rank(0, processes);
        if self.phases == 0 {
            return wrong("`phases` must be at least 1");
        }
        self.file_bytes(sharing).map_err(|reason| SuiteError::Pattern { run: self.name.clone(), reason })?;
        if self.operation.writes() && self.pattern.overlaps() && sharing > 1 {
            return wrong(
                "several processes would write the same bytes: use `file-per-process = true`, a pattern without overlap, or an operation that reads",
            );
        }
        if !(0.0..=1.0).contains(&self.read_share) {
            return wrong("`read-share` must be a share between 0 and 1");
        }
        if self.interface == Interface::Posix && (self.collective || self.together > 1) {
            return wrong("`collective` and `together` need MPI-IO: add `interface = \"mpi-io\"`");
        }
        if self.interface == Interface::MpiIo && self.cache == Cache::Direct {
            return wrong(
                "MPI-IO cannot bypass the cache: use `cache = \"drop\"` or `interface = \"posix\"`",
            );
        }
        if self.cache == Cache::Direct && !self.aligned {
            return wrong(
                "`cache = \"direct\"` needs memory that begins at a page: remove `aligned = false` (--unaligned)",
            );
        }
        if self.together == 0 {
            return wrong("`together` must be at least 1");
        }
        if self.memory > MAX_MEMORY {
            return wrong("`memory` must be at most 1 TiB");
        }
        if self.collective && self.file_per_process {
            return wrong(
                "collective calls need a file that all processes share: remove `file-per-process = true`",
            );
        }
        if self.collective && self.operation == Operation::Mixed {
            return wrong(
                "in a collective call all processes read or all write: do not use `operation = \"mixed\"`",
            );
        }
        if self.collective && self.sync == Sync::Each {
            return wrong("collective runs make data durable at the end: use `sync = \"end\"`");
        }
        if self.cache == Cache::Direct {
            let extents = (0..sharing).filter_map(|rank| self.pattern.extents(rank, sharing).ok()).flatten();
            let page = crate::content::ALIGNMENT as u64;
            let is_whole = |bytes: u64| bytes.is_multiple_of(page);
            let is_aligned = |extent: Extent| is_whole(extent.offset) && is_whole(extent.length);
            if !extents.into_iter().all(is_aligned) || !self.advance.is_none_or(is_whole) {
                return wrong(
                    "`cache = \"direct\"` needs offsets and lengths that are multiples of 4096 bytes",
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Operation, Suite};
    use crate::Pattern;

    #[test]
    fn suite_survives_writing_and_parsing() {
        let text = r#"
            processes = 4
            [[run]]
            name = "checkpoint"
            pattern = "strided"
            block = "1 MiB"
            count = 8
            operation = "re-write"
            cache = "direct"
            burst = 2
            compute = "10ms"
            [[run]]
            name = "film"
            pattern = "random-strided"
            least = "4 KiB"
            most = 65536
            count = 100
        "#;
        let suite = Suite::parse(text).unwrap();
        assert_eq!(suite.runs[0].pattern, Pattern::Strided { block: 1 << 20, count: 8, stride: None });
        assert_eq!((suite.runs[0].operation, suite.runs[0].cache), (Operation::ReWrite, Cache::Direct));
        let again = Suite::parse(&toml::to_string(&suite).unwrap()).unwrap();
        assert_eq!(again, suite);
    }

    #[test]
    fn invalid_suites_are_refused_with_the_reason() {
        let run = |lines: &str| format!("[[run]]\nname = \"x\"\n{lines}");
        let cases = [
            ("processes = 2\nrun = []".to_owned(), "nothing to measure"),
            (run("pattern = \"zigzag\""), "zigzag"),
            (run("pattern = \"segmented\"\nblock = 4096"), "count"),
            (run("pattern = \"sequential\"\nblock = 4096\ncount = 2"), "the same bytes"),
            (run("pattern = \"segmented\"\nblock = 4096\ncount = 2\nblok = 3"), "blok"),
            (run("pattern = \"segmented\"\nblock = 100\ncount = 2\ncache = \"direct\""), "4096"),
            (run("pattern = \"segmented\"\nblock = \"4 KB/s\"\ncount = 2"), "4 KB/s"),
        ];
        for (text, expected) in cases {
            let error = Suite::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
