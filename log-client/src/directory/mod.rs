//! The MIOT directory of a node: its ownership, the lock that admits one log-client, and the
//! control page.
//!
//! All files are opened relative to the directory's descriptor, without following links, and
//! checked to belong to this user: in a node-wide directory every user may create files (mode
//! 1777).

mod control;
mod error;
mod exceptions;
mod page;
mod view;

pub use control::{Control, ReaderStatus, SnapshotStatus};
pub use error::ControlError;
pub(crate) use error::ExceptionError;
pub use view::ControlView;

use crate::config::Config;
use crate::error::Error;
use crate::segment::memory_of;
use miot_proto::control::{DEFAULT_DIR, FILE};
use miot_proto::segment::SUFFIX;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `f_type` of file systems in memory: tmpfs, ramfs.
pub const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Maximum wait for the lock while another process probes it, as [`Control::check_reader`] does.
const PROBE_TIME: Duration = Duration::from_millis(200);

/// Every user may create files in the directory: maximum number whose memory is measured, once a
/// second.
const MOST_LOOKED_AT: usize = 1 << 14;

/// Name of the lock file, which is locked while a log-client serves the directory. It contains the
/// process id and, on a second line, the name of the node.
const LOCK_FILE: &str = "lock";

/// Mode of a directory in which all users may create files, and remove only their own.
const SHARED: u32 = 0o1777;

/// Name of the file with the address of the log-server that the log-client sends to; all users may
/// read it.
pub(super) const SERVER_FILE: &str = "log-server";

/// The directory, locked by this process.
#[derive(Debug)]
pub(crate) struct MiotDirectory {
    path: PathBuf,
    dir: OwnedFd,
    control: Arc<Control>,
    /// Held for its lock.
    _lock: File,
}

impl MiotDirectory {
    /// Creates missing files, locks the directory and opens the control page with the settings.
    /// `tsc_hz`: ticks per second of the time stamp counter, 0 if not known yet.
    pub(crate) fn prepare(config: &Config, tsc_hz: u64) -> Result<MiotDirectory, Error> {
        let dir = open_dir(config)?;
        let lock = lock(&config.dir, &dir, &config.node)?;
        if let Err(error) = write_server_file(&dir, &config.members().join(",")) {
            tracing::warn!(%error, dir = %config.dir.display(), "cannot write the file with the address of the log-server");
        }
        let control = Arc::new(Control::open(&config.dir, dir.as_fd(), config, tsc_hz)?);
        let directory = MiotDirectory { path: config.dir.clone(), dir, control, _lock: lock };
        directory.touch_control_page();
        // First of all: segments must not fill the memory even if this log-client never gets to
        // read them.
        directory.control.set_node_full(directory.memory_of_segments() >= config.node_bytes);
        Ok(directory)
    }

    /// Updates the page's modification time: the sign for starting programs that a log-client runs,
    /// see [`miot_proto::control::STALE_SECONDS`].
    pub(crate) fn touch_control_page(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let both = Timestamps { last_access: now, last_modification: now };
        if let Err(error) = rustix::fs::utimensat(&self.dir, FILE, &both, AtFlags::SYMLINK_NOFOLLOW) {
            tracing::error!(%error, dir = %self.path.display(), "cannot touch the control page");
        }
    }

    /// Memory of the segments in the directory, bytes, whether or not they are read; of
    /// [`MOST_LOOKED_AT`] at most.
    pub(crate) fn memory_of_segments(&self) -> u64 {
        let Ok(entries) = Dir::read_from(&self.dir) else { return 0 };
        let segments = entries
            .map_while(Result::ok)
            .filter(|entry| entry.file_name().to_bytes().ends_with(SUFFIX.as_bytes()))
            .take(MOST_LOOKED_AT);
        let look = |name: &CStr| rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        segments.filter_map(|entry| look(entry.file_name())).map(|stat| memory_of(&stat)).sum()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }
}

fn open_dir(config: &Config) -> Result<OwnedFd, Error> {
    let path = config.dir.as_path();
    let user = rustix::process::geteuid().as_raw();
    let is_default = (user == 0 || config.user.is_some()) && path == Path::new(DEFAULT_DIR);
    let is_new = match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(Error::path("cannot create the MIOT directory", path, error)),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::path("cannot open the MIOT directory", path, error))?;
    let stat = rustix::fs::fstat(&dir)
        .map_err(|error| Error::path("cannot examine the MIOT directory", path, error))?;
    if stat.st_uid != user {
        return Err(Error::NotOurs { path: path.into(), owner: stat.st_uid, user });
    }
    if rustix::fs::fstatfs(&dir).is_ok_and(|stat| !IN_MEMORY.contains(&(stat.f_type as u64))) {
        tracing::warn!(dir = %path.display(), "the MIOT directory is not in memory, so programs wait for a disk; use /dev/shm/miot");
    }
    // A directory with other content, named by mistake, must not be opened to all users.
    if is_default || config.of_all_users && (is_new || is_miot_directory(&dir)) {
        // Every user's processes create segments here; sticky, so that each user can remove only
        // their own.
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(SHARED))
            .map_err(|error| Error::path("cannot open the MIOT directory to all users", path, error))?;
        warn_of_closed_parent(path);
    } else if config.of_all_users && stat.st_mode & SHARED != SHARED {
        tracing::warn!(
            dir = %path.display(),
            mode = format!("{:04o}", stat.st_mode & 0o7777),
            "the MIOT directory contains other files, so its mode stays unchanged and programs of other users are not \
             recorded; use chmod 1777 or another `dir`"
        );
    }
    Ok(dir)
}

/// True if the directory is empty, or an earlier log-client of this user has served it.
fn is_miot_directory(dir: &OwnedFd) -> bool {
    let look = |name: &str| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    if [LOCK_FILE, FILE].iter().all(|name| look(name).is_ok_and(|stat| is_our_file(&stat))) {
        return true;
    }
    let Ok(entries) = Dir::read_from(dir) else { return false };
    entries.map_while(Result::ok).all(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
}

/// Warns of a parent directory that other users cannot traverse.
fn warn_of_closed_parent(path: &Path) {
    let closed = path.ancestors().skip(1).find(|above| {
        let stat = rustix::fs::stat(*above);
        !above.as_os_str().is_empty() && stat.is_ok_and(|stat| stat.st_mode & 0o001 == 0)
    });
    if let Some(closed) = closed {
        tracing::warn!(
            dir = %path.display(),
            folder = %closed.display(),
            "other users cannot traverse this parent of the MIOT directory: their programs are not recorded"
        );
    }
}

fn lock(path: &Path, dir: &OwnedFd, node: &str) -> Result<File, Error> {
    let fail = |error: Errno| Error::path("cannot lock", path.join(LOCK_FILE), error);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Another user who can create files here may have created the lock file first: then it is
    // removed.
    let file = loop {
        let file = rustix::fs::openat(dir, LOCK_FILE, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        if is_our_file(&rustix::fs::fstat(&file).map_err(fail)?) {
            break file;
        }
        rustix::fs::unlinkat(dir, LOCK_FILE, AtFlags::empty()).map_err(fail)?;
    };
    let mut file = File::from(file);
    let start = Instant::now();
    let locked = loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PROBE_TIME => std::thread::sleep(PROBE_TIME / 20),
            locked => break locked,
        }
    };
    match locked {
        Ok(()) => {
            let pid = rustix::process::getpid().as_raw_nonzero();
            let written =
                file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}\n{node}"));
            written.map_err(|error| Error::path("cannot write", path.join(LOCK_FILE), error))?;
            Ok(file)
        }
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            Err(Error::Running {
                path: path.into(),
                pid: text.lines().next().and_then(|pid| pid.parse().ok()),
            })
        }
        Err(error) => Err(fail(error)),
    }
}

/// Writes the file with the log-server's address, under another name until it is complete.
fn write_server_file(dir: &OwnedFd, server: &str) -> Result<(), Errno> {
    let name = format!("{SERVER_FILE}.{}", rustix::process::getpid().as_raw_nonzero());
    let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
    let written = rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
        .and_then(|()| rustix::io::write(&file, format!("{server}\n").as_bytes()))
        .and_then(|_| rustix::fs::renameat(dir, &name, dir, SERVER_FILE));
    written.inspect_err(|_| {
        let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
    })
}

/// True for a regular file that this user created and that has no other name.
fn is_our_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::recording::SettingsChange;
    use miot_proto::control::{self, Settings, WhenFull, word};
    use std::os::unix::fs::PermissionsExt;

    fn config(dir: &Path) -> Config {
        Config { dir: dir.join("miot"), ..Config::default() }
    }

    fn page(dir: &Path) -> Vec<u64> {
        let bytes = std::fs::read(dir.join("miot/control")).unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn prepared_directory_is_private_with_control_page() {
        let dir = tempfile::tempdir().unwrap();
        let directory = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        assert_eq!(directory.path().metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        let page = page(dir.path());
        assert_eq!(page.len() * 8, control::BYTES);
        assert_eq!(
            (page[word::MAGIC / 8], page[word::ENABLED / 8], page[word::CLOSED / 8]),
            (control::MAGIC, 1, 0)
        );
        assert_eq!(page[word::READER_PID / 8], u64::from(std::process::id()));
        let mode = dir.path().join("miot/control").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
    }

    #[test]
    fn second_log_client_is_refused_with_the_pid() {
        let dir = tempfile::tempdir().unwrap();
        let _home = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        let error = MiotDirectory::prepare(&config(dir.path()), 0).unwrap_err();
        assert!(
            matches!(error, Error::Running { pid: Some(pid), .. } if pid == std::process::id()),
            "{error}"
        );
    }

    #[test]
    fn successor_takes_over_the_page_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("miot/control");
        let directory = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        directory.control().close();
        assert_eq!((page(dir.path())[word::ENABLED / 8], page(dir.path())[word::CLOSED / 8]), (0, 1));
        let before = std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        drop(directory);
        let _home = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap()), before);
        assert_eq!((page(dir.path())[word::ENABLED / 8], page(dir.path())[word::CLOSED / 8]), (1, 0));
    }

    #[test]
    fn invalid_control_page_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("miot")).unwrap();
        for garbage in [&b""[..], b"short", &[0xff; 4096]] {
            std::fs::write(dir.path().join("miot/control"), garbage).unwrap();
            let _home = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
            assert_eq!(page(dir.path())[0], control::MAGIC);
        }
    }

    #[test]
    fn link_instead_of_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), dir.path().join("miot")).unwrap();
        assert!(matches!(MiotDirectory::prepare(&config(dir.path()), 0), Err(Error::Path { .. })));
    }

    #[test]
    fn settings_change_through_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let directory = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        let tool = Control::of_node(&dir.path().join("miot")).unwrap();
        directory.control().publish_tsc_hz(2_000_000_000);
        let change = SettingsChange {
            ops: Some("-posix.lseek".parse().unwrap()),
            min_duration: Some(Duration::from_micros(100)),
            when_full: Some(WhenFull::OverwriteOldest),
            ..SettingsChange::default()
        };
        let settings = tool.change(&change).unwrap();
        assert_eq!(directory.control().settings(), settings);
        assert_eq!(page(dir.path())[word::MIN_TSC / 8], 200_000);
        assert!(directory.control().overwrites());
        let back = SettingsChange { when_full: Some(WhenFull::Wait), ..SettingsChange::default() };
        assert_eq!(tool.change(&back).unwrap(), Settings { when_full: WhenFull::Wait, ..settings.clone() });
        assert!(directory.control().overwrites(), "records that were overwritten may still be in the lanes");
        directory.control().replace(&Settings::default()).unwrap();
        assert_eq!((tool.settings(), tool.tsc_hz()), (Settings::default(), 2_000_000_000));
        directory.control().close();
        assert!(matches!(tool.change(&change), Err(ControlError::Ended { .. })));
        assert!(!tool.settings().enabled);
    }

    #[test]
    fn snapshot_is_done_when_it_or_a_later_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let directory = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        let tool = Control::of_node(&dir.path().join("miot")).unwrap();
        assert_eq!(tool.node(), Some(rustix::system::uname().nodename().to_string_lossy().into_owned()));
        assert_eq!(directory.control().snapshot_wanted(), None);
        let first = tool.request_snapshot();
        assert_eq!(directory.control().snapshot_wanted(), Some(first));
        assert_eq!(tool.wait_for_snapshot(first, Duration::ZERO), None);
        let second = tool.request_snapshot();
        directory.control().snapshot_taken(second, 77);
        assert_eq!(directory.control().snapshot_wanted(), None);
        for snapshot in [first, second] {
            let done = tool.wait_for_snapshot(snapshot, Duration::ZERO).unwrap();
            assert_eq!((done.asked, done.done, done.events), (second, second, 77));
        }
    }

    #[test]
    #[expect(clippy::disallowed_types, reason = "stop flag of the test")]
    fn check_reader_distinguishes_dead_silent_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("miot");
        assert!(matches!(Control::of_node(&path), Err(ControlError::NoLogClient { .. })));
        let directory = MiotDirectory::prepare(&config(dir.path()), 0).unwrap();
        let tool = Control::of_node(&path).unwrap();
        assert!(matches!(tool.check_reader(), Err(ControlError::Silent { .. })));
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (sweeping, control) = (Arc::clone(&done), Arc::clone(directory.control()));
        let sweeper = std::thread::spawn(move || {
            while !sweeping.load(std::sync::atomic::Ordering::Relaxed) {
                control.swept();
                control.sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(tool.check_reader().unwrap().pid, u64::from(std::process::id()));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        sweeper.join().unwrap();
        drop(directory);
        assert!(matches!(tool.check_reader(), Err(ControlError::Dead { .. })));
        MiotDirectory::prepare(&config(dir.path()), 0).unwrap().control().close();
        assert!(matches!(tool.check_reader(), Err(ControlError::Ended { .. })));
    }

    #[test]
    fn page_of_other_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("miot");
        drop(MiotDirectory::prepare(&config(dir.path()), 0).unwrap());
        let with = |bytes: &[u8]| {
            std::fs::write(path.join("control"), bytes).unwrap();
            Control::of_node(&path).unwrap_err()
        };
        assert!(matches!(with(b"short"), ControlError::NoPage { .. }));
        assert!(matches!(with(&[7; control::BYTES]), ControlError::NoPage { .. }));
        let mut later = [0; control::BYTES];
        later[..8].copy_from_slice(b"MIOTCTL2");
        let error = with(&later);
        assert!(error.to_string().contains("MIOTCTL2") && error.to_string().contains("MIOTCTL1"), "{error}");
    }
}
