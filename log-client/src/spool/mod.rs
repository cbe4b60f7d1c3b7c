//! The spool: messages that the log-server has not acknowledged, in files that survive this
//! log-client.
//!
//! # Constraints
//!
//! * A lane's slots are given back only after their records are here, so a log-client may be killed
//!   at any instruction (SIGKILL): records that it took are in files, all others are still in the
//!   lanes. The page cache is enough for that, so nothing is synced. On a disk (`spool_dir`) the
//!   spool survives a restart of the node as well, except what the kernel had not written when the
//!   power failed.
//! * Bounded by `spool_bytes`, including claimed space: batches are accepted while there is space
//!   for the next claim. If the spool or its file system is full, [`Writer::has_space`] returns
//!   false and the lanes' own policy decides; or the oldest batches are given up ([`condense`]).
//!   Definitions and ends are always accepted, some hundred bytes per process and a hundred per
//!   thread. Only they, and their copies ([`mark_interval`]), can exceed the limit.
//! * Little memory, whatever the size of the spool: one entry per file, the definitions in force,
//!   and one buffer.
//!
//! # Files
//!
//! `<number of the file>.spool`, each about a sixteenth of the limit, see [`format`]. A file is
//! laid out like a connection: greeting, definitions, messages with their watermarks. So sending is
//! copying, and a file can be interpreted without its predecessors. It is removed once all its
//! messages are acknowledged. Each file has a [`ledger`].
//!
//! # Writing
//!
//! [`Writer`] belongs to the sweeper. It appends a frame with one `pwrite`, and then notifies the
//! reader. Space is claimed with `fallocate` before it is needed, enough for the largest batch and
//! many definitions. So [`Writer::has_space`] detects a full file system before a batch is made,
//! not a failed write after it. Messages that still cannot be written wait in memory, and no batch
//! is accepted until they are written.
//!
//! # Reading
//!
//! [`Reader`] belongs to the connection. It reads frames in order, checks them, and restarts at a
//! given number on each new connection.
//!
//! # Recovery
//!
//! [`recover`] reads all files. A frame that was being written when the log-client was killed is
//! cut off; it was never sent. Session and numbers continue, so that the server can report how much
//! it has. If messages are missing that may have been sent (a damaged file, or another boot of the
//! node, whose last writes may be lost), their numbers must not be reused in the same session. Then
//! a new session starts, everything is sent again, and the server drops what it has, by stream and
//! attempt number.
//!
//! # Damage
//!
//! After a damaged frame, reading continues at the next mark ([`format`], [`mark_interval`]), whose
//! copies repeat all messages except batches. So damage costs batches, within about 64 KiB, and the
//! server sees which: each batch names the attempt number that it follows. Losses of streams that
//! do not continue are counted from separate files ([`ledger`], [`ledger_replay`]), which hold the
//! position up to which each stream was drained, and its end. If damage is in more places than
//! marks can bridge, batches and ends of undefined streams are skipped ([`server_definitions`]);
//! the next file defines everything in force.

#![expect(
    clippy::disallowed_types,
    reason = "size and requests that the writer and the reader of the spool share"
)]

mod condense;
mod definitions;
mod format;
mod ledger;
mod ledger_replay;
mod mark_interval;
mod outbox;
mod reader;
mod recover;
mod scan;
mod server_definitions;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub(crate) use ledger::DrainPosition;
pub(crate) use outbox::Outbox;
pub(crate) use reader::Reader;
pub(crate) use writer::Writer;

use crate::config::SpoolFull;
use crate::error::Error;
use miot_proto::wire::{GREETING, Message, Role, VERSION};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A file is this fraction of the limit: acknowledged messages occupy at most this much beside the
/// others.
const FILES: u64 = 16;
/// Minimum size of a file, bytes, so that its definitions are a small part of it; and the maximum,
/// because a new connection reads up to one whole file.
const FILE_BYTES: std::ops::RangeInclusive<u64> = (256 << 10)..=(16 << 20);

/// The state that a [`Writer`] and a [`Reader`] share, see the module.
#[derive(Debug)]
pub(crate) struct Spool {
    path: PathBuf,
    /// Also held for its lock.
    dir: OwnedFd,
    node: String,
    boot: u128,
    limit: u64,
    file_bytes: u64,
    /// Bytes in files.
    held: AtomicU64,
    /// Request to the writer to start another file.
    roll: AtomicBool,
    /// Request to the writer to make a mark.
    mark: AtomicBool,
    /// Salt of the files created by this log-client, see [`format`].
    salt: u128,
    policy: SpoolFull,
    /// Number of events given up.
    given_up: AtomicU64,
    state: Mutex<State>,
    /// Notifies the reader of new messages.
    pub(crate) news: Notify,
}

#[derive(Debug)]
struct State {
    session: u64,
    /// From the oldest to the one that is being written.
    files: VecDeque<FileInfo>,
    /// Number of the last file created.
    last_file: u64,
    /// Last value of [`FileInfo::generation`].
    generation: u64,
    /// Number of the last message written.
    last: u64,
    /// All numbers up to here are acknowledged, or lost.
    acknowledged: u64,
    /// Number of messages that could not be written yet.
    unwritten: u64,
    /// Message without a number that is sent after everything written so far: a watermark or
    /// `Aside`.
    trailer: Option<Message>,
    ended: bool,
    /// Something is damaged: the ledgers must be replayed, and until then no ledger is removed.
    replay_needed: bool,
    /// Numbers of the ledgers whose files are missing, or were removed before the replay.
    orphans: Vec<u64>,
}

/// A spool file.
#[derive(Clone, Copy, Debug)]
struct FileInfo {
    /// Number of the file.
    number: u64,
    /// Distinguishes files that had this name since the spool was opened.
    generation: u64,
    /// Salt of its marks.
    salt: u128,
    /// Number of its first message.
    first: u64,
    /// Number of its last message; `first - 1` if it has none.
    last: u64,
    /// End of its valid bytes.
    end: u64,
    /// Its batches were given up.
    condensed: bool,
    /// Size of its ledger, bytes.
    ledger: u64,
    /// Its ledger was replayed.
    replayed: bool,
}

/// State of the spool that an earlier log-client left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredSpool {
    /// Number of unacknowledged messages.
    pub(crate) messages: u64,
    /// No messages are missing among them.
    pub(crate) intact: bool,
    /// A number above those of all streams.
    pub(crate) next_stream: u32,
    /// The last watermark.
    pub(crate) watermark: Option<i64>,
}

impl RecoveredSpool {
    /// State of this spool and of the one after it, together.
    pub(crate) fn followed_by(self, next: RecoveredSpool) -> RecoveredSpool {
        RecoveredSpool {
            messages: self.messages + next.messages,
            intact: self.intact && next.intact,
            next_stream: self.next_stream.max(next.next_stream),
            watermark: self.watermark.max(next.watermark),
        }
    }
}

impl Spool {
    /// Opens the directory, creates it if it does not exist, and recovers its content.
    ///
    /// # Errors
    /// [`Error::Path`], [`Error::NotOurs`], [`Error::Running`] if another log-client has it open,
    /// [`Error::Setting`] if its content belongs to a node with another name.
    pub(crate) fn open(
        path: &Path,
        limit: u64,
        policy: SpoolFull,
        node: &str,
        boot: u128,
    ) -> Result<(Spool, RecoveredSpool), Error> {
        let spool = Spool {
            path: path.into(),
            dir: open_dir(path)?,
            node: node.into(),
            boot,
            limit,
            file_bytes: (limit / FILES).clamp(*FILE_BYTES.start(), *FILE_BYTES.end()),
            held: AtomicU64::new(0),
            roll: AtomicBool::new(false),
            mark: AtomicBool::new(false),
            salt: u128::from(random()?) << 64 | u128::from(random()?),
            policy,
            given_up: AtomicU64::new(0),
            state: Mutex::new(State {
                session: random()?,
                files: VecDeque::new(),
                last_file: 0,
                generation: 0,
                last: 0,
                acknowledged: 0,
                unwritten: 0,
                trailer: None,
                ended: false,
                replay_needed: false,
                orphans: Vec::new(),
            }),
            news: Notify::new(),
        };
        let recovered = recover::recover(&spool)?;
        Ok((spool, recovered))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn session(&self) -> u64 {
        self.state().session
    }

    /// Starts a new session: the server has numbers of the current one that were never assigned
    /// here.
    pub(crate) fn renew_session(&self) -> Result<(), Error> {
        self.state().session = random()?;
        // The new session must be in a file before anything is sent in it.
        self.roll.store(true, Relaxed);
        Ok(())
    }

    /// Number of the file with the last message, and the end of the message in it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn end_of_last(&self) -> Option<(u64, u64)> {
        self.state().files.back().map(|info| (info.number, info.end))
    }

    /// Number of the last message.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// Everything up to this number is acknowledged, or lost.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Number of unacknowledged messages.
    pub(crate) fn left(&self) -> u64 {
        let state = self.state();
        state.last.saturating_sub(state.acknowledged) + state.unwritten
    }

    /// True once everything is acknowledged and the spool has ended.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state();
        state.ended && state.unwritten == 0 && state.acknowledged >= state.last
    }

    /// True while acknowledgments are waited for: the spool has ended or has no space.
    pub(crate) fn needs_acknowledgments(&self) -> bool {
        let is_full = self.is_full();
        let state = self.state();
        (state.ended || is_full || state.unwritten > 0) && state.acknowledged < state.last
    }

    /// True if something is damaged, so that the ledgers must be replayed before the end.
    pub(crate) fn needs_replay(&self) -> bool {
        self.state().replay_needed
    }

    /// Ends a spool that an earlier log-client has left: no more messages follow.
    pub(crate) fn end_without_writer(&self) {
        self.state().ended = true;
        self.news.notify_one();
    }

    /// Records that the server has everything up to this number.
    pub(crate) fn acknowledge(&self, through: u64) {
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(through.min(state.last));
        self.drop_acknowledged(&mut state);
    }

    /// Sets the watermark to be sent after everything written so far.
    fn set_watermark(&self, watermark: Option<i64>) {
        self.state().trailer = watermark.map(|watermark| Message::Heartbeat { watermark });
    }

    /// Takes the message that follows everything written, if everything up to the number `sent` is
    /// sent.
    pub(crate) fn take_trailer(&self, sent: u64) -> Option<Message> {
        let mut state = self.state();
        let all = sent >= state.last;
        state.trailer.take_if(|_| all)
    }

    /// Removes all files if everything in them is acknowledged. Returns false if nothing was
    /// removed.
    pub(crate) fn clear(&self) -> bool {
        let mut state = self.state();
        let is_over = !state.files.is_empty() && state.acknowledged >= state.last && !state.replay_needed;
        if is_over {
            for info in std::mem::take(&mut state.files) {
                self.remove(&mut state, info);
            }
        }
        is_over
    }

    /// Bytes in files.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Number of events given up since the spool was opened.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Relaxed)
    }

    /// True if the limit allows no more batches, whatever the file system has left.
    fn is_full(&self) -> bool {
        self.held.load(Relaxed) + writer::CLAIM > self.limit
    }

    /// The bytes of a file before the definitions. `first`: number of its first message.
    fn head(&self, first: u64, watermark: Option<i64>) -> Vec<u8> {
        let mut head = format::Header { boot: self.boot, first, salt: self.salt }.bytes().to_vec();
        if let Some(watermark) = watermark {
            head[format::WATERMARK_AT as usize..].copy_from_slice(&format::watermark_bytes(watermark));
        }
        let hello = Message::Hello {
            greeting: GREETING,
            version: VERSION,
            role: Role::Node,
            node: self.node.clone(),
            session: self.session(),
        };
        hello.append_frame(&mut head);
        head
    }

    /// Numbers for a new file: of the file, and its [`FileInfo::generation`].
    fn next_file(&self) -> (u64, u64) {
        let mut state = self.state();
        state.last_file += 1;
        (state.last_file, state.next_generation())
    }

    /// Opens a file for reading; `None` if it was removed or replaced.
    fn open_for_reading(&self, info: FileInfo) -> std::io::Result<Option<File>> {
        // Files are removed and replaced under this lock.
        let state = self.state();
        if !state.files.iter().any(|known| (known.number, known.generation) == (info.number, info.generation))
        {
            return Ok(None);
        }
        Ok(Some(self.open_file(&format::name(info.number), OFlags::RDONLY)?))
    }

    /// Adds the file that is written from now on.
    fn add_file(&self, info: FileInfo) {
        self.held.fetch_add(info.end + info.ledger, Relaxed);
        let mut state = self.state();
        state.files.push_back(info);
        self.drop_acknowledged(&mut state);
    }

    /// Removes the files with only acknowledged messages, except the one that is being written.
    fn drop_acknowledged(&self, state: &mut State) {
        while state.files.len() > 1 {
            let Some(info) = state.files.pop_front_if(|info| info.last <= state.acknowledged) else { break };
            self.remove(state, info);
        }
    }

    fn remove(&self, state: &mut State, info: FileInfo) {
        self.held.fetch_sub(info.end + info.ledger, Relaxed);
        if state.replay_needed {
            state.orphans.push(info.number);
        } else {
            // In this order: a ledger without its file means that the file was lost.
            self.unlink(&format::ledger_name(info.number));
        }
        self.unlink(&format::name(info.number));
    }

    fn unlink(&self, name: &str) {
        if let Err(error) = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())
            && error != Errno::NOENT
        {
            tracing::error!(%error, path = %self.path.join(name).display(), "cannot remove a file of the spool");
        }
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }
}

/// Makes a directory that holds several spools private to this user.
///
/// # Errors
/// As [`Spool::open`].
pub(crate) fn make_private(path: &Path) -> Result<(), Error> {
    open_dir(path).map(drop)
}

/// Opens a directory that is private to this user, and locks it.
fn open_dir(path: &Path) -> Result<OwnedFd, Error> {
    let fail = |what| move |error: Errno| Error::path(what, path, error);
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(fail("cannot create the spool's directory")(error)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir =
        rustix::fs::open(path, flags, Mode::empty()).map_err(fail("cannot open the spool's directory"))?;
    let stat = rustix::fs::fstat(&dir).map_err(fail("cannot examine the spool's directory"))?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user || !FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Error::NotOurs { path: path.into(), owner: stat.st_uid, user });
    }
    rustix::fs::fchmod(&dir, Mode::RWXU)
        .map_err(fail("cannot restrict the access to the spool's directory"))?;
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(dir),
        Err(Errno::WOULDBLOCK) => Err(Error::Running { path: path.into(), pid: None }),
        Err(error) => Err(fail("cannot lock the spool's directory")(error)),
    }
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::system("cannot get a random number", error))?;
    Ok(u64::from_ne_bytes(bytes))
}
