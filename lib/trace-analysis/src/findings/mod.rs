//! Findings: inefficient I/O, detected by rules with thresholds, evidence and advice.
//!
//! The rules are the patterns that Carns et al. (2011, section V) found to be the most expensive
//! for applications, and patterns that only a trace shows: bytes read twice or overwritten. They
//! examine programs ([`crate::programs`]) by their outermost requests
//! ([`miot_trace_events::outermost`]). Files of the system are excluded unless requested. Each rule
//! is in `rules/`, with its thresholds as constants and their reasons. A rule that needs many
//! requests does not match a program with few.
//!
//! The rules about regions need two passes over the events, and are in [`crate::regions`].
//!
//! Memory grows with programs and their members. At most [`FILES`] files are examined. The number
//! of ranges per file is limited, so that bytes read twice or overwritten are lower bounds.

mod collect;
mod facts;
mod ranges;
mod rules;

pub use collect::Collector;

use crate::programs::{LeftOut, Program};
use serde::Serialize;

/// Maximum number of examined files.
pub const FILES: usize = 1 << 20;
/// Maximum number of files in a finding.
const NAMED: usize = 5;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Most reads are small.
    SmallReads,
    /// Most writes are small.
    SmallWrites,
    /// Most requests begin within a block of the file system.
    Misaligned,
    /// Most of the I/O time goes into many metadata requests.
    MetadataStorm,
    /// A seek before most reads and writes.
    Seeks,
    /// The same files are opened repeatedly.
    RedundantOpens,
    /// Attributes of the same files are requested repeatedly.
    RedundantStats,
    /// Data in many small files.
    ManySmallFiles,
    /// One rank does the I/O of all ranks.
    OneRank,
    /// One rank takes much longer than the others.
    Straggler,
    /// Small MPI-IO requests to a shared file that are not collective.
    IndependentSharedIo,
    /// A process reads the same bytes repeatedly.
    RedundantReads,
    /// The members of a program read the same bytes.
    ReadByAll,
    /// Bytes are overwritten.
    Overwrites,
    /// Data is made durable after every write.
    SyncPerWrite,
    /// The loop of a program waits for its input.
    LoaderStarved,
    /// I/O is not hidden behind computation.
    IoNotHidden,
    /// Checkpoints stop the loop of a program.
    CheckpointBlocks,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 18] = [
        Rule::SmallReads,
        Rule::SmallWrites,
        Rule::Misaligned,
        Rule::MetadataStorm,
        Rule::Seeks,
        Rule::RedundantOpens,
        Rule::RedundantStats,
        Rule::ManySmallFiles,
        Rule::OneRank,
        Rule::Straggler,
        Rule::IndependentSharedIo,
        Rule::RedundantReads,
        Rule::ReadByAll,
        Rule::Overwrites,
        Rule::SyncPerWrite,
        Rule::LoaderStarved,
        Rule::IoNotHidden,
        Rule::CheckpointBlocks,
    ];

    /// Returns the name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::SmallReads => "small_reads",
            Rule::SmallWrites => "small_writes",
            Rule::Misaligned => "misaligned",
            Rule::MetadataStorm => "metadata_storm",
            Rule::Seeks => "seeks",
            Rule::RedundantOpens => "redundant_opens",
            Rule::RedundantStats => "redundant_stats",
            Rule::ManySmallFiles => "many_small_files",
            Rule::OneRank => "one_rank",
            Rule::Straggler => "straggler",
            Rule::IndependentSharedIo => "independent_shared_io",
            Rule::RedundantReads => "redundant_reads",
            Rule::ReadByAll => "read_by_all",
            Rule::Overwrites => "overwrites",
            Rule::SyncPerWrite => "sync_per_write",
            Rule::LoaderStarved => "loader_starved",
            Rule::IoNotHidden => "io_not_hidden",
            Rule::CheckpointBlocks => "checkpoint_blocks",
        }
    }
}

/// Findings of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Findings by program, the one with the most I/O time first.
    pub findings: Vec<Finding>,
    /// Number of examined programs.
    pub programs: u64,
    /// Number of requests to files that were not examined, because there were too many files.
    pub files_left_out: u64,
    /// Requests to excluded files of the operating system and its programs.
    pub system_files_left_out: LeftOut,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Rule that matched.
    pub rule: Rule,
    /// Program with the finding.
    pub program: Program,
    /// Description in a sentence with figures.
    pub what: String,
    /// Condition of the rule, with its thresholds.
    pub because: String,
    /// Possible remedy.
    pub advice: String,
    /// Source of the rule.
    pub source: String,
    /// Figures of the finding.
    pub figures: Vec<Figure>,
    /// Files with the most cases.
    pub files: Vec<FileEvidence>,
    /// Members concerned: MPI ranks, or processes in the trace.
    pub members: Vec<u64>,
    /// Begin of the first request concerned, nanoseconds since 1970; `None` if no particular
    /// request is.
    pub begin: Option<i64>,
    /// End of the last request concerned.
    pub end: Option<i64>,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: f64,
    /// Unit.
    pub unit: Unit,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A number without a unit.
    Count,
    /// Bytes.
    Bytes,
    /// A fraction of 1.
    Share,
    /// Time.
    Nanoseconds,
}

/// A file with cases of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileEvidence {
    /// Id of the file in the trace.
    pub file: u64,
    /// Path; empty if the trace does not contain it.
    pub path: String,
    /// Number of cases or of bytes, depending on the rule.
    pub value: u64,
}
