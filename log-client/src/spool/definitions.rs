//! Processes and streams in force.

use super::format::Begins;
use super::ledger::{Note, Taken};
use miot_proto::wire::{Message, ProcessKey, Stream};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Process(ProcessKey),
    Stream(u32),
}

/// What is defined and has not ended, in the order in which it was defined: processes before their streams.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Frames with number 0.
    frames: BTreeMap<u64, Vec<u8>>,
    places: HashMap<Subject, u64>,
    next: u64,
}

impl Definitions {
    /// Follows the messages of a session.
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

    /// Appends them to `out`, processes first. Damage may have taken the end of a stream whose process has ended, or has been
    /// defined again since: the one is left out, the other follows its process.
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

    /// What defines the subject of a note: a process, and its stream.
    pub(super) fn defining(&self, note: Note) -> Vec<u8> {
        let frame = |subject| self.places.get(&subject).and_then(|place| self.frames.get(place));
        let (process, stream) = match note {
            Note::Nothing => return Vec::new(),
            Note::Gone(key, _) => (Some(key), None),
            Note::Taken(Taken { stream, .. }) | Note::End(stream) => {
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

    /// True if this very stream is in force.
    pub(super) fn has_stream(&self, stream: &Stream) -> bool {
        let place = self.places.get(&Subject::Stream(stream.number));
        let frame = Message::Stream { seq: 0, stream: stream.clone() }.frame();
        place.and_then(|place| self.frames.get(place)).is_some_and(|known| *known == frame)
    }

    /// It is not in force any more, though it has not ended.
    pub(super) fn forget_stream(&mut self, number: u32) {
        self.end(Subject::Stream(number));
    }

    /// See [`forget_stream`](Self::forget_stream).
    pub(super) fn forget_process(&mut self, key: ProcessKey) {
        self.end(Subject::Process(key));
    }

    fn define(&mut self, subject: Subject, frame: Vec<u8>) {
        // A process that is defined again may already have streams.
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
    let Begins::Frame(frame, _) = Begins::of(frame) else { return None };
    match Message::from_payload(frame.payload, frame.crc) {
        Ok(Message::Stream { stream, .. }) => Some(stream.key.process),
        _ => None,
    }
}
