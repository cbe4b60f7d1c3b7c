//! Results of whole traces: each function reads a trace, computes one analysis and returns the
//! structure that the tool prints as JSON. The commands of the tool and the Python module call
//! these functions, so that both have the same figures.
//!
//! | module | role |
//! |---|---|
//! | [`input`] | the trace to read, its time range, and who watches the reading |
//! | [`filter`] | selection of events by operation, layer, path, node, process and time |
//! | [`select`] | selected columns of the selected events, with names of files and threads |
//! | [`stat`] | summary, and tables by job, file …: `miot stat` |
//! | [`regions`] | regions and the I/O during them: `miot stat --by region` |
//! | [`show`] | bursts, idle, cycles, patterns, findings: `miot stat --show` |
//! | [`phases`] | phases and model of an application: `miot phases`, `miot model` |
//! | [`simulate`] | simulations of traces on other storage: `miot simulate` |
//! | [`heatmap`] | bytes, requests or time by rank, node or file, and time |
//! | [`server`] | connection to a log-server |
//! | `error` | the error type |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod error;
pub mod filter;
pub mod heatmap;
pub mod input;
pub mod phases;
pub mod regions;
pub mod select;
pub mod server;
pub mod show;
pub mod simulate;
pub mod stat;

pub use error::Error;
pub use filter::{EventFilter, Matcher};
pub use input::{Input, Unwatched, Watch};
