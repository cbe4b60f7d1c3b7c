//! The connection's side of the spool.

use super::definitions::Definitions;
use super::format::{self, FramePrefix, HEADER};
use super::scan::{FrameScanner, ScanResult};
use super::server_definitions::ServerDefinitions;
use super::{FileInfo, Spool};
use miot_proto::wire::Message;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Reads messages from the spool.
#[derive(Debug)]
pub(crate) struct Reader {
    spool: Arc<Spool>,
    position: ReadPosition,
    /// Scanner at `position`.
    scanner: Option<FrameScanner>,
    /// Number of the last message read on this connection.
    read: u64,
    /// Number of the last message that was sent, or acknowledged before the connection.
    sent: u64,
    /// Messages after `sent` were skipped.
    skipped: bool,
    /// Number of the file in which messages were skipped, among them perhaps definitions: until the
    /// head of another file was read, repeated definitions are sent. 0: messages between files were
    /// skipped.
    damaged: Option<u64>,
    /// The bytes at `position` are damaged: skip to the next mark.
    seeks_mark: bool,
    server: ServerDefinitions,
}

/// Position of the next frame.
#[derive(Clone, Copy, Debug, Default)]
struct ReadPosition {
    file: u64,
    /// See [`FileInfo::generation`].
    generation: u64,
    at: u64,
}

impl ReadPosition {
    /// True if the file has frames after this position.
    fn is_before(self, info: &FileInfo) -> bool {
        info.number > self.file
            || (info.number == self.file && (info.generation != self.generation || info.end > self.at))
    }
}

impl Reader {
    pub(crate) fn new(spool: Arc<Spool>) -> Reader {
        let read = spool.state().acknowledged;
        Reader {
            spool,
            position: ReadPosition::default(),
            scanner: None,
            read,
            sent: read,
            skipped: false,
            damaged: None,
            seeks_mark: false,
            server: ServerDefinitions::default(),
        }
    }

    pub(crate) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// Starts a new connection: the server has everything up to `through`, all else is read again.
    /// Appends the definitions in force to `out`.
    pub(crate) fn restart(&mut self, through: u64, out: &mut Vec<u8>) {
        self.spool.acknowledge(through);
        let (acknowledged, info) = {
            let state = self.spool.state();
            let info = state.files.iter().find(|info| info.last > state.acknowledged).or(state.files.back());
            (state.acknowledged, info.copied())
        };
        *self = Reader { read: acknowledged, sent: acknowledged, ..Reader::new(Arc::clone(&self.spool)) };
        let Some(info) = info else {
            // No file holds the definitions in force, so the head of the next file must be read,
            // see `take_from_file`.
            self.read = acknowledged.saturating_sub(1);
            return;
        };
        let mut definitions = Definitions::default();
        match self.skip_acknowledged(info, acknowledged, &mut definitions) {
            Ok(()) => {}
            Err(error) => self.abandon(info, &error.to_string()),
        }
        let begin = out.len();
        definitions.put(out);
        self.note_sent(&out[begin..]);
    }

    /// Reads a file up to the first unacknowledged message.
    fn skip_acknowledged(
        &mut self,
        info: FileInfo,
        acknowledged: u64,
        definitions: &mut Definitions,
    ) -> io::Result<()> {
        let Some(file) = self.spool.open_for_reading(info)? else { return Ok(()) };
        let mut scanner = FrameScanner::new(file.try_clone()?, HEADER);
        let mut at = scanner.at();
        loop {
            match scanner.next(info.end)? {
                // Heartbeats belong to the messages after the last acknowledged one.
                ScanResult::Frame(frame) if frame.number().is_some_and(|number| number > acknowledged) => {
                    break;
                }
                ScanResult::Frame(frame) => {
                    if !frame.is_batch()
                        && let Ok(message) = Message::from_payload(frame.payload, frame.crc)
                    {
                        definitions.follow(&message);
                    }
                }
                ScanResult::End => break,
                ScanResult::Torn | ScanResult::Damage => {
                    self.note_damage(info);
                    if !scanner.skip_to_mark(&format::mark(info.salt), info.end)? {
                        self.seeks_mark = true;
                        at = scanner.at();
                        break;
                    }
                }
            }
            at = scanner.at();
        }
        self.position = ReadPosition { file: info.number, generation: info.generation, at };
        self.scanner = Some(FrameScanner::new(file, at));
        Ok(())
    }

    /// Records frames that are sent.
    fn note_sent(&mut self, mut frames: &[u8]) {
        while let FramePrefix::Frame(frame, rest) = FramePrefix::of(frames) {
            self.server.admit(frame);
            frames = rest;
        }
    }

    /// Appends the next messages to `out`, about `limit` bytes, and the pending watermark after the
    /// last one.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>, limit: usize) {
        while out.len() < limit {
            let Some(info) = self.next_file_info() else {
                if let Some(trailer) = self.spool.take_trailer(self.read) {
                    trailer.append_frame(out);
                }
                return;
            };
            if let Err(error) = self.take_from_file(info, out, limit) {
                self.abandon(info, &error.to_string());
            }
        }
    }

    /// The file with the next frame.
    fn next_file_info(&mut self) -> Option<FileInfo> {
        let mut state = self.spool.state();
        let next = state.files.iter().find(|info| self.position.is_before(info)).copied();
        if !state
            .files
            .iter()
            .any(|info| (info.number, info.generation) == (self.position.file, self.position.generation))
        {
            // The file was removed; closing it frees its space.
            self.scanner = None;
        }
        let mark_pending = self.spool.mark.load(Relaxed);
        if next.is_none()
            && self.skipped
            && !mark_pending
            && !state.replay_needed
            && state.acknowledged >= self.sent
        {
            // Messages that were skipped at the end will never be acknowledged.
            state.acknowledged = state.last;
            self.spool.drop_acknowledged(&mut state);
        }
        next
    }

    fn take_from_file(&mut self, info: FileInfo, out: &mut Vec<u8>, limit: usize) -> io::Result<()> {
        if (self.position.file, self.position.generation) != (info.number, info.generation)
            || self.scanner.is_none()
        {
            let Some(file) = self.spool.open_for_reading(info)? else { return Ok(()) };
            self.position = ReadPosition { file: info.number, generation: info.generation, at: HEADER };
            (self.scanner, self.seeks_mark) = (Some(FrameScanner::new(file, HEADER)), false);
            // The head repeats definitions of this connection, unless messages between the files
            // are missing.
            if info.first > self.read.saturating_add(1) {
                self.damaged = Some(0);
            }
        }
        let Some(scanner) = &mut self.scanner else { return Ok(()) };
        let mut damage = false;
        while out.len() < limit {
            if self.seeks_mark && !scanner.skip_to_mark(&format::mark(info.salt), info.end)? {
                break;
            }
            self.seeks_mark = false;
            let frame = match scanner.next(info.end)? {
                ScanResult::Frame(frame) => frame,
                ScanResult::End => break,
                ScanResult::Torn | ScanResult::Damage => {
                    (self.seeks_mark, self.skipped, damage) = (true, true, true);
                    self.damaged = Some(info.number);
                    continue;
                }
            };
            let definition;
            let frame = match frame.number() {
                _ if frame.is_hello() || frame.is_mark() => continue,
                Some(number) if number <= self.read => {
                    // A definition in a head, or a copy of a message that was sent or acknowledged:
                    // it may define what was skipped.
                    let missing = self.damaged.and_then(|_| self.server.missing(frame));
                    let Some(missing) = missing else { continue };
                    definition = missing;
                    let FramePrefix::Frame(frame, _) = FramePrefix::of(&definition) else { continue };
                    frame
                }
                number => {
                    if let Some(number) = number {
                        self.read = number;
                        self.damaged.take_if(|file| *file != info.number);
                    }
                    frame
                }
            };
            let number = frame.number().filter(|number| *number > 0);
            // Without its definition the server would close the connection.
            let is_known = self.server.admit(frame);
            if is_known {
                out.extend_from_slice(frame.bytes);
            }
            if let Some(number) = number {
                if !is_known && !self.skipped && self.damaged.is_none() {
                    tracing::error!(
                        number,
                        "a message of the spool refers to an undefined process or stream: it is not sent"
                    );
                }
                self.skipped = !is_known;
                self.sent = if is_known { number } else { self.sent };
            }
        }
        self.position.at = scanner.at();
        if damage {
            self.note_damage(info);
        }
        Ok(())
    }

    fn note_damage(&mut self, info: FileInfo) {
        (self.skipped, self.damaged) = (true, Some(info.number));
        tracing::error!(
            path = %self.spool.path.join(format::name(info.number)).display(),
            after = self.read,
            "a file of the spool is damaged: its lost events are counted in the trace (spool_damaged)"
        );
        self.spool.request_replay(info.number, info.generation);
        // If it is the file that is being written, reading continues at this mark.
        self.spool.mark.store(true, Relaxed);
    }

    /// Skips the rest of a file that cannot be read.
    fn abandon(&mut self, info: FileInfo, reason: &str) {
        tracing::error!(
            reason,
            path = %self.spool.path.join(format::name(info.number)).display(),
            messages = info.last.saturating_sub(self.read),
            "cannot read a file of the spool: messages to the log-server are lost"
        );
        self.position = ReadPosition { file: info.number, generation: info.generation, at: u64::MAX };
        (self.scanner, self.skipped, self.damaged) = (None, true, Some(info.number));
        self.spool.request_replay(info.number, info.generation);
        // In case it is the file that is being written.
        self.spool.roll.store(true, Relaxed);
    }
}
