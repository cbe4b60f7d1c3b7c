//! The control page, from the side that writes it: the log-client, and whoever steers a running one
//! (`miot ctl`).
//!
//! A page of a predecessor is taken over in place: running producers have it mapped.
//!
//! Settings are many words. Who changes them takes the turn first, a lock on the file that marks a served directory:
//! only the page's owner can open it, so nobody else can keep the turn.

use super::error::ControlError;
use super::exceptions::Exception;
use super::page::Mapped;
use super::{LOCK_FILE, is_our_file};
use crate::config::Config;
use crate::config::recorded::Change;
use crate::error::Error;
use miot_proto::control::{BYTES, FILE, MAGIC, Settings, word};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for the turn: who holds it stores a page of words.
const LONGEST_TURN: Duration = Duration::from_secs(5);

/// Longest wait for a sign of life: twice the longest sleep there can be between two sweeps.
pub(super) const LONGEST_SWEEP: Duration = Duration::from_secs(2);

/// Pause between two looks at what somebody else is to change.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The seven bytes that all versions of the page begin with.
const FAMILY: &[u8; 7] = b"MIOTCTL";

/// The mapped control page of a node.
#[derive(Debug)]
pub struct Control {
    pub(super) page: Mapped,
    dir: PathBuf,
    /// The file whose lock says that the directory is served, opened apart from the lock's holder.
    lock: OwnedFd,
    /// The turn among the threads of this process, between which the file's lock does not distinguish.
    turn: Mutex<()>,
    /// What the configuration says, of the log-client's own.
    configured: Mutex<Option<Settings>>,
    exceptions: Mutex<Vec<Exception>>,
}

/// Who reads the node's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Process id of the log-client, as it sees itself.
    pub pid: u64,
    /// Sweeps it has made.
    pub sweeps: u64,
    /// It has ended in an orderly way.
    pub closed: bool,
    /// The segments of the node take all the memory they may: no lanes are made.
    pub node_full: bool,
}

/// How far snapshots have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshots {
    /// The last one that was asked for; they count up from 1.
    pub asked: u64,
    /// The last one that was taken.
    pub done: u64,
    /// Records that the last one read.
    pub events: u64,
}

/// The turn to change settings.
pub(super) struct Turn<'a> {
    lock: BorrowedFd<'a>,
    _here: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_lock(self.lock, FlockOperation::NonBlockingUnlock);
    }
}

/// The log-client's side.
impl Control {
    /// Takes over or makes the page, with the settings of the configuration. `tsc_hz`: 0 if it is not known yet.
    pub(super) fn open(
        path: &Path,
        dir: BorrowedFd<'_>,
        config: &Config,
        tsc_hz: u64,
    ) -> Result<Control, Error> {
        let (settings, left_out) = (config.settings()?, config.left_out()?);
        let fail = |error: Errno| Error::path("cannot set up the control page", path.join(FILE), error);
        let lock = rustix::fs::openat(dir, LOCK_FILE, FLAGS, Mode::empty())
            .map_err(|error| Error::path("cannot open", path.join(LOCK_FILE), error))?;
        let made = |page| Control {
            page,
            dir: path.to_owned(),
            lock,
            turn: Mutex::new(()),
            configured: Mutex::new(Some(settings.clone())),
            exceptions: Mutex::default(),
        };
        if let Some(file) = predecessor(dir) {
            let page = Mapped::new(&file).map_err(fail)?;
            if page.word(word::MAGIC).load(Relaxed) == MAGIC {
                page.leave_out(&left_out);
                page.configure(&settings, tsc_hz);
                return Ok(made(page));
            }
        }
        // Under another name until it is complete: a producer must never find half a page.
        let name = format!("{FILE}.{}", rustix::process::getpid().as_raw_nonzero());
        let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        let flags = FLAGS | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let page = rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
            .and_then(|()| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64))
            .and_then(|()| Mapped::new(&file))
            .inspect(|page| {
                page.leave_out(&left_out);
                page.configure(&settings, tsc_hz);
            })
            .and_then(|page| rustix::fs::renameat(dir, &name, dir, FILE).map(|()| page));
        if page.is_err() {
            let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        }
        page.map(made).map_err(fail)
    }

    /// Replaces all settings, as a configuration that was read again says.
    ///
    /// # Errors
    /// [`ControlError::Busy`]: somebody else changes them and does not come to an end; [`ControlError::Ended`].
    pub fn replace(&self, settings: &Settings) -> Result<(), ControlError> {
        let _turn = self.open_turn()?;
        let excepted = self.settings().excepted;
        self.page.store(&Settings { excepted, ..settings.clone() }, self.get(word::TSC_HZ));
        self.wake();
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings.clone());
        Ok(())
    }

    /// Settings become again what the configuration says. The settings then.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub(crate) fn reset(&self) -> Result<Settings, ControlError> {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let settings = configured.unwrap_or_else(|| self.settings());
        self.replace(&settings)?;
        Ok(settings)
    }

    pub(super) fn list(&self) -> MutexGuard<'_, Vec<Exception>> {
        self.exceptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how fast the time stamp counter runs, and what the shortest duration is in its ticks.
    pub(crate) fn publish_tsc_hz(&self, tsc_hz: u64) {
        let turn = self.turn();
        if let Err(error) = &turn {
            tracing::warn!(%error, "the control page is changed out of turn");
        }
        self.page.store(&self.settings(), tsc_hz);
    }

    /// Says to waiting producers, and to who steers, that somebody reads.
    pub(crate) fn swept(&self) {
        let sweeps = self.page.word(word::SWEEPS);
        sweeps.store(sweeps.load(Relaxed).wrapping_add(1), Release);
    }

    /// True if lanes are left alone until there is a reason to read them.
    pub(crate) fn is_flight_recorder(&self) -> bool {
        self.get(word::FLIGHT_RECORDER) != 0
    }

    /// Tells producers whether memory may be claimed. What they were told before.
    pub(crate) fn node_is_full(&self, is_full: bool) -> bool {
        self.page.word(word::NODE_FULL).swap(u64::from(is_full), Relaxed) != 0
    }

    /// True once any producer may have been told to overwrite. To be asked after slots were copied: pairs with the
    /// release stores of the settings, of which this word is the first.
    pub(crate) fn overwrites(&self) -> bool {
        self.page.word(word::OVERWRITES).load(Acquire) != 0
    }

    /// The snapshot that is to be taken, if there is one. What was committed before it was asked for is visible to
    /// who has called this.
    pub(crate) fn snapshot_wanted(&self) -> Option<u64> {
        let Snapshots { asked, done, .. } = self.snapshots();
        (asked != done).then_some(asked)
    }

    /// A snapshot was taken: everything committed before it was asked for has been read, `events` records.
    pub(crate) fn snapshot_taken(&self, snapshot: u64, events: u64) {
        self.page.word(word::SNAPSHOT_EVENTS).store(events, Relaxed);
        self.page.word(word::SNAPSHOT_DONE).store(snapshot, Release);
    }

    /// Sleeps until a producer rings or the time is over.
    ///
    /// A lane that became half full after the last sweep looked at it, but before its producer could see
    /// that we sleep, rings with its next request.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let timeout = Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let sleeping = self.page.word(word::SLEEPING);
        sleeping.store(1, SeqCst);
        // Shared between processes, hence without the private flag. Woken, timed out or interrupted: the
        // next sweep looks for itself.
        let _ = futex::wait(self.page.bell(), futex::Flags::empty(), 1, Some(&timeout));
        sleeping.store(0, SeqCst);
    }

    /// Ends recording on the node: producers go dormant.
    pub(crate) fn close(&self) {
        // In turn if it can be had: what is switched on after this would have no effect.
        let _turn = self.turn();
        self.page.clear_exceptions();
        let settings = Settings { enabled: false, excepted: false, ..self.settings() };
        self.page.store(&settings, self.get(word::TSC_HZ));
        self.page.word(word::SLEEPING).store(0, Relaxed);
        self.page.word(word::CLOSED).store(1, Release);
    }
}

/// The side of who steers.
impl Control {
    /// The page of the log-client that serves a directory, or served it.
    ///
    /// # Errors
    /// [`ControlError`]: there is none, it is another user's, or no page of this version.
    pub fn of_node(dir: &Path) -> Result<Control, ControlError> {
        let path = dir.join(FILE);
        let (file, stat) = open_page(dir, FLAGS)?;
        let (lock, lock_stat) = open_file(dir, &dir.join(LOCK_FILE), FLAGS)?;
        if lock_stat.st_uid != stat.st_uid {
            let found = format!("the lock file of user {} beside it", lock_stat.st_uid);
            return Err(ControlError::NoPage { path, found });
        }
        let page = Mapped::new(&file).map_err(|error| ControlError::path("cannot map", &path, error))?;
        check_magic(path, page.word(word::MAGIC).load(Acquire))?;
        let (configured, exceptions) = (Mutex::default(), Mutex::default());
        Ok(Control { page, dir: dir.to_owned(), lock, turn: Mutex::new(()), configured, exceptions })
    }

    /// What producers are told now.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::read(|at| self.get(at))
    }

    /// Changes settings; running producers see it with their next request. The settings then.
    ///
    /// # Errors
    /// [`ControlError::Choice`]: it does not go together; nothing is changed then. [`ControlError::Busy`]: somebody
    /// else changes them and does not come to an end; [`ControlError::Ended`].
    pub fn change(&self, change: &Change) -> Result<Settings, ControlError> {
        let _turn = self.open_turn()?;
        let mut settings = self.settings();
        change.apply_to(&mut settings).map_err(ControlError::Choice)?;
        self.page.store(&settings, self.get(word::TSC_HZ));
        self.wake();
        Ok(settings)
    }

    /// Asks for what the lanes hold now. The number of the snapshot, see [`Snapshots::has`].
    pub fn request_snapshot(&self) -> u64 {
        let asked = self.page.word(word::SNAPSHOT).fetch_add(1, SeqCst).wrapping_add(1);
        self.wake();
        asked
    }

    /// How far snapshots have come.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        Snapshots::read(|at| self.page.word(at).load(Acquire))
    }

    /// Waits until a snapshot was taken. `None`: not in time.
    #[must_use]
    pub fn wait_for_snapshot(&self, snapshot: u64, at_most: Duration) -> Option<Snapshots> {
        self.wait(at_most, || Some(self.snapshots()).filter(|snapshots| snapshots.has(snapshot)))
    }

    /// Who reads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::read(|at| self.page.word(at).load(Acquire))
    }

    /// Name of the node in the trace, as the log-client that serves the directory, or served it, has it.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        let mut bytes = [0; 512];
        let length = rustix::io::pread(&self.lock, &mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        text.lines().nth(1).filter(|node| !node.is_empty()).map(str::to_owned)
    }

    /// Ticks per second of the time stamp counter, 0 if it is not known yet.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.get(word::TSC_HZ)
    }

    /// Makes sure that a log-client is at work: that it holds its lock, and sweeps.
    ///
    /// # Errors
    /// [`ControlError::Ended`], [`ControlError::Dead`] and [`ControlError::Silent`] say in which way it is not.
    pub fn check_reader(&self) -> Result<Reader, ControlError> {
        let reader = self.reader();
        let (dir, pid) = (self.dir.clone(), reader.pid);
        // To have the lock, for a moment, is the proof that nobody has it. A log-client that starts in that
        // moment tries again.
        if rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = rustix::fs::flock(&self.lock, FlockOperation::NonBlockingUnlock);
            return Err(match reader.closed {
                true => ControlError::Ended { dir, pid },
                false => ControlError::Dead { dir, pid },
            });
        }
        self.wait(LONGEST_SWEEP, || Some(self.reader()).filter(|now| now.sweeps != reader.sweeps))
            .ok_or(ControlError::Silent { dir, pid })
    }

    /// Wakes the log-client if it sleeps.
    pub fn wake(&self) {
        let _ = futex::wake(self.page.bell(), futex::Flags::empty(), 1);
    }

    /// Wakes and looks, until something is there or the time is over.
    fn wait<T>(&self, at_most: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if start.elapsed() >= at_most {
                return None;
            }
            // Again each time: it may just have been about to sleep.
            self.wake();
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.page.word(at).load(Relaxed)
    }

    /// The turn, unless the log-client has ended: nothing would come of a change.
    pub(super) fn open_turn(&self) -> Result<Turn<'_>, ControlError> {
        let turn = self.turn()?;
        match self.reader() {
            Reader { closed: true, pid, .. } => Err(ControlError::Ended { dir: self.dir.clone(), pid }),
            _ => Ok(turn),
        }
    }

    fn turn(&self) -> Result<Turn<'_>, ControlError> {
        let here = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        loop {
            match rustix::fs::fcntl_lock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Turn { lock: self.lock.as_fd(), _here: here }),
                Err(Errno::AGAIN | Errno::ACCESS) if start.elapsed() < LONGEST_TURN => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(Errno::AGAIN | Errno::ACCESS) => {
                    return Err(ControlError::Busy { dir: self.dir.clone(), waited: LONGEST_TURN });
                }
                Err(error) => {
                    return Err(ControlError::path("cannot lock", &self.dir.join(LOCK_FILE), error));
                }
            }
        }
    }
}

impl Reader {
    pub(super) fn read(get: impl Fn(usize) -> u64) -> Reader {
        Reader {
            pid: get(word::READER_PID),
            sweeps: get(word::SWEEPS),
            closed: get(word::CLOSED) != 0,
            node_full: get(word::NODE_FULL) != 0,
        }
    }
}

impl Snapshots {
    pub(super) fn read(get: impl Fn(usize) -> u64) -> Snapshots {
        // What was done before what was asked: the other way round it could seem to be ahead.
        let (done, events) = (get(word::SNAPSHOT_DONE), get(word::SNAPSHOT_EVENTS));
        Snapshots { asked: get(word::SNAPSHOT), done, events }
    }

    /// True if this snapshot, or one that was asked for later, was taken.
    #[must_use]
    pub fn has(&self, snapshot: u64) -> bool {
        self.done.wrapping_sub(snapshot) as i64 >= 0
    }
}

/// Not blocking: a name may stand for a FIFO.
const FLAGS: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a control page and makes sure that it is a file of its size.
pub(super) fn open_page(dir: &Path, flags: OFlags) -> Result<(OwnedFd, Stat), ControlError> {
    let path = dir.join(FILE);
    let (file, stat) = open_file(dir, &path, flags)?;
    let odd = |found: String| Err(ControlError::NoPage { path: path.clone(), found });
    if !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_nlink != 1 {
        return odd("something that is no regular file of one name".into());
    }
    if stat.st_size != BYTES as i64 {
        return odd(format!("{} bytes", stat.st_size));
    }
    Ok((file, stat))
}

fn open_file(dir: &Path, path: &Path, flags: OFlags) -> Result<(OwnedFd, Stat), ControlError> {
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => rustix::fs::fstat(&file)
            .map(|stat| (file, stat))
            .map_err(|error| ControlError::path("cannot examine", path, error)),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(ControlError::NoLogClient { dir: dir.to_owned() }),
        Err(Errno::ACCESS | Errno::PERM) => Err(ControlError::NotOurs {
            owner: rustix::fs::stat(path).ok().map(|stat| stat.st_uid),
            user: rustix::process::geteuid().as_raw(),
            path: path.to_owned(),
        }),
        Err(error) => Err(ControlError::path("cannot open", path, error)),
    }
}

/// Makes sure that a page is of this version.
pub(super) fn check_magic(path: PathBuf, magic: u64) -> Result<(), ControlError> {
    let bytes = magic.to_le_bytes();
    match bytes.strip_prefix(FAMILY) {
        _ if magic == MAGIC => Ok(()),
        Some(_) => Err(ControlError::Version { path, found: bytes.escape_ascii().to_string() }),
        None => Err(ControlError::NoPage { path, found: "other bytes at its beginning".into() }),
    }
}

/// The page an earlier log-client of this user left, if it has the right size.
fn predecessor(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let file = rustix::fs::openat(dir, FILE, FLAGS, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (is_our_file(&stat) && stat.st_size == BYTES as i64).then_some(file)
}
