//! The producer side of MIOT: records I/O requests into lanes in shared memory.
//!
//! **Recording is wait-free and allocation-free, makes no system calls, and survives the death of
//! either side.** A request costs two clock reads and one cache line:
//!
//! ```
//! use miot_tracer::{Completion, NONE, begin, end, op};
//! # fn send_to_server(_: u64, buffer: &[u8]) -> i64 { buffer.len() as i64 }
//! # let (handle, offset, buffer) = (miot_tracer::new_handle(), 0, [0u8; 512]);
//! let request = begin(op::client::WRITE);
//! let result = send_to_server(offset, &buffer);
//! if let Some(request) = request {
//!     end(request, Completion { handle, offset, length: buffer.len() as u64, result, flags: 0 });
//! }
//! ```
//!
//! | module | role |
//! |---|---|
//! | `lane` | the lane algorithm, without pointers and mappings |
//! | `thread` | state of a thread between two events; [`begin`] and [`end`] |
//! | `process` | the segment of this process: creation, claiming lanes, `fork` |
//! | `node` | the control page of the node's log-client |
//! | [`gate`] | system calls that the tracer may make under a seccomp filter |
//! | `identity` | identity of this process: executable, job, rank |
//! | `tls`, `local`, `clock`, `file` | thread state, addresses, time and files without libc |
//! | `once` | values that are computed once, without the standard library |
//! | `lap` | detects file names that a flight recorder has overwritten |
//! | `region` | named parts of the run of a program |
//! | `debug` | messages of a printf-style debug call, recorded unformatted |
//! | `capi` | the C interface, `miot.h` |
//!
//! A thread sets up its lane at its first request and uses raw system calls for that. A library
//! that is preloaded to hook libc therefore never calls its own hooks. Without a log-client on the
//! node there is nothing to set up: the thread stays dormant and looks for a log-client again after
//! a number of requests.
//!
//! A record can be lost in three ways, each with a counter: the lane is full (`LOST_FULL`), the
//! thread got no lane (`LOST_NO_LANE`), or a signal handler made the request while it interrupted
//! the recording of another one (`LOST_NESTED`). See `docs/reference/losses.md`.

// Under loom only the lane is built; see tests/loom.sh.
#![cfg_attr(loom, allow(dead_code))]
// Atomics only in modules that own a memory protocol; see clippy.toml.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

#[allow(non_camel_case_types)]
#[cfg(not(loom))]
pub mod capi;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "one-time choice of the clock")]
mod clock;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "table of formats, filled concurrently")]
mod debug;
#[cfg(not(loom))]
mod file;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "set of denied system calls and count of permits")]
pub mod gate;
#[cfg(not(loom))]
mod identity;
#[expect(
    clippy::disallowed_types,
    reason = "the lane protocol; atomics come from lane::sync, which loom replaces"
)]
mod lane;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "laps of lanes, a hint without ordering")]
mod lap;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "control page, shared with the log-client")]
mod node;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "state of a value that is computed once")]
mod once;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "entries in shared memory, which any thread takes")]
mod pending;
#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "header of the segment, and state shared by the threads")]
mod process;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod tls;

#[cfg(not(loom))]
pub use clock::ticks;
#[cfg(not(loom))]
pub use identity::directory;
pub use lane::RequestArgs;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub use lane::steps;
#[cfg(not(loom))]
pub use lap::{is_lap_current, lane_lap};
pub use miot_proto::event::{Caller, Communicator, Ext, NONE, flag};
pub use miot_proto::op::{self, Layer, Op};
#[cfg(not(loom))]
pub use once::Once;
#[cfg(not(loom))]
pub use pending::ShownFile;
#[cfg(not(loom))]
pub use process::{epoch, lasting_names, new_handle};
#[cfg(not(loom))]
pub use region::{Label, Region};
#[cfg(not(loom))]
pub use thread::{
    AsyncRequest, ClockAccess, ClockScope, Completion, LeafRequest, PackedRequest, StartedRequest, active,
    begin, begin_enclosing, begin_enclosing_on, begin_leaf, begin_leaf_on, begin_on, borrowed, cancel, close,
    complete, dormant, end, end_leaf, end_leaf_on_path, end_with, mpi_caller_tid, name_file, note, open,
    prepare_for_filter, record, set_clock_access, submit,
};
