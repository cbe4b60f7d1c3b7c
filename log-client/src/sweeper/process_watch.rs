//! Detects whether the process that created a segment is alive and still runs the same image.
//!
//! | event | detection |
//! |---|---|
//! | the process ended | its pidfd becomes readable |
//! | it ended before it was watched, and its pid was reused | `/proc/<pid>/stat`: start time after the creation of the segment; or no process holds the file |
//! | a process of another pid namespace ended | no process holds the file |
//! | `exec`: same process, new image | `CLOSED` in the header; or no process holds the file |
//!
//! "No process holds the file" is reported by the kernel ([`SegmentFile::is_held`]), for any
//! process in any namespace. It must be polled. So it is polled at intervals where nothing else
//! detects the end, and on suspicion: a newer segment of the same process, or a lane that stays
//! marked.

use super::discover::SegmentName;
use crate::segment::{Header, SegmentFile};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Unit of start times in `/proc`, nanoseconds: the kernel's USER_HZ is 100.
const TICK_NS: u64 = 10_000_000;

/// Poll interval for a process without a pidfd.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// Watches processes for their end, with one epoll instance.
#[derive(Debug)]
pub(super) struct ExitWatcher {
    epoll: OwnedFd,
    /// The pid namespace of this process; `None` if `/proc` does not show it.
    namespace: Option<u64>,
}

/// One watched process.
#[derive(Debug)]
pub(super) struct ProcessWatch {
    id: u64,
    /// Its pid, if it is in this process's namespace.
    pid: Option<u32>,
    pidfd: Option<OwnedFd>,
    polled: Instant,
    dead: bool,
}

impl ExitWatcher {
    pub(super) fn new() -> Result<ExitWatcher, Errno> {
        Ok(ExitWatcher { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, namespace: own_namespace() })
    }

    /// Starts to watch the process that created a segment. [`poll`](Self::poll) reports its end as
    /// `id`.
    pub(super) fn watch(&self, header: &Header, file: &SegmentFile, id: u64) -> ProcessWatch {
        let is_local = header.namespace.is_some() && header.namespace == self.namespace;
        let pid = Some(header.pid).filter(|_| is_local);
        let mut watch = ProcessWatch { id, pid, pidfd: None, polled: Instant::now(), dead: false };
        let held = file.is_held();
        if held == Some(false) {
            // Whatever process has this pid now, no process has the segment mapped.
            watch.dead = true;
            return watch;
        }
        match pid
            .and_then(|pid| Pid::from_raw(pid.try_into().ok()?))
            .map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        {
            Some(Ok(pidfd)) => {
                let added =
                    epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(id), epoll::EventFlags::IN);
                watch.pidfd = added.is_ok().then_some(pidfd);
                // The pid may have been reused by a younger process; one tick of slack for the
                // rounding in /proc. (The difference may also come from a clock namespace, hence
                // the check of `held`.)
                let made = header.created_boot_ns.saturating_add(TICK_NS);
                if pid.and_then(start_time).is_none_or(|start| start > made) && held.is_none() {
                    watch.mark_dead();
                }
            }
            Some(Err(Errno::SRCH)) => watch.dead = true,
            // No descriptors left, an old kernel, or a pid of another namespace.
            Some(Err(_)) | None => watch.dead = watch.is_gone(file),
        }
        watch
    }

    /// Starts to watch a file of which only the pid in its name is known.
    pub(super) fn watch_file(&self, pid: u32) -> ProcessWatch {
        ProcessWatch { id: u64::MAX, pid: Some(pid), pidfd: None, polled: Instant::now(), dead: false }
    }

    /// Appends the ids of the processes that have ended since the last call.
    pub(super) fn poll(&self, ended: &mut Vec<u64>) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 256];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) {
            ended.extend(events.iter().map(|event| { event.data }.u64()));
        }
    }
}

impl ProcessWatch {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// The pid of the process, if it is in this process's namespace.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// True if the process has not ended. Then all that `/proc/<pid>` has shown until now was about
    /// this process.
    pub(super) fn is_alive(&self) -> bool {
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| !self.dead) else { return false };
        let mut ended = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut ended, Some(&now)) == Ok(0)
    }

    /// True if the pid is in this process's namespace.
    pub(super) fn is_local(&self) -> bool {
        self.pid.is_some()
    }

    /// Records the end of the process and closes its descriptor.
    pub(super) fn mark_dead(&mut self) {
        self.dead = true;
        self.pidfd = None;
    }

    /// Polls the process if no descriptor reports its end.
    pub(super) fn poll_end(&mut self, file: &SegmentFile) {
        if self.pidfd.is_none() && !self.dead && self.polled.elapsed() >= POLL_EVERY {
            self.polled = Instant::now();
            self.dead = self.is_gone(file);
        }
    }

    /// False unless it is certain that the process has ended.
    fn is_gone(&self, file: &SegmentFile) -> bool {
        match file.is_held() {
            Some(held) => !held,
            None => self.pid.is_some_and(|pid| start_time(pid).is_none()),
        }
    }
}

/// The pid namespace of this process.
fn own_namespace() -> Option<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Start time of a living process, nanoseconds since boot. `None` if there is no such process, or
/// it is a zombie.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may contain any byte.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    // Field 22 of proc(5); the state was field 3.
    fields.nth(18)?.parse::<u64>().ok()?.checked_mul(TICK_NS)
}

/// False only if it is certain that a process of this node did not create the segment that carries
/// its pid and belongs to this user.
pub(super) fn may_have_created(pid: u32, uid: u32, name: &SegmentName) -> bool {
    // The directory in /proc usually belongs to the effective user.
    if uid == 0 || rustix::fs::stat(format!("/proc/{pid}")).is_ok_and(|stat| stat.st_uid == uid) {
        return true;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let Some(ids) = status.lines().find_map(|line| line.strip_prefix("Uid:")) else { return true };
    // Real, effective, saved and file system user id.
    let mut ids = ids.split_ascii_whitespace().filter_map(|id| id.parse().ok());
    // A process that can be root can have had any user id.
    ids.clone().any(|id: u32| id == uid) || ids.any(|id| id == 0) && has_mapped(pid, name) != Some(false)
}

/// True if the process has the segment mapped, false if not, `None` if that cannot be read.
///
/// The path may end in " (deleted)" or belong to another mount, so only the name is compared.
fn has_mapped(pid: u32, name: &SegmentName) -> Option<bool> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(maps.windows(name.as_str().len()).any(|part| part == name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boottime_ns;
    use crate::segment::builder::SegmentBuilder;
    use crate::until::until;
    use miot_proto::segment::header as at;
    use std::process::{Child, Command, Stdio};

    struct TestSegment {
        _dir: tempfile::TempDir,
        file: SegmentFile,
        path: std::path::PathBuf,
        header: Header,
    }

    /// A segment with the given header values.
    fn made(pid: u32, created_boot_ns: u64, namespace: u64) -> TestSegment {
        let mut made = SegmentBuilder::new();
        made.set(at::PID, pid.into());
        made.set(at::CREATED_BOOT_NS, created_boot_ns);
        made.set(at::PID_NAMESPACE, namespace);
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, &made.bytes).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let file = SegmentFile::new(file.into());
        let header = Header::read(&file).unwrap();
        TestSegment { _dir: dir, file, path, header }
    }

    fn child() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn reused_pid_is_detected() {
        let exits = ExitWatcher::new().unwrap();
        let own = own_namespace().unwrap();
        let later = made(std::process::id(), 0, own);
        assert!(
            exits.watch(&later.header, &later.file, 1).is_dead(),
            "the segment is older than the process"
        );
        let holds = std::fs::File::open(&later.path).unwrap();
        assert!(
            !exits.watch(&later.header, &later.file, 2).is_dead(),
            "a holder counts more than the clocks"
        );
        drop(holds);
        let same = made(std::process::id(), boottime_ns(), own);
        let _holds = std::fs::File::open(&same.path).unwrap();
        assert!(!exits.watch(&same.header, &same.file, 3).is_dead());
    }

    #[test]
    fn exit_is_detected_before_the_process_is_reaped() {
        let exits = ExitWatcher::new().unwrap();
        let mut child = child();
        let made = made(child.id(), boottime_ns(), own_namespace().unwrap());
        let _holds = std::fs::File::open(&made.path).unwrap();
        let watch = exits.watch(&made.header, &made.file, 7);
        assert!(!watch.is_dead());
        let mut ended = Vec::new();
        exits.poll(&mut ended);
        assert!(ended.is_empty());
        drop(child.stdin.take());
        until("the end is reported", || {
            exits.poll(&mut ended);
            !ended.is_empty()
        });
        assert_eq!(ended, [7]);
        assert_eq!(start_time(child.id()), None, "a zombie is not alive");
        child.wait().unwrap();
        assert!(exits.watch(&made.header, &made.file, 8).is_dead());
    }

    #[test]
    fn segment_without_holder_belongs_to_dead_process() {
        let made = made(std::process::id(), boottime_ns(), own_namespace().unwrap());
        assert!(ExitWatcher::new().unwrap().watch(&made.header, &made.file, 1).is_dead());
    }

    #[test]
    fn process_of_other_namespace_lives_while_it_holds_its_segment() {
        let exits = ExitWatcher::new().unwrap();
        // Pids that do not exist here, or belong to another process.
        for (pid, namespace) in [(u32::MAX >> 1, 1), (std::process::id(), 1), (1, 0)] {
            let made = made(pid, 0, namespace);
            let holds = std::fs::File::options().write(true).open(&made.path).unwrap();
            let mut watch = exits.watch(&made.header, &made.file, 1);
            assert!(!watch.is_dead(), "{pid}");
            watch.polled -= POLL_EVERY;
            watch.poll_end(&made.file);
            assert!(!watch.is_dead(), "{pid}");
            drop(holds);
            watch.polled -= POLL_EVERY;
            watch.poll_end(&made.file);
            assert!(watch.is_dead(), "{pid}");
        }
    }

    #[test]
    fn process_did_not_create_files_of_other_users() {
        let name = SegmentName::parse(b"1-0123456789abcdef.seg").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(may_have_created(std::process::id(), own, &name));
        assert!(may_have_created(std::process::id(), 0, &name));
        assert!(may_have_created(u32::MAX, 4711, &name), "no such process: not certain");
        assert!(!may_have_created(std::process::id(), 4711, &name));
    }
}
