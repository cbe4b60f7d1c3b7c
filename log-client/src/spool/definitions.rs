//! Definitions in force: processes and streams that have been defined and have not ended.

use super::format::FramePrefix;
use super::ledger::{DrainPosition, LedgerNote};
use miot_proto::wire::{Message, ProcessKey, Stream};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Process(ProcessKey),
    Stream(u32),
}

/// Definitions in force, in the order in which they were made: processes before their streams.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Frames with number 0.
    frames: BTreeMap<u64, Vec<u8>>,
    places: HashMap<Subject, u64>,
    next: u64,
}

impl Definitions {
    /// Updates the definitions with the next message of a session.
    pub(super) fn follow(&mut self, message: &Message) {
        match message {
            Message::Process { process, .. } => {
                let frame = Message::Process { seq: 0, process: process.clone() }.frame();
                self.define(Subject::Process(process.key), frame);
            }
            Message::Stream { stream, .. } => {
                let frame = Message::Stream { seq: 0, stream: stream.clone() }.frame();
                self.define(Subject::Stream(stream.number), frame);
            }
            Message::StreamEnd { end, .. } => self.end(Subject::Stream(end.stream)),
            Message::ProcessEnd { key, .. } => self.end(Subject::Process(*key)),
            _ => {}
        }
    }

    /// [`follow`](Self::follow) for the frame of a message.
    pub(super) fn follow_frame(&mut self, frame: &[u8]) {
        if let FramePrefix::Frame(frame, _) = FramePrefix::of(frame)
            && !frame.is_batch()
            && let Ok(message) = Message::from_payload(frame.payload, frame.crc)
        {
            self.follow(&message);
        }
    }

    /// Appends the frames to `out`, processes first. After damage, the end of a stream may be
    /// missing although its process has ended or was defined again. In the first case the stream is
    /// left out; in the second it follows its process.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let mut order: Vec<(bool, u64)> = self
            .places
            .iter()
            .map(|(subject, place)| (matches!(subject, Subject::Stream(_)), *place))
            .collect();
        order.sort_unstable();
        for (is_stream, place) in order {
            let Some(frame) = self.frames.get(&place) else { continue };
            if !is_stream || process_of(frame).is_some_and(|key| self.has_process(key)) {
                out.extend_from_slice(frame);
            }
        }
    }

    /// The definitions that a note refers to: a process, and its stream.
    pub(super) fn defining(&self, note: LedgerNote) -> Vec<u8> {
        let frame = |subject| self.places.get(&subject).and_then(|place| self.frames.get(place));
        let (process, stream) = match note {
            LedgerNote::Nothing => return Vec::new(),
            LedgerNote::ProcessEnd { key, .. } => (Some(key), None),
            LedgerNote::Drained(DrainPosition { stream, .. }) | LedgerNote::StreamEnd(stream) => {
                let frame = frame(Subject::Stream(stream));
                match frame.and_then(|frame| process_of(frame)) {
                    Some(process) => (Some(process), frame),
                    None => (None, None),
                }
            }
        };
        let process = process.and_then(|key| frame(Subject::Process(key)));
        process.into_iter().chain(stream).flatten().copied().collect()
    }

    pub(super) fn has_process(&self, key: ProcessKey) -> bool {
        self.places.contains_key(&Subject::Process(key))
    }

    /// True if exactly this stream is in force.
    pub(super) fn has_stream(&self, stream: &Stream) -> bool {
        let place = self.places.get(&Subject::Stream(stream.number));
        let frame = Message::Stream { seq: 0, stream: stream.clone() }.frame();
        place.and_then(|place| self.frames.get(place)).is_some_and(|known| *known == frame)
    }

    /// Removes a stream that has not ended.
    pub(super) fn forget_stream(&mut self, number: u32) {
        self.end(Subject::Stream(number));
    }

    /// Removes a process that has not ended.
    pub(super) fn forget_process(&mut self, key: ProcessKey) {
        self.end(Subject::Process(key));
    }

    fn define(&mut self, subject: Subject, frame: Vec<u8>) {
        // A process that is defined again may already have streams, so it keeps its position.
        let place = *self.places.entry(subject).or_insert(self.next);
        self.frames.insert(place, frame);
        self.next += 1;
    }

    fn end(&mut self, subject: Subject) {
        if let Some(place) = self.places.remove(&subject) {
            self.frames.remove(&place);
        }
    }
}

/// The process of the stream that a frame defines.
fn process_of(frame: &[u8]) -> Option<ProcessKey> {
    let FramePrefix::Frame(frame, _) = FramePrefix::of(frame) else { return None };
    match Message::from_payload(frame.payload, frame.crc) {
        Ok(Message::Stream { stream, .. }) => Some(stream.key.process),
        _ => None,
    }
}
