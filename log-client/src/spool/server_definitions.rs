//! Definitions that the log-server has on a connection. The server closes a connection on which a
//! message refers to an undefined process or stream.

use super::format::Frame;
use miot_proto::wire::{Message, ProcessKey, Resume};
use std::collections::HashSet;

/// Processes and streams that were defined on the connection and have not ended.
#[derive(Debug, Default)]
pub(super) struct ServerDefinitions {
    processes: HashSet<ProcessKey>,
    streams: HashSet<u32>,
}

impl ServerDefinitions {
    /// The definition in a copy, as a frame with number 0; `None` if the server has it or the frame
    /// defines nothing.
    pub(super) fn missing(&self, copy: Frame<'_>) -> Option<Vec<u8>> {
        match Message::from_payload(copy.payload, copy.crc) {
            Ok(Message::Process { process, .. }) if !self.processes.contains(&process.key) => {
                Some(Message::Process { seq: 0, process }.frame())
            }
            Ok(Message::Stream { stream, .. }) if !self.streams.contains(&stream.number) => {
                Some(Message::Stream { seq: 0, stream }.frame())
            }
            _ => None,
        }
    }

    /// True if the server can accept this frame next; then it is recorded as sent.
    pub(super) fn admit(&mut self, frame: Frame<'_>) -> bool {
        if let Some(stream) = frame.stream() {
            return self.streams.contains(&stream);
        }
        match Message::from_payload(frame.payload, frame.crc) {
            Ok(Message::Process { process, .. }) => {
                self.processes.insert(process.key);
                true
            }
            Ok(Message::Stream { stream, .. }) => {
                let is_known = self.processes.contains(&stream.key.process);
                if is_known {
                    self.streams.insert(stream.number);
                }
                is_known
            }
            Ok(Message::StreamEnd { end, .. }) => self.streams.remove(&end.stream),
            Ok(Message::Resume { resume: Resume::Stream { stream, .. }, .. }) => {
                self.streams.contains(&stream)
            }
            Ok(Message::Resume { resume: Resume::Process { key, .. }, .. }) => self.processes.contains(&key),
            // A process end is valid without a definition: the process may have had no stream.
            Ok(Message::ProcessEnd { key, .. }) => {
                self.processes.remove(&key);
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
}
