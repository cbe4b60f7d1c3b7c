//! A segment that is being read, with its process.

use super::discover::SegmentName;
use super::node_watermark::Patience;
use super::process_watch::ProcessWatch;
use crate::segment::{EndReason, Segment, SegmentFile, SweepContext, Tally};

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) name: SegmentName,
    pub(super) segment: Segment<SegmentFile>,
    /// Owner of the file.
    pub(super) uid: u32,
    pub(super) watch: ProcessWatch,
    /// The process runs on, but has executed another program.
    left: bool,
    /// The process may have executed another program: check whether it still holds the segment.
    pub(super) suspected: bool,
    /// How long the watermark waits for this segment.
    pub(super) patience: Patience,
}

impl ActiveSegment {
    pub(super) fn new(
        name: SegmentName,
        segment: Segment<SegmentFile>,
        uid: u32,
        watch: ProcessWatch,
    ) -> ActiveSegment {
        let (left, suspected, patience) = (false, false, Patience::default());
        ActiveSegment { name, segment, uid, watch, left, suspected, patience }
    }

    /// Reads the new records and, if the process has ended and everything was read, ends its
    /// streams. The second value is true in the latter case.
    pub(super) fn sweep(&mut self, context: &mut SweepContext<'_>) -> (Tally, bool) {
        self.watch.poll_end(self.segment.memory());
        // Evaluated before reading: all records of a dead process are visible by now.
        let over = self.watch.is_dead() || self.has_left() || self.segment.is_closed();
        let mut tally = self.segment.sweep(over, context);
        // The end of the process must be in the spool before its segment is removed.
        tally.unfinished |= over && !context.sink.has_space();
        let ended = over && !tally.unfinished;
        if ended {
            let lost = self.segment.end(EndReason::Finished, context, &mut tally);
            tracing::debug!(name = self.name.as_str(), ?lost, "process ended");
        }
        (tally, ended)
    }

    /// True once no process holds the segment any more.
    fn has_left(&mut self) -> bool {
        if std::mem::take(&mut self.suspected) {
            self.left |= self.segment.memory().is_held() == Some(false);
        }
        self.left
    }

    /// True if the watermark must not exceed `safe`, the safe time of this segment. `horizon`: the
    /// watermark if all lanes are drained; `wait_limit`: the time up to which the watermark waits.
    pub(super) fn holds_back(&mut self, safe: i64, horizon: i64, wait_limit: i64) -> bool {
        let name = &self.name;
        self.patience.holds_back(safe, horizon, wait_limit, || {
            tracing::warn!(
                name = name.as_str(),
                "a thread of this process was stopped in the middle of a record, or claims old times; \
                 the merge no longer waits for it"
            );
        })
    }
}
