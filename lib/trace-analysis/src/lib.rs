//! Analyses of traces: pure functions over batches of events, without I/O.
//!
//! | module | role |
//! |---|---|
//! | [`summary`] | totals, and figures of each operation, file and process: `miot stat` |
//! | [`characterize`] | Darshan's counters and Miller's tables by job, file …: `miot stat --by` |
//! | [`bursts`], [`idle`] | throughput, times without I/O: `miot stat --show bursts`, `idle` |
//! | [`block_sizes`] | block sizes of files |
//! | [`cycles`] | periods of the data rate: `miot stat --show cycles` |
//! | [`programs`] | groups processes into programs and ranks |
//! | [`patterns`] | file sharing, and order of accesses: `miot stat --show patterns` |
//! | [`findings`] | inefficient I/O, by rules: `miot stat --show findings` |
//! | [`heatmap`] | bytes, requests or time by rank, node or file, and time |
//! | [`layers`] | each layer compared with the layer above: `miot stat --by layer` |
//! | [`regions`] | I/O during regions of a program's run: `miot stat --by region` |
//! | `intervals` | sets of times |
//! | [`timeline`] | bytes, operations and durations by interval: `miot report` |
//! | [`offsets`] | accesses of a file over time and offset: `miot report` |
//! | [`phases`] | I/O phases of a parallel application: `miot phases` |
//! | [`model`] | model of an application's I/O: `miot model`, `miot estimate`, replays |
//! | `recent` | values of recently used keys |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod block_sizes;
pub mod bursts;
pub mod characterize;
pub mod cycles;
pub mod findings;
pub mod heatmap;
pub mod idle;
mod intervals;
pub mod layers;
mod missing;
pub mod model;
pub mod offsets;
pub mod patterns;
pub mod phases;
pub mod programs;
mod recent;
pub mod regions;
pub mod summary;
pub mod timeline;

pub use characterize::{Characterization, Characterize};
pub use layers::{LayerRow, Layers};
pub use miot_trace_events::{Place, Places, place, view};
pub use missing::Missing;
pub use programs::Programs;
pub use summary::{FileRow, OperationRow, ProcessRow, Report, Summary, Totals};

use miot_trace_store::schema::{column, text};
