//! Processes, streams and records of which only that is said what a test is about.

use crate::spool::Taken;
use miot_proto::batch::Columns;
use miot_proto::event::Event;
use miot_proto::op::posix;
use miot_proto::wire::{Message, Process, ProcessKey, Stream, StreamEnd, StreamKey};

/// A process of which nothing is known but its key.
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

/// The end of a stream after so many attempts, of which those from `after` on were lost in its lane.
#[must_use]
pub fn stream_end(stream: u32, attempts: u64, after: u64) -> StreamEnd {
    StreamEnd { stream, attempts, after, lost_full: 0, lost_nested: 0, filtered: 0, time: 0 }
}

/// A read of a block: with each attempt of the next one.
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

/// Records as a batch carries them.
#[must_use]
pub fn packed(columns: &Columns) -> Vec<u8> {
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    columns.encode(&mut plain, &mut packed);
    packed
}

/// What a batch says of how far its lane was taken, if its bytes are records.
pub(crate) fn taken(message: &Message) -> Option<Taken> {
    let Message::Batch { stream, columns, .. } = message else { return None };
    let columns = Columns::decode(columns).ok()?;
    let (next, time) = (columns.attempt.last()?.checked_add(1)?, *columns.time.last()?);
    Some(Taken { stream: *stream, next, time })
}
