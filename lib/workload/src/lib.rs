//! Parallel I/O workloads: access patterns, benchmarks with barrier-to-barrier timing, and replay.
//!
//! | module | role |
//! |---|---|
//! | [`pattern`] | which bytes each process accesses |
//! | `rng` | pseudo-random numbers that are the same in all processes |
//! | [`content`] | content of files, and its verification |
//! | [`suite`] | the measurements of a configuration file |
//! | [`coordinator`], [`rank`], [`comm`] | coordinator of a measurement; one process; messages |
//! | `bench_file` | the measured file, through POSIX or MPI-IO |
//! | [`mpi`] | MPI, loaded at run time: processes that a launcher has started, and MPI-IO |
//! | [`times`], [`statistics`] | times S, T and B of a measurement; confidence intervals |
//! | [`replay`] | replay of a trace or a model |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod bench_file;
pub mod comm;
pub mod content;
pub mod coordinator;
pub mod mpi;
pub mod pattern;
pub mod rank;
pub mod replay;
mod rng;
pub mod statistics;
pub mod suite;
pub mod times;

pub use pattern::{Extent, LoopLevel, Pattern, PatternError, RequestPart};
pub use suite::{Run, Suite};
