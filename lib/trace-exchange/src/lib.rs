//! Import of traces of other tools, and export of traces to formats of other tools.
//!
//! | module | role |
//! |---|---|
//! | [`build`] | a new trace directory from events in any order; all imports use it |
//! | `sort` | sorts more events than fit in memory, by completion |
//! | [`import`] | lines, invalid lines and reports of imports |
//! | [`strace`] | import of the output of `strace -f -ttt -T` |
//! | [`ctf`] | the Common Trace Format 1.8 |
//! | [`perfetto`] | the JSON trace event format |
//! | `numbers` | distinct numbers for ids that several nodes use |
//! | [`lines`] | comma-separated values and JSON lines |
//! | [`miller`] | the ASCII trace format of Miller (1990): reader, writer, conversion of events |
//! | [`views`] | SQL views for `miot query` and other engines |
//! | [`dxt`] | import of the output of `darshan-dxt-parser` |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod build;
pub mod ctf;
pub mod dxt;
pub mod import;
pub mod lines;
pub mod miller;
mod numbers;
pub mod perfetto;
mod sort;
pub mod strace;
pub mod views;

pub use build::{Event, FileId, Process, ProcessId, Thread, TraceBuilder};
