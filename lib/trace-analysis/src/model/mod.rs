//! The abstract model of an application's I/O: what it does to which part of which file, in which order, whatever the
//! machine (Méndez, Panadero, Wong, Rexachs, Luque, *A New Approach for Analyzing I/O in Parallel Scientific
//! Applications*, 2012, section 3.1).
//!
//! Made from a trace by [`crate::phases`], or written by hand; docs/guide/model.md describes the file. Benchmarks and replays
//! take it as their input: [`Operation::requests`] says what one process does in one phase.
//!
//! | module | role |
//! |---|---|
//! | [`Set`] | which processes, which phases |
//! | [`Numbers`] | numbers by process: nested loops, or a list |
//! | [`Pieces`] | which bytes of the file a request touches |
//! | `check`, `file` | what a model must fulfil; its file |
//! | [`compare()`] | two models side by side |
//! | [`estimate`] | benchmark parameters, estimated times, errors |

mod check;
mod compare;
pub mod estimate;
mod file;
mod numbers;
mod ranges;
mod set;
#[cfg(test)]
mod tests;

pub use crate::phases::access::{Direction, Pointer};
pub use crate::phases::nest::{Loop, Nest};
pub use crate::phases::pieces::Unplaced;
pub use check::Invalid;
pub use compare::{Difference, compare};
pub use numbers::Numbers;
pub use ranges::{Pieces, Unknown};
pub use set::Set;

use crate::phases::nest::distance;
use serde::{Deserialize, Serialize};

/// Version of the format. A file of another version is refused.
pub const FORMAT: u32 = 1;

/// What an application does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// [`FORMAT`].
    pub format: u32,
    /// Command line, for people.
    #[serde(default)]
    pub application: String,
    /// Layer of the I/O stack that it was seen on.
    #[serde(default)]
    pub layer: String,
    /// Processes of the application, also those without I/O.
    pub processes: u64,
    /// What separates phases.
    #[serde(default)]
    pub ticks: Ticks,
    /// Why it may not be the whole truth; empty: it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<String>,
    /// Seconds from the first to the last request, where it was traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_seconds: Option<f64>,
    /// Families of phases, in the order in which they begin.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
}

/// What logical time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ticks {
    /// Calls of MPI that communicate.
    Communication,
    /// Collective calls of MPI-IO that move no data: the trace has no other communication.
    Collective,
    /// Requests: no communication was traced.
    #[default]
    Requests,
}

/// Phases that are the same but for their offsets: a family. A phase is what some processes do to a file, or each to a
/// file of its own, without communication between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Which ones, counted from 1 over the whole application.
    pub numbers: Set,
    /// The file; `*` stands for digits that differ.
    pub file: String,
    /// Whether processes share it.
    pub sharing: Sharing,
    /// Each phase has a file of its own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub file_per_phase: bool,
    /// Processes that take part, by rank.
    pub processes: Set,
    /// Bytes of one phase, over all its processes.
    pub weight: u64,
    /// A trace with losses, or one that ends too early, may show something else.
    #[serde(default, skip_serializing_if = "is_false")]
    pub uncertain: bool,
    /// What each process does; several operations alternate.
    #[serde(rename = "operation")]
    pub operations: Vec<Operation>,
    /// What was measured where it was traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Who uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Several processes.
    Shared,
    /// Each process has its own.
    Unique,
}

/// How the requests of a process lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each begins where the one before ended.
    Sequential,
    /// At one constant distance, with gaps or on the same place; also through a view with one.
    Strided,
    /// Strided within strided.
    Nested,
    /// Without a pattern.
    Random,
    /// Wherever the shared pointer is.
    Unknown,
}

impl Mode {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sequential => "sequential",
            Mode::Strided => "strided",
            Mode::Nested => "nested",
            Mode::Random => "random",
            Mode::Unknown => "unknown",
        }
    }
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Which way data moves.
    pub direction: Direction,
    /// Bytes of a request (rs); the mean, rounded up, where they differ.
    pub size: u64,
    /// Smallest and largest, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<(u64, u64)>,
    /// Bytes of a request by place of the process, where each process has one size and they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_by_process: Option<Numbers>,
    /// Requests of a process in a phase (rep); the mean, rounded up, where they differ.
    pub repetitions: u64,
    /// Fewest and most, where processes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions_between: Option<(u64, u64)>,
    /// How they lie.
    pub mode: Mode,
    /// Where they say that they begin.
    pub pointer: Pointer,
    /// All processes of the communicator call together.
    #[serde(default, skip_serializing_if = "is_false")]
    pub collective: bool,
    /// The call returns before the data has moved.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nonblocking: bool,
    /// Bytes of an elementary type of the view.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub etype: u64,
    /// Bytes that lie in a row in the file, the mean, where a view makes several pieces of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<u64>,
    /// The pieces of a request in the file, by their length; empty: it lies in a row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Pieces>,
    /// Why nobody knows where a request lies in the file; offsets then count what the view shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<Unplaced>,
    /// What offsets count.
    #[serde(default, skip_serializing_if = "is_default")]
    pub space: Space,
    /// From request to request: nested loops, innermost first. Empty with several requests: no pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displacement: Vec<Loop>,
    /// Where these loops begin again, as distances from the first begin, by place of the process; empty: they do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<Numbers>,
    /// The first offset of the first phase of the family, by place of the process.
    pub offset: Numbers,
    /// What is added to it from phase to phase.
    #[serde(default, skip_serializing_if = "Numbers::is_zero")]
    pub offset_per_phase: Numbers,
}

/// What an offset counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Bytes of the file.
    #[default]
    File,
    /// Bytes of the file, if a request lay in one piece and those of all processes one behind the other, in their order: together they
    /// are a part of the file without gaps.
    Pieces,
    /// Bytes that the view of the process shows.
    View,
}

/// What one machine made of a family of phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// From the first begin to the last end of a phase, summed up over the family.
    pub seconds: f64,
    /// In requests, the mean of the processes, summed up over the family.
    #[serde(default)]
    pub request_seconds: f64,
    /// From the end of the phase before to the begin of one of these, the mean.
    #[serde(default)]
    pub pause_seconds: f64,
    /// Bytes moved per second.
    pub bytes_per_second: f64,
    /// Share of the time of the application, 0 to 1.
    pub share: f64,
    /// Bytes moved by the family.
    pub bytes_moved: u64,
    /// Number of the tick at which the first phase begins, and at which the last ends.
    #[serde(default)]
    pub ticks: (u64, u64),
}

/// One request of a process in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseRequest {
    /// In the operation's [`Space`]; `None`: nobody knows, draw it by lot.
    pub offset: Option<i64>,
    /// Bytes.
    pub size: u64,
}

/// Share of the time of the application from which on a phase is relevant (the paper, section 3.1).
pub const RELEVANT: f64 = 0.01;

impl Phase {
    /// How many phases.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.numbers.len()
    }

    /// True if it took at least [`RELEVANT`] of the time; without a measurement nobody knows, so then too.
    #[must_use]
    pub fn is_relevant(&self) -> bool {
        self.measured.is_none_or(|measured| measured.share >= RELEVANT)
    }
}

impl Operation {
    /// Bytes of a phase that a process with these requests moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.repetitions)
    }

    /// What the process at this place (from 0) of the phase's processes does in one phase of the family (from 0).
    pub fn requests(&self, place: u64, phase: u64) -> impl Iterator<Item = PhaseRequest> + '_ {
        (0..self.repetitions).map(move |nth| self.request(place, phase, nth))
    }

    /// One of [`requests`](Self::requests), by its number from 0.
    #[must_use]
    pub fn request(&self, place: u64, phase: u64, nth: u64) -> PhaseRequest {
        let own = self.size_by_process.as_ref().and_then(|sizes| u64::try_from(sizes.at(place)).ok());
        let size = own.unwrap_or(self.size);
        if matches!(self.mode, Mode::Random | Mode::Unknown) {
            return PhaseRequest { offset: None, size };
        }
        let times = i64::try_from(phase).unwrap_or(i64::MAX);
        let start =
            self.offset.at(place).saturating_add(self.offset_per_phase.at(place).saturating_mul(times));
        let loops = &self.displacement;
        let distance = if loops.is_empty() && self.restarts.is_empty() {
            // Nearly sequential.
            i64::try_from(nth.saturating_mul(size)).unwrap_or(i64::MAX)
        } else if self.restarts.is_empty() {
            distance(loops, nth)
        } else {
            let inner = loops.iter().fold(1u64, |all, it| all.saturating_mul(it.count)).max(1);
            let restart = usize::try_from(nth / inner).ok().and_then(|at| self.restarts.get(at));
            distance(loops, nth % inner).saturating_add(restart.map_or(0, |it| it.at(place)))
        };
        PhaseRequest { offset: Some(start.saturating_add(distance)), size }
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn one() -> u64 {
    1
}

fn is_one(value: &u64) -> bool {
    *value == 1
}

fn is_default(space: &Space) -> bool {
    *space == Space::File
}
