//! What sweeps find out, on its way to the log-server.

use crate::ship::Shipped;
use miot_proto::batch::Columns;
use miot_proto::wire::{Process, ProcessKey, ProcessLoss, Sample, Stream, StreamEnd};

/// One fact.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// A process appears; before its streams.
    Process(Process),
    /// A stream appears; before its batches.
    Stream(Stream),
    /// Consecutive records of a stream. Once [`Sink::send`] has returned, the sink answers for them: the
    /// producer is told that their slots are free.
    ///
    /// `after`: see [`miot_proto::wire::Message::Batch`].
    Batch { stream: u32, after: u64, columns: &'a Columns },
    /// A stream ends.
    StreamEnd(StreamEnd),
    /// A process is gone, all its streams have ended.
    ProcessEnd { key: ProcessKey, time: i64, lost: ProcessLoss },
    /// What the devices of the node did; before a watermark that goes beyond its time.
    Devices(Sample),
    /// Everything that completed before this time has been sent.
    Watermark(i64),
    /// Nobody is to wait for what this node has to tell.
    Aside,
}

/// Takes facts, in order.
pub(crate) trait Sink {
    /// A sweep begins.
    fn prepare(&mut self) {}
    /// False: no more records now, please. Facts other than batches are always taken; they are small.
    fn has_room(&self) -> bool;
    /// True if nothing of what waits here can be merged by a log-server that waits for the next watermark.
    fn is_stuck(&self) -> bool {
        false
    }
    /// True if everything that was sent is where it outlives this process.
    fn is_written(&self) -> bool {
        true
    }
    /// What was handed over so far.
    fn shipped(&self) -> Shipped {
        Shipped::default()
    }
    /// Takes a fact.
    fn send(&mut self, fact: Fact<'_>);
}
