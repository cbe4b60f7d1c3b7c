//! The sweeper's end: facts become messages in the spool.

use crate::facts::{Fact, Sink};
use crate::spool::{Taken, Writer};
use miot_proto::wire::Message;
use std::collections::VecDeque;

/// What was handed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shipped {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    pub(crate) processes: u64,
    pub(crate) lost_full: u64,
    pub(crate) lost_nested: u64,
    pub(crate) lost_no_lane: u64,
    pub(crate) filtered: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox {
    spool: Writer,
    plain: Vec<u8>,
    columns: Vec<u8>,
    shipped: Shipped,
    promises: Promises,
}

/// Up to which message the watermarks cover what was sent: the log-server can merge and acknowledge so much.
#[derive(Debug)]
struct Promises {
    covered: u64,
    /// Completion of the latest event.
    newest: i64,
    /// Messages and the latest event up to them, of which not all are covered.
    waiting: VecDeque<(u64, i64)>,
}

/// More of them are put together: nobody is so far behind in the ordinary course of things.
const MOST_WAITING: usize = 1024;

impl Promises {
    fn promise(&mut self, last: u64, watermark: i64) {
        if self.waiting.len() == MOST_WAITING {
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
        // The promises of the log-client before this one are in the spool.
        let promises = Promises { covered: spool.last(), newest: i64::MIN, waiting: VecDeque::new() };
        Outbox { spool, plain: Vec::new(), columns: Vec::new(), shipped: Shipped::default(), promises }
    }

    /// Says that nothing more comes.
    pub(crate) fn end(&mut self) {
        self.spool.end();
    }

    fn write(&mut self, message: &mut Message) {
        self.shipped.bytes += self.spool.write(message);
    }
}

impl Sink for Outbox {
    fn prepare(&mut self) {
        self.spool.announce();
        self.spool.make_room();
    }

    fn has_room(&self) -> bool {
        self.spool.has_room()
    }

    fn is_stuck(&self) -> bool {
        self.spool.is_acknowledged(self.promises.covered)
    }

    fn is_written(&self) -> bool {
        self.spool.is_written()
    }

    fn shipped(&self) -> Shipped {
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
                self.shipped.events += columns.len() as u64;
                let latest = columns.time.last().copied().unwrap_or(i64::MIN);
                self.promises.newest = self.promises.newest.max(latest);
                let mut encoded = std::mem::take(&mut self.columns);
                encoded.clear();
                columns.encode(&mut self.plain, &mut encoded);
                let mut batch = Message::Batch { seq: 0, stream, after, columns: encoded };
                let next = columns.attempt.last().map_or(after, |last| last.saturating_add(1));
                let taken = Taken { stream, next, time: latest };
                self.shipped.bytes += self.spool.write_taken(&mut batch, Some(taken));
                if let Message::Batch { columns, .. } = batch {
                    self.columns = columns;
                }
            }
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
                self.promises.newest = self.promises.newest.max(sample.time);
                self.write(&mut Message::Devices { seq: 0, sample });
            }
            Fact::Watermark(time) => {
                // The last fact of a sweep.
                self.spool.promise(time);
                self.promises.promise(self.spool.last(), time);
                self.spool.announce();
            }
            Fact::Aside => {
                self.spool.stand_aside();
                self.spool.announce();
            }
        }
    }
}
