//! Dropping the oldest events of a full spool in favor of new ones.
//!
//! The oldest file is replaced by a file without its batches. In place of a stream's batches it
//! lists the attempt numbers that were given up. All other messages are kept, so that the counts in
//! the trace add up: definitions, ends, totals. If the oldest file was condensed already, the next
//! one is merged into it.
//!
//! The new file takes the name of the newest file it replaces in one step (`rename`), and the older
//! ones are removed after that; [`recover`](super::recover) recognizes those by their first number.
//! So a log-client that is killed here has given up all of a file or nothing of it, and its
//! successor reports the same losses.
//!
//! Batches that were sent and not acknowledged may be given up as well. The server knows whether it
//! has them, so the server decides what is lost.

use super::format::{self, HEADER, WATERMARK_AT};
use super::ledger::LedgerContents;
use super::mark_interval::MarkInterval;
use super::scan::{FrameScanner, ScanResult};
use super::{FileInfo, Spool};
use miot_proto::batch::Columns;
use miot_proto::wire::Message;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// Name of an unfinished file.
pub(super) const UNFINISHED: &str = "unfinished";
/// Name of an unfinished ledger.
pub(super) const UNFINISHED_LEDGER: &str = "unfinished-ledger";

/// Maximum number of ranges per message: far below the maximum size of a frame.
const MAX_RANGES: usize = 10_000;

/// Consecutive batches of a stream that are given up with one message.
#[derive(Debug, Default)]
struct GivenUpRun {
    after: u64,
    ranges: Vec<(u64, u64)>,
    time: i64,
    /// Number of the last of these batches; the message that replaces them gets it.
    number: u64,
}

/// Runs by stream, in order.
#[derive(Debug, Default)]
struct GivenUpRuns {
    streams: HashMap<u32, Vec<GivenUpRun>>,
    events: u64,
}

/// Files to be condensed, and the state of the spool when they were selected.
struct Selection {
    files: Vec<FileInfo>,
    acknowledged: u64,
    replay_needed: bool,
}

impl Spool {
    /// Gives up the batches of the oldest file. Returns false if there is only the file that is
    /// being written.
    pub(super) fn condense(&self) -> io::Result<bool> {
        let Some(Selection { files, acknowledged, replay_needed }) = self.select_files() else {
            return Ok(false);
        };
        let mut runs = GivenUpRuns::default();
        for &info in &files {
            runs.collect(self, info, acknowledged)?;
        }
        let bytes = self.condensed(&files, &runs, acknowledged)?;
        let file = self.open_file(UNFINISHED, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all_at(&bytes, 0).inspect_err(|_| self.unlink(UNFINISHED))?;
        // While a replay is pending, entries of acknowledged messages are kept.
        let ledger = self
            .condensed_ledger(&files, if replay_needed { 0 } else { acknowledged })
            .inspect_err(|_| self.unlink(UNFINISHED))?;
        if self.replace_files(&files, bytes.len() as u64, ledger)? {
            self.given_up.fetch_add(runs.events, Relaxed);
            tracing::warn!(events = runs.events, "the spool is full, dropped its oldest events (spool_full)");
        }
        Ok(true)
    }

    /// The oldest file; with the next one if it is condensed already.
    fn select_files(&self) -> Option<Selection> {
        let state = self.state();
        let whole = state.files.len().saturating_sub(1);
        let wanted = match state.files.front() {
            Some(first) if first.condensed => 2,
            _ => 1,
        };
        (whole >= wanted).then(|| Selection {
            files: state.files.iter().take(wanted).copied().collect(),
            acknowledged: state.acknowledged,
            replay_needed: state.replay_needed,
        })
    }

    /// Replaces `files` by the unfinished file of `end` bytes and its ledger of `ledger` bytes.
    /// Returns false if the files were acknowledged in the meantime.
    fn replace_files(&self, files: &[FileInfo], end: u64, ledger: u64) -> io::Result<bool> {
        let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(false) };
        let mut state = self.state();
        let id = |info: &FileInfo| (info.number, info.generation);
        let unchanged = files.iter().zip(&state.files).all(|(a, b)| id(a) == id(b));
        if !unchanged || state.files.len() <= files.len() {
            drop(state);
            self.unlink(UNFINISHED);
            self.unlink(UNFINISHED_LEDGER);
            return Ok(false);
        }
        // The ledger, which describes all these files, is replaced before the file.
        rustix::fs::renameat(&self.dir, UNFINISHED_LEDGER, &self.dir, format::ledger_name(last.number))?;
        rustix::fs::renameat(&self.dir, UNFINISHED, &self.dir, format::name(last.number))?;
        let info = FileInfo {
            number: last.number,
            generation: state.next_generation(),
            salt: self.salt,
            first: first.first,
            last: last.last,
            end,
            condensed: true,
            ledger,
            replayed: files.iter().all(|info| info.replayed),
        };
        for old in state.files.drain(..files.len()) {
            self.held.fetch_sub(old.end + old.ledger, Relaxed);
            if old.number != info.number {
                self.unlink(&format::ledger_name(old.number));
                self.unlink(&format::name(old.number));
            }
        }
        self.held.fetch_add(info.end + info.ledger, Relaxed);
        state.files.push_front(info);
        Ok(true)
    }

    /// Builds the content of the file that replaces `files`.
    fn condensed(&self, files: &[FileInfo], runs: &GivenUpRuns, acknowledged: u64) -> io::Result<Vec<u8>> {
        let first = files.first().map_or(1, |info| info.first);
        let mut bytes = self.head(first, None);
        let mut mark_interval = MarkInterval::new(self.salt);
        let mut watermark = None;
        let (mut read, mut heads) = (0, true);
        for &info in files {
            let (mut scanner, mut damaged) = (self.scan(info, &mut watermark)?, false);
            while let Some(frame) = scanner.next(info, &mut damaged)? {
                let begin = bytes.len();
                match frame.number() {
                    // The head of the first file holds the definitions in force; that of a later
                    // one, definitions that damage before it may have destroyed.
                    Some(0) if heads || damaged => bytes.extend_from_slice(frame.bytes),
                    Some(number) if number > read => {
                        read = number;
                        match frame.stream() {
                            Some(_) if number <= acknowledged => {}
                            Some(stream) => {
                                if let Some(message) = runs.message(stream, number) {
                                    message.append_frame(&mut bytes);
                                } else if !runs.has(stream) {
                                    bytes.extend_from_slice(frame.bytes);
                                }
                            }
                            None if frame.is_sample() => {}
                            None => bytes.extend_from_slice(frame.bytes),
                        }
                    }
                    _ => {}
                }
                mark_interval.note(&bytes[begin..]);
                if let Some(mark) = mark_interval.due() {
                    bytes.extend_from_slice(&mark);
                    mark_interval.marked();
                }
            }
            heads = damaged;
        }
        if let Some(watermark) = watermark {
            bytes[WATERMARK_AT as usize..HEADER as usize]
                .copy_from_slice(&format::watermark_bytes(watermark));
            Message::Heartbeat { watermark }.append_frame(&mut bytes);
        }
        bytes.extend(mark_interval.last().unwrap_or_default());
        Ok(bytes)
    }

    /// Creates the ledger of the file that replaces `files`; returns its size in bytes.
    fn condensed_ledger(&self, files: &[FileInfo], acknowledged: u64) -> io::Result<u64> {
        let mut contents = LedgerContents::default();
        files.iter().try_for_each(|info| self.read_ledger(info.number, &mut contents))?;
        contents.forget(acknowledged);
        let bytes = contents.bytes(self.salt);
        let file = self.open_file(UNFINISHED_LEDGER, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all_at(&bytes, 0).inspect_err(|_| self.unlink(UNFINISHED_LEDGER))?;
        Ok(bytes.len() as u64)
    }

    fn scan(&self, info: FileInfo, watermark: &mut Option<i64>) -> io::Result<ReadableFrames> {
        let file = self.open_for_reading(info)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut head = [0; HEADER as usize];
        file.read_exact_at(&mut head, 0)?;
        *watermark = (*watermark).max(format::read_watermark(&head));
        Ok(ReadableFrames { frames: FrameScanner::new(file, HEADER) })
    }
}

/// The readable frames of a file.
struct ReadableFrames {
    frames: FrameScanner,
}

impl ReadableFrames {
    /// The next frame. Sets `damaged` to true if some frames before it are missing.
    fn next(&mut self, info: FileInfo, damaged: &mut bool) -> io::Result<Option<format::Frame<'_>>> {
        while self.frames.is_damaged(info.end)? {
            *damaged = true;
            if !self.frames.skip_to_mark(&format::mark(info.salt), info.end)? {
                return Ok(None);
            }
        }
        match self.frames.next(info.end)? {
            ScanResult::Frame(frame) => Ok(Some(frame)),
            ScanResult::End | ScanResult::Torn | ScanResult::Damage => Ok(None),
        }
    }
}

impl GivenUpRuns {
    /// Adds the unacknowledged batches of a file.
    fn collect(&mut self, spool: &Spool, info: FileInfo, acknowledged: u64) -> io::Result<()> {
        let mut scanner = spool.scan(info, &mut None)?;
        let (mut damaged, mut read) = (false, acknowledged);
        while let Some(frame) = scanner.next(info, &mut damaged)? {
            let Some(number) = frame.number().filter(|number| *number > read) else { continue };
            read = number;
            if frame.stream().is_none() {
                continue;
            }
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Batch { stream, after, columns, .. }) => {
                    // A batch that cannot be decoded stays as it is.
                    if let Ok(columns) = Columns::decode(&columns) {
                        let time = columns.time.last().copied().unwrap_or(0);
                        let ranges = (0..columns.len()).map(|row| columns.attempts_of(row));
                        let lost = ranges.clone().map(|(first, last)| (last - first).saturating_add(1));
                        self.events = self.events.saturating_add(lost.fold(0, u64::saturating_add));
                        self.add(stream, number, after, time, ranges);
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
        let runs = self.streams.entry(stream).or_default();
        // A gap that damage has caused is neither given up nor lost in the lane, so it starts a new
        // run.
        let continues = runs.last().and_then(|run| run.ranges.last()).is_some_and(|last| last.1 + 1 == after);
        if !continues || runs.last().is_some_and(|run| run.ranges.len() >= MAX_RANGES) {
            runs.push(GivenUpRun { after, ..GivenUpRun::default() });
        }
        let Some(run) = runs.last_mut() else { return };
        (run.number, run.time) = (number, time);
        for (first, last) in ranges {
            match run.ranges.last_mut() {
                Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => run.ranges.push((first, last)),
            }
        }
    }

    fn has(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// The message that replaces the one with this number.
    fn message(&self, stream: u32, number: u64) -> Option<Message> {
        let run = self.streams.get(&stream)?.iter().find(|run| run.number == number)?;
        let GivenUpRun { after, ranges, time, .. } = run;
        Some(Message::GivenUp { seq: number, stream, after: *after, ranges: ranges.clone(), time: *time })
    }
}
