//! The sweeper's side of the spool.

use super::definitions::Definitions;
use super::format::{self, WATERMARK_AT};
use super::ledger::{DrainPosition, Ledger, LedgerNote};
use super::mark_interval::MarkInterval;
use super::{FileInfo, Spool};
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

/// Space claimed before a batch is accepted: more than the largest batch (4096 slots of 64 bytes,
/// encoded into less than three times that) plus some definitions.
const BATCH_SPACE: u64 = 1 << 20;
/// Space claimed at a time. Batches are accepted while at least this much is left of the limit, so
/// that no claim exceeds it.
pub(super) const CLAIM: u64 = 2 * BATCH_SPACE;
/// Space that the ledgers of all files take beyond their size: up to a page each. Claims are
/// smaller by this much.
const PAGES: u64 = 128 << 10;
/// The reader is woken within a sweep after this many bytes.
const NOTIFY_BYTES: u64 = 256 << 10;

/// Writes messages to the spool.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) spool: Arc<Spool>,
    file: Option<CurrentFile>,
    /// Number of the last message.
    number: u64,
    pub(super) definitions: Definitions,
    frame: Vec<u8>,
    /// Messages that could not be written, in order.
    pending: VecDeque<PendingMessage>,
    /// A replay is being written: the numbers of the files whose ledgers it repeats.
    pub(super) replaying: Option<Vec<u64>>,
    /// Messages were written after the last watermark in the file.
    uncovered: bool,
    watermark: Option<i64>,
    /// Bytes written since the reader was woken.
    unnotified: u64,
    /// The current write failure was logged.
    write_error_logged: bool,
    /// The current failure to write the ledger was logged.
    ledger_error_logged: bool,
}

/// A message that could not be written.
#[derive(Debug)]
struct PendingMessage {
    number: u64,
    frame: Vec<u8>,
    note: LedgerNote,
}

/// The file that is being written.
#[derive(Debug)]
struct CurrentFile {
    file: File,
    at: u64,
    /// Space is claimed up to this offset.
    claimed: u64,
    /// Bytes of header and definitions.
    head: u64,
    /// Bytes of messages written since, without their copies.
    fresh: u64,
    mark_interval: MarkInterval,
    ledger: Option<Ledger>,
}

impl Writer {
    /// `watermark`: the last watermark of the previous log-client.
    pub(crate) fn new(spool: Arc<Spool>, watermark: Option<i64>) -> Writer {
        let number = spool.last();
        let mut writer = Writer {
            spool,
            file: None,
            number,
            definitions: Definitions::default(),
            frame: Vec::new(),
            pending: VecDeque::new(),
            replaying: None,
            uncovered: false,
            watermark,
            unnotified: 0,
            write_error_logged: false,
            ledger_error_logged: false,
        };
        writer.make_space();
        writer
    }

    /// False if no batches may be written now.
    pub(crate) fn has_space(&self) -> bool {
        !self.spool.is_full()
            && self.pending.is_empty()
            && self.file.as_ref().is_some_and(|current| current.left() >= BATCH_SPACE)
    }

    /// Retries what failed, claims space, and replays ledgers. Called once per sweep.
    pub(crate) fn make_space(&mut self) {
        if self.spool.mark.swap(false, Relaxed) {
            self.end_mark_interval();
            self.unnotified += 1;
        }
        self.give_up(false);
        let mut result = self.write_pending().and_then(|()| self.claim());
        if result.is_err() && self.spool.clear() {
            // The space of the files is claimed again at once, before other writers of this file
            // system take it; or, if the reader still has the last file open, once it has closed
            // it.
            self.file = None;
            self.spool.news.notify_one();
            result = self.write_pending().and_then(|()| self.claim());
        }
        if result.is_err() && self.give_up(true) {
            result = self.write_pending().and_then(|()| self.claim());
        }
        self.log_write_error(result);
        self.replay_ledgers();
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

    /// True if everything passed to [`write`](Self::write) is in files.
    pub(crate) fn is_written(&self) -> bool {
        self.pending.is_empty()
    }

    /// Gives up the oldest batches under the policy keep-newest, if the spool is full or `need` is
    /// true. Returns true if something was given up.
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
                    self.log_write_error(Err(error));
                    break;
                }
            }
        }
        some
    }

    /// Writes the mark that ends the current file.
    fn end_mark_interval(&mut self) {
        if let Some(bytes) = self.file.as_ref().and_then(|current| current.mark_interval.last()) {
            self.write_mark(&bytes);
        }
    }

    /// A mark that cannot be written is not an error; the next one covers its messages.
    fn write_mark(&mut self, bytes: &[u8]) {
        let Some(current) = &mut self.file else { return };
        if current.file.write_all_at(bytes, current.at).is_err() {
            return;
        }
        current.at += bytes.len() as u64;
        current.mark_interval.marked();
        self.spool.held.fetch_add(bytes.len() as u64, Relaxed);
        if let Some(info) = self.spool.state().files.back_mut() {
            info.end = current.at;
        }
    }

    /// Assigns the next number to a message and writes it. Returns the size of its frame in bytes.
    pub(crate) fn write(&mut self, message: &mut Message) -> u64 {
        self.write_drained(message, None)
    }

    /// [`write`](Self::write) for a batch, with the position up to which its lane was drained.
    pub(crate) fn write_drained(&mut self, message: &mut Message, taken: Option<DrainPosition>) -> u64 {
        self.number += 1;
        match message.seq_mut() {
            Some(seq) => *seq = self.number,
            None => debug_assert!(false, "{message:?} has no number"),
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        message.append_frame(&mut frame);
        let bytes = frame.len() as u64;
        let note = LedgerNote::of(message, taken);
        match self.write_pending().and_then(|()| self.append(self.number, &frame, note)) {
            Ok(()) => {
                self.definitions.follow(message);
                self.uncovered = true;
                let claimed = self.claim();
                self.log_write_error(claimed);
                self.give_up(false);
            }
            Err(error) => {
                self.pending.push_back(PendingMessage { number: self.number, frame: frame.clone(), note });
                self.spool.state().unwritten += 1;
                self.log_write_error(Err(error));
            }
        }
        self.frame = frame;
        self.unnotified += bytes;
        if self.unnotified >= NOTIFY_BYTES {
            self.notify_reader();
        }
        bytes
    }

    /// Records the watermark: everything that completed before it has been written.
    pub(crate) fn set_watermark(&mut self, watermark: i64) {
        let Some(current) = self.file.as_ref().filter(|_| self.pending.is_empty()) else { return };
        self.watermark = Some(watermark);
        // In the header, for the next log-client. If that fails, events after a restart may be
        // late.
        let _ = current.file.write_all_at(&format::watermark_bytes(watermark), WATERMARK_AT);
        // Also as a message, if there are new messages before it: so it is sent again with them.
        let written = self.uncovered && {
            let frame = Message::Heartbeat { watermark }.frame();
            self.append(self.number, &frame, LedgerNote::Nothing).is_ok()
        };
        self.uncovered &= !written;
        self.spool.set_watermark((!written).then_some(watermark));
        self.unnotified += 1;
    }

    /// Requests that the log-server does not wait for events of this node.
    pub(crate) fn send_aside(&mut self) {
        self.spool.state().trailer = Some(Message::SuspendWatermark);
        self.unnotified += 1;
    }

    /// Ends the spool: no more messages follow.
    pub(crate) fn end(&mut self) {
        self.make_space();
        self.end_mark_interval();
        if let Some(lost) = Some(self.pending.len()).filter(|lost| *lost > 0) {
            tracing::error!(messages = lost, "cannot write the ends of streams and processes to the spool");
        }
        self.spool.state().ended = true;
        self.unnotified += 1;
        self.notify_reader();
    }

    /// Wakes the reader, once for everything written since the last time: waking costs a system
    /// call.
    pub(crate) fn notify_reader(&mut self) {
        if std::mem::take(&mut self.unnotified) > 0 {
            self.spool.news.notify_one();
        }
    }

    fn log_write_error(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => self.write_error_logged = false,
            Err(error) => {
                if !std::mem::replace(&mut self.write_error_logged, true) {
                    tracing::error!(
                        %error,
                        dir = %self.spool.path.display(),
                        "cannot write to the spool: lanes are not read until it succeeds"
                    );
                }
            }
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        while let Some(waiting) = self.pending.pop_front() {
            if let Err(error) = self.append(waiting.number, &waiting.frame, waiting.note) {
                self.pending.push_front(waiting);
                return Err(error);
            }
            self.definitions.follow_frame(&waiting.frame);
            self.uncovered = true;
            self.spool.state().unwritten -= 1;
        }
        Ok(())
    }

    /// Appends a frame, after which `number` is the last one written, and its note. The definitions
    /// must be those in force before the message: a file that starts with it has them in its head.
    fn append(&mut self, number: u64, frame: &[u8], note: LedgerNote) -> io::Result<()> {
        self.roll(number)?;
        let Some(current) = &mut self.file else { return Err(io::Error::other("no open file")) };
        current.file.write_all_at(frame, current.at)?;
        current.at += frame.len() as u64;
        current.fresh += frame.len() as u64;
        self.spool.held.fetch_add(frame.len() as u64, Relaxed);
        current.mark_interval.note(frame);
        let mark = current.mark_interval.due();
        {
            let mut state = self.spool.state();
            state.last = number;
            if let Some(info) = state.files.back_mut() {
                (info.last, info.end) = (number, current.at);
            }
        }
        if let Some(mark) = mark {
            self.write_mark(&mark);
        }
        self.note(number, frame, note);
        Ok(())
    }

    /// Without the ledger the message is intact; only its loss by damage could not be counted.
    fn note(&mut self, number: u64, frame: &[u8], note: LedgerNote) {
        let Some(ledger) = self.file.as_mut().and_then(|current| current.ledger.as_mut()) else { return };
        let before = ledger.bytes();
        let known = &self.definitions;
        let result = ledger.note(note, number, frame, || known.defining(note));
        let grown = ledger.bytes() - before;
        if grown > 0 {
            self.spool.held.fetch_add(grown, Relaxed);
            if let Some(info) = self.spool.state().files.back_mut() {
                info.ledger += grown;
            }
        }
        self.log_ledger_error(result);
    }

    fn log_ledger_error(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => self.ledger_error_logged = false,
            Err(error) => {
                if !std::mem::replace(&mut self.ledger_error_logged, true) {
                    tracing::warn!(
                        %error,
                        dir = %self.spool.path.display(),
                        "cannot write a ledger of the spool: if the spool gets damaged, losses are counted too low"
                    );
                }
            }
        }
    }

    /// Starts another file for the message `number` if the current one is full.
    fn roll(&mut self, number: u64) -> io::Result<()> {
        // A frame that is not a new message stays in the file of the preceding messages.
        let is_new = number > self.spool.last();
        let wanted = self.spool.roll.load(Relaxed);
        // At least twice as many bytes in total as of definitions; otherwise each message would
        // start a file.
        let full = |current: &CurrentFile| {
            current.head + current.fresh >= self.spool.file_bytes.max(2 * current.head)
        };
        if self.file.as_ref().is_some_and(|current| !is_new || !(wanted || full(current))) {
            return Ok(());
        }
        self.end_mark_interval();
        let fresh = match self.begin(number) {
            Ok(fresh) => fresh,
            // There is no space for another file; this one still has claimed space.
            Err(_) if self.file.is_some() && !wanted => return Ok(()),
            Err(error) => return Err(error),
        };
        self.spool.roll.store(false, Relaxed);
        if let Some(old) = self.file.replace(fresh) {
            // Frees the space that was claimed beyond its end.
            let _ = old.file.set_len(old.at);
        }
        Ok(())
    }

    /// Creates the file whose first message is `first`.
    fn begin(&mut self, first: u64) -> io::Result<CurrentFile> {
        let (number, generation) = self.spool.next_file();
        let salt = self.spool.salt;
        let name = format::name(number);
        let file = self.spool.open_file(&name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        let mut head = self.spool.head(first, self.watermark);
        let definitions = head.len();
        self.definitions.put(&mut head);
        let add_file = file.write_all_at(&head, 0).and_then(|()| claim(&file, head.len() as u64));
        let claimed = add_file.inspect_err(|_| self.spool.unlink(&name))?;
        let end = head.len() as u64;
        let mut mark_interval = MarkInterval::new(salt);
        mark_interval.note(&head[definitions..]);
        let ledger = self
            .spool
            .open_file(&format::ledger_name(number), OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
            .map_err(io::Error::from)
            .and_then(|file| Ledger::new(file, salt));
        let (ledger, result) = match ledger {
            Ok(ledger) => (Some(ledger), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.log_ledger_error(result);
        let info = FileInfo {
            number,
            generation,
            salt,
            first,
            last: first - 1,
            end,
            condensed: false,
            ledger: ledger.as_ref().map_or(0, Ledger::bytes),
            replayed: false,
        };
        self.spool.add_file(info);
        Ok(CurrentFile { file, at: end, claimed, head: end, fresh: 0, mark_interval, ledger })
    }

    /// Claims space for the next messages.
    fn claim(&mut self) -> io::Result<()> {
        match &mut self.file {
            None => self.file = Some(self.begin(self.number + 1)?),
            Some(current) if current.left() < BATCH_SPACE => {
                current.claimed = claim(&current.file, current.at)?
            }
            Some(_) => {}
        }
        Ok(())
    }
}

impl CurrentFile {
    /// Bytes claimed and not used.
    fn left(&self) -> u64 {
        self.claimed.saturating_sub(self.at)
    }
}

/// Claims space from `at` on, less if less is available. Returns the end of the claimed space.
fn claim(file: &File, at: u64) -> io::Result<u64> {
    // KEEP_SIZE: after a crash, bytes beyond the end of the file must not look like messages.
    let claim =
        |bytes| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, bytes).map(|()| at + bytes);
    match claim(CLAIM - PAGES).or_else(|_| claim(BATCH_SPACE)) {
        Ok(claimed) => Ok(claimed),
        // Some file systems do not support it; there a full disk is detected by a failed write.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(u64::MAX),
        Err(error) => Err(error.into()),
    }
}
