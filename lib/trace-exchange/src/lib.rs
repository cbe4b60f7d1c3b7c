//! Traces of other tools become trace directories, and trace directories what other tools read.
//!
//! | module | role |
//! |---|---|
//! | [`build`] | a new trace directory from events in any order: what every import writes through |
//! | `sort` | more events than fit in memory, by completion |
//! | [`import`] | what imports share: lines, mistakes, what to tell |
//! | [`strace`] | what `strace -f -ttt -T` prints |
//! | [`ctf`] | the Common Trace Format 1.8 |
//! | [`perfetto`] | the JSON trace event format |
//! | `numbers` | process ids that several nodes have |
//! | [`lines`] | comma-separated values and JSON lines |
//! | [`miller`] | the ASCII trace format of Miller (1990): records, reader, writer; MIOT's events as records and back |
//! | [`dxt`] | what `darshan-dxt-parser` prints |

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

pub use build::{Event, FileId, Process, ProcessId, Thread, TraceBuilder};
