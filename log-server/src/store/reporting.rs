//! Status of the store for HTTP pages and operators.

use super::Store;
use crate::ids::NodeId;
use crate::monitor::{MergeStatus, Monitor, StoreStatus};
use miot_daemon::Liveness;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Reporting {
    monitor: Arc<Monitor>,
    last: Instant,
    pub(super) liveness: Liveness,
    /// Time up to which the nodes allowed to merge; `None`: no node held back the merge.
    pub(super) bound: Option<i64>,
}

impl Reporting {
    pub(super) fn new(monitor: Arc<Monitor>, now: Instant) -> Reporting {
        Reporting { monitor, last: now, liveness: Liveness::default(), bound: None }
    }
}

impl Store {
    /// Gives the monitor a copy of the status, if it is due.
    pub(super) fn report_if_due(&mut self) {
        if self.reporting.last.elapsed() < REPORT_EVERY {
            return;
        }
        let at = Instant::now();
        self.reporting.last = at;
        let (time, bound) = (self.clock.at(at), self.reporting.bound);
        let nodes = self.catalog.nodes.iter().zip((0..).map(NodeId)).map(|(entry, node)| {
            let watermark = self.watermarks.watermark(node);
            let status = MergeStatus {
                watermark,
                holds_back: bound.is_some_and(|bound| watermark.unwrap_or(i64::MIN) <= bound),
                losses: self.losses.of(node).map(|(place, count)| (place.to_owned(), count)).collect(),
            };
            (entry.name.clone(), status)
        });
        let status = StoreStatus {
            at,
            failure: self.sink.failure(),
            merge_lag_ns: bound.map_or(0, |bound| time.saturating_sub(bound).max(0)),
            waiting: self.merge.rows() as u64,
            events: self.sink.committed(),
            nodes: nodes.collect(),
        };
        self.reporting.monitor.store_reported(status);
    }
}
