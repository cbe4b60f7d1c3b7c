//! Discovery of new segments: an inotify watch on the MIOT directory, and a scan of it at the start
//! and whenever events were missed.
//!
//! A user who may create files in the directory can create many. So one poll takes a bounded number
//! of names; the others stay in the kernel's queue or in the directory.

use crate::directory::MiotDirectory;
use crate::error::Error;
use miot_proto::segment::SUFFIX;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, inotify};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Maximum length of a name: ten digits, a dash, sixteen hexadecimal digits, the suffix.
const MAX_NAME: usize = 10 + 1 + 16 + SUFFIX.len();

/// Maximum number of names taken per poll, except the first.
const MAX_NAMES: usize = 4096;

/// Maximum number of names taken by the first poll.
const MAX_NAMES_FIRST: usize = 1 << 20;

/// Name of a segment file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SegmentName {
    text: String,
    pub(crate) pid: u32,
    pub(crate) nonce: u64,
}

impl SegmentName {
    /// Parses `<pid>-<16 hexadecimal digits>.seg`; `None` for all other names.
    pub(crate) fn parse(bytes: &[u8]) -> Option<SegmentName> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_NAME)?;
        let (pid, nonce) = text.strip_suffix(SUFFIX)?.split_once('-')?;
        let hex =
            nonce.len() == 16 && nonce.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let decimal = pid.bytes().all(|b| b.is_ascii_digit()) && !pid.starts_with('0');
        if !hex || !decimal {
            return None;
        }
        Some(SegmentName {
            text: text.to_owned(),
            pid: pid.parse().ok().filter(|pid| i32::try_from(*pid).is_ok())?,
            nonce: u64::from_str_radix(nonce, 16).ok()?,
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Reason why a file was not opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The file no longer exists.
    Gone,
    /// There are too many open files; a later attempt may succeed.
    TooManyOpenFiles,
    /// Not a file that a producer creates, with the reason.
    NotASegment(&'static str),
}

/// Finds segments in the MIOT directory.
#[derive(Debug)]
pub(super) struct Discovery {
    path: PathBuf,
    dir: OwnedFd,
    watch: OwnedFd,
    /// The scan in progress.
    scan: Option<Dir>,
    /// Another scan must follow.
    rescan_needed: bool,
    scan_batch: usize,
}

impl Discovery {
    pub(super) fn new(directory: &MiotDirectory) -> Result<Discovery, Error> {
        let fail = |error| Error::path("cannot watch", directory.path(), error);
        let watch =
            inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).map_err(fail)?;
        let events =
            inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, directory.path(), events).map_err(fail)?;
        let dir = directory
            .dir()
            .try_clone()
            .map_err(|error| Error::path("cannot open", directory.path(), error))?;
        // The watch exists before the scan: files that the scan misses cause events.
        Ok(Discovery {
            path: directory.path().into(),
            dir,
            watch,
            scan: None,
            rescan_needed: true,
            scan_batch: MAX_NAMES_FIRST,
        })
    }

    /// Requests another scan, because names were missed or refused.
    pub(super) fn rescan(&mut self) {
        self.rescan_needed = true;
    }

    /// Appends the names that have appeared since the last call, and some names of a scan.
    pub(super) fn poll(&mut self, found: &mut Vec<SegmentName>) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.watch.as_fd(), &mut buffer);
        let mut seen = 0;
        // Events in the buffer exist nowhere else and must be consumed.
        while seen < MAX_NAMES || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    self.rescan_needed = true
                }
                Ok(event) => {
                    seen += 1;
                    found.extend(event.file_name().and_then(|name| SegmentName::parse(name.to_bytes())));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    tracing::error!(%error, dir = %self.path.display(), "inotify watch failed");
                    self.rescan_needed = true;
                    break;
                }
            }
        }
        if self.scan.is_none() && std::mem::take(&mut self.rescan_needed) {
            match Dir::read_from(&self.dir) {
                Ok(dir) => self.scan = Some(dir),
                Err(error) => {
                    tracing::error!(%error, dir = %self.path.display(), "cannot read the MIOT directory");
                    self.rescan_needed = true;
                }
            }
        }
        self.continue_scan(found);
        self.scan_batch = MAX_NAMES;
    }

    fn continue_scan(&mut self, found: &mut Vec<SegmentName>) {
        let Some(dir) = &mut self.scan else { return };
        for _ in 0..self.scan_batch {
            match dir.next() {
                Some(Ok(entry)) => found.extend(SegmentName::parse(entry.file_name().to_bytes())),
                Some(Err(Errno::INTR)) => {}
                Some(Err(_)) | None => {
                    self.scan = None;
                    return;
                }
            }
        }
    }

    /// Owner of a file. Must be checked before the file is opened: opening a device has side
    /// effects.
    pub(super) fn owner(&self, name: &SegmentName) -> Result<u32, OpenError> {
        let stat =
            rustix::fs::statat(&self.dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(open_error)?;
        if is_file(&stat) { Ok(stat.st_uid) } else { Err(OpenError::NotASegment("not a regular file")) }
    }

    /// Opens a segment; returns it with its owner.
    pub(super) fn open(&self, name: &SegmentName) -> Result<(OwnedFd, u32), OpenError> {
        // Non-blocking: the name may have become a FIFO.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty()).map_err(open_error)?;
        let stat = rustix::fs::fstat(&file).map_err(|_| OpenError::NotASegment("cannot be examined"))?;
        if !is_file(&stat) {
            return Err(OpenError::NotASegment("not a regular file"));
        }
        if stat.st_nlink == 0 {
            return Err(OpenError::Gone);
        }
        Ok((file, stat.st_uid))
    }

    /// Removes a segment's name. Its memory is freed with the last mapping.
    pub(super) fn remove(&self, name: &SegmentName) {
        match rustix::fs::unlinkat(&self.dir, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(%error, name = name.as_str(), "cannot remove a segment"),
        }
    }
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

fn open_error(error: Errno) -> OpenError {
    match error {
        Errno::NOENT => OpenError::Gone,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => OpenError::TooManyOpenFiles,
        _ => OpenError::NotASegment("cannot be opened"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segment_names_are_parsed() {
        let name = SegmentName::parse(b"4711-00000000000000ff.seg").unwrap();
        assert_eq!((name.pid, name.nonce), (4711, 255));
        for other in [
            "control",
            "4711-ff.seg",
            "4711-00000000000000FF.seg",
            "0-00000000000000ff.seg",
            "-00000000000000ff.seg",
            "4711-00000000000000ff",
            "04711-00000000000000ff.seg",
            "4294967295-00000000000000ff.seg",
            "../etc/passwd",
            "4711-00000000000000ff.seg.seg",
            "",
        ] {
            assert_eq!(SegmentName::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(SegmentName::parse(b"1-\xff0000000000000ff.seg"), None);
    }
}
