//! New segments: an inotify watch on the MIOT directory, and a scan of it at the start and whenever names were
//! missed.
//!
//! Whoever may create files in the directory can create many: one look takes a bounded number of names, and the
//! rest stays with the kernel or in the directory.

use crate::error::Error;
use crate::home::Home;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, inotify};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use miot_proto::segment::SUFFIX;

/// Longest name considered: ten digits, a dash, sixteen hexadecimal digits, the suffix.
const MAX_NAME: usize = 10 + 1 + 16 + SUFFIX.len();

/// Most names taken at one look, but for the first.
const NAMES_AT_ONCE: usize = 4096;

/// Most names taken at the first look.
const NAMES_AT_FIRST: usize = 1 << 20;

/// Name of a segment file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    text: String,
    pub(crate) pid: u32,
    pub(crate) nonce: u64,
}

impl Name {
    /// `<pid>-<16 hexadecimal digits>.seg`, or nothing of ours.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Name> {
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

    pub(crate) fn as_str(&self) -> &str {
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
    /// The scan that is under way.
    scan: Option<Dir>,
    /// Another one is to follow.
    missed: bool,
    at_once: usize,
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
        Ok(Discovery {
            path: home.path().into(),
            dir,
            watch,
            scan: None,
            missed: true,
            at_once: NAMES_AT_FIRST,
        })
    }

    /// Names were missed or forgotten: looks at the whole directory again.
    pub(super) fn look_again(&mut self) {
        self.missed = true;
    }

    /// Names that have appeared since the last time, and some of those of a scan.
    pub(super) fn poll(&mut self, found: &mut Vec<Name>) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.watch.as_fd(), &mut buffer);
        let mut seen = 0;
        // What is in the buffer must be taken: it is nowhere else.
        while seen < NAMES_AT_ONCE || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    self.missed = true
                }
                Ok(event) => {
                    seen += 1;
                    found.extend(event.file_name().and_then(|name| Name::parse(name.to_bytes())));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    tracing::error!(%error, dir = %self.path.display(), "the watch on the directory fails");
                    self.missed = true;
                    break;
                }
            }
        }
        if self.scan.is_none() && std::mem::take(&mut self.missed) {
            match Dir::read_from(&self.dir) {
                Ok(dir) => self.scan = Some(dir),
                Err(error) => {
                    tracing::error!(%error, dir = %self.path.display(), "cannot read the directory");
                    self.missed = true;
                }
            }
        }
        self.go_on_scanning(found);
        self.at_once = NAMES_AT_ONCE;
    }

    fn go_on_scanning(&mut self, found: &mut Vec<Name>) {
        let Some(dir) = &mut self.scan else { return };
        for _ in 0..self.at_once {
            match dir.next() {
                Some(Ok(entry)) => found.extend(Name::parse(entry.file_name().to_bytes())),
                Some(Err(Errno::INTR)) => {}
                Some(Err(_)) | None => {
                    self.scan = None;
                    return;
                }
            }
        }
    }

    /// Who owns a file. To be asked before it is opened: opening a device does something to it.
    pub(super) fn owner(&self, name: &Name) -> Result<u32, NotTaken> {
        let stat = rustix::fs::statat(&self.dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        if is_file(&stat) { Ok(stat.st_uid) } else { Err(NotTaken::Odd("it is no regular file")) }
    }

    /// Opens a segment, and says who owns it.
    pub(super) fn open(&self, name: &Name) -> Result<(OwnedFd, u32), NotTaken> {
        // Not blocking: by now the name may stand for a FIFO.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty()).map_err(fail)?;
        let stat = rustix::fs::fstat(&file).map_err(|_| NotTaken::Odd("it cannot be examined"))?;
        if !is_file(&stat) {
            return Err(NotTaken::Odd("it is no regular file"));
        }
        if stat.st_nlink == 0 {
            return Err(NotTaken::Gone);
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

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

fn fail(error: Errno) -> NotTaken {
    match error {
        Errno::NOENT => NotTaken::Gone,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => NotTaken::Later,
        _ => NotTaken::Odd("it cannot be opened"),
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
