//! Facts that sweeps establish, in the form in which they pass to the spool.

use miot_proto::batch::Columns;
use miot_proto::wire::{DeviceSample, Process, ProcessKey, ProcessLoss, Resume, Stream, StreamEnd};

/// One fact.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// A process appeared; precedes its streams.
    Process(Process),
    /// A stream appeared; precedes its batches.
    Stream(Stream),
    /// Consecutive records of a stream. Once [`Sink::send`] has returned, the sink is responsible
    /// for them, and their slots are given back to the producer.
    ///
    /// `after`: see [`miot_proto::wire::Message::Batch`].
    Batch { stream: u32, after: u64, columns: &'a Columns },
    /// A process or stream continues here whose earlier records went to another log-server; follows
    /// its definition.
    Resume(Resume),
    /// A stream ended.
    StreamEnd(StreamEnd),
    /// A process ended; all its streams have ended before.
    ProcessEnd { key: ProcessKey, time: i64, lost: ProcessLoss },
    /// A sample of the device counters; precedes any watermark above its time.
    Devices(DeviceSample),
    /// All requests that completed before this time, nanoseconds since 1970, have been sent.
    Watermark(i64),
    /// The log-server must not wait for events of this node.
    Aside,
}

/// Totals of the facts that a sink has accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShippedTotals {
    pub(crate) events: u64,
    /// Bytes of the messages.
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    pub(crate) processes: u64,
    pub(crate) lost_full: u64,
    pub(crate) lost_nested: u64,
    pub(crate) lost_no_lane: u64,
    pub(crate) filtered: u64,
}

/// Consumer of facts, in order.
pub(crate) trait Sink {
    /// Called at the start of each sweep.
    fn prepare(&mut self) {}
    /// False if no more batches may be sent now. Other facts are small and always accepted.
    fn has_space(&self) -> bool;
    /// True if a log-server that waits for the next watermark cannot merge any of the messages that
    /// are waiting here.
    fn is_blocked(&self) -> bool {
        false
    }
    /// True if all facts sent so far are in files that survive this process.
    fn is_written(&self) -> bool {
        true
    }
    /// Totals of the facts sent so far.
    fn shipped(&self) -> ShippedTotals {
        ShippedTotals::default()
    }
    /// Accepts a fact.
    fn send(&mut self, fact: Fact<'_>);
}
