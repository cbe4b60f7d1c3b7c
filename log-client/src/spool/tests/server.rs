//! A model of the log-server's merge.

use miot_proto::batch::Columns;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::collections::{BTreeSet, HashMap};

/// State of the server: for each lane the next attempt number, the numbers that arrived, and those
/// given up.
#[derive(Default)]
pub(super) struct Server {
    pub(super) next: HashMap<u32, u64>,
    pub(super) came: HashMap<u32, BTreeSet<u64>>,
    pub(super) lost: HashMap<u32, BTreeSet<u64>>,
    /// Taken from the lane but did not arrive: `spool_damaged`.
    pub(super) missed: HashMap<u32, BTreeSet<u64>>,
    pub(super) ended: HashMap<u32, u64>,
    pub(super) gone: bool,
    pub(super) through: u64,
}

impl Server {
    /// Processes messages as the log-server's merge does, durable at once.
    pub(super) fn take(&mut self, mut bytes: &[u8], known: &mut HashMap<u32, u32>) {
        while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
            let (length, crc) = frame_header(*header, MAX_FRAME).unwrap();
            let message = Message::from_payload(&rest[..length], crc).unwrap();
            bytes = &rest[length..];
            self.through = self.through.max(message.seq().unwrap_or(0));
            match message {
                Message::Stream { stream, .. } => _ = known.insert(stream.number, stream.key.lane),
                Message::Batch { stream, after, columns, .. } => {
                    let stream = known[&stream];
                    let columns = Columns::decode(&columns).unwrap();
                    self.miss(stream, after.min(columns.attempt.first().copied().unwrap_or(after)));
                    let next = self.next.entry(stream).or_default();
                    for attempt in columns.attempt.into_iter().filter(|attempt| attempt >= next) {
                        assert!(self.came.entry(stream).or_default().insert(attempt));
                    }
                    *next = self
                        .came
                        .get(&stream)
                        .and_then(|came| came.last())
                        .map_or(*next, |last| last + 1)
                        .max(*next);
                }
                Message::GivenUp { stream, after, ranges, .. } => {
                    let stream = known[&stream];
                    assert!(ranges.is_sorted_by(|a, b| a.1 < b.0));
                    self.miss(stream, ranges.first().map_or(after, |(first, _)| after.min(*first)));
                    let next = self.next.entry(stream).or_default();
                    for (first, last) in ranges {
                        self.lost.entry(stream).or_default().extend(first.max(*next)..=last);
                        *next = last.saturating_add(1).max(*next);
                    }
                }
                Message::StreamEnd { end, .. } => {
                    let stream = known[&end.stream];
                    self.miss(stream, end.after);
                    assert_eq!(self.next.get(&stream).copied().unwrap_or(0), end.after);
                    self.ended.insert(stream, end.attempts);
                }
                Message::ProcessEnd { .. } => self.gone = true,
                _ => {}
            }
        }
    }

    /// Numbers below this one that have not arrived will not arrive.
    fn miss(&mut self, stream: u32, after: u64) {
        let next = self.next.entry(stream).or_default();
        if after > *next {
            self.missed.entry(stream).or_default().extend(*next..after);
            *next = after;
        }
    }
}
