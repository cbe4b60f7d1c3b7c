//! Analyses of traces: pure functions over batches of events, without I/O of their own.
//!
//! | module | role |
//! |---|---|
//! | [`summary`] | totals, and what each operation, file and process did: `miot stat` |
//! | [`characterize`] | Darshan's counters and Miller's tables by job, process, file …: `miot stat --by` |
//! | [`bursts`], [`idle`] | throughput per interval; times without I/O: `miot stat --show bursts`, `idle` |
//! | [`block_sizes`] | block sizes of files, as processes saw them |
//! | [`cycles`] | periods of the data rate: `miot stat --show cycles` |
//! | [`programs`] | which processes belong together, as ranks of one program |
//! | [`patterns`] | how they share files, and in what order these are accessed: `miot stat --show patterns` |
//! | [`findings`] | what is worth changing, by rules: `miot stat --show findings` |
//! | [`layers`] | what each layer made of the requests of the one above: `miot stat --by layer` |
//! | [`timeline`] | bytes, operations and durations by interval of time: `miot report` |
//! | [`offsets`] | where in a file requests were, and when |
//! | [`phases`] | I/O phases of a parallel application: `miot phases` |
//! | [`model`] | its I/O as an abstract model: `miot model`, `miot estimate`, benchmarks, replays |
//! | [`view`] | which bytes of a file an MPI-IO request touches, by its view |
//! | [`place`] | the same for each event, as views are set: patterns, counters and findings ask it |
//! | `recent` | values of the keys that were used lately |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod block_sizes;
pub mod bursts;
pub mod characterize;
pub mod cycles;
pub mod findings;
pub mod idle;
pub mod layers;
mod missing;
pub mod model;
pub mod offsets;
pub mod patterns;
pub mod phases;
pub mod place;
pub mod programs;
mod recent;
pub mod summary;
pub mod timeline;
pub mod view;

pub use characterize::{Characterization, Characterize};
pub use layers::{LayerRow, Layers};
pub use missing::Missing;
pub use place::{Place, Places};
pub use programs::Programs;
pub use summary::{FileRow, OperationRow, ProcessRow, Report, Summary, Totals};

use miot_trace_store::schema::{column, text};
