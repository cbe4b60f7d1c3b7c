//! Findings: inefficient I/O, detected by rules with thresholds, evidence and advice.
//!
//! The rules are the patterns that Carns et al. (2011, section V) found to cost applications most, and those that a trace
//! shows and counters do not: bytes read twice or written over. They judge programs ([`crate::programs`]) by their outermost
//! requests ([`miot_trace_events::outermost`]) to files that are not the system's, unless asked for these too. Each rule is in `rules/`, with its thresholds as
//! constants and why they are what they are. A rule that needs many requests to say anything says nothing of a program that
//! makes few.
//!
//! Memory grows with programs and their members; of files up to [`FILES`] are looked at, of ranges of files so many that
//! bytes read twice or written over are lower bounds.

mod collect;
mod facts;
mod ranges;
mod rules;

pub use collect::Collector;

use crate::programs::{LeftOut, Program};
use serde::Serialize;

/// Files that are looked at.
pub const FILES: usize = 1 << 20;
/// Files that a finding names.
const NAMED: usize = 5;

/// Which rule.
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
    /// A seek for each read or write.
    Seeks,
    /// The same file opened again and again.
    RedundantOpens,
    /// The same file asked about again and again.
    RedundantStats,
    /// Data in many small files.
    ManySmallFiles,
    /// One rank does the I/O of all.
    OneRank,
    /// One rank takes much longer than the others.
    Straggler,
    /// Small MPI-IO requests to a shared file that are not collective.
    IndependentSharedIo,
    /// A process reads what it has read before.
    RedundantReads,
    /// The members of a program read the same bytes.
    ReadByAll,
    /// Bytes are written over.
    Overwrites,
    /// Data made durable after every write.
    SyncPerWrite,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 15] = [
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
    ];

    /// As in JSON.
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
        }
    }
}

/// What was found in a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// By program, the one with most I/O time first.
    pub findings: Vec<Finding>,
    /// Programs that were judged.
    pub programs: u64,
    /// Requests to files that were not looked at, because there were too many.
    pub files_left_out: u64,
    /// Requests to files of the operating system and its programs that were not looked at by choice.
    pub system_files_left_out: LeftOut,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// By which rule.
    pub rule: Rule,
    /// Of which program.
    pub program: Program,
    /// What is the case, in a sentence with its figures.
    pub what: String,
    /// When the rule says so, with its thresholds.
    pub because: String,
    /// What could be done.
    pub advice: String,
    /// Where the rule comes from.
    pub source: String,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The files where it is most the case.
    pub files: Vec<FileEvidence>,
    /// The members that it is about: MPI ranks, or processes in the trace.
    pub members: Vec<u64>,
    /// Begin of the first request that it is about, nanoseconds since 1970; `None` if it is about none in particular.
    pub begin: Option<i64>,
    /// End of the last one.
    pub end: Option<i64>,
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Of what.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// In what.
    pub unit: Unit,
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// A part of 1.
    Share,
    /// Time.
    Nanoseconds,
}

/// A file where something is the case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileEvidence {
    /// Its id in the trace.
    pub file: u64,
    /// Its path; empty if the trace does not say.
    pub path: String,
    /// How often, or how many bytes: what the rule counts.
    pub value: u64,
}
