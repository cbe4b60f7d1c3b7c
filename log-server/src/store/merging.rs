//! When and how far the store merges, and what it writes in each step.

use super::Store;
use super::merge::MergeStep;
use super::sessions::Ticket;
use super::watermarks::MergeBound;
use crate::columns::resolve::resolve;
use crate::columns::side_tables;
use crate::error::Error;
use miot_trace_store::Table;
use std::time::Instant;

/// Rows to merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All rows that no node holds back.
    Due,
    /// All rows.
    All,
}

impl Store {
    /// Merges and writes rows. With [`Extent::Due`] the merge never passes this machine's clock: an
    /// event of any node with a time in the future waits for that time, so it cannot make other
    /// events late.
    pub(super) fn merge_now(&mut self, now: Instant, extent: Extent) -> Result<(), Error> {
        loop {
            let bound = match extent {
                Extent::All => MergeBound::Unbounded,
                Extent::Due => self.watermarks.bound(now, self.settings.config.silent_after),
            };
            if self.budget.may_run_short() {
                self.watermarks.mark_nodes_behind(bound);
            }
            self.reporting.bound = match bound {
                MergeBound::Unbounded => None,
                // A node without a watermark has connected: the bound stays.
                MergeBound::Before(i64::MIN) => self.reporting.bound.or_else(|| Some(self.clock.at(now))),
                MergeBound::Before(time) => Some(time),
            };
            if self.sink.is_failing() {
                self.watermarks.reset_timeouts(now);
                break;
            }
            let until = match extent {
                Extent::All => None,
                Extent::Due => Some(self.not_in_future(bound, now)),
            };
            let more = self.step(until)?;
            if self.budget.is_exhausted() {
                // Only durable events free their memory.
                self.commit()?;
            }
            if !more {
                self.reporting.merged = until.or(self.reporting.merged);
                break;
            }
        }
        if !self.sink.is_failing() {
            if let Some(merged) = self.reporting.merged {
                self.tail.publish_final(merged);
            }
            let reached = self.reporting.bound.unwrap_or_else(|| self.clock.at(now));
            self.activity.advance_to(reached);
        }
        self.free_memory(now)?;
        self.budget.wake();
        Ok(())
    }

    /// Merges without nodes that have used up their own memory. If the server's memory is full
    /// although everything possible was merged, and no waiting input can change that, merges
    /// without waiting for any node.
    fn free_memory(&mut self, now: Instant) -> Result<(), Error> {
        let silent_after = self.settings.config.silent_after;
        if self.watermarks.bound_without_full(now, silent_after).is_some() {
            self.commit()?;
        }
        while !self.sink.is_failing()
            && let Some(bound) = self.watermarks.bound_without_full(now, silent_after)
        {
            let until = self.not_in_future(bound, now);
            let more = self.step(Some(until))?;
            self.commit()?;
            if !more {
                break;
            }
        }
        let forced = self.budget.is_exhausted() && self.inputs.is_empty() && !self.sink.is_failing();
        if forced && !self.forced {
            tracing::warn!(
                "memory limit reached (`memory`): merging without waiting for slow nodes, their later events may be \
                 marked late"
            );
        }
        self.forced = forced;
        while self.budget.is_exhausted() && forced {
            let until = self.clock.at(now);
            let more = self.step(Some(until))?;
            self.commit()?;
            if !more || self.sink.is_failing() {
                break;
            }
        }
        Ok(())
    }

    /// Time of `bound`, or of this machine's clock if that is earlier.
    fn not_in_future(&mut self, bound: MergeBound, now: Instant) -> i64 {
        let present = self.clock.at(now);
        match bound {
            MergeBound::Unbounded => present,
            MergeBound::Before(time) => time.min(present),
        }
    }

    /// Merges and writes some rows that completed before `until`. Returns true if there are more.
    fn step(&mut self, until: Option<i64>) -> Result<bool, Error> {
        let step = self.merge.step(until, self.step_rows());
        let more = step.more;
        // Samples are written when due, whether or not there are events.
        let (rows, tickets) = self.samples.take(until);
        if !rows.is_empty() {
            self.write_definitions()?;
            self.append(Table::Devices, side_tables::devices(&rows)?)?;
        }
        self.uncommitted.extend(tickets);
        self.check_endings_after(&step);
        if !step.is_empty() {
            self.write_step(step)?;
        }
        self.end_processes();
        Ok(more)
    }

    fn write_step(&mut self, mut step: MergeStep<Option<Ticket>>) -> Result<(), Error> {
        // A round may have many steps.
        self.reporting.liveness.beat();
        self.write_definitions()?;
        self.read_handles()?;
        let gaps = std::mem::take(&mut step.gaps);
        gaps.iter().for_each(|gap| self.add_gap(gap));
        let ended = std::mem::take(&mut step.ended);
        ended.iter().for_each(|ended| self.end_stream(ended));
        // Before the events after the gap, which must not become durable without it.
        self.write_losses()?;
        let mut resolved = resolve(&mut self.catalog, &mut self.ops, &step);
        let new_files = std::mem::take(&mut resolved.new_files);
        if !new_files.is_empty() {
            let files = side_tables::files(&new_files, |node| self.catalog.node_name(node))?;
            self.append(Table::Files, files)?;
        }
        let (catalog, ops) = (&mut self.catalog, &mut self.ops);
        let events = self.event_columns.record_batch(catalog, ops, &step.sources, resolved)?;
        if let Some(events) = events {
            self.append(Table::Events, events)?;
        }
        self.uncommitted.extend(step.tickets.into_iter().flatten());
        step.sources.into_iter().for_each(|source| self.batches.put(source.columns));
        Ok(())
    }
}
