//! Replay of a trace or a model: the same calls, sizes, offsets and order, below a directory.
//!
//! | module | role |
//! |---|---|
//! | `root` | paths of the trace as paths below the directory; no path leads out of it |
//! | `initial_files` | files and directories that must exist before the first step |
//! | `links` | targets of the symbolic links that steps have created |
//! | `order` | which steps wait for which steps of other threads |
//! | `plan` | the steps of every thread, in an unnamed file |
//! | `progress` | completed steps of each thread, in memory that all processes share |
//! | `open_files` | open files of a process |
//! | `calls` | the calls of libc that replay the steps |
//! | `worker` | a process: its threads, and each step at its time |
//! | `fidelity` | differences between the replay and the trace |
//! | `coordinator` | starts the processes and collects their reports |
//!
//! Every process of the trace is a process of the replay, and every thread a thread. Replayed
//! requests go through libc, so that a hook records them; all other I/O of a replay bypasses the
//! hook.

mod calls;
mod coordinator;
mod fidelity;
mod initial_files;
mod links;
mod open_files;
mod order;
mod plan;
mod progress;
mod root;
mod worker;

pub use calls::{ReplayMethod, replay_method};
pub use coordinator::{ReplayError, ReplayNotice, ReplayOptions, run_replay};
pub use fidelity::{Difference, Fidelity, LatenessQuantiles, ProcessReport};
pub use initial_files::InitialFiles;
pub use plan::{Plan, Planner, TracedProcess};
pub use root::{ReplayRoot, UntracedFd, path_below_root};
pub use worker::{WorkerInput, run_worker};

use miot_proto::op::{Op, OpInfo};
use serde::{Deserialize, Serialize};

/// One request, with the handles and numbers of the trace. Paths are relative to the replay root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayStep {
    /// Number of the layer and of the operation in it, see [`miot_proto::op::Op`].
    pub op: (u8, u8),
    /// Open file of the process; 0: none.
    pub handle: u64,
    /// Source of a copy; 0: none.
    pub handle2: u64,
    /// Path of a request on a path, or of a request on a handle that no step has opened.
    pub path: Option<Vec<u8>>,
    /// New path, source of a copy, or name of an attribute.
    pub path2: Option<Vec<u8>>,
    /// Byte offset in the file.
    pub offset: Option<i64>,
    /// Byte offset in the source of a copy.
    pub offset2: Option<i64>,
    /// Requested bytes.
    pub length: Option<i64>,
    /// The operation's own argument, see [`miot_proto::op::ArgMeaning::Arg`].
    pub arg: i64,
    /// Bits of [`miot_proto::event::flag`].
    pub flags: u16,
    /// Recorded result; negative = −errno.
    pub result: i64,
    /// Nanoseconds from the start of the first step of all threads.
    pub begin: i64,
    /// Completion, in nanoseconds on the same clock.
    pub end: i64,
    /// Steps of other threads that must complete first: slot of the thread, number of its steps.
    pub waits: Vec<(u32, u32)>,
    /// Which part of the request.
    pub part: StepPart,
}

/// Part of a request. A request that completes asynchronously is two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepPart {
    /// The whole request.
    #[default]
    Whole,
    /// The submission, with the number by which it is collected.
    Submit(u64),
    /// The wait for the completion of the submission with this number.
    Collect(u64),
}

/// When steps begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// At their recorded times, counted from the first step of all; divided by this speed.
    Original(f64),
    /// After the recorded pause since the previous step of their thread.
    Think,
    /// Immediately.
    Fast,
}

impl ReplayStep {
    /// Returns the operation.
    #[must_use]
    pub fn operation(&self) -> Op {
        Op { layer: self.op.0, number: self.op.1 }
    }

    /// Returns the row of the operation in the table of operations, if this version has it.
    #[must_use]
    pub fn info(&self) -> Option<&'static OpInfo> {
        self.operation().info()
    }
}
