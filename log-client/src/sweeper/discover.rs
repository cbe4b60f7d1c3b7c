//! New segments: an inotify watch on the MIOT directory, and one scan of it at the start and whenever the
//! watch has overflowed.

use crate::error::Error;
use crate::home::Home;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, inotify};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use miot_proto::segment::{MAX_SEGMENT_BYTES, SUFFIX};

/// Longest name considered: ten digits, a dash, sixteen hexadecimal digits, the suffix.
const MAX_NAME: usize = 10 + 1 + 16 + SUFFIX.len();

/// Name of a segment file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    text: String,
    pub(super) pid: u32,
    pub(super) nonce: u64,
}

impl Name {
    /// `<pid>-<16 hexadecimal digits>.seg`, or nothing of ours.
    pub(super) fn parse(bytes: &[u8]) -> Option<Name> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_NAME)?;
        let (pid, nonce) = text.strip_suffix(SUFFIX)?.split_once('-')?;
        let hex =
            nonce.len() == 16 && nonce.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let decimal = pid.bytes().all(|b| b.is_ascii_digit()) && !pid.starts_with('0');
        if !hex || !decimal {
            return None;
        }
        Some(Name {
            text: text.to_owned(),
            pid: pid.parse().ok().filter(|pid| i32::try_from(*pid).is_ok())?,
            nonce: u64::from_str_radix(nonce, 16).ok()?,
        })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Why a file is not taken up.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// It is gone already.
    Gone,
    /// There are too many open files; it can be tried again.
    Later,
    /// Not something a producer makes.
    Odd(&'static str),
}

/// Finds segments.
#[derive(Debug)]
pub(super) struct Discovery {
    path: PathBuf,
    dir: OwnedFd,
    watch: OwnedFd,
    scan: bool,
}

impl Discovery {
    pub(super) fn new(home: &Home) -> Result<Discovery, Error> {
        let fail = |error| Error::path("cannot watch", home.path(), error);
        let watch =
            inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).map_err(fail)?;
        let events =
            inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, home.path(), events).map_err(fail)?;
        let dir = home.dir().try_clone().map_err(|error| Error::path("cannot open", home.path(), error))?;
        // The watch stands: what the scan misses, the watch sees.
        Ok(Discovery { path: home.path().into(), dir, watch, scan: true })
    }

    /// Names that have appeared since the last time; after an overflow all there are.
    pub(super) fn poll(&mut self, found: &mut Vec<Name>) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.watch.as_fd(), &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => self.scan = true,
                Ok(event) => found.extend(event.file_name().and_then(|name| Name::parse(name.to_bytes()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    tracing::error!(%error, dir = %self.path.display(), "the watch on the directory fails");
                    self.scan = true;
                    break;
                }
            }
        }
        if std::mem::take(&mut self.scan) {
            self.scan(found);
        }
    }

    fn scan(&mut self, found: &mut Vec<Name>) {
        match Dir::read_from(&self.dir) {
            Ok(entries) => found.extend(
                entries.filter_map(Result::ok).filter_map(|entry| Name::parse(entry.file_name().to_bytes())),
            ),
            Err(error) => {
                tracing::error!(%error, dir = %self.path.display(), "cannot read the directory");
                self.scan = true;
            }
        }
    }

    /// Opens a segment, and says who owns it.
    pub(super) fn open(&self, name: &Name) -> Result<(OwnedFd, u32), NotTaken> {
        // Not blocking: the name may stand for a FIFO.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty()).map_err(
                |error| match error {
                    Errno::NOENT => NotTaken::Gone,
                    Errno::MFILE | Errno::NFILE | Errno::NOMEM => NotTaken::Later,
                    _ => NotTaken::Odd("it cannot be opened"),
                },
            )?;
        let stat = rustix::fs::fstat(&file).map_err(|_| NotTaken::Odd("it cannot be examined"))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(NotTaken::Odd("it is no regular file"));
        }
        if stat.st_nlink == 0 {
            return Err(NotTaken::Gone);
        }
        if stat.st_nlink != 1 {
            return Err(NotTaken::Odd("it has more than one name"));
        }
        if u64::try_from(stat.st_size).map_or(true, |size| size > MAX_SEGMENT_BYTES) {
            return Err(NotTaken::Odd("it is too large"));
        }
        Ok((file, stat.st_uid))
    }

    /// Removes a segment's name. The memory goes with the last mapping.
    pub(super) fn remove(&self, name: &Name) {
        match rustix::fs::unlinkat(&self.dir, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(%error, name = name.as_str(), "cannot remove a segment"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_producers_make_are_considered() {
        let name = Name::parse(b"4711-00000000000000ff.seg").unwrap();
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
            assert_eq!(Name::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Name::parse(b"1-\xff0000000000000ff.seg"), None);
    }
}
