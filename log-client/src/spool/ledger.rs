//! Ledgers: files that record what the spool files hold, so that losses are known when a spool file
//! is truncated, overwritten or removed.
//!
//! Beside `N.spool` there is `N.ledger`. For each stream with batches in `N.spool`, or with
//! statements of what was lost, it holds the attempt number that follows the last one. It also
//! repeats the ends of streams and processes, and the definitions of all of them. It is written
//! after the message and before the lane's slots are given back: all records that it counts were
//! taken from the lanes.
//!
//! ```text
//! 0   magic, 8 bytes            MIOTLGR1
//! 8   salt, u128: a random number
//! 24  CRC-32C of bytes 0..24, as u64
//! 32  zeros
//! 64  entries, each at a multiple of 8:
//!     FRAM, u32 length, a frame          a message as it was sent, definitions with number 0,
//!                                        padded with zeros to a multiple of 8
//!     TAKN, 60 bytes                     at a multiple of 64, overwritten after each batch:
//!         u32 CRC-32C of the bytes after it · u32 stream · u32 zero ·
//!         u64 number of the last message · u64 next attempt number ·
//!         i64 time of the last event · u128 salt · u64 zero
//! ```
//!
//! Invalid entries are skipped in steps of 8 bytes. Only the log-client knows the salt, so bytes
//! from traced programs are never taken for a TAKN entry. Nothing is synced, as in the spool.

use super::format::{Frame, FramePrefix};
use miot_proto::wire::{Message, Process, ProcessKey, ProcessLoss, Stream, StreamEnd};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 8] = *b"MIOTLGR1";
const HEADER: usize = 64;
const DRAINED: [u8; 4] = *b"TAKN";
const FRAME: [u8; 4] = *b"FRAM";
/// Bytes of a TAKN entry.
const ENTRY: usize = 64;
/// Alignment of entries, bytes.
const STEP: usize = 8;

/// Position up to which a lane was drained: the end of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainPosition {
    pub(crate) stream: u32,
    /// The attempt number after the last record.
    pub(crate) next: u64,
    /// Completion time of the last record.
    pub(crate) time: i64,
}

/// Information of a message that must survive the loss of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LedgerNote {
    Nothing,
    Drained(DrainPosition),
    /// The end of this stream.
    StreamEnd(u32),
    /// The end of a process. `lossy`: the process itself reported losses.
    ProcessEnd {
        key: ProcessKey,
        lossy: bool,
    },
}

impl LedgerNote {
    pub(super) fn of(message: &Message, position: Option<DrainPosition>) -> LedgerNote {
        match (message, position) {
            (Message::Batch { .. }, Some(position)) => LedgerNote::Drained(position),
            // A replay: the ledgers that it repeats may be removed before it is acknowledged.
            (&Message::GivenUp { stream, after, time, .. }, _) => {
                LedgerNote::Drained(DrainPosition { stream, next: after, time })
            }
            (Message::StreamEnd { end, .. }, _) => LedgerNote::StreamEnd(end.stream),
            (Message::ProcessEnd { key, lost, .. }, _) => {
                LedgerNote::ProcessEnd { key: *key, lossy: *lost != ProcessLoss::default() }
            }
            _ => LedgerNote::Nothing,
        }
    }
}

/// The ledger of the file that is being written.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    salt: u128,
    end: u64,
    /// Streams defined in this ledger, with the offset of their TAKN entry.
    streams: HashMap<u32, Option<u64>>,
    processes: HashSet<ProcessKey>,
    buffer: Vec<u8>,
}

impl Ledger {
    pub(super) fn new(file: File, salt: u128) -> io::Result<Ledger> {
        file.write_all_at(&header(salt), 0)?;
        let (streams, processes) = (HashMap::new(), HashSet::new());
        Ok(Ledger { file, salt, end: HEADER as u64, streams, processes, buffer: Vec::new() })
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Records the note of the message with this number, whose frame this is. `define` returns the
    /// definitions that it refers to.
    pub(super) fn note(
        &mut self,
        note: LedgerNote,
        number: u64,
        frame: &[u8],
        define: impl FnOnce() -> Vec<u8>,
    ) -> io::Result<()> {
        self.buffer.clear();
        match note {
            LedgerNote::Nothing => return Ok(()),
            LedgerNote::Drained(position) => {
                let entry = drain_entry(position, number, self.salt);
                if let Some(Some(offset)) = self.streams.get(&position.stream) {
                    return self.file.write_all_at(&entry, *offset);
                }
                self.define(Some(position.stream), define);
                let begin = self.end as usize + self.buffer.len();
                self.buffer.resize(self.buffer.len() + begin.next_multiple_of(ENTRY) - begin, 0);
                let offset = self.end + self.buffer.len() as u64;
                self.buffer.extend_from_slice(&entry);
                self.append()?;
                self.streams.insert(position.stream, Some(offset));
            }
            LedgerNote::StreamEnd(stream) => {
                self.define(Some(stream), define);
                append_frame(&mut self.buffer, frame);
                self.append()?;
            }
            LedgerNote::ProcessEnd { key, lossy } => {
                if lossy || self.processes.contains(&key) {
                    if !self.processes.contains(&key) {
                        self.define(None, define);
                    }
                    append_frame(&mut self.buffer, frame);
                    self.append()?;
                }
            }
        }
        Ok(())
    }

    /// Appends the definitions that are missing in this ledger to the buffer.
    fn define(&mut self, stream: Option<u32>, define: impl FnOnce() -> Vec<u8>) {
        if stream.is_some_and(|stream| self.streams.contains_key(&stream)) {
            return;
        }
        let definitions = define();
        let mut frames = &definitions[..];
        while let FramePrefix::Frame(frame, rest) = FramePrefix::of(frames) {
            frames = rest;
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Process { process, .. }) if !self.processes.insert(process.key) => continue,
                Ok(Message::Stream { stream, .. }) => {
                    self.streams.entry(stream.number).or_default();
                }
                _ => {}
            }
            append_frame(&mut self.buffer, frame.bytes);
        }
    }

    fn append(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        Ok(())
    }
}

fn header(salt: u128) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&salt.to_le_bytes());
    let sum = u64::from(crc32c::crc32c(&bytes[..24]));
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn drain_entry(position: DrainPosition, number: u64, salt: u128) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&DRAINED);
    bytes[8..12].copy_from_slice(&position.stream.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    bytes[24..32].copy_from_slice(&position.next.to_le_bytes());
    bytes[32..40].copy_from_slice(&position.time.to_le_bytes());
    bytes[40..56].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn append_frame(out: &mut Vec<u8>, frame: &[u8]) {
    out.extend_from_slice(&FRAME);
    out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    out.extend_from_slice(frame);
    out.resize(out.len().next_multiple_of(STEP), 0);
}

/// Merged content of ledgers.
#[derive(Debug, Default)]
pub(super) struct LedgerContents {
    /// Highest message number seen.
    pub(super) last: u64,
    pub(super) processes: BTreeMap<ProcessKey, ProcessEntries>,
}

/// Entries of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessEntries {
    pub(super) process: Option<Process>,
    /// Streams by stream number.
    pub(super) streams: BTreeMap<u32, StreamEntries>,
    /// Time of its end, its own losses, and the number of the message.
    pub(super) end: Option<(i64, ProcessLoss, u64)>,
}

/// Entries of a stream.
#[derive(Debug)]
pub(super) struct StreamEntries {
    pub(super) stream: Stream,
    /// With the number of the message.
    pub(super) drained: Option<(DrainPosition, u64)>,
    pub(super) end: Option<(StreamEnd, u64)>,
}

impl LedgerContents {
    /// Adds the entries of a later ledger.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let Some((head, _)) = bytes.split_first_chunk::<HEADER>() else { return };
        let salt = u128::from_le_bytes(*head[8..].first_chunk().unwrap_or(&[0; 16]));
        if *head != header(salt) {
            return;
        }
        let (mut at, mut keys) = (HEADER, HashMap::new());
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= STEP) {
            at += match (rest.starts_with(&FRAME), rest.starts_with(&DRAINED)) {
                (true, _) => match FramePrefix::of(&rest[STEP..]) {
                    FramePrefix::Frame(frame, _) => {
                        self.message(frame, &mut keys);
                        (STEP + frame.bytes.len()).next_multiple_of(STEP)
                    }
                    FramePrefix::Incomplete(_) | FramePrefix::Invalid => STEP,
                },
                (_, true) => {
                    match rest.first_chunk::<ENTRY>().and_then(|bytes| read_drain_entry(bytes, salt)) {
                        Some((position, number)) => {
                            self.drained(position, number, &keys);
                            ENTRY
                        }
                        None => STEP,
                    }
                }
                _ => STEP,
            };
        }
    }

    fn message(&mut self, frame: Frame<'_>, keys: &mut HashMap<u32, ProcessKey>) {
        let Ok(message) = Message::from_payload(frame.payload, frame.crc) else { return };
        self.last = self.last.max(message.seq().unwrap_or(0));
        match message {
            Message::Process { process, .. } => {
                let entries = self.processes.entry(process.key).or_default();
                entries.process = Some(process);
            }
            Message::Stream { stream, .. } => {
                let key = stream.key.process;
                keys.insert(stream.number, key);
                let entries = self.processes.entry(key).or_default();
                // The same stream as in an earlier ledger, or another one that got the number after
                // a restart.
                match entries.streams.get_mut(&stream.number) {
                    Some(known) if known.stream.key == stream.key => {}
                    _ => {
                        let new = StreamEntries { stream, drained: None, end: None };
                        entries.streams.insert(new.stream.number, new);
                    }
                }
            }
            Message::StreamEnd { seq, end } => {
                if let Some(stream) = self.stream(end.stream, keys) {
                    stream.end = Some((end, seq));
                }
            }
            Message::ProcessEnd { seq, key, time, lost } => {
                self.processes.entry(key).or_default().end = Some((time, lost, seq));
            }
            _ => {}
        }
    }

    fn drained(&mut self, position: DrainPosition, number: u64, keys: &HashMap<u32, ProcessKey>) {
        self.last = self.last.max(number);
        if let Some(stream) = self.stream(position.stream, keys)
            && stream.drained.is_none_or(|(before, _)| before.next < position.next)
        {
            stream.drained = Some((position, number));
        }
    }

    fn stream(&mut self, number: u32, keys: &HashMap<u32, ProcessKey>) -> Option<&mut StreamEntries> {
        self.processes.get_mut(keys.get(&number)?)?.streams.get_mut(&number)
    }

    /// Removes entries of messages up to this number, which are acknowledged.
    pub(super) fn forget(&mut self, acknowledged: u64) {
        self.processes.retain(|_, entries| {
            entries.streams.retain(|_, stream| {
                stream.drained.take_if(|(_, number)| *number <= acknowledged);
                stream.end.take_if(|(_, number)| *number <= acknowledged);
                stream.drained.is_some() || stream.end.is_some()
            });
            entries.end.take_if(|(_, _, number)| *number <= acknowledged);
            entries.end.is_some() || !entries.streams.is_empty()
        });
    }

    /// A number above those of all streams.
    pub(super) fn next_stream(&self) -> u32 {
        let numbers = self.processes.values().filter_map(|entries| entries.streams.keys().next_back());
        numbers.max().map_or(0, |number| number.wrapping_add(1))
    }

    /// Encodes the content as a ledger.
    pub(super) fn bytes(&self, salt: u128) -> Vec<u8> {
        let mut out = header(salt).to_vec();
        let put = |out: &mut Vec<u8>, message: Message| append_frame(out, &message.frame());
        for (key, entries) in &self.processes {
            if let Some(process) = &entries.process {
                put(&mut out, Message::Process { seq: 0, process: process.clone() });
            }
            for StreamEntries { stream, drained, end } in entries.streams.values() {
                put(&mut out, Message::Stream { seq: 0, stream: stream.clone() });
                if let Some((position, number)) = drained {
                    out.resize(out.len().next_multiple_of(ENTRY), 0);
                    out.extend_from_slice(&drain_entry(*position, *number, salt));
                }
                if let Some((end, seq)) = *end {
                    put(&mut out, Message::StreamEnd { seq, end });
                }
            }
            if let Some((time, lost, seq)) = entries.end {
                put(&mut out, Message::ProcessEnd { seq, key: *key, time, lost });
            }
        }
        out
    }
}

fn read_drain_entry(bytes: &[u8; ENTRY], salt: u128) -> Option<(DrainPosition, u64)> {
    let number = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let stream = u32::from_le_bytes(*bytes[8..].first_chunk()?);
    let position = DrainPosition { stream, next: number(24)?, time: number(32)? as i64 };
    let last = number(16)?;
    (*bytes == drain_entry(position, last, salt)).then_some((position, last))
}
