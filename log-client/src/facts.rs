//! What sweeps find out, on its way to the log-server.

use miot_proto::batch::Columns;
use miot_proto::wire::{Process, ProcessKey, ProcessLoss, Stream, StreamEnd};

/// One fact.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// A process appears; before its streams.
    Process(Process),
    /// A stream appears; before its batches.
    Stream(Stream),
    /// Consecutive records of a stream. Once [`Sink::send`] has returned, the sink answers for them: the
    /// producer is told that their slots are free.
    Batch { stream: u32, columns: &'a Columns },
    /// A stream ends.
    StreamEnd(StreamEnd),
    /// A process is gone, all its streams have ended.
    ProcessEnd { key: ProcessKey, time: i64, lost: ProcessLoss },
    /// Everything that completed before this time has been sent.
    Watermark(i64),
}

/// Takes facts, in order.
pub(crate) trait Sink {
    /// False: no more records now, please. Facts other than batches are always taken; they are small.
    fn has_room(&self) -> bool;
    /// Takes a fact.
    fn send(&mut self, fact: Fact<'_>);
}
