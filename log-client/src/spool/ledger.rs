//! What the files of the spool hold, told in files of their own: so it is known what is gone when one is cut off,
//! overwritten or removed.
//!
//! Beside `N.spool` stands `N.ledger`. It says for each stream with batches in `N.spool` with which attempt number the
//! stream goes on after the last of them, repeats the ends of streams and processes, and what defines those. It is written after
//! the message and before the lane's slots are given back: what it tells was taken from the lanes.
//!
//! ```text
//! 0   magic, 8 bytes            MIOTLGR1
//! 8   salt, u128: a random number
//! 24  CRC-32C of bytes 0..24, as u64
//! 32  zeros
//! 64  entries, each at a multiple of 8:
//!     FRAM, u32 length, a frame          a message as it was sent; definitions with number 0; zeros to a multiple of 8
//!     TAKN, 60 bytes                     at a multiple of 64, written again and again:
//!         u32 CRC-32C of what follows · u32 stream · u32 zero · u64 number of the last message ·
//!         u64 next attempt number · i64 time of the last event · u128 salt · u64 zero
//! ```
//!
//! An entry that does not make sense is passed over in steps of 8 bytes. Nobody else knows the salt, so what comes from
//! traced programs is never taken for a TAKN. Nothing is synced, as in the spool.

use super::format::{Begins, Frame};
use miot_proto::wire::{Message, Process, ProcessKey, ProcessLoss, Stream, StreamEnd};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 8] = *b"MIOTLGR1";
const HEADER: usize = 64;
const TAKEN: [u8; 4] = *b"TAKN";
const FRAME: [u8; 4] = *b"FRAM";
/// Bytes of an entry that says what was taken.
const ENTRY: usize = 64;
/// Entries are multiples of this.
const STEP: usize = 8;

/// What was taken from a lane, up to the last record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) stream: u32,
    /// The attempt number that follows.
    pub(crate) next: u64,
    /// Completion of the last one.
    pub(crate) time: i64,
}

/// What a message tells that must not be lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Nothing,
    Taken(Taken),
    /// The end of a stream.
    End(u32),
    /// The end of a process, which lost something besides or not.
    Gone(ProcessKey, bool),
}

impl Note {
    pub(super) fn of(message: &Message, taken: Option<Taken>) -> Note {
        match (message, taken) {
            (Message::Batch { .. }, Some(taken)) => Note::Taken(taken),
            (Message::StreamEnd { end, .. }, _) => Note::End(end.stream),
            (Message::ProcessEnd { key, lost, .. }, _) => Note::Gone(*key, *lost != ProcessLoss::default()),
            _ => Note::Nothing,
        }
    }
}

/// The ledger of the file that is written.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    salt: u128,
    end: u64,
    /// Streams that are defined here, and where it says what was taken of them.
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

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Notes what the message of this number tells, whose frame this is. `define` gives what defines its subject.
    pub(super) fn note(
        &mut self,
        note: Note,
        number: u64,
        frame: &[u8],
        define: impl FnOnce() -> Vec<u8>,
    ) -> io::Result<()> {
        self.buffer.clear();
        match note {
            Note::Nothing => return Ok(()),
            Note::Taken(taken) => {
                let entry = entry(taken, number, self.salt);
                if let Some(Some(place)) = self.streams.get(&taken.stream) {
                    return self.file.write_all_at(&entry, *place);
                }
                self.define(Some(taken.stream), define);
                let begin = self.end as usize + self.buffer.len();
                self.buffer.resize(self.buffer.len() + begin.next_multiple_of(ENTRY) - begin, 0);
                let place = self.end + self.buffer.len() as u64;
                self.buffer.extend_from_slice(&entry);
                self.append()?;
                self.streams.insert(taken.stream, Some(place));
            }
            Note::End(stream) => {
                self.define(Some(stream), define);
                put_frame(&mut self.buffer, frame);
                self.append()?;
            }
            Note::Gone(key, lost) => {
                if lost || self.processes.contains(&key) {
                    if !self.processes.contains(&key) {
                        self.define(None, define);
                    }
                    put_frame(&mut self.buffer, frame);
                    self.append()?;
                }
            }
        }
        Ok(())
    }

    /// Adds what defines the subject to the buffer, as far as it is not defined here.
    fn define(&mut self, stream: Option<u32>, define: impl FnOnce() -> Vec<u8>) {
        if stream.is_some_and(|stream| self.streams.contains_key(&stream)) {
            return;
        }
        let definitions = define();
        let mut frames = &definitions[..];
        while let Begins::Frame(frame, rest) = Begins::of(frames) {
            frames = rest;
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Process { process, .. }) if !self.processes.insert(process.key) => continue,
                Ok(Message::Stream { stream, .. }) => {
                    self.streams.entry(stream.number).or_default();
                }
                _ => {}
            }
            put_frame(&mut self.buffer, frame.bytes);
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

fn entry(taken: Taken, number: u64, salt: u128) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&TAKEN);
    bytes[8..12].copy_from_slice(&taken.stream.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    bytes[24..32].copy_from_slice(&taken.next.to_le_bytes());
    bytes[32..40].copy_from_slice(&taken.time.to_le_bytes());
    bytes[40..56].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn put_frame(out: &mut Vec<u8>, frame: &[u8]) {
    out.extend_from_slice(&FRAME);
    out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    out.extend_from_slice(frame);
    out.resize(out.len().next_multiple_of(STEP), 0);
}

/// What ledgers tell, put together.
#[derive(Debug, Default)]
pub(super) struct Tale {
    /// Number of the last message.
    pub(super) last: u64,
    pub(super) processes: BTreeMap<ProcessKey, Told>,
}

/// What is told of a process.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) process: Option<Process>,
    /// With their numbers.
    pub(super) streams: BTreeMap<u32, ToldStream>,
    /// When it ended, what it lost besides, and the number of the message.
    pub(super) gone: Option<(i64, ProcessLoss, u64)>,
}

/// What is told of a stream.
#[derive(Debug)]
pub(super) struct ToldStream {
    pub(super) stream: Stream,
    /// With the number of the message.
    pub(super) taken: Option<(Taken, u64)>,
    pub(super) end: Option<(StreamEnd, u64)>,
}

impl Tale {
    /// Adds what a later file tells.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let Some((head, _)) = bytes.split_first_chunk::<HEADER>() else { return };
        let salt = u128::from_le_bytes(*head[8..].first_chunk().unwrap_or(&[0; 16]));
        if *head != header(salt) {
            return;
        }
        let (mut at, mut keys) = (HEADER, HashMap::new());
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= STEP) {
            at += match (rest.starts_with(&FRAME), rest.starts_with(&TAKEN)) {
                (true, _) => match Begins::of(&rest[STEP..]) {
                    Begins::Frame(frame, _) => {
                        self.message(frame, &mut keys);
                        (STEP + frame.bytes.len()).next_multiple_of(STEP)
                    }
                    Begins::Part(_) | Begins::Nonsense => STEP,
                },
                (_, true) => match rest.first_chunk::<ENTRY>().and_then(|bytes| read_entry(bytes, salt)) {
                    Some((taken, number)) => {
                        self.taken(taken, number, &keys);
                        ENTRY
                    }
                    None => STEP,
                },
                _ => STEP,
            };
        }
    }

    fn message(&mut self, frame: Frame<'_>, keys: &mut HashMap<u32, ProcessKey>) {
        let Ok(message) = Message::from_payload(frame.payload, frame.crc) else { return };
        self.last = self.last.max(message.seq().unwrap_or(0));
        match message {
            Message::Process { process, .. } => {
                let told = self.processes.entry(process.key).or_default();
                told.process = Some(process);
            }
            Message::Stream { stream, .. } => {
                let key = stream.key.process;
                keys.insert(stream.number, key);
                let told = self.processes.entry(key).or_default();
                // The same one as in an earlier file, or another under a number that was used before a restart.
                match told.streams.get_mut(&stream.number) {
                    Some(known) if known.stream.key == stream.key => {}
                    _ => {
                        let new = ToldStream { stream, taken: None, end: None };
                        told.streams.insert(new.stream.number, new);
                    }
                }
            }
            Message::StreamEnd { seq, end } => {
                if let Some(stream) = self.stream(end.stream, keys) {
                    stream.end = Some((end, seq));
                }
            }
            Message::ProcessEnd { seq, key, time, lost } => {
                self.processes.entry(key).or_default().gone = Some((time, lost, seq));
            }
            _ => {}
        }
    }

    fn taken(&mut self, taken: Taken, number: u64, keys: &HashMap<u32, ProcessKey>) {
        self.last = self.last.max(number);
        if let Some(stream) = self.stream(taken.stream, keys)
            && stream.taken.is_none_or(|(before, _)| before.next < taken.next)
        {
            stream.taken = Some((taken, number));
        }
    }

    fn stream(&mut self, number: u32, keys: &HashMap<u32, ProcessKey>) -> Option<&mut ToldStream> {
        self.processes.get_mut(keys.get(&number)?)?.streams.get_mut(&number)
    }

    /// Leaves out what messages up to this number have told, which is acknowledged.
    pub(super) fn forget(&mut self, acknowledged: u64) {
        self.processes.retain(|_, told| {
            told.streams.retain(|_, stream| {
                stream.taken.take_if(|(_, number)| *number <= acknowledged);
                stream.end.take_if(|(_, number)| *number <= acknowledged);
                stream.taken.is_some() || stream.end.is_some()
            });
            told.gone.take_if(|(_, _, number)| *number <= acknowledged);
            told.gone.is_some() || !told.streams.is_empty()
        });
    }

    /// A number above those of all streams.
    pub(super) fn next_stream(&self) -> u32 {
        let numbers = self.processes.values().filter_map(|told| told.streams.keys().next_back());
        numbers.max().map_or(0, |number| number.wrapping_add(1))
    }

    /// As a ledger.
    pub(super) fn bytes(&self, salt: u128) -> Vec<u8> {
        let mut out = header(salt).to_vec();
        let put = |out: &mut Vec<u8>, message: Message| put_frame(out, &message.frame());
        for (key, told) in &self.processes {
            if let Some(process) = &told.process {
                put(&mut out, Message::Process { seq: 0, process: process.clone() });
            }
            for ToldStream { stream, taken, end } in told.streams.values() {
                put(&mut out, Message::Stream { seq: 0, stream: stream.clone() });
                if let Some((taken, number)) = taken {
                    out.resize(out.len().next_multiple_of(ENTRY), 0);
                    out.extend_from_slice(&entry(*taken, *number, salt));
                }
                if let Some((end, seq)) = *end {
                    put(&mut out, Message::StreamEnd { seq, end });
                }
            }
            if let Some((time, lost, seq)) = told.gone {
                put(&mut out, Message::ProcessEnd { seq, key: *key, time, lost });
            }
        }
        out
    }
}

fn read_entry(bytes: &[u8; ENTRY], salt: u128) -> Option<(Taken, u64)> {
    let number = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let stream = u32::from_le_bytes(*bytes[8..].first_chunk()?);
    let taken = Taken { stream, next: number(24)?, time: number(32)? as i64 };
    let last = number(16)?;
    (*bytes == entry(taken, last, salt)).then_some((taken, last))
}
