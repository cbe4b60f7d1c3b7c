//! Views over the tables, as SQL; see `docs/guide/query.md`.

use miot_trace_exchange::views::{self, Dialect};

pub(crate) use miot_trace_exchange::views::JOINED;

/// Names of the views.
pub(crate) const NAMES: [&str; 4] = ["io", "file_stats", "job_stats", "paths"];

/// Returns the SQL of a view.
pub(crate) fn sql(name: &str) -> Option<String> {
    views::view(Dialect::DataFusion, name)
}
