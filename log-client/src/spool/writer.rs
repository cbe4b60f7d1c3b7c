//! The end of the sweeper.

use super::definitions::Definitions;
use super::format::{self, PROMISE};
use super::ledger::{Ledger, Note, Taken};
use super::stretch::Stretch;
use super::{Part, Spool};
use crate::config::SpoolFull;
use miot_proto::wire::Message;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Space claimed before a batch is asked for: more than any batch takes (4096 slots of 64 bytes, encoded at worst
/// into less than three times that), and some definitions.
const ROOM: u64 = 1 << 20;
/// Space claimed at a time: batches are taken while so much is left of the bound, so that no file is claimed beyond it.
pub(super) const CLAIM: u64 = 2 * ROOM;
/// What the ledgers of all files take beyond their bytes: up to a page each. So much less is claimed.
const PAGES: u64 = 128 << 10;
/// The reader is woken within a sweep after so many bytes.
const ANNOUNCE: u64 = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) spool: Arc<Spool>,
    file: Option<Current>,
    /// Number of the last message.
    number: u64,
    pub(super) definitions: Definitions,
    frame: Vec<u8>,
    /// Could not be written, in order.
    unwritten: VecDeque<Waiting>,
    /// Messages were written after the last promise among them.
    unpromised: bool,
    promised: Option<i64>,
    /// Bytes the reader was not told of.
    unannounced: u64,
    /// It was said that nothing can be written.
    complained: bool,
    /// It was said that a ledger cannot be written.
    complained_of_ledger: bool,
}

/// A message that could not be written.
#[derive(Debug)]
struct Waiting {
    number: u64,
    frame: Vec<u8>,
    note: Note,
    /// What defines the subject of the note.
    definitions: Vec<u8>,
}

/// The file that is written.
#[derive(Debug)]
struct Current {
    file: File,
    at: u64,
    /// Space is claimed up to here.
    claimed: u64,
    /// Bytes of header and definitions.
    head: u64,
    /// Bytes of messages written since, without their copies.
    fresh: u64,
    stretch: Stretch,
    ledger: Option<Ledger>,
}

impl Writer {
    /// `promised`: by the log-client before this one.
    pub(crate) fn new(spool: Arc<Spool>, promised: Option<i64>) -> Writer {
        let number = spool.last();
        let mut writer = Writer {
            spool,
            file: None,
            number,
            definitions: Definitions::default(),
            frame: Vec::new(),
            unwritten: VecDeque::new(),
            unpromised: false,
            promised,
            unannounced: 0,
            complained: false,
            complained_of_ledger: false,
        };
        writer.make_room();
        writer
    }

    /// False: no batches now, please.
    pub(crate) fn has_room(&self) -> bool {
        !self.spool.is_full()
            && self.unwritten.is_empty()
            && self.file.as_ref().is_some_and(|current| current.left() >= ROOM)
    }

    /// Tries again what was not possible. Called once for each sweep.
    pub(crate) fn make_room(&mut self) {
        if self.spool.mark.swap(false, Relaxed) {
            self.mark();
            self.unannounced += 1;
        }
        self.give_up(false);
        let mut result = self.retry().and_then(|()| self.claim());
        if result.is_err() && self.spool.clear() {
            // What the files took is claimed again at once, before others of this file system have it; or once the
            // reader has closed the last one, too.
            self.file = None;
            self.spool.news.notify_one();
            result = self.retry().and_then(|()| self.claim());
        }
        if result.is_err() && self.give_up(true) {
            result = self.retry().and_then(|()| self.claim());
        }
        self.complain(result);
        self.retell();
    }

    /// Number of the last message.
    pub(crate) fn last(&self) -> u64 {
        self.number
    }

    /// True if everything up to this message is acknowledged, and something after it is not.
    pub(crate) fn is_acknowledged(&self, number: u64) -> bool {
        let acknowledged = self.spool.acknowledged();
        acknowledged >= number && acknowledged < self.number
    }

    /// True if everything given to [`write`](Self::write) is in files.
    pub(crate) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Gives up the oldest batches if the spool is full and the newest are to be kept, or if `need` says so. False if
    /// nothing came of it.
    fn give_up(&mut self, need: bool) -> bool {
        if self.spool.policy != SpoolFull::KeepNewest {
            return false;
        }
        let (mut need, mut some) = (need, false);
        while need || self.spool.is_full() {
            match self.spool.condense() {
                Ok(true) => (need, some) = (false, true),
                Ok(false) => break,
                Err(error) => {
                    self.complain(Err(error));
                    break;
                }
            }
        }
        some
    }

    /// Ends the stretch of the file that is written.
    fn mark(&mut self) {
        if let Some(bytes) = self.file.as_ref().and_then(|current| current.stretch.last()) {
            self.put_mark(&bytes);
        }
    }

    /// Without a mark there is nothing wrong; the next one comes with what is written next.
    fn put_mark(&mut self, bytes: &[u8]) {
        let Some(current) = &mut self.file else { return };
        if current.file.write_all_at(bytes, current.at).is_err() {
            return;
        }
        current.at += bytes.len() as u64;
        current.stretch.marked();
        self.spool.held.fetch_add(bytes.len() as u64, Relaxed);
        if let Some(part) = self.spool.state().parts.back_mut() {
            part.end = current.at;
        }
    }

    /// Gives a message of those that are numbered the next number, writes it, and returns its bytes.
    pub(crate) fn write(&mut self, message: &mut Message) -> u64 {
        self.write_taken(message, None)
    }

    /// [`write`](Self::write) of a batch up to whose end a lane was taken.
    pub(crate) fn write_taken(&mut self, message: &mut Message, taken: Option<Taken>) -> u64 {
        self.number += 1;
        match message.seq_mut() {
            Some(seq) => *seq = self.number,
            None => debug_assert!(false, "{message:?} has no number"),
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        message.put_frame(&mut frame);
        let bytes = frame.len() as u64;
        let note = Note::of(message, taken);
        let result = self.retry().and_then(|()| self.append(self.number, &frame, (note, None)));
        let definitions = result.as_ref().map_or_else(|_| self.definitions.defining(note), |()| Vec::new());
        // A file that began with this message must not define what it defines.
        self.definitions.follow(message);
        match result {
            Ok(()) => {
                self.unpromised = true;
                let claimed = self.claim();
                self.complain(claimed);
                self.give_up(false);
            }
            Err(error) => {
                self.unwritten.push_back(Waiting {
                    number: self.number,
                    frame: frame.clone(),
                    note,
                    definitions,
                });
                self.spool.state().unwritten += 1;
                self.complain(Err(error));
            }
        }
        self.frame = frame;
        self.unannounced += bytes;
        if self.unannounced >= ANNOUNCE {
            self.announce();
        }
        bytes
    }

    /// Everything that completed before `watermark` has been written.
    pub(crate) fn promise(&mut self, watermark: i64) {
        let Some(current) = self.file.as_ref().filter(|_| self.unwritten.is_empty()) else { return };
        self.promised = Some(watermark);
        // So that a log-client after this one keeps it. If that cannot be written, events may come late then.
        let _ = current.file.write_all_at(&format::promise(watermark), PROMISE);
        // Among the messages, if there are new ones: so it is made as well when they are sent again.
        let written = self.unpromised && {
            let frame = Message::Heartbeat { watermark }.frame();
            self.append(self.number, &frame, (Note::Nothing, None)).is_ok()
        };
        self.unpromised &= !written;
        self.spool.promise((!written).then_some(watermark));
        self.unannounced += 1;
    }

    /// Nobody is to wait for what this node has to tell.
    pub(crate) fn stand_aside(&mut self) {
        self.spool.state().word = Some(Message::Aside);
        self.unannounced += 1;
    }

    /// Nothing more comes.
    pub(crate) fn end(&mut self) {
        self.make_room();
        self.mark();
        if let Some(lost) = Some(self.unwritten.len()).filter(|lost| *lost > 0) {
            tracing::error!(
                messages = lost,
                "the ends of streams and processes could not be written to the spool"
            );
        }
        self.spool.state().ended = true;
        self.unannounced += 1;
        self.announce();
    }

    /// Wakes the reader, once for all that was written since the last time: waking costs a system call.
    pub(crate) fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) > 0 {
            self.spool.news.notify_one();
        }
    }

    fn complain(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => self.complained = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::error!(
                        %error,
                        dir = %self.spool.path.display(),
                        "the spool cannot be written: lanes are not read until it can"
                    );
                }
            }
        }
    }

    fn retry(&mut self) -> io::Result<()> {
        while let Some(waiting) = self.unwritten.pop_front() {
            let Waiting { number, frame, note, definitions } = &waiting;
            if let Err(error) = self.append(*number, frame, (*note, Some(definitions))) {
                self.unwritten.push_front(waiting);
                return Err(error);
            }
            self.unpromised = true;
            self.spool.state().unwritten -= 1;
        }
        Ok(())
    }

    /// Appends a frame after which `number` is the last one written, and notes what it tells, with what defines that if it
    /// is not in force any more.
    fn append(
        &mut self,
        number: u64,
        frame: &[u8],
        (note, definitions): (Note, Option<&Vec<u8>>),
    ) -> io::Result<()> {
        self.roll(number)?;
        let Some(current) = &mut self.file else { return Err(io::Error::other("there is no file")) };
        current.file.write_all_at(frame, current.at)?;
        current.at += frame.len() as u64;
        current.fresh += frame.len() as u64;
        self.spool.held.fetch_add(frame.len() as u64, Relaxed);
        current.stretch.note(frame);
        let mark = current.stretch.due();
        {
            let mut state = self.spool.state();
            state.last = number;
            if let Some(part) = state.parts.back_mut() {
                (part.last, part.end) = (number, current.at);
            }
        }
        if let Some(mark) = mark {
            self.put_mark(&mark);
        }
        self.note(number, frame, note, definitions);
        Ok(())
    }

    /// Without the ledger the message is as sound as it was; only what damage takes of it could not be counted.
    fn note(&mut self, number: u64, frame: &[u8], note: Note, definitions: Option<&Vec<u8>>) {
        let Some(ledger) = self.file.as_mut().and_then(|current| current.ledger.as_mut()) else { return };
        let before = ledger.bytes();
        let known = &self.definitions;
        let result =
            ledger.note(note, number, frame, || definitions.map_or_else(|| known.defining(note), Vec::clone));
        let grown = ledger.bytes() - before;
        if grown > 0 {
            self.spool.held.fetch_add(grown, Relaxed);
            if let Some(part) = self.spool.state().parts.back_mut() {
                part.ledger += grown;
            }
        }
        self.complain_of_ledger(result);
    }

    fn complain_of_ledger(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => self.complained_of_ledger = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained_of_ledger, true) {
                    tracing::warn!(
                        %error,
                        dir = %self.spool.path.display(),
                        "the ledger of the spool cannot be written: should the spool be damaged, losses are counted too low"
                    );
                }
            }
        }
    }

    /// Begins another file for the message `number` if it is time for that.
    fn roll(&mut self, number: u64) -> io::Result<()> {
        // What is no new message stays with those before it.
        let is_new = number > self.spool.last();
        let wanted = self.spool.roll.load(Relaxed);
        // At least as many bytes of messages as of definitions, or each message would begin a file.
        let full =
            |current: &Current| current.head + current.fresh >= self.spool.file_bytes.max(2 * current.head);
        if self.file.as_ref().is_some_and(|current| !is_new || !(wanted || full(current))) {
            return Ok(());
        }
        self.mark();
        let fresh = match self.begin(number) {
            Ok(fresh) => fresh,
            // There is no room for another one; in this one some is claimed.
            Err(_) if self.file.is_some() && !wanted => return Ok(()),
            Err(error) => return Err(error),
        };
        self.spool.roll.store(false, Relaxed);
        if let Some(old) = self.file.replace(fresh) {
            // Gives back what was claimed beyond its end.
            let _ = old.file.set_len(old.at);
        }
        Ok(())
    }

    /// Makes the file whose first message is `first`.
    fn begin(&mut self, first: u64) -> io::Result<Current> {
        let (number, made) = self.spool.next_file();
        let salt = self.spool.salt;
        let name = format::name(number);
        let file = self.spool.open_file(&name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        let mut head = self.spool.head(first, self.promised);
        let definitions = head.len();
        self.definitions.put(&mut head);
        let begun = file.write_all_at(&head, 0).and_then(|()| claim(&file, head.len() as u64));
        let claimed = begun.inspect_err(|_| self.spool.unlink(&name))?;
        let end = head.len() as u64;
        let mut stretch = Stretch::new(salt);
        stretch.note(&head[definitions..]);
        let ledger = self
            .spool
            .open_file(&format::ledger_name(number), OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
            .map_err(io::Error::from)
            .and_then(|file| Ledger::new(file, salt));
        let (ledger, result) = match ledger {
            Ok(ledger) => (Some(ledger), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.complain_of_ledger(result);
        let part = Part {
            file: number,
            made,
            salt,
            first,
            last: first - 1,
            end,
            condensed: false,
            ledger: ledger.as_ref().map_or(0, Ledger::bytes),
            retold: false,
        };
        self.spool.begun(part);
        Ok(Current { file, at: end, claimed, head: end, fresh: 0, stretch, ledger })
    }

    /// Claims space, so that what comes next can be written.
    fn claim(&mut self) -> io::Result<()> {
        match &mut self.file {
            None => self.file = Some(self.begin(self.number + 1)?),
            Some(current) if current.left() < ROOM => current.claimed = claim(&current.file, current.at)?,
            Some(_) => {}
        }
        Ok(())
    }
}

impl Current {
    /// Bytes claimed and not used.
    fn left(&self) -> u64 {
        self.claimed.saturating_sub(self.at)
    }
}

/// Claims space from `at` on, less if there is not as much. Up to where it is claimed.
fn claim(file: &File, at: u64) -> io::Result<u64> {
    // Beyond the end of the file: what is there after a death is no message.
    let claim =
        |bytes| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, bytes).map(|()| at + bytes);
    match claim(CLAIM - PAGES).or_else(|_| claim(ROOM)) {
        Ok(claimed) => Ok(claimed),
        // Not every file system can; on such a one a full disk is noticed by a failed write.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(u64::MAX),
        Err(error) => Err(error.into()),
    }
}
