//! Read-only view of the control page of a log-client that another user runs.

use super::SERVER_FILE;
use super::control::{ReaderStatus, SWEEP_TIMEOUT, SnapshotStatus, check_magic, open_page};
use super::error::ControlError;
use miot_proto::control::{BYTES, FILE, Settings, word};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two reads of the number of sweeps.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// A copy of the page.
#[derive(Debug)]
pub struct ControlView {
    dir: PathBuf,
    file: OwnedFd,
    page: [u8; BYTES],
}

impl ControlView {
    /// Copies the page of the log-client that serves a directory, or served it.
    ///
    /// # Errors
    /// [`ControlError`]: there is no page, it may not be read, or it is invalid or of another
    /// version.
    pub fn of_node(dir: &Path) -> Result<ControlView, ControlError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let (file, _) = open_page(dir, flags)?;
        let mut view = ControlView { dir: dir.to_owned(), file, page: [0; BYTES] };
        view.copy()?;
        check_magic(dir.join(FILE), view.get(word::MAGIC))?;
        Ok(view)
    }

    /// Address of the log-server that the log-client sends to, if known.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.dir.join(SERVER_FILE), flags, Mode::empty()).ok()?;
        // In a directory of all users, another user may have created the file.
        let (own, page) = (rustix::fs::fstat(&file).ok()?, rustix::fs::fstat(&self.file).ok()?);
        let mut bytes = [0; 512];
        let length = rustix::io::pread(&file, &mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?.trim_end();
        (own.st_uid == page.st_uid && !text.is_empty()).then(|| text.to_owned())
    }

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::read(|at| self.get(at))
    }

    /// Progress of snapshots.
    #[must_use]
    pub fn snapshots(&self) -> SnapshotStatus {
        SnapshotStatus::read(|at| self.get(at))
    }

    /// Status of the log-client.
    #[must_use]
    pub fn reader(&self) -> ReaderStatus {
        ReaderStatus::read(|at| self.get(at))
    }

    /// Ticks per second of the time stamp counter, 0 if not known yet.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.get(word::TSC_HZ)
    }

    /// Checks that a log-client is running. Another user cannot distinguish a dead one from a
    /// stopped one.
    ///
    /// # Errors
    /// [`ControlError::Ended`], [`ControlError::Still`].
    pub fn check_reader(&mut self) -> Result<ReaderStatus, ControlError> {
        let before = self.reader();
        let (dir, pid) = (self.dir.clone(), before.pid);
        if before.closed {
            return Err(ControlError::Ended { dir, pid });
        }
        let start = Instant::now();
        while start.elapsed() < SWEEP_TIMEOUT {
            std::thread::sleep(POLL_PAUSE);
            self.copy()?;
            if self.reader().sweeps != before.sweeps {
                return Ok(self.reader());
            }
        }
        Err(ControlError::Still { dir, pid })
    }

    fn copy(&mut self) -> Result<(), ControlError> {
        let read = rustix::io::pread(&self.file, &mut self.page[..], 0);
        match read {
            Ok(BYTES) => Ok(()),
            Ok(length) => {
                Err(ControlError::NoPage { path: self.dir.join(FILE), found: format!("{length} bytes") })
            }
            Err(error) => Err(ControlError::path("cannot read", &self.dir.join(FILE), error)),
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}
