//! The sweeper's side of the spool: converts facts to messages and writes them.

use super::{DrainPosition, Writer};
use crate::facts::{Fact, ShippedTotals, Sink};
use miot_proto::batch::BatchEncoder;
use miot_proto::wire::Message;
use std::collections::VecDeque;

/// Sink that writes facts to the spool.
#[derive(Debug)]
pub(crate) struct Outbox {
    spool: Writer,
    encoder: BatchEncoder,
    columns: Vec<u8>,
    shipped: ShippedTotals,
    coverage: WatermarkCoverage,
}

/// How far the watermarks cover the messages.
#[derive(Debug)]
struct WatermarkCoverage {
    /// Number of the last message covered by a watermark: the log-server can merge and acknowledge
    /// up to here.
    covered: u64,
    /// Maximum completion time of the events so far.
    newest: i64,
    /// Numbers of messages that are not yet covered, each with the maximum completion time up to
    /// it.
    waiting: VecDeque<(u64, i64)>,
}

/// Maximum length of `waiting`; above it, entries are merged. Not reached in normal operation.
const MAX_WAITING: usize = 1024;

impl WatermarkCoverage {
    fn advance(&mut self, last: u64, watermark: i64) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_back();
        }
        if self.waiting.back().is_none_or(|(number, _)| *number < last) {
            self.waiting.push_back((last, self.newest));
        }
        while let Some((number, _)) = self.waiting.pop_front_if(|(_, newest)| *newest < watermark) {
            self.covered = number;
        }
    }
}

impl Outbox {
    pub(crate) fn new(spool: Writer) -> Outbox {
        // Watermarks of the previous log-client are in the spool.
        let coverage =
            WatermarkCoverage { covered: spool.last(), newest: i64::MIN, waiting: VecDeque::new() };
        Outbox {
            spool,
            encoder: BatchEncoder::default(),
            columns: Vec::new(),
            shipped: ShippedTotals::default(),
            coverage,
        }
    }

    /// Continues these totals from now on.
    pub(crate) fn set_totals(&mut self, shipped: ShippedTotals) {
        self.shipped = shipped;
    }

    /// Marks the end of the spool: no more messages follow.
    pub(crate) fn end(&mut self) {
        self.spool.end();
    }

    fn write(&mut self, message: &mut Message) {
        self.shipped.bytes += self.spool.write(message);
    }
}

impl Sink for Outbox {
    fn prepare(&mut self) {
        self.spool.notify_reader();
        self.spool.make_space();
    }

    fn has_space(&self) -> bool {
        self.spool.has_space()
    }

    fn is_blocked(&self) -> bool {
        self.spool.is_acknowledged(self.coverage.covered)
    }

    fn is_written(&self) -> bool {
        self.spool.is_written()
    }

    fn shipped(&self) -> ShippedTotals {
        self.shipped
    }

    fn send(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Process(process) => {
                self.shipped.processes += 1;
                self.write(&mut Message::Process { seq: 0, process });
            }
            Fact::Stream(stream) => {
                self.shipped.streams += 1;
                self.write(&mut Message::Stream { seq: 0, stream });
            }
            Fact::Batch { stream, after, columns } => {
                self.shipped.events += columns.records() as u64;
                let latest = columns.time.last().copied().unwrap_or(i64::MIN);
                self.coverage.newest = self.coverage.newest.max(latest);
                let mut encoded = std::mem::take(&mut self.columns);
                encoded.clear();
                self.encoder.encode(columns, &mut encoded);
                let mut batch = Message::Batch { seq: 0, stream, after, columns: encoded };
                let next = columns.attempt.last().map_or(after, |last| last.saturating_add(1));
                let position = DrainPosition { stream, next, time: latest };
                self.shipped.bytes += self.spool.write_drained(&mut batch, Some(position));
                if let Message::Batch { columns, .. } = batch {
                    self.columns = columns;
                }
            }
            Fact::Resume(resume) => self.write(&mut Message::Resume { seq: 0, resume }),
            Fact::StreamEnd(end) => {
                self.shipped.lost_full = self.shipped.lost_full.saturating_add(end.lost_full);
                self.shipped.lost_nested = self.shipped.lost_nested.saturating_add(end.lost_nested);
                self.shipped.filtered = self.shipped.filtered.saturating_add(end.filtered);
                self.write(&mut Message::StreamEnd { seq: 0, end });
            }
            Fact::ProcessEnd { key, time, lost } => {
                self.shipped.lost_no_lane = self.shipped.lost_no_lane.saturating_add(lost.no_lane);
                self.write(&mut Message::ProcessEnd { seq: 0, key, time, lost });
            }
            Fact::Devices(sample) => {
                self.coverage.newest = self.coverage.newest.max(sample.time);
                self.write(&mut Message::Devices { seq: 0, sample });
            }
            Fact::Watermark(time) => {
                // A watermark is the last fact of a sweep.
                self.spool.set_watermark(time);
                self.coverage.advance(self.spool.last(), time);
                self.spool.notify_reader();
            }
            Fact::Aside => {
                self.spool.send_aside();
                self.spool.notify_reader();
            }
        }
    }
}
