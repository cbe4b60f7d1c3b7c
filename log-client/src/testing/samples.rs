//! Processes, streams and records with default values in all fields that a test does not set.

use crate::spool::DrainPosition;
use miot_proto::batch::Columns;
use miot_proto::event::Event;
use miot_proto::op::posix;
use miot_proto::wire::{Message, Process, ProcessKey, Stream, StreamEnd, StreamKey};

/// A process with a key only.
#[must_use]
pub fn process(key: ProcessKey) -> Process {
    let text = Vec::new;
    let (exe, cmdline, job, cwd) = (text(), text(), text(), text());
    Process { key, ppid: 1, uid: 0, started: 0, rank: None, exe, cmdline, job, cwd }
}

/// The stream of one of its lanes.
#[must_use]
pub fn stream(number: u32, process: ProcessKey, lane: u32) -> Stream {
    let key = StreamKey { process, lane, incarnation: 1 };
    Stream { number, key, tid: 3, comm: Vec::new() }
}

/// The end of a stream after `attempts` attempts, of which those from `after` on were lost in its
/// lane.
#[must_use]
pub fn stream_end(stream: u32, attempts: u64, after: u64) -> StreamEnd {
    StreamEnd { stream, attempts, after, lost_full: 0, lost_nested: 0, filtered: 0, time: 0 }
}

/// A 4096-byte read; each attempt reads the next block.
#[must_use]
pub fn read(attempt: u64) -> Event {
    Event {
        op: posix::READ,
        request: attempt as u32,
        enclosing: 0,
        end: 0,
        duration: 1,
        flags: 0,
        handle: 3,
        offset: attempt.wrapping_mul(4096),
        length: 4096,
        result: 4096,
    }
}

/// Encodes records as in a batch.
#[must_use]
pub fn packed(columns: &Columns) -> Vec<u8> {
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    columns.encode(&mut plain, &mut packed);
    packed
}

/// The position up to which a batch drains its lane; `None` if its bytes are not records.
pub(crate) fn taken(message: &Message) -> Option<DrainPosition> {
    let Message::Batch { stream, columns, .. } = message else { return None };
    let columns = Columns::decode(columns).ok()?;
    let (next, time) = (columns.attempt.last()?.checked_add(1)?, *columns.time.last()?);
    Some(DrainPosition { stream: *stream, next, time })
}
