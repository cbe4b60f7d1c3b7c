//! Limits of a node's session, and the rules of the protocol that a session can check by itself.

use crate::error::Refusal;
use miot_proto::batch::{Columns, ExtRow};
use miot_proto::wire::{DeviceSample, MAX_DEVICE_NAME, Message, Process, ProcessKey, Resume, Stream};
use std::collections::HashSet;
use std::time::Duration;

/// Maximum memory of messages that are held back until the clock is known, bytes.
pub(super) const MAX_HELD: usize = 8 << 20;
/// A connection without any message for this time, not even answers to pings, is dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(60);
/// A time this far ahead of the server's clock is wrong, and would wait in the merge until then,
/// nanoseconds.
pub(super) const MAX_AHEAD_NS: i64 = 10_000_000_000;
/// When the server stops: a node that sends nothing for this time has sent everything.
pub(super) const QUIET: Duration = Duration::from_millis(100);
/// When the server stops: maximum time for reading from a node.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// Memory of a decoded message besides its arrays, bytes.
pub(super) const BASE_SIZE: usize = 512;
/// Maximum length of a thread's name, bytes; names in the kernel have at most 15.
const MAX_COMM: usize = 64;
/// Maximum length of the texts of a process, bytes; a log-client sends less than a page.
const MAX_STRINGS: usize = 64 << 10;

/// Processes and streams that were defined on this connection and have not ended.
#[derive(Debug)]
pub(crate) struct OpenDefinitions {
    processes: HashSet<ProcessKey>,
    streams: HashSet<u32>,
    /// Maximum number of processes, and of streams.
    limit: usize,
}

impl OpenDefinitions {
    pub(crate) fn new(limit: usize) -> OpenDefinitions {
        OpenDefinitions { processes: HashSet::new(), streams: HashSet::new(), limit }
    }

    /// Checks a message against the rules of the protocol, and records its definition or end.
    pub(crate) fn check(&mut self, message: &Message) -> Result<(), Refusal> {
        let is_definition = matches!(message, Message::Process { .. } | Message::Stream { .. });
        if message.seq() == Some(0) && !is_definition {
            // Its memory is charged until its number is acknowledged.
            return Err(Refusal::Rule("only a repeated process or stream has no number"));
        }
        match message {
            Message::Process { process, .. } => self.define_process(process),
            Message::Stream { stream, .. } => self.define_stream(stream),
            Message::Batch { stream, .. } => {
                require(self.streams.contains(stream), "a batch before its stream")
            }
            Message::GivenUp { stream, ranges, .. } => {
                require(self.streams.contains(stream), "records are given up before their stream")?;
                let ascending = ranges.is_sorted_by(|a, b| a.1 < b.0);
                let valid = ascending && ranges.iter().all(|(first, last)| first <= last && *last < u64::MAX);
                require(valid, "the attempt numbers of records that were given up are not valid")
            }
            Message::Resume { resume: Resume::Stream { stream, .. }, .. } => {
                require(self.streams.contains(stream), "a stream resumes before its definition")
            }
            Message::Resume { resume: Resume::Process { key, .. }, .. } => {
                require(self.processes.contains(key), "a process resumes before its definition")
            }
            Message::StreamEnd { end, .. } => {
                require(self.streams.remove(&end.stream), "the end of a stream before the stream")
            }
            Message::ProcessEnd { key, .. } => {
                self.processes.remove(key);
                Ok(())
            }
            Message::Devices { sample, .. } => check_sample(sample),
            Message::Heartbeat { .. } | Message::SuspendWatermark | Message::AckAtOnce | Message::Bye => {
                Ok(())
            }
            _ => Err(Refusal::Rule("a message that only the log-server sends, or a second greeting")),
        }
    }

    fn define_process(&mut self, process: &Process) -> Result<(), Refusal> {
        let strings = [&process.exe, &process.cmdline, &process.job, &process.cwd];
        let length = strings.iter().map(|s| s.len()).sum::<usize>();
        require(length <= MAX_STRINGS, "a process with more than 64 KiB of names")?;
        self.processes.insert(process.key);
        if self.processes.len() > self.limit {
            return Err(Refusal::Streams { what: "processes", limit: self.limit });
        }
        Ok(())
    }

    fn define_stream(&mut self, stream: &Stream) -> Result<(), Refusal> {
        require(self.processes.contains(&stream.key.process), "a stream before its process")?;
        require(stream.comm.len() <= MAX_COMM, "a thread with a name of more than 64 bytes")?;
        self.streams.insert(stream.number);
        if self.streams.len() > self.limit {
            return Err(Refusal::Streams { what: "streams", limit: self.limit });
        }
        Ok(())
    }
}

/// `violation` is the text of the refusal if `valid` is false.
fn require(valid: bool, violation: &'static str) -> Result<(), Refusal> {
    if valid { Ok(()) } else { Err(Refusal::Rule(violation)) }
}

fn check_sample(sample: &DeviceSample) -> Result<(), Refusal> {
    let fits = |name: &Vec<u8>| name.len() <= MAX_DEVICE_NAME;
    let valid = sample.devices.iter().all(|device| fits(&device.name) && fits(&device.mount));
    require(valid, "a device with a name or mount of more than 512 bytes")
}

/// Memory of a decoded batch, bytes.
pub(crate) fn memory_size(rows: &Columns) -> usize {
    const ROW: usize = 1 + 2 + 2 + 4 + 4 + 7 * 8;
    BASE_SIZE + rows.len() * ROW + rows.ext.len() * size_of::<ExtRow>() + rows.text.len()
}
