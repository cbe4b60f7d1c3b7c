//! The control page of a log-client that another user runs: to be looked at.

use super::SERVER_FILE;
use super::control::{LONGEST_SWEEP, Reader, Snapshots, check_magic, open_page};
use super::error::ControlError;
use miot_proto::control::{BYTES, FILE, Settings, word};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two looks at the count of sweeps.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A copy of the page.
#[derive(Debug)]
pub struct View {
    dir: PathBuf,
    file: OwnedFd,
    page: [u8; BYTES],
}

impl View {
    /// Copies the page of the log-client that serves a directory, or served it.
    ///
    /// # Errors
    /// [`ControlError`]: there is none, it may not be read, or it is no page of this version.
    pub fn of_node(dir: &Path) -> Result<View, ControlError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let (file, _) = open_page(dir, flags)?;
        let mut view = View { dir: dir.to_owned(), file, page: [0; BYTES] };
        view.copy()?;
        check_magic(dir.join(FILE), view.get(word::MAGIC))?;
        Ok(view)
    }

    /// The log-server to which the log-client sends, if it says so.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.dir.join(SERVER_FILE), flags, Mode::empty()).ok()?;
        // In a directory of all users others may have made it.
        let (own, page) = (rustix::fs::fstat(&file).ok()?, rustix::fs::fstat(&self.file).ok()?);
        let mut bytes = [0; 512];
        let length = rustix::io::pread(&file, &mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?.trim_end();
        (own.st_uid == page.st_uid && !text.is_empty()).then(|| text.to_owned())
    }

    /// What producers are told.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::read(|at| self.get(at))
    }

    /// How far snapshots have come.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        Snapshots::read(|at| self.get(at))
    }

    /// Who reads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::read(|at| self.get(at))
    }

    /// Ticks per second of the time stamp counter, 0 if it is not known yet.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.get(word::TSC_HZ)
    }

    /// Makes sure that a log-client is at work. Whether one that is not is dead or stopped cannot be seen from here.
    ///
    /// # Errors
    /// [`ControlError::Ended`], [`ControlError::Still`].
    pub fn check_reader(&mut self) -> Result<Reader, ControlError> {
        let before = self.reader();
        let (dir, pid) = (self.dir.clone(), before.pid);
        if before.closed {
            return Err(ControlError::Ended { dir, pid });
        }
        let start = Instant::now();
        while start.elapsed() < LONGEST_SWEEP {
            std::thread::sleep(LOOK_AGAIN);
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
