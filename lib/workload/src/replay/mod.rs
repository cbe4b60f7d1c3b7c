//! Doing again what a trace or a model says was done: the same calls, sizes, offsets and order, below a directory.
//!
//! | module | role |
//! |---|---|
//! | `below` | names of the trace as names below the directory; no name leads out of it |
//! | `needs` | what must be there before the first step |
//! | `links` | where the symbolic links lead that steps have made |
//! | `order` | which steps wait for which of other threads |
//! | `plan` | the steps of every thread, in a file without a name |
//! | `board` | how far each thread is, in memory that all processes share |
//! | `files` | open files of a process |
//! | `calls` | the calls of libc, one for each kind of step |
//! | `worker` | a process: its threads, and each step at its time |
//! | `fidelity` | how close it came |
//! | `conduct` | who starts the processes and hears of their end |
//!
//! Every process of the trace is a process here and every thread a thread. What is replayed goes through libc, so that a hook
//! sees it; what else a replay does goes past it.

mod below;
mod board;
mod calls;
mod conduct;
mod fidelity;
mod files;
mod links;
mod needs;
mod order;
mod plan;
mod worker;

pub use below::{Below, Unseen, name_below};
pub use calls::{Made, how};
pub use conduct::{Conduct, Failed, Told, conduct};
pub use fidelity::{Difference, Fidelity, Quantiles, Report};
pub use needs::Needs;
pub use plan::{Plan, Planner, Who};
pub use worker::{Worker, work};

use serde::{Deserialize, Serialize};

/// One request, with the names and numbers of the trace; paths are below the directory already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the layer and of the operation in it, see [`miot_proto::op::Op`].
    pub op: (u8, u8),
    /// Open file of the process; 0: none.
    pub handle: u64,
    /// Source of a copy; 0: none.
    pub handle2: u64,
    /// Of a request on a name; of a request on a handle that no step has opened.
    pub path: Option<Vec<u8>>,
    /// New name, source of a copy, or name of an attribute.
    pub path2: Option<Vec<u8>>,
    /// Byte offset in the file.
    pub offset: Option<i64>,
    /// Byte offset in the source of a copy.
    pub offset2: Option<i64>,
    /// Bytes asked for.
    pub length: Option<i64>,
    /// The operation's own argument.
    pub arg: i64,
    /// Bits of [`miot_proto::event::flag`].
    pub flags: u16,
    /// As recorded: negative = −errno.
    pub result: i64,
    /// Nanoseconds since the first step of all began.
    pub begin: i64,
    /// Completion on the same clock.
    pub end: i64,
    /// Steps of other threads that must be done before: slot of the thread, number of its steps.
    pub waits: Vec<(u32, u32)>,
    /// Which part of the request.
    pub part: Part,
}

/// A request that completes asynchronously is two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// Its submission; the number says which one is to be collected.
    Submit(u64),
    /// Waiting for its end.
    Collect(u64),
}

/// When steps begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// When they began, counted from the first of all; times are divided by this speed.
    Original(f64),
    /// So long after the step before them in their thread as in the trace.
    Think,
    /// At once.
    Fast,
}

impl Step {
    /// What the table of operations says of it.
    #[must_use]
    pub fn info(&self) -> Option<&'static miot_proto::op::OpInfo> {
        miot_proto::op::Op { layer: self.op.0, number: self.op.1 }.info()
    }
}
