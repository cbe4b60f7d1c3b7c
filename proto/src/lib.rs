//! What crosses a boundary in MIOT, and nothing else: no I/O, no clock, no threads.
//!
//! | module | boundary |
//! |---|---|
//! | [`op`] | the numbers and names of layers and operations, everywhere |
//! | [`event`] | the 64-byte record a producer writes into its lane |
//! | [`segment`] | the shared memory of one traced process |
//! | [`control`] | the page through which a log-client steers the producers of its node |
//! | [`debug`] | messages of a printf-style debug call, recorded raw |
//! | [`job`] | what a process belongs to: job, step, user, control group |
//! | [`batch`] | consecutive records of one stream, by column, as they are shipped |
//! | [`status`], [`command`] | how a cluster is, and what it is told: JSON within messages and answers |
//! | [`errno`] | names of error numbers |
//! | [`text`] | names that a program chose, on a terminal |
//! | [`units`] | sizes and durations in configuration files |
//! | [`activity`] | what happens now, as the log-server tells `miot top` and its page |
//! | [`wire`] | frames and messages between log-client, log-server and tail |
//!
//! All layouts are little endian and frozen by the golden-bytes tests in `tests/golden.rs`.

pub mod activity;
pub mod batch;
mod bounded;
pub mod command;
pub mod control;
pub mod debug;
pub mod errno;
pub mod event;
pub mod job;
pub mod op;
pub mod segment;
pub mod status;
pub mod text;
pub mod units;
mod varint;
pub mod wire;

#[cfg(not(target_endian = "little"))]
compile_error!("MIOT's layouts are little endian and read in place");
