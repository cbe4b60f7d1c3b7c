//! The end of the connection.

use super::definitions::Definitions;
use super::format::{self, Begins, HEADER};
use super::known::Known;
use super::scan::{Found, Scan};
use super::{Part, Spool};
use miot_proto::wire::Message;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reader {
    spool: Arc<Spool>,
    place: Place,
    /// Reads there.
    scan: Option<Scan>,
    /// Number of the last message that was read on this connection.
    read: u64,
    /// Number of the last one that was sent, or had been acknowledged before.
    sent: u64,
    /// Messages were left out since then.
    skipped: bool,
    /// Something was left out, and definitions may be among that: those that come again are sent. Holds until the head of
    /// another file than this one was read.
    damaged: Option<u64>,
    /// What stands here is damaged: the next mark is looked for.
    lost: bool,
    known: Known,
}

/// Where the next frame is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    file: u64,
    /// See [`Part::made`].
    made: u64,
    at: u64,
}

impl Place {
    /// True if there is something for a reader who is here.
    fn is_before(self, part: &Part) -> bool {
        part.file > self.file || (part.file == self.file && (part.made != self.made || part.end > self.at))
    }
}

impl Reader {
    pub(crate) fn new(spool: Arc<Spool>) -> Reader {
        let read = spool.state().acknowledged;
        Reader {
            spool,
            place: Place::default(),
            scan: None,
            read,
            sent: read,
            skipped: false,
            damaged: None,
            lost: false,
            known: Known::default(),
        }
    }

    pub(crate) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// A new connection: the server has everything up to `through`, all else is to be read again. Appends the definitions
    /// to begin with to `out`.
    pub(crate) fn restart(&mut self, through: u64, out: &mut Vec<u8>) {
        self.spool.acknowledge(through);
        let (acknowledged, part) = {
            let state = self.spool.state();
            let part = state.parts.iter().find(|part| part.last > state.acknowledged).or(state.parts.back());
            (state.acknowledged, part.copied())
        };
        *self = Reader { read: acknowledged, sent: acknowledged, ..Reader::new(Arc::clone(&self.spool)) };
        let Some(part) = part else {
            // No file was left to define what is in force: the next one has to, see `take_from`.
            self.read = acknowledged.saturating_sub(1);
            return;
        };
        let mut definitions = Definitions::default();
        match self.pass(part, acknowledged, &mut definitions) {
            Ok(()) => {}
            Err(error) => self.give_up(part, &error.to_string()),
        }
        let begin = out.len();
        definitions.put(out);
        self.note_known(&out[begin..]);
    }

    /// Reads a file up to the first message that is not acknowledged.
    fn pass(&mut self, part: Part, acknowledged: u64, definitions: &mut Definitions) -> io::Result<()> {
        let Some(file) = self.spool.open_part(part)? else { return Ok(()) };
        let mut scan = Scan::new(file.try_clone()?, HEADER);
        let mut at = scan.at();
        loop {
            match scan.next(part.end)? {
                // Promises are part of what comes after the last message.
                Found::Frame(frame) if frame.number().is_some_and(|number| number > acknowledged) => break,
                Found::Frame(frame) => {
                    if !frame.is_batch()
                        && let Ok(message) = Message::from_payload(frame.payload, frame.crc)
                    {
                        definitions.follow(&message);
                    }
                }
                Found::End => break,
                Found::Torn | Found::Damage => {
                    self.note_damage(part);
                    if !scan.find(&format::mark(part.salt), part.end)? {
                        self.lost = true;
                        at = scan.at();
                        break;
                    }
                }
            }
            at = scan.at();
        }
        self.place = Place { file: part.file, made: part.made, at };
        self.scan = Some(Scan::new(file, at));
        Ok(())
    }

    /// What was appended is sent.
    fn note_known(&mut self, mut frames: &[u8]) {
        while let Begins::Frame(frame, rest) = Begins::of(frames) {
            self.known.admit(frame);
            frames = rest;
        }
    }

    /// Appends the next messages to `out`, about `limit` bytes, and what was promised after the last one.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>, limit: usize) {
        while out.len() < limit {
            let Some(part) = self.next_part() else {
                if let Some(word) = self.spool.take_word(self.read) {
                    word.put_frame(out);
                }
                return;
            };
            if let Err(error) = self.take_from(part, out, limit) {
                self.give_up(part, &error.to_string());
            }
        }
    }

    /// The file in which the next frame is.
    fn next_part(&mut self) -> Option<Part> {
        let mut state = self.spool.state();
        let next = state.parts.iter().find(|part| self.place.is_before(part)).copied();
        if !state.parts.iter().any(|part| (part.file, part.made) == (self.place.file, self.place.made)) {
            // It is gone, and its space with it once it is closed.
            self.scan = None;
        }
        let waits = self.spool.mark.load(Relaxed);
        if next.is_none() && self.skipped && !waits && !state.retell && state.acknowledged >= self.sent {
            // Nobody will acknowledge what is left out after the last message.
            state.acknowledged = state.last;
            self.spool.drop_acknowledged(&mut state);
        }
        next
    }

    fn take_from(&mut self, part: Part, out: &mut Vec<u8>, limit: usize) -> io::Result<()> {
        if (self.place.file, self.place.made) != (part.file, part.made) || self.scan.is_none() {
            let Some(file) = self.spool.open_part(part)? else { return Ok(()) };
            self.place = Place { file: part.file, made: part.made, at: HEADER };
            (self.scan, self.lost) = (Some(Scan::new(file, HEADER)), false);
            // What is defined was defined on this connection, unless something is left out.
            if part.first > self.read.saturating_add(1) {
                self.damaged = Some(0);
            }
        }
        let Some(scan) = &mut self.scan else { return Ok(()) };
        let mut damage = false;
        while out.len() < limit {
            if self.lost && !scan.find(&format::mark(part.salt), part.end)? {
                break;
            }
            self.lost = false;
            let frame = match scan.next(part.end)? {
                Found::Frame(frame) => frame,
                Found::End => break,
                Found::Torn | Found::Damage => {
                    (self.lost, self.skipped, damage) = (true, true, true);
                    self.damaged = Some(part.file);
                    continue;
                }
            };
            let definition;
            let frame = match frame.number() {
                _ if frame.is_hello() || frame.is_mark() => continue,
                Some(number) if number <= self.read => {
                    // A definition in a head, or a copy of what was sent or acknowledged: it may define what was left
                    // out.
                    let missing = self.damaged.and_then(|_| self.known.missing(frame));
                    let Some(missing) = missing else { continue };
                    definition = missing;
                    let Begins::Frame(frame, _) = Begins::of(&definition) else { continue };
                    frame
                }
                number => {
                    if let Some(number) = number {
                        self.read = number;
                        self.damaged.take_if(|file| *file != part.file);
                    }
                    frame
                }
            };
            let number = frame.number().filter(|number| *number > 0);
            // Otherwise its definition is lost, and the server would end the connection.
            let is_known = self.known.admit(frame);
            if is_known {
                out.extend_from_slice(frame.bytes);
            }
            if let Some(number) = number {
                self.skipped = !is_known;
                self.sent = if is_known { number } else { self.sent };
            }
        }
        self.place.at = scan.at();
        if damage {
            self.note_damage(part);
        }
        Ok(())
    }

    fn note_damage(&mut self, part: Part) {
        (self.skipped, self.damaged) = (true, Some(part.file));
        tracing::error!(
            path = %self.spool.path.join(format::name(part.file)).display(),
            after = self.read,
            "a file of the spool is damaged: events are lost, as the trace will tell (spool_damaged)"
        );
        self.spool.want_retold(part.file, part.made);
        // If it is the one that is being written: at the next mark the reading goes on.
        self.spool.mark.store(true, Relaxed);
    }

    /// Leaves out the rest of a file that cannot be read.
    fn give_up(&mut self, part: Part, reason: &str) {
        tracing::error!(
            reason,
            path = %self.spool.path.join(format::name(part.file)).display(),
            messages = part.last.saturating_sub(self.read),
            "a file of the spool cannot be read: messages to the log-server are lost"
        );
        self.place = Place { file: part.file, made: part.made, at: u64::MAX };
        (self.scan, self.skipped, self.damaged) = (None, true, Some(part.file));
        self.spool.want_retold(part.file, part.made);
        // If it is the one that is being written.
        self.spool.roll.store(true, Relaxed);
    }
}
