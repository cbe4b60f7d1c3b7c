//! The control page, for the processes that write it: the log-client, and tools that change the
//! settings of a running one (`miot ctl`).
//!
//! The page of a predecessor is taken over in place: running producers have it mapped.
//!
//! Settings are many words. A process takes a lock before it changes them: a lock on the file that
//! marks a served directory. Only the page's owner can open that file, so no other user can hold
//! the lock.
#![expect(clippy::disallowed_types, reason = "an interruption of the sleep, ordered with the word SLEEPING")]

use super::error::ControlError;
use super::exceptions::Exception;
use super::page::MappedPage;
use super::{LOCK_FILE, is_our_file};
use crate::config::Config;
use crate::config::recording::SettingsChange;
use crate::error::Error;
use miot_proto::control::{BYTES, FILE, MAGIC, Settings, WhenFull, word};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Maximum wait for the settings lock; it is held while a page of words is stored.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum wait for the next sweep: twice the longest possible sleep between two sweeps.
pub(super) const SWEEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two checks of a value that another process changes.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// The seven bytes at the beginning of the page in all versions.
const FAMILY: &[u8; 7] = b"MIOTCTL";

/// The mapped control page of a node.
#[derive(Debug)]
pub struct Control {
    pub(super) page: MappedPage,
    dir: PathBuf,
    /// The file whose lock means that the directory is served, opened separately from the lock's
    /// holder.
    lock: OwnedFd,
    /// Lock between the threads of this process, between which the file lock does not distinguish.
    settings_lock: Mutex<()>,
    /// The next sleep must not begin, or must end.
    interrupted: AtomicBool,
    /// Settings of the configuration; only in the log-client itself.
    configured: Mutex<Option<Settings>>,
    exceptions: Mutex<Vec<Exception>>,
}

/// Status of the log-client that reads the node's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderStatus {
    /// Process id of the log-client, in its own namespace.
    pub pid: u64,
    /// Number of sweeps so far.
    pub sweeps: u64,
    /// It has stopped cleanly.
    pub closed: bool,
    /// The segments of the node take their maximum memory: no more lanes are created.
    pub node_full: bool,
}

/// Progress of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// Number of the last one requested; they count up from 1.
    pub asked: u64,
    /// Number of the last one taken.
    pub done: u64,
    /// Records read by the last one.
    pub events: u64,
}

/// Lock for changing settings; released on drop.
pub(super) struct SettingsLock<'a> {
    lock: BorrowedFd<'a>,
    _thread_lock: MutexGuard<'a, ()>,
}

impl Drop for SettingsLock<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_lock(self.lock, FlockOperation::NonBlockingUnlock);
    }
}

/// Methods of the log-client.
impl Control {
    /// Takes over or creates the page, with the settings of the configuration. `tsc_hz`: 0 if not
    /// known yet.
    pub(super) fn open(
        path: &Path,
        dir: BorrowedFd<'_>,
        config: &Config,
        tsc_hz: u64,
    ) -> Result<Control, Error> {
        let (settings, left_out) = (config.settings()?, config.left_out()?);
        let fail = |error: Errno| Error::path("cannot set up the control page", path.join(FILE), error);
        let lock = rustix::fs::openat(dir, LOCK_FILE, OPEN_FLAGS, Mode::empty())
            .map_err(|error| Error::path("cannot open", path.join(LOCK_FILE), error))?;
        let with_page = |page| Control {
            page,
            dir: path.to_owned(),
            lock,
            settings_lock: Mutex::new(()),
            interrupted: AtomicBool::new(false),
            configured: Mutex::new(Some(settings.clone())),
            exceptions: Mutex::default(),
        };
        if let Some(file) = predecessor(dir) {
            let page = MappedPage::new(&file).map_err(fail)?;
            if page.word(word::MAGIC).load(Relaxed) == MAGIC {
                page.store_left_out(&left_out);
                page.configure(&settings, tsc_hz);
                return Ok(with_page(page));
            }
        }
        // Under another name until it is complete: a producer must never find a partial page.
        let name = format!("{FILE}.{}", rustix::process::getpid().as_raw_nonzero());
        let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        let flags = OPEN_FLAGS | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let page = rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
            .and_then(|()| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64))
            .and_then(|()| MappedPage::new(&file))
            .inspect(|page| {
                page.store_left_out(&left_out);
                page.configure(&settings, tsc_hz);
            })
            .and_then(|page| rustix::fs::renameat(dir, &name, dir, FILE).map(|()| page));
        if page.is_err() {
            let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
        }
        page.map(with_page).map_err(fail)
    }

    /// Replaces all settings with those of a reloaded configuration.
    ///
    /// # Errors
    /// [`ControlError::Busy`] if another process holds the settings lock too long;
    /// [`ControlError::Ended`].
    pub fn replace(&self, settings: &Settings) -> Result<(), ControlError> {
        let _turn = self.lock_if_open()?;
        let excepted = self.settings().excepted;
        self.page.store(&Settings { excepted, ..settings.clone() }, self.get(word::TSC_HZ));
        self.wake();
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings.clone());
        Ok(())
    }

    /// Resets the settings to those of the configuration, and returns them.
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

    /// Publishes the rate of the time stamp counter, and the minimum duration in its ticks.
    pub(crate) fn publish_tsc_hz(&self, tsc_hz: u64) {
        let settings_lock = self.lock_settings();
        if let Err(error) = &settings_lock {
            tracing::warn!(%error, "the control page is modified without holding its lock");
        }
        self.page.store(&self.settings(), tsc_hz);
    }

    /// Counts a sweep, as a sign of life for waiting producers and for tools.
    pub(crate) fn swept(&self) {
        let sweeps = self.page.word(word::SWEEPS);
        sweeps.store(sweeps.load(Relaxed).wrapping_add(1), Release);
    }

    /// True if lanes are read only on demand.
    pub(crate) fn is_flight_recorder(&self) -> bool {
        self.get(word::FLIGHT_RECORDER) != 0
    }

    /// Slots to which producers can make their lanes grow; 0 if they cannot.
    pub(crate) fn grown_slots(&self) -> u64 {
        let can_grow = self.get(word::NODE_FULL) == 0
            && WhenFull::from_number(self.get(word::WHEN_FULL)) != WhenFull::OverwriteOldest;
        if can_grow { self.get(word::LANE_SLOTS_MAX) } else { 0 }
    }

    /// Sets whether producers may claim memory. Returns the previous value.
    pub(crate) fn set_node_full(&self, is_full: bool) -> bool {
        self.page.word(word::NODE_FULL).swap(u64::from(is_full), Relaxed) != 0
    }

    /// True once any producer may have seen the policy overwrite-oldest. Must be called after slots
    /// were copied: pairs with the release stores of the settings, of which this word is the first.
    pub(crate) fn overwrites(&self) -> bool {
        self.page.word(word::OVERWRITES).load(Acquire) != 0
    }

    /// The requested snapshot that has not been taken, if any. Records that were committed before
    /// the request are visible to the caller.
    pub(crate) fn snapshot_wanted(&self) -> Option<u64> {
        let SnapshotStatus { asked, done, .. } = self.snapshots();
        (asked != done).then_some(asked)
    }

    /// Reports that a snapshot was taken: all records committed before its request have been read,
    /// `events` of them.
    pub(crate) fn snapshot_taken(&self, snapshot: u64, events: u64) {
        self.page.word(word::SNAPSHOT_EVENTS).store(events, Relaxed);
        self.page.word(word::SNAPSHOT_DONE).store(snapshot, Release);
    }

    /// True if every request wakes the log-client.
    pub(crate) fn has_doorbell(&self) -> bool {
        self.settings().doorbell
    }

    /// Sets whether every request wakes the log-client. Changes nothing while another process or
    /// thread changes the settings: try again later.
    pub(crate) fn set_doorbell(&self, doorbell: bool) {
        let _turn = match self.try_lock_settings() {
            Ok(Some(turn)) => turn,
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "cannot lock the settings"),
        };
        self.page.store(&Settings { doorbell, ..self.settings() }, self.get(word::TSC_HZ));
    }

    /// Ends the sleep of the log-client, or prevents the next one. For its own threads.
    pub(crate) fn interrupt_sleep(&self) {
        self.interrupted.store(true, SeqCst);
        self.wake();
    }

    /// Sleeps until a producer wakes the log-client, or until `at_most` has passed. Returns true in
    /// the first case.
    ///
    /// The producer of a lane may not see the sleep flag when the lane becomes half full after the
    /// last sweep read it. It then wakes the log-client when another eighth of the lane has filled.
    pub(crate) fn sleep(&self, at_most: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let sleeping = self.page.word(word::SLEEPING);
        sleeping.store(1, SeqCst);
        // A later interruption stores 0 after the 1 above, so that the wait ends at once.
        let was_woken = self.interrupted.swap(false, SeqCst)
            // Shared between processes, hence without the private flag.
            || futex::wait(self.page.bell(), futex::Flags::empty(), 1, Some(&timeout)) != Err(Errno::TIMEDOUT);
        sleeping.store(0, SeqCst);
        was_woken
    }

    /// Ends recording on the node: producers stop recording.
    pub(crate) fn close(&self) {
        // With the lock if possible: switching recording on after this would have no effect.
        let _turn = self.lock_settings();
        self.page.clear_exceptions();
        let settings = Settings { enabled: false, excepted: false, doorbell: false, ..self.settings() };
        self.page.store(&settings, self.get(word::TSC_HZ));
        self.page.word(word::SLEEPING).store(0, Relaxed);
        self.page.word(word::CLOSED).store(1, Release);
    }
}

/// Methods for tools.
impl Control {
    /// Opens the page of the log-client that serves a directory, or served it.
    ///
    /// # Errors
    /// [`ControlError`]: there is no page, it belongs to another user, or it is invalid or of
    /// another version.
    pub fn of_node(dir: &Path) -> Result<Control, ControlError> {
        let path = dir.join(FILE);
        let (file, stat) = open_page(dir, OPEN_FLAGS)?;
        let (lock, lock_stat) = open_file(dir, &dir.join(LOCK_FILE), OPEN_FLAGS)?;
        if lock_stat.st_uid != stat.st_uid {
            let found = format!("its lock file belongs to user {}", lock_stat.st_uid);
            return Err(ControlError::NoPage { path, found });
        }
        let page = MappedPage::new(&file).map_err(|error| ControlError::path("cannot map", &path, error))?;
        check_magic(path, page.word(word::MAGIC).load(Acquire))?;
        Ok(Control {
            page,
            dir: dir.to_owned(),
            lock,
            settings_lock: Mutex::new(()),
            interrupted: AtomicBool::new(false),
            configured: Mutex::default(),
            exceptions: Mutex::default(),
        })
    }

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::read(|at| self.get(at))
    }

    /// Changes settings; running producers apply them to their next request. Returns the new
    /// settings.
    ///
    /// # Errors
    /// [`ControlError::Choice`] if the settings conflict; then nothing is changed.
    /// [`ControlError::Busy`] if another process holds the settings lock too long;
    /// [`ControlError::Ended`].
    pub fn change(&self, change: &SettingsChange) -> Result<Settings, ControlError> {
        let _turn = self.lock_if_open()?;
        let mut settings = self.settings();
        change.apply_to(&mut settings).map_err(ControlError::Choice)?;
        self.page.store(&settings, self.get(word::TSC_HZ));
        self.wake();
        Ok(settings)
    }

    /// Requests a snapshot of the current content of the lanes. Returns its number, see
    /// [`SnapshotStatus::has`].
    pub fn request_snapshot(&self) -> u64 {
        let asked = self.page.word(word::SNAPSHOT).fetch_add(1, SeqCst).wrapping_add(1);
        self.wake();
        asked
    }

    /// Progress of snapshots.
    #[must_use]
    pub fn snapshots(&self) -> SnapshotStatus {
        SnapshotStatus::read(|at| self.page.word(at).load(Acquire))
    }

    /// Waits until a snapshot was taken; `None` after `at_most`.
    #[must_use]
    pub fn wait_for_snapshot(&self, snapshot: u64, at_most: Duration) -> Option<SnapshotStatus> {
        self.wait(at_most, || Some(self.snapshots()).filter(|snapshots| snapshots.has(snapshot)))
    }

    /// Status of the log-client.
    #[must_use]
    pub fn reader(&self) -> ReaderStatus {
        ReaderStatus::read(|at| self.page.word(at).load(Acquire))
    }

    /// Name of the node in the trace, from the log-client that serves the directory, or served it.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        let mut bytes = [0; 512];
        let length = rustix::io::pread(&self.lock, &mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        text.lines().nth(1).filter(|node| !node.is_empty()).map(str::to_owned)
    }

    /// Ticks per second of the time stamp counter, 0 if not known yet.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.get(word::TSC_HZ)
    }

    /// Checks that a log-client is running: it holds its lock, and sweeps.
    ///
    /// # Errors
    /// [`ControlError::Ended`], [`ControlError::Dead`] or [`ControlError::Silent`] if it is not.
    pub fn check_reader(&self) -> Result<ReaderStatus, ControlError> {
        let reader = self.reader();
        let (dir, pid) = (self.dir.clone(), reader.pid);
        // Acquiring the lock for a moment proves that no log-client holds it. A log-client that
        // starts in that moment retries.
        if rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = rustix::fs::flock(&self.lock, FlockOperation::NonBlockingUnlock);
            return Err(match reader.closed {
                true => ControlError::Ended { dir, pid },
                false => ControlError::Dead { dir, pid },
            });
        }
        self.wait(SWEEP_TIMEOUT, || Some(self.reader()).filter(|now| now.sweeps != reader.sweeps))
            .ok_or(ControlError::Silent { dir, pid })
    }

    /// Wakes the log-client if it sleeps.
    pub fn wake(&self) {
        // A sleep that is about to begin ends at once.
        self.page.word(word::SLEEPING).store(0, SeqCst);
        let _ = futex::wake(self.page.bell(), futex::Flags::empty(), 1);
    }

    /// Wakes the log-client and polls, until `look` returns a value or `at_most` has passed.
    fn wait<T>(&self, at_most: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if start.elapsed() >= at_most {
                return None;
            }
            // Each time: it may have been about to sleep.
            self.wake();
            std::thread::sleep(POLL_PAUSE);
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.page.word(at).load(Relaxed)
    }

    /// Takes the settings lock, unless the log-client has ended: a change would have no effect.
    pub(super) fn lock_if_open(&self) -> Result<SettingsLock<'_>, ControlError> {
        let settings_lock = self.lock_settings()?;
        match self.reader() {
            ReaderStatus { closed: true, pid, .. } => Err(ControlError::Ended { dir: self.dir.clone(), pid }),
            _ => Ok(settings_lock),
        }
    }

    fn lock_settings(&self) -> Result<SettingsLock<'_>, ControlError> {
        let start = Instant::now();
        loop {
            if let Some(settings_lock) = self.try_lock_settings()? {
                return Ok(settings_lock);
            }
            if start.elapsed() >= LOCK_TIMEOUT {
                return Err(ControlError::Busy { dir: self.dir.clone(), waited: LOCK_TIMEOUT });
            }
            std::thread::sleep(POLL_PAUSE);
        }
    }

    /// `None`: another process or thread holds the lock.
    fn try_lock_settings(&self) -> Result<Option<SettingsLock<'_>>, ControlError> {
        let thread_lock = match self.settings_lock.try_lock() {
            Ok(thread_lock) => thread_lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        match rustix::fs::fcntl_lock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(SettingsLock { lock: self.lock.as_fd(), _thread_lock: thread_lock })),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(error) => Err(ControlError::path("cannot lock", &self.dir.join(LOCK_FILE), error)),
        }
    }
}

impl ReaderStatus {
    pub(super) fn read(get: impl Fn(usize) -> u64) -> ReaderStatus {
        ReaderStatus {
            pid: get(word::READER_PID),
            sweeps: get(word::SWEEPS),
            closed: get(word::CLOSED) != 0,
            node_full: get(word::NODE_FULL) != 0,
        }
    }
}

impl SnapshotStatus {
    pub(super) fn read(get: impl Fn(usize) -> u64) -> SnapshotStatus {
        // `done` is read before `asked`; otherwise it could appear to be ahead.
        let (done, events) = (get(word::SNAPSHOT_DONE), get(word::SNAPSHOT_EVENTS));
        SnapshotStatus { asked: get(word::SNAPSHOT), done, events }
    }

    /// True if this snapshot, or one requested later, was taken.
    #[must_use]
    pub fn has(&self, snapshot: u64) -> bool {
        self.done.wrapping_sub(snapshot) as i64 >= 0
    }
}

/// Non-blocking: a name may refer to a FIFO.
const OPEN_FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a control page and checks that it is a file of the right size.
pub(super) fn open_page(dir: &Path, flags: OFlags) -> Result<(OwnedFd, Stat), ControlError> {
    let path = dir.join(FILE);
    let (file, stat) = open_file(dir, &path, flags)?;
    let invalid = |found: String| Err(ControlError::NoPage { path: path.clone(), found });
    if !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_nlink != 1 {
        return invalid("a file that is not regular or has several names".into());
    }
    if stat.st_size != BYTES as i64 {
        return invalid(format!("{} bytes", stat.st_size));
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

/// Checks that a page is of this version.
pub(super) fn check_magic(path: PathBuf, magic: u64) -> Result<(), ControlError> {
    let bytes = magic.to_le_bytes();
    match bytes.strip_prefix(FAMILY) {
        _ if magic == MAGIC => Ok(()),
        Some(_) => Err(ControlError::Version { path, found: bytes.escape_ascii().to_string() }),
        None => Err(ControlError::NoPage { path, found: "another magic number".into() }),
    }
}

/// The page of an earlier log-client of this user, if it has the right size.
fn predecessor(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let file = rustix::fs::openat(dir, FILE, OPEN_FLAGS, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (is_our_file(&stat) && stat.st_size == BYTES as i64).then_some(file)
}
