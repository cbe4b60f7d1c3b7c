//! The producer side of MIOT: records requests into lanes in shared memory.
//!
//! **Wait-free, allocation-free, free of system calls per event, and safe against the death of either
//! side.** A request costs two clock reads and one cache line:
//!
//! ```
//! use miot_tracer::{Done, NONE, begin, end, op};
//! # fn send_to_server(_: u64, buffer: &[u8]) -> i64 { buffer.len() as i64 }
//! # let (handle, offset, buffer) = (miot_tracer::new_handle(), 0, [0u8; 512]);
//! let begun = begin(op::client::WRITE);
//! let result = send_to_server(offset, &buffer);
//! if let Some(begun) = begun {
//!     end(begun, Done { handle, offset, length: buffer.len() as u64, result, flags: 0 });
//! }
//! ```
//!
//! | module | role |
//! |---|---|
//! | `lane` | the algorithm of a lane: no pointers, no mapping |
//! | `thread` | what a thread keeps between two events; [`begin`] and [`end`] |
//! | `process` | the segment of this process: creation, claiming lanes, `fork` |
//! | `node` | the control page of the node's log-client |
//! | [`gate`] | which system calls of our own the program may make: filters of seccomp |
//! | `identity` | who this process is: executable, job, rank |
//! | `tls`, `clock`, `file` | the thread's state, the time, files: without libc |
//! | `debug` | messages of a printf-style debug call, recorded raw |
//! | `capi` | the C interface, `miot.h` |
//!
//! Set-up happens at a thread's first request, with raw system calls, so that a library that is preloaded
//! to hook libc never meets its own hooks. Where the node has no log-client there is nothing to set up:
//! the program stays dormant and looks again every few thousand requests.
//!
//! What a record can be lost by, and where it is counted: the lane is full (`LOST_FULL`), the thread got
//! no lane (`LOST_NO_LANE`), the request came from a signal handler that interrupted a record
//! (`LOST_NESTED`). See `docs/reference/losses.md`.

// Under loom only the lane is built; see tests/loom.sh.
#![cfg_attr(loom, allow(dead_code))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

#[allow(non_camel_case_types)]
#[cfg(not(loom))]
pub mod capi;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod debug;
#[cfg(not(loom))]
mod file;
#[cfg(not(loom))]
pub mod gate;
#[cfg(not(loom))]
mod identity;
mod lane;
#[cfg(not(loom))]
mod lap;
#[cfg(not(loom))]
mod node;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod tls;

#[cfg(not(loom))]
pub use clock::ticks;
#[cfg(not(loom))]
pub use identity::directory;
pub use lane::Doing;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub use lane::steps;
#[cfg(not(loom))]
pub use lap::{is_current, lap};
pub use miot_proto::event::{Caller, Communicator, Ext, NONE, flag};
pub use miot_proto::op::{self, Layer, Op};
#[cfg(not(loom))]
pub use process::{epoch, new_handle};
#[cfg(not(loom))]
pub use thread::{
    Begun, Done, Submitted, active, begin, begin_enclosing, begin_enclosing_on, begin_on, cancel, close,
    complete, dormant, end, end_with, file, forbid_clock, note, open, prepare_for_filter, record, submit,
    within_mpi,
};
