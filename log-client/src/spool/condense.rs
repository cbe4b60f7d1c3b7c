//! Giving up the oldest events for new ones.
//!
//! The oldest file is replaced by one without its batches; instead of those of each stream it says which attempt
//! numbers were given up. All else is kept, so that the numbers add up in the trace: definitions, ends, totals. When the
//! oldest file is such a one already, the next one is added to it.
//!
//! The new file takes the name of the newest that it stands for in one step (`rename`), and those before it are removed
//! after that: [`recover`](super::recover) knows them by their first number. So a log-client that is killed
//! here has given up all of a file or nothing of it, and its successor says the same of it.
//!
//! What was sent and not acknowledged may be given up as well. Whoever has it knows, so the server decides what is lost.

use super::format::{self, HEADER, PROMISE};
use super::ledger::Tale;
use super::scan::{Found, Scan};
use super::stretch::Stretch;
use super::{Part, Spool};
use miot_proto::batch::Columns;
use miot_proto::wire::Message;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// Name of a file that is being made.
pub(super) const UNFINISHED: &str = "unfinished";
/// Name of a ledger that is being made.
pub(super) const UNFINISHED_LEDGER: &str = "unfinished-ledger";

/// Ranges told in one message: far fewer bytes than a frame may have.
const MOST_RANGES: usize = 10_000;

/// What is given up of a stream and told together.
#[derive(Debug, Default)]
struct Group {
    after: u64,
    ranges: Vec<(u64, u64)>,
    time: i64,
    /// Number of the last of these messages: the message that tells of them gets it.
    number: u64,
}

/// By stream, in order.
#[derive(Debug, Default)]
struct Groups {
    streams: HashMap<u32, Vec<Group>>,
    events: u64,
}

impl Spool {
    /// Gives up the batches of the oldest file. False if there is none but that which is being written.
    pub(super) fn condense(&self) -> io::Result<bool> {
        let (parts, acknowledged, retell) = {
            let state = self.state();
            let whole = state.parts.len().saturating_sub(1);
            let wanted = match state.parts.front() {
                Some(first) if first.condensed => 2,
                _ => 1,
            };
            if whole < wanted {
                return Ok(false);
            }
            (state.parts.iter().take(wanted).copied().collect::<Vec<_>>(), state.acknowledged, state.retell)
        };
        let mut groups = Groups::default();
        for &part in &parts {
            groups.collect(self, part, acknowledged)?;
        }
        let bytes = self.condensed(&parts, &groups, acknowledged)?;
        let file = self.open_file(UNFINISHED, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all_at(&bytes, 0).inspect_err(|_| self.unlink(UNFINISHED))?;
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(false) };
        let ledger = self
            .condensed_ledger(&parts, if retell { 0 } else { acknowledged })
            .inspect_err(|_| self.unlink(UNFINISHED))?;
        let mut state = self.state();
        let unchanged = parts.iter().zip(&state.parts).all(|(a, b)| (a.file, a.made) == (b.file, b.made));
        if !unchanged || state.parts.len() <= parts.len() {
            // Acknowledged meanwhile.
            drop(state);
            self.unlink(UNFINISHED);
            self.unlink(UNFINISHED_LEDGER);
            return Ok(true);
        }
        // First the ledger, which tells of all these files, then the file that takes their place.
        rustix::fs::renameat(&self.dir, UNFINISHED_LEDGER, &self.dir, format::ledger_name(last.file))?;
        rustix::fs::renameat(&self.dir, UNFINISHED, &self.dir, format::name(last.file))?;
        let part = Part {
            file: last.file,
            made: state.next_made(),
            salt: self.salt,
            first: first.first,
            last: last.last,
            end: bytes.len() as u64,
            condensed: true,
            ledger,
            retold: parts.iter().all(|part| part.retold),
        };
        for old in state.parts.drain(..parts.len()) {
            self.held.fetch_sub(old.end + old.ledger, Relaxed);
            if old.file != part.file {
                self.unlink(&format::ledger_name(old.file));
                self.unlink(&format::name(old.file));
            }
        }
        self.held.fetch_add(part.end + part.ledger, Relaxed);
        state.parts.push_front(part);
        drop(state);
        self.given_up.fetch_add(groups.events, Relaxed);
        tracing::warn!(
            events = groups.events,
            "the spool is full: its oldest events are given up (spool_full)"
        );
        Ok(true)
    }

    /// The bytes of the file that takes the place of these.
    fn condensed(&self, parts: &[Part], groups: &Groups, acknowledged: u64) -> io::Result<Vec<u8>> {
        let first = parts.first().map_or(1, |part| part.first);
        let mut bytes = self.head(first, None);
        let mut stretch = Stretch::new(self.salt);
        let mut promised = None;
        let (mut read, mut heads) = (0, true);
        for &part in parts {
            let (mut scan, mut damaged) = (self.scan(part, &mut promised)?, false);
            while let Some(frame) = scan.next(part, &mut damaged)? {
                let begin = bytes.len();
                match frame.number() {
                    // The head of the first file defines what is in force; that of a later one what was lost before it.
                    Some(0) if heads || damaged => bytes.extend_from_slice(frame.bytes),
                    Some(number) if number > read => {
                        read = number;
                        match frame.stream() {
                            Some(_) if number <= acknowledged => {}
                            Some(stream) => {
                                if let Some(message) = groups.message(stream, number) {
                                    message.put_frame(&mut bytes);
                                } else if !groups.has(stream) {
                                    bytes.extend_from_slice(frame.bytes);
                                }
                            }
                            None if frame.is_sample() => {}
                            None => bytes.extend_from_slice(frame.bytes),
                        }
                    }
                    _ => {}
                }
                stretch.note(&bytes[begin..]);
                if let Some(mark) = stretch.due() {
                    bytes.extend_from_slice(&mark);
                    stretch.marked();
                }
            }
            heads = damaged;
        }
        if let Some(watermark) = promised {
            bytes[PROMISE as usize..HEADER as usize].copy_from_slice(&format::promise(watermark));
            Message::Heartbeat { watermark }.put_frame(&mut bytes);
        }
        bytes.extend(stretch.last().unwrap_or_default());
        Ok(bytes)
    }

    /// Makes the ledger of the file that takes the place of these. The bytes that it takes.
    fn condensed_ledger(&self, parts: &[Part], acknowledged: u64) -> io::Result<u64> {
        let mut tale = Tale::default();
        parts.iter().try_for_each(|part| self.read_ledger(part.file, &mut tale))?;
        tale.forget(acknowledged);
        let bytes = tale.bytes(self.salt);
        let file = self.open_file(UNFINISHED_LEDGER, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all_at(&bytes, 0).inspect_err(|_| self.unlink(UNFINISHED_LEDGER))?;
        Ok(bytes.len() as u64)
    }

    fn scan(&self, part: Part, promised: &mut Option<i64>) -> io::Result<Sound> {
        let file = self.open_part(part)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut head = [0; HEADER as usize];
        file.read_exact_at(&mut head, 0)?;
        *promised = (*promised).max(format::promised(&head));
        Ok(Sound { scan: Scan::new(file, HEADER) })
    }
}

/// What can be read of a file.
struct Sound {
    scan: Scan,
}

impl Sound {
    /// The next frame. `damaged` becomes true where some are missing.
    fn next(&mut self, part: Part, damaged: &mut bool) -> io::Result<Option<format::Frame<'_>>> {
        while self.scan.is_damaged(part.end)? {
            *damaged = true;
            if !self.scan.find(&format::mark(part.salt), part.end)? {
                return Ok(None);
            }
        }
        match self.scan.next(part.end)? {
            Found::Frame(frame) => Ok(Some(frame)),
            Found::End | Found::Torn | Found::Damage => Ok(None),
        }
    }
}

impl Groups {
    /// Adds what a file has of batches that are not acknowledged.
    fn collect(&mut self, spool: &Spool, part: Part, acknowledged: u64) -> io::Result<()> {
        let mut scan = spool.scan(part, &mut None)?;
        let (mut damaged, mut read) = (false, acknowledged);
        while let Some(frame) = scan.next(part, &mut damaged)? {
            let Some(number) = frame.number().filter(|number| *number > read) else { continue };
            read = number;
            if frame.stream().is_none() {
                continue;
            }
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Batch { stream, after, columns, .. }) => {
                    // Our own; otherwise it stays as it is.
                    if let Ok(columns) = Columns::decode(&columns) {
                        self.events += columns.len() as u64;
                        let time = columns.time.last().copied().unwrap_or(0);
                        self.add(stream, number, after, time, columns.attempt.iter().map(|n| (*n, *n)));
                    }
                }
                Ok(Message::GivenUp { stream, after, ranges, time, .. }) => {
                    self.add(stream, number, after, time, ranges.into_iter());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        stream: u32,
        number: u64,
        after: u64,
        time: i64,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) {
        let groups = self.streams.entry(stream).or_default();
        // What went missing in between is neither given up nor lost in the lane.
        let goes_on =
            groups.last().and_then(|group| group.ranges.last()).is_some_and(|last| last.1 + 1 == after);
        if !goes_on || groups.last().is_some_and(|group| group.ranges.len() >= MOST_RANGES) {
            groups.push(Group { after, ..Group::default() });
        }
        let Some(group) = groups.last_mut() else { return };
        (group.number, group.time) = (number, time);
        for (first, last) in ranges {
            match group.ranges.last_mut() {
                Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => group.ranges.push((first, last)),
            }
        }
    }

    fn has(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// The message that takes the place of the one with this number.
    fn message(&self, stream: u32, number: u64) -> Option<Message> {
        let group = self.streams.get(&stream)?.iter().find(|group| group.number == number)?;
        let Group { after, ranges, time, .. } = group;
        Some(Message::GivenUp { seq: number, stream, after: *after, ranges: ranges.clone(), time: *time })
    }
}
