//! Parallel I/O that is made on purpose, and timed honestly.
//!
//! | module | role |
//! |---|---|
//! | [`pattern`] | which bytes each process accesses |
//! | `scatter` | numbers drawn by lot, the same for all processes |
//! | [`content`] | what files are filled with, and whether it is still there |
//! | [`suite`] | measurements as a configuration file says them |
//! | [`replay`] | doing again what a trace says was done |
//! | [`conduct`], [`rank`], [`world`] | who tells the processes what to do; what each does; how they meet |
//! | [`mpi`] | the same among processes that an MPI launcher has started, and files through MPI-IO |
//! | [`times`], [`statistics`] | S, T and B of a measurement; how sure a mean is |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod conduct;
pub mod content;
mod files;
pub mod mpi;
pub mod pattern;
pub mod rank;
pub mod replay;
mod scatter;
pub mod statistics;
pub mod suite;
pub mod times;
pub mod world;

pub use pattern::{Impossible, Level, Part, Pattern, Piece};
pub use suite::{Run, Suite};
