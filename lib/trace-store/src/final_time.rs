//! The time up to which a trace is final, in a file of the trace directory.
//!
//! All events that completed before this time are in the trace. One that comes all the same,
//! because its node was given up as silent, is marked late if a later one was stored before it.
//! Readers of several traces merge them up to the least such time. The file has one line with the
//! time, nanoseconds since 1970, twice: a reader that sees half of a write ignores it. It is
//! written after the rows that it covers were synced, and is not synced itself: after a power
//! failure it may be behind the trace, but never ahead.

use crate::error::Error;
use crate::manifest::MANIFEST;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the file in the trace directory.
pub const FINAL: &str = "final";
/// Digits of a time.
const DIGITS: usize = 20;
/// Least time between two writes.
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// Writes the file.
#[derive(Debug)]
pub struct FinalTime {
    path: PathBuf,
    file: Option<File>,
    written: Option<(Instant, i64)>,
}

impl FinalTime {
    /// Prepares writing to the trace in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> FinalTime {
        FinalTime { path: dir.join(FINAL), file: None, written: None }
    }

    /// Writes the time if it is later than the last one, at most every 50 ms. `now`: the present.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn advance(&mut self, time: i64, now: Instant) -> Result<(), Error> {
        let is_due =
            |(at, last): (Instant, i64)| time > last && now.saturating_duration_since(at) >= WRITE_EVERY;
        if !self.written.is_none_or(is_due) {
            return Ok(());
        }
        let failed = Error::io("write", &self.path);
        let file = match self.file.take() {
            Some(file) => file,
            None => File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&self.path)
                .map_err(Error::io("create", &self.path))?,
        };
        file.write_all_at(line(time).as_bytes(), 0).map_err(failed)?;
        (self.file, self.written) = (Some(file), Some((now, time)));
        Ok(())
    }
}

/// Returns the time up to which the trace in `dir` is final, nanoseconds since 1970; `None` if that
/// is not known, for instance in a trace of an earlier version.
#[must_use]
pub fn read(dir: &Path) -> Option<i64> {
    let text = std::fs::read_to_string(dir.join(FINAL)).ok()?;
    let (time, again) = text.strip_suffix('\n')?.split_once(' ')?;
    (time == again && time.len() == DIGITS).then(|| time.parse().ok())?
}

/// Returns true if a process writes to the trace in `dir`.
///
/// # Errors
/// [`Error::Io`].
pub fn has_writer(dir: &Path) -> Result<bool, Error> {
    let path = dir.join(MANIFEST);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(Error::io("lock", &path)(error.into())),
    }
}

fn line(time: i64) -> String {
    format!("{time:0DIGITS$} {time:0DIGITS$}\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{FINAL, FinalTime, read};
    use std::time::Instant;

    #[test]
    fn last_whole_time_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), None);
        let mut time = FinalTime::new(dir.path());
        time.advance(1_700_000_000_000_000_000, Instant::now()).unwrap();
        assert_eq!(read(dir.path()), Some(1_700_000_000_000_000_000));
        for half in ["", "1", "00000000000000000001 00000000000000000002\n"] {
            std::fs::write(dir.path().join(FINAL), half).unwrap();
            assert_eq!(read(dir.path()), None);
        }
    }
}
