//! Recovery of the spool in all circumstances.

mod continuity;
mod damage;
mod full;
mod given_up;
mod ledger;
mod server;

use super::{Reader, RecoveredSpool, Spool, Writer};
use crate::config::SpoolFull;
use crate::error::Error;
use crate::testing::samples;
use crate::until::until;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, ProcessKey, ProcessLoss, frame_header};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const KEY: ProcessKey = ProcessKey { boot: 1, nonce: 2, pid: 3 };
const BOOT: u128 = 1;

fn process() -> Message {
    Message::Process { seq: 0, process: samples::process(KEY) }
}

fn stream(number: u32) -> Message {
    stream_of(number, number)
}

fn stream_of(number: u32, lane: u32) -> Message {
    Message::Stream { seq: 0, stream: samples::stream(number, KEY, lane) }
}

fn batch(bytes: usize) -> Message {
    batch_of(0, bytes)
}

/// A batch of a stream; its bytes are not records.
fn batch_of(stream: u32, bytes: usize) -> Message {
    Message::Batch { seq: 0, stream, after: 0, columns: vec![7; bytes] }
}

fn stream_end(stream: u32) -> Message {
    Message::StreamEnd { seq: 0, end: samples::stream_end(stream, 0, 0) }
}

fn process_end() -> Message {
    Message::ProcessEnd { seq: 0, key: KEY, time: 0, lost: ProcessLoss::default() }
}

fn write(writer: &mut Writer, messages: impl IntoIterator<Item = Message>) {
    for mut message in messages {
        let taken = samples::taken(&message);
        writer.write_drained(&mut message, taken);
    }
}

fn open_on(dir: &Path, boot: u128) -> (Writer, Reader, RecoveredSpool) {
    let mut opened = None;
    until("the spool is not locked by another process", || {
        let result = Spool::open(dir, MAX_FRAME as u64, SpoolFull::KeepOldest, "test", boot);
        // A process that another test is just starting holds the lock until it executes its
        // program.
        opened = (!matches!(result, Err(Error::Running { .. }))).then_some(result);
        opened.is_some()
    });
    let (spool, recovered) = opened.unwrap().unwrap();
    let spool = Arc::new(spool);
    (Writer::new(Arc::clone(&spool), recovered.watermark), Reader::new(spool), recovered)
}

fn open(dir: &Path) -> (Writer, Reader, RecoveredSpool) {
    open_on(dir, BOOT)
}

/// Short names of messages.
pub(crate) fn names(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
        let (length, crc) = frame_header(*header, MAX_FRAME).unwrap();
        names.push(match Message::from_payload(&rest[..length], crc).unwrap() {
            Message::Process { seq, .. } => format!("process {seq}"),
            Message::Stream { seq, stream } => format!("stream {seq} is {}", stream.number),
            Message::Batch { seq, stream, .. } => format!("batch {seq} of {stream}"),
            Message::StreamEnd { seq, end } => format!("end {seq} of {}", end.stream),
            Message::ProcessEnd { seq, .. } => format!("gone {seq}"),
            Message::Heartbeat { watermark } => format!("all before {watermark}"),
            other => format!("{other:?}"),
        });
        bytes = &rest[length..];
    }
    names
}

/// Short names of the messages sent on a connection whose server has everything up to `through`.
fn sent(reader: &mut Reader, through: u64) -> Vec<String> {
    let mut bytes = Vec::new();
    reader.restart(through, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    names(&bytes)
}

/// Files of the spool, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_none_or(|extension| extension != "ledger"));
    files.sort();
    files
}
