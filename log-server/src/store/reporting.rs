//! Status of the store for HTTP pages and operators.

use super::Store;
use crate::ids::NodeId;
use crate::monitor::{MergeStatus, Monitor, StoreStatus};
use miot_daemon::Liveness;
use miot_trace_store::final_time::FinalTime;
use std::path::Path;
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
    /// Time before which everything was merged and appended.
    pub(super) merged: Option<i64>,
    /// Time before which the durable trace is final.
    committed: Option<i64>,
    final_time: FinalTime,
}

impl Reporting {
    pub(super) fn new(monitor: Arc<Monitor>, trace: &Path, now: Instant) -> Reporting {
        Reporting {
            monitor,
            last: now,
            liveness: Liveness::default(),
            bound: None,
            merged: None,
            committed: None,
            final_time: FinalTime::new(trace),
        }
    }
}

impl Store {
    /// Publishes up to which time the trace directory is final, if everything merged is durable.
    /// Returns the time that is published.
    pub(super) fn publish_final(&mut self, now: Instant) -> Option<i64> {
        let merged = self.reporting.merged.filter(|_| !self.is_dirty() && !self.sink.is_failing())?;
        self.reporting.committed = Some(merged);
        if let Err(error) = self.reporting.final_time.advance(merged, now) {
            // Readers of several traces wait; nothing else depends on it.
            tracing::debug!(%error, "cannot publish the final time");
        }
        Some(merged)
    }

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
            (Arc::clone(&entry.name), status)
        });
        let status = StoreStatus {
            at,
            failure: self.sink.failure(),
            merge_lag_ns: bound.map_or(0, |bound| time.saturating_sub(bound).max(0)),
            waiting: self.merge.rows() as u64,
            events: self.sink.committed(),
            final_time: self.reporting.committed,
            nodes: nodes.collect(),
        };
        self.reporting.monitor.store_reported(status);
    }
}
