//! A suite of measurements, as its configuration file says it.

use crate::pattern::{Impossible, Pattern, Piece, optional_bytes};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is done with every piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Into a new file.
    #[default]
    Write,
    /// Over what is there.
    ReWrite,
    /// For the first time since it was written.
    Read,
    /// Once more: the same accesses have been made before the clock runs.
    ReRead,
    /// Each piece is read and written.
    ReadModifyWrite,
    /// Some pieces are read, the others written: see [`Run::read_share`].
    Mixed,
    /// Nothing: what the benchmark itself takes.
    None,
}

impl Operation {
    /// The file has its content before the clock runs.
    #[must_use]
    pub fn needs_content(self) -> bool {
        !matches!(self, Operation::Write | Operation::None)
    }

    /// Pieces may be read.
    #[must_use]
    pub fn reads(self) -> bool {
        self.needs_content() && self != Operation::ReWrite
    }

    /// Pieces may be written.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Operation::Read | Operation::ReRead | Operation::None)
    }
}

/// How files are accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// `pread` and `pwrite`.
    #[default]
    Posix,
    /// `MPI_File_read_at` and `MPI_File_write_at`.
    MpiIo,
}

/// How long a process waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pause(#[serde(with = "miot_proto::units::duration")] pub Duration);

/// What becomes of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Is used as it comes.
    #[default]
    Keep,
    /// What the file has in it is dropped before the clock runs (`POSIX_FADV_DONTNEED`).
    Drop,
    /// Is bypassed (`O_DIRECT`): pieces must be multiples of 4096 bytes.
    Direct,
}

/// When data is made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// Never, unless the file system does it.
    #[default]
    Never,
    /// After the last piece of each process, within T.
    End,
    /// After each piece.
    Each,
}

/// How much of what is read is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Nothing.
    None,
    /// The first and last eight bytes of each piece that is read; all that was written, after the clock has stopped.
    #[default]
    Ends,
    /// All that is read, which takes time within T; all that was written, after the clock has stopped.
    All,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    /// What it is called in the results.
    pub name: String,
    /// Which bytes are accessed.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// What is done.
    #[serde(default)]
    pub operation: Operation,
    /// Share of pieces that a mixed run reads.
    #[serde(default = "half")]
    pub read_share: f64,
    /// Each process has a file of its own, in which it has the pieces of rank 0 of one process.
    #[serde(default)]
    pub file_per_process: bool,
    /// What becomes of the page cache.
    #[serde(default)]
    pub cache: Cache,
    /// When data is made durable.
    #[serde(default)]
    pub sync: Sync,
    /// How much is compared.
    #[serde(default)]
    pub verify: Verify,
    /// Pieces in a row before the process computes; 0: it never does.
    #[serde(default)]
    pub burst: u64,
    /// How long it computes after each burst.
    #[serde(default, with = "miot_proto::units::duration")]
    pub compute: Duration,
    /// With which calls.
    #[serde(default)]
    pub interface: Interface,
    /// With the collective calls of MPI-IO: all processes call together.
    #[serde(default)]
    pub collective: bool,
    /// Pieces of a call of MPI-IO, through a file type.
    #[serde(default = "one")]
    pub together: u64,
    /// Bytes of memory of each process that data come from and go to, in turn; at least those of one call, at most 1 TiB. Little of it stays in
    /// the processor's cache.
    #[serde(default, with = "miot_proto::units::bytes")]
    pub memory: u64,
    /// Data that are read go to memory that begins at a page, as most benchmarks have it and [`Cache::Direct`] needs it; else to where `malloc`
    /// lets large arrays of programs begin, 16 bytes after that, which is faster for some processors.
    #[serde(default = "yes")]
    pub aligned: bool,
    /// Repetitions in a row that access one file, as the phases of an application do; then there is a new one.
    #[serde(default = "one")]
    pub phases: u64,
    /// Bytes from where a phase accesses the file to where the next does; `None`: behind all of it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub advance: Option<u64>,
    /// How long each process, by rank, waits between the first barrier and its first access; those beyond the end do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<Pause>,
    /// The same between its last access and the second barrier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linger: Vec<Pause>,
}

fn half() -> f64 {
    0.5
}

fn one() -> u64 {
    1
}

/// Measurements, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Suite {
    /// Processes that take part.
    #[serde(default = "two")]
    pub processes: u64,
    /// Repetitions of each measurement at most.
    #[serde(default = "ten")]
    pub repetitions: usize,
    /// A measurement is repeated, three times at least, until its 95 % confidence interval is within this share of the mean.
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
pub enum Wrong {
    /// Not TOML, or not what a suite is made of.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A pattern cannot be.
    #[error("run `{run}`: {why}")]
    Pattern {
        /// Its name.
        run: String,
        /// Why.
        why: Impossible,
    },
    /// Something else about a run.
    #[error("run `{run}`: {why}")]
    Run {
        /// Its name.
        run: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// About all of it.
    #[error("{0}")]
    Suite(&'static str),
}

/// The configuration file of a suite.
///
/// # Errors
/// If a number is more than TOML can say.
pub fn text(suite: &Suite) -> Result<String, toml::ser::Error> {
    toml::to_string(suite)
}

impl Suite {
    /// These runs, and nothing but defaults.
    #[must_use]
    pub fn of(runs: Vec<Run>) -> Suite {
        Suite { processes: two(), repetitions: ten(), precision: five_percent(), runs }
    }

    /// Reads a configuration file's text, and checks it.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn parse(text: &str) -> Result<Suite, Wrong> {
        let suite: Suite = toml::from_str(text)?;
        suite.check()?;
        Ok(suite)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn check(&self) -> Result<(), Wrong> {
        if self.runs.is_empty() {
            return Err(Wrong::Suite("there is no [[run]]: nothing to measure"));
        }
        if self.processes == 0 || self.repetitions == 0 {
            return Err(Wrong::Suite("`processes` and `repetitions` must be at least 1"));
        }
        if !(self.precision > 0.0 && self.precision < 1.0) {
            return Err(Wrong::Suite("`precision` is a share between 0 and 1, such as 0.05"));
        }
        self.runs.iter().try_for_each(|run| run.check(self.processes))
    }
}

/// Of [`Run::memory`].
const MOST_MEMORY: u64 = 1 << 40;

impl Run {
    /// A run with nothing but defaults.
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

    /// Rank and number of processes that decide which pieces a process has.
    #[must_use]
    pub fn place(&self, rank: u64, processes: u64) -> (u64, u64) {
        if self.file_per_process { (0, 1) } else { (rank, processes) }
    }

    /// Where the pieces of a phase, counted from 0, begin in a file that so many processes share.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn begin(&self, phase: u64, sharing: u64) -> Result<u64, Impossible> {
        let bytes = self.pattern.file_bytes(sharing)?;
        let begin = self.advance.unwrap_or(bytes).checked_mul(phase);
        let fits = |begin: &u64| begin.checked_add(bytes).is_some_and(|end| i64::try_from(end).is_ok());
        begin.filter(fits).ok_or(Impossible::TooLong)
    }

    /// Bytes of the file that so many processes share, after the last of its phases.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn file_bytes(&self, sharing: u64) -> Result<u64, Impossible> {
        Ok(self.begin(self.phases.saturating_sub(1), sharing)? + self.pattern.file_bytes(sharing)?)
    }

    fn check(&self, processes: u64) -> Result<(), Wrong> {
        let wrong = |why: &str| Err(Wrong::Run { run: self.name.clone(), why: why.to_owned() });
        let (_, sharing) = self.place(0, processes);
        if self.phases == 0 {
            return wrong("`phases` is at least 1");
        }
        self.file_bytes(sharing).map_err(|why| Wrong::Pattern { run: self.name.clone(), why })?;
        if self.operation.writes() && self.pattern.overlaps() && sharing > 1 {
            return wrong(
                "several processes would write the same bytes: use `file-per-process = true`, a pattern without overlap, or an operation that reads",
            );
        }
        if !(0.0..=1.0).contains(&self.read_share) {
            return wrong("`read-share` is a share between 0 and 1");
        }
        if self.interface == Interface::Posix && (self.collective || self.together > 1) {
            return wrong("`collective` and `together` are of MPI-IO: add `interface = \"mpi-io\"`");
        }
        if self.interface == Interface::MpiIo && self.cache == Cache::Direct {
            return wrong(
                "MPI-IO does not bypass the cache: use `cache = \"drop\"`, or `interface = \"posix\"`",
            );
        }
        if self.cache == Cache::Direct && !self.aligned {
            return wrong(
                "`cache = \"direct\"` needs memory that begins at a page: leave out `aligned = false` (--unaligned)",
            );
        }
        if self.together == 0 {
            return wrong("`together` is at least 1");
        }
        if self.memory > MOST_MEMORY {
            return wrong("`memory` is at most 1 TiB");
        }
        if self.collective && self.file_per_process {
            return wrong(
                "collective calls are on a file of all processes: not with `file-per-process = true`",
            );
        }
        if self.collective && self.operation == Operation::Mixed {
            return wrong("in a collective call all read or all write: not with `operation = \"mixed\"`");
        }
        if self.collective && self.sync == Sync::Each {
            return wrong("collective runs make data durable at the end: use `sync = \"end\"`");
        }
        if self.cache == Cache::Direct {
            let pieces = (0..sharing).filter_map(|rank| self.pattern.pieces(rank, sharing).ok()).flatten();
            let page = crate::content::ALIGNMENT as u64;
            let is_whole = |bytes: u64| bytes.is_multiple_of(page);
            let is_aligned = |piece: Piece| is_whole(piece.offset) && is_whole(piece.length);
            if !pieces.into_iter().all(is_aligned) || !self.advance.is_none_or(is_whole) {
                return wrong(
                    "`cache = \"direct\"` needs pieces that begin and end at multiples of 4096 bytes",
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
    fn a_suite_is_read_and_written() {
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
    fn what_cannot_be_measured_is_told_why() {
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
