//! Options that select events, shared by `cat`, `tail` and `export`.

use clap::Args;
use jiff::Timestamp;
pub(crate) use miot_trace_results::Matcher;
pub(crate) use miot_trace_results::filter::{moment, nanoseconds, of_jobs};
use miot_trace_results::{Error, EventFilter};

/// Options that select events. An option with several values (repeated or separated by commas)
/// matches any of them; different options must all match.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only events of this operation, e.g. `read` or `openat`.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) op: Vec<String>,
    /// Only events of this layer: app, mpi-io, stdio, posix, fuse, client, block.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) layer: Vec<String>,
    /// Only events of files whose path (or second path) matches this glob; `*` does not match `/`,
    /// `**` does.
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Vec<String>,
    /// Only events of this process id.
    #[arg(long, value_delimiter = ',', value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Only events of this node.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) node: Vec<String>,
    /// Only events completed at or after this time, e.g. 2026-11-21T12:00:00Z, or an age such as
    /// 10m, 90s, 2h, 1d.
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only events completed before this time or age.
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
}

impl Filter {
    /// Returns true if all events match.
    pub(crate) fn is_empty(&self) -> bool {
        let Filter { op, layer, path, pid, node, since, until } = self;
        let names = [op, layer, path, node];
        names.iter().all(|names| names.is_empty()) && pid.is_empty() && since.is_none() && until.is_none()
    }

    /// Compiles the filter; checks names and globs.
    pub(crate) fn matcher(&self) -> Result<Matcher, Error> {
        let filter = EventFilter {
            op: self.op.clone(),
            layer: self.layer.clone(),
            path: self.path.clone(),
            pid: self.pid.clone(),
            node: self.node.clone(),
            since: self.since.map(nanoseconds),
            until: self.until.map(nanoseconds),
        };
        filter.matcher()
    }
}
