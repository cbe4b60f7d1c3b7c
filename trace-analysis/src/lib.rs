//! Analyses of traces: pure functions over batches of events, without I/O of their own.
//!
//! | module | role |
//! |---|---|
//! | [`summary`] | totals, and what each operation, file and process did: `miot stat` |
//! | `ops` | the operation table by name, as traces have it |
//! | `by_id` | tables by dense id |

mod by_id;
mod ops;
pub mod summary;

pub use summary::{FileRow, OperationRow, ProcessRow, Report, Summary, Totals};
