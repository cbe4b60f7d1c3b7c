//! Data that crosses a boundary between MIOT's programs: layouts, numbers and messages. The crate
//! does no I/O, reads no clock and starts no threads.
//!
//! | module | boundary |
//! |---|---|
//! | [`op`] | numbers and names of layers and operations |
//! | [`event`] | the 64-byte record that a producer writes into its lane |
//! | [`segment`] | the shared memory of one traced process |
//! | [`control`] | the page through which a log-client controls the producers of its node |
//! | [`debug`] | unformatted messages of a printf-style debug call |
//! | [`job`] | batch job, step, user and control group of a process |
//! | [`batch`] | consecutive records of one stream, stored by column, as they are sent |
//! | [`status`] | state of a cluster: JSON inside messages and replies |
//! | [`command`] | requests of operators and commands to nodes: JSON inside messages and replies |
//! | [`errno`] | names of error numbers |
//! | [`text`] | terminal-safe output of names that a program chose |
//! | [`units`] | sizes and durations in configuration files |
//! | [`activity`] | current activity, as the log-server sends it to `miot top` and its web page |
//! | [`wire`] | frames and messages between log-client, log-server and `miot tail` |
//!
//! All layouts are little endian. The golden-bytes tests in `tests/golden.rs` freeze them.

pub mod activity;
pub mod batch;
pub mod command;
pub mod control;
pub mod debug;
pub mod errno;
pub mod event;
pub mod job;
mod list_limits;
pub mod op;
pub mod segment;
pub mod status;
pub mod text;
pub mod units;
mod varint;
pub mod wire;

#[cfg(not(target_endian = "little"))]
compile_error!("MIOT reads its little-endian layouts in place: big-endian targets are not supported");
