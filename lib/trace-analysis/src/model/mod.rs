//! Abstract model of an application's I/O, independent of the machine: the operations on each part
//! of each file, in order (Méndez, Panadero, Wong, Rexachs, Luque, *A New Approach for Analyzing
//! I/O in Parallel Scientific Applications*, 2012, section 3.1).
//!
//! A model is made from a trace by [`crate::phases`], or written by hand; docs/guide/model.md
//! describes the file. Benchmarks and replays use it as input: [`Operation::requests`] returns the
//! requests of one process in one phase.
//!
//! | module | role |
//! |---|---|
//! | [`Set`] | sets of processes and phases |
//! | [`Numbers`] | numbers by process: nested loops, or a list |
//! | [`Pieces`] | bytes of the file that a request accesses |
//! | `check`, `file` | consistency of a model; its file |
//! | [`compare()`] | comparison of two models |
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

/// Version of the format. A file with another version is refused.
pub const FORMAT: u32 = 1;

/// I/O of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Version of the format: [`FORMAT`].
    pub format: u32,
    /// Command line, for people.
    #[serde(default)]
    pub application: String,
    /// Layer of the I/O stack of the requests.
    #[serde(default)]
    pub layer: String,
    /// Number of processes of the application, including those without I/O.
    pub processes: u64,
    /// Kind of events that separate phases.
    #[serde(default)]
    pub ticks: Ticks,
    /// Reasons why the model may be incomplete or wrong; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<String>,
    /// Seconds from the first to the last request of the traced run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_seconds: Option<f64>,
    /// Families of phases, in the order in which they begin.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
}

/// Unit of logical time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ticks {
    /// MPI calls that communicate.
    Communication,
    /// Collective MPI-IO calls that move no data, if the trace has no other communication.
    Collective,
    /// Requests, if no communication was traced.
    #[default]
    Requests,
}

/// A family of phases, which differ only in their offsets. In a phase some processes access a file,
/// or each process a separate file, without communication in between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Numbers of the phases, counted from 1 over the whole application.
    pub numbers: Set,
    /// Path of the file; `*` replaces digits that differ.
    pub file: String,
    /// Whether processes share it.
    pub sharing: Sharing,
    /// True if each phase has a separate file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub file_per_phase: bool,
    /// Participating processes, by rank.
    pub processes: Set,
    /// Bytes of one phase, over all its processes.
    pub weight: u64,
    /// True if the trace has losses or ends too early, so that the phase may be wrong.
    #[serde(default, skip_serializing_if = "is_false")]
    pub uncertain: bool,
    /// Operations of each process; several operations alternate.
    #[serde(rename = "operation")]
    pub operations: Vec<Operation>,
    /// Measurements of the traced run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Sharing of a file between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Several processes use the file.
    Shared,
    /// Each process has a separate file.
    Unique,
}

/// Layout of the requests of a process in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each request begins where the previous one ended.
    Sequential,
    /// Requests have one constant distance, with gaps or at the same position; also through a view
    /// with one distance.
    Strided,
    /// Strided within strided.
    Nested,
    /// Without a pattern.
    Random,
    /// At the shared pointer, whose position is unknown.
    Unknown,
}

impl Mode {
    /// Returns the name in the file.
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
    /// Direction of the data.
    pub direction: Direction,
    /// Size of a request in bytes (rs); if sizes differ, the mean, rounded up.
    pub size: u64,
    /// Smallest and largest size, if sizes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<(u64, u64)>,
    /// Size of a request in bytes by place of the process, if each process has one size and the
    /// sizes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_by_process: Option<Numbers>,
    /// Number of requests of a process in a phase (rep); if it differs, the mean, rounded up.
    pub repetitions: u64,
    /// Fewest and most requests, if processes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions_between: Option<(u64, u64)>,
    /// Layout of the requests.
    pub mode: Mode,
    /// How the requests specify their begin.
    pub pointer: Pointer,
    /// True if all processes of the communicator call together.
    #[serde(default, skip_serializing_if = "is_false")]
    pub collective: bool,
    /// True if the call returns before the data has moved.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nonblocking: bool,
    /// Size of an elementary type of the view in bytes.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub etype: u64,
    /// Mean number of contiguous bytes in the file, if a view splits a request into several pieces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<u64>,
    /// Pieces of a request in the file, by their length; empty if the request is contiguous.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Pieces>,
    /// Reason why the position of a request in the file is unknown; offsets then count bytes of the
    /// view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<Unplaced>,
    /// Space of the offsets.
    #[serde(default, skip_serializing_if = "is_default")]
    pub space: Space,
    /// Distances from request to request: nested loops, innermost first. Empty with several
    /// requests if there is no pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displacement: Vec<Loop>,
    /// Positions at which these loops restart, as distances from the first begin, by place of the
    /// process; empty if they do not restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<Numbers>,
    /// First offset of the first phase of the family, by place of the process.
    pub offset: Numbers,
    /// Distance of this offset from phase to phase.
    #[serde(default, skip_serializing_if = "Numbers::is_zero")]
    pub offset_per_phase: Numbers,
}

/// Space in which an offset is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Bytes of the file.
    #[default]
    File,
    /// Bytes of the file, as if a request were contiguous and those of all processes followed each
    /// other in the order of the processes: together they cover a part of the file without gaps.
    Pieces,
    /// Bytes that the view of the process shows.
    View,
}

/// Measurements of a family of phases on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Seconds from the first begin to the last end of a phase, summed over the family.
    pub seconds: f64,
    /// Seconds in requests, mean of the processes, summed over the family.
    #[serde(default)]
    pub request_seconds: f64,
    /// Mean seconds from the end of the previous phase to the begin of one of these phases.
    #[serde(default)]
    pub pause_seconds: f64,
    /// Bytes moved per second.
    pub bytes_per_second: f64,
    /// Share of the time of the application, 0 to 1.
    pub share: f64,
    /// Bytes moved by the family.
    pub bytes_moved: u64,
    /// Number of the tick at which the first phase begins, and of the tick at which the last ends.
    #[serde(default)]
    pub ticks: (u64, u64),
}

/// One request of a process in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseRequest {
    /// Offset in the operation's [`Space`]; `None` if unknown: choose it at random.
    pub offset: Option<i64>,
    /// Size in bytes.
    pub size: u64,
}

/// Minimum share of a relevant phase in the time of the application (the paper, section 3.1).
pub const RELEVANT: f64 = 0.01;

impl Phase {
    /// Returns the number of phases.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.numbers.len()
    }

    /// Returns true if the family took at least [`RELEVANT`] of the time, or if it was not
    /// measured.
    #[must_use]
    pub fn is_relevant(&self) -> bool {
        self.measured.is_none_or(|measured| measured.share >= RELEVANT)
    }
}

impl Operation {
    /// Returns the bytes of a phase that a process with these requests moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.repetitions)
    }

    /// Returns the requests of the process at this place (from 0) among the phase's processes in
    /// one phase of the family (from 0).
    pub fn requests(&self, place: u64, phase: u64) -> impl Iterator<Item = PhaseRequest> + '_ {
        (0..self.repetitions).map(move |nth| self.request(place, phase, nth))
    }

    /// Returns one of [`requests`](Self::requests), by its number from 0.
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
