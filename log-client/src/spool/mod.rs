//! The spool: what the log-server has not acknowledged, in files that outlive this log-client.
//!
//! # Constraints
//!
//! * A lane's slots are given back only after their records are here, so a log-client may be killed at any
//!   instruction (SIGKILL): what it had taken is in files, what it had not is still in the lanes. For that the
//!   page cache is enough, so nothing is synced. On a disk (`spool_dir`) the spool outlives the node as well, but for
//!   what the kernel had not written yet when the power failed.
//! * Bounded by `spool_bytes`, with what is claimed: batches are taken while there is room for the next claim. When it
//!   is full, or the file system is, [`Writer::has_room`] says no and the lanes' own policy decides; or the oldest batches
//!   are given up ([`condense`]). Definitions and ends are always taken, some hundred bytes for a process and a hundred
//!   for a thread: only they can go beyond the bound, and with them what they need of copies ([`stretch`]).
//! * Little heap, however large the spool is: what is held in memory is one line per file, the definitions in
//!   force, and one buffer.
//!
//! # Files
//!
//! `<number of the file>.spool`, each about a sixteenth of the bound, see [`format`]. A file reads like a
//! connection: greeting, definitions, messages with their watermarks, so sending is copying, and a file can be
//! understood without those before it. It is removed once all its messages are acknowledged. Beside each stands its
//! [`ledger`].
//!
//! # Writing
//!
//! [`Writer`] belongs to the sweeper. It appends a frame with one `pwrite`, and then says so to the reader. Space is
//! claimed with `fallocate` before it is needed, enough for the largest batch and many definitions: a file system
//! that fills up is noticed by [`Writer::has_room`], before a batch is made, not by a failed write after it. What cannot be
//! written all the same waits in memory, and no batch is asked for until it is written.
//!
//! # Reading
//!
//! [`Reader`] belongs to the connection. It reads frames in order, checks them, and begins again at a number on
//! each new connection.
//!
//! # After a death
//!
//! [`recover`] reads all files: a frame that was being written when the log-client was killed is cut off; it was
//! never sent. Session and numbers go on, so that the server says how much it has. If messages are missing that may
//! have been sent (a damaged file, or another boot of the node, whose last writes may be gone), their numbers must not be given
//! again in the same session: a new session begins, everything is sent again, and the server drops what it has, by
//! stream and attempt number.
//!
//! # Damage
//!
//! Where a frame is damaged, reading goes on at the next mark ([`format`], [`stretch`]), which repeats what is not a batch. So
//! damage costs batches, within 64 KiB or so, and the server sees which: each batch says with which attempt number it goes
//! on. What damage took of streams that do not go on is told from files of their own ([`ledger`], [`retell`]): how far each
//! was taken from its lane, and its end. If damage is in more places than marks can bridge, batches and ends of streams that are not defined any more are left
//! out ([`known`]): the next file defines all that is in force.

mod condense;
mod definitions;
mod format;
mod known;
mod ledger;
mod reader;
mod recover;
mod retell;
mod scan;
mod stretch;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub(crate) use ledger::Taken;
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

/// A file is this part of the bound: acknowledged messages take at most so much besides the others.
const FILES: u64 = 16;
/// Bytes of a file at least, so that its definitions weigh little; and at most, because a new connection reads up to one file.
const FILE_BYTES: std::ops::RangeInclusive<u64> = (256 << 10)..=(16 << 20);

/// See the module. Shared by a [`Writer`] and a [`Reader`].
#[derive(Debug)]
pub(crate) struct Spool {
    path: PathBuf,
    /// Held for its lock as well.
    dir: OwnedFd,
    node: String,
    boot: u128,
    limit: u64,
    file_bytes: u64,
    /// Bytes in files.
    held: AtomicU64,
    /// The writer is to begin another file.
    roll: AtomicBool,
    /// The writer is to make a mark.
    mark: AtomicBool,
    /// Of the files made here, see [`format`].
    salt: u128,
    policy: SpoolFull,
    /// Events given up.
    given_up: AtomicU64,
    state: Mutex<State>,
    /// For the reader: there may be something new.
    pub(crate) news: Notify,
}

#[derive(Debug)]
struct State {
    session: u64,
    /// From the oldest to the one that is being written.
    parts: VecDeque<Part>,
    /// Number of the last file made.
    last_file: u64,
    /// See [`Part::made`].
    made: u64,
    /// Number of the last message written.
    last: u64,
    /// All numbers up to here are acknowledged, or gone.
    acknowledged: u64,
    /// Messages that could not be written yet.
    unwritten: u64,
    /// A promise made after all that was written, or that nobody is to wait.
    word: Option<Message>,
    ended: bool,
    /// Something is damaged: what the ledgers say is to be told again, and until then nothing is removed.
    retell: bool,
    /// Numbers of ledgers whose files are gone, and that tell what was in them.
    orphans: Vec<u64>,
}

/// A file.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Number of the file.
    file: u64,
    /// Different for each file that had this name since the spool was opened.
    made: u64,
    /// Of its marks.
    salt: u128,
    /// Number of its first message.
    first: u64,
    /// Number of its last message; `first - 1` if it has none.
    last: u64,
    /// Its sound bytes.
    end: u64,
    /// It holds no batches any more.
    condensed: bool,
    /// Bytes of its ledger.
    ledger: u64,
    /// What its ledger says was told again.
    retold: bool,
}

/// What an earlier log-client left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heritage {
    /// Messages.
    pub(crate) messages: u64,
    /// Nothing is missing among them.
    pub(crate) sound: bool,
    /// A number above those of all streams.
    pub(crate) next_stream: u32,
    /// The last promise.
    pub(crate) promised: Option<i64>,
}

impl Spool {
    /// Opens the directory, creates it if it is not there, and reads what it holds.
    ///
    /// # Errors
    /// [`Error::Path`], [`Error::NotOurs`], [`Error::Running`] if another log-client has it, [`Error::Setting`] if what
    /// it holds comes from a node of another name.
    pub(crate) fn open(
        path: &Path,
        limit: u64,
        policy: SpoolFull,
        node: &str,
        boot: u128,
    ) -> Result<(Spool, Heritage), Error> {
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
                parts: VecDeque::new(),
                last_file: 0,
                made: 0,
                last: 0,
                acknowledged: 0,
                unwritten: 0,
                word: None,
                ended: false,
                retell: false,
                orphans: Vec::new(),
            }),
            news: Notify::new(),
        };
        let heritage = recover::recover(&spool)?;
        Ok((spool, heritage))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn session(&self) -> u64 {
        self.state().session
    }

    /// Begins a new session: the server has numbers of this one that were never given here.
    pub(crate) fn renew_session(&self) -> Result<(), Error> {
        self.state().session = random()?;
        // Before anything is sent under the new one it must be in a file.
        self.roll.store(true, Relaxed);
        Ok(())
    }

    /// The file in which the last message was written, and where it ends there.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn end_of_last(&self) -> Option<(u64, u64)> {
        self.state().parts.back().map(|part| (part.file, part.end))
    }

    /// Number of the last message.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// Everything up to this number is acknowledged, or gone.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Messages that are not acknowledged.
    pub(crate) fn left(&self) -> u64 {
        let state = self.state();
        state.last.saturating_sub(state.acknowledged) + state.unwritten
    }

    /// True once everything is acknowledged and nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state();
        state.ended && state.unwritten == 0 && state.acknowledged >= state.last
    }

    /// The server has everything up to this number.
    pub(crate) fn acknowledge(&self, through: u64) {
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(through.min(state.last));
        self.drop_acknowledged(&mut state);
    }

    /// A promise to be sent after all that was written.
    fn promise(&self, watermark: Option<i64>) {
        self.state().word = watermark.map(|watermark| Message::Heartbeat { watermark });
    }

    /// Takes what may be said when everything up to the message `sent` is sent.
    pub(crate) fn take_word(&self, sent: u64) -> Option<Message> {
        let mut state = self.state();
        let all = sent >= state.last;
        state.word.take_if(|_| all)
    }

    /// Removes all files, if everything in them is acknowledged. False: there was none to remove.
    pub(crate) fn clear(&self) -> bool {
        let mut state = self.state();
        let is_over = !state.parts.is_empty() && state.acknowledged >= state.last && !state.retell;
        if is_over {
            state.parts.drain(..).for_each(|part| self.remove(part));
        }
        is_over
    }

    /// Bytes in files.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Events given up since it was opened.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Relaxed)
    }

    /// True if no batch may be added, however much room the file system has.
    fn is_full(&self) -> bool {
        self.held.load(Relaxed) + writer::CLAIM > self.limit
    }

    /// What a file begins with whose first numbered message is `first`: all before the definitions.
    fn head(&self, first: u64, promised: Option<i64>) -> Vec<u8> {
        let mut head = format::Header { boot: self.boot, first, salt: self.salt }.bytes().to_vec();
        if let Some(watermark) = promised {
            head[format::PROMISE as usize..].copy_from_slice(&format::promise(watermark));
        }
        let hello = Message::Hello {
            greeting: GREETING,
            version: VERSION,
            role: Role::Node,
            node: self.node.clone(),
            session: self.session(),
        };
        hello.put_frame(&mut head);
        head
    }

    /// Numbers for a file that is made now: of the file, and [`Part::made`].
    fn next_file(&self) -> (u64, u64) {
        let mut state = self.state();
        state.last_file += 1;
        (state.last_file, state.next_made())
    }

    /// Opens a file to read it; `None` if it is gone, or another one by now.
    fn open_part(&self, part: Part) -> std::io::Result<Option<File>> {
        // Files are removed and replaced under this lock.
        let state = self.state();
        if !state.parts.iter().any(|known| (known.file, known.made) == (part.file, part.made)) {
            return Ok(None);
        }
        Ok(Some(self.open_file(&format::name(part.file), OFlags::RDONLY)?))
    }

    /// From now on this file is written.
    fn begun(&self, part: Part) {
        self.held.fetch_add(part.end + part.ledger, Relaxed);
        let mut state = self.state();
        state.parts.push_back(part);
        self.drop_acknowledged(&mut state);
    }

    /// Removes the files that hold nothing but acknowledged messages, except the one that is being written.
    fn drop_acknowledged(&self, state: &mut State) {
        while state.parts.len() > 1 && !state.retell {
            let Some(part) = state.parts.pop_front_if(|part| part.last <= state.acknowledged) else { break };
            self.remove(part);
        }
    }

    fn remove(&self, part: Part) {
        self.held.fetch_sub(part.end + part.ledger, Relaxed);
        // In this order: a ledger without its file says that the file is gone.
        self.unlink(&format::ledger_name(part.file));
        self.unlink(&format::name(part.file));
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
    fn next_made(&mut self) -> u64 {
        self.made += 1;
        self.made
    }
}

/// A directory that only this user can use, and only one log-client does.
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
    rustix::fs::fchmod(&dir, Mode::RWXU).map_err(fail("cannot close to others the spool's directory"))?;
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
