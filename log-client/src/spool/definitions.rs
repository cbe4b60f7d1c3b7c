//! Processes and streams in force.

use miot_proto::wire::{Message, ProcessKey};
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

    /// Appends them to `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.frames.values().for_each(|frame| out.extend_from_slice(frame));
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
