//! Whether the process that made a segment still lives in the image that made it.
//!
//! | what happened | how it is seen |
//! |---|---|
//! | the process ended | its pidfd becomes readable |
//! | it ended before it was watched, and its number went to another | `/proc/<pid>/stat`: started after the segment was made; or nobody holds the file |
//! | a process whose number means nothing here ended | nobody holds the file |
//! | `exec`: same process, new image | `CLOSED` in the header; or nobody holds the file |
//!
//! "Nobody holds the file" is the kernel's word ([`SegmentFile::is_held`]) and holds for whatever process, in
//! whatever namespace. It has to be asked for, so it is asked every now and then where nothing else tells, and
//! where there is a reason: a newer segment of the same process, or a lane that stays marked.

use super::discover::Name;
use crate::segment::{Header, SegmentFile};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Unit of start times in `/proc`: the kernel's USER_HZ.
const TICK_NS: u64 = 10_000_000;

/// How often a process that no pidfd tells of is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The end of processes, all in one epoll instance.
#[derive(Debug)]
pub(super) struct Deaths {
    epoll: OwnedFd,
    /// The namespace in which our process ids count; `None` if `/proc` does not say.
    namespace: Option<u64>,
}

/// One process being watched.
#[derive(Debug)]
pub(super) struct Watch {
    id: u64,
    /// Its number, where that means something here.
    pid: Option<u32>,
    pidfd: Option<OwnedFd>,
    looked: Instant,
    dead: bool,
}

impl Deaths {
    pub(super) fn new() -> Result<Deaths, Errno> {
        Ok(Deaths { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, namespace: own_namespace() })
    }

    /// Starts to watch the process that made a segment; `id` names it to [`poll`](Self::poll).
    pub(super) fn watch(&self, header: &Header, file: &SegmentFile, id: u64) -> Watch {
        let counts_here = header.namespace.is_some() && header.namespace == self.namespace;
        let pid = Some(header.pid).filter(|_| counts_here);
        let mut watch = Watch { id, pid, pidfd: None, looked: Instant::now(), dead: false };
        let held = file.is_held();
        if held == Some(false) {
            // Whoever lives under this number, nobody has it mapped.
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
                // It may have got the number of the one that made the segment; a tick of slack for the rounding
                // of /proc. (It may also seem so: clocks have namespaces, too.)
                let made = header.created_boot_ns.saturating_add(TICK_NS);
                if pid.and_then(start).is_none_or(|start| start > made) && held.is_none() {
                    watch.bury();
                }
            }
            Some(Err(Errno::SRCH)) => watch.dead = true,
            // No descriptor to be had, an old kernel, or a number of elsewhere.
            Some(Err(_)) | None => watch.dead = watch.is_gone(file),
        }
        watch
    }

    /// Watches over a file about whose maker nothing is known but what its name says.
    pub(super) fn watch_file(&self, pid: u32) -> Watch {
        Watch { id: u64::MAX, pid: Some(pid), pidfd: None, looked: Instant::now(), dead: false }
    }

    /// The ids of the processes that have ended since the last time.
    pub(super) fn poll(&self, ended: &mut Vec<u64>) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 256];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) {
            ended.extend(events.iter().map(|event| { event.data }.u64()));
        }
    }
}

impl Watch {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// The process's number, if it is one of this node's.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// True if the process has not ended: what `/proc` said of its number until now, it said of this process.
    pub(super) fn is_alive(&self) -> bool {
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| !self.dead) else { return false };
        let mut ended = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut ended, Some(&now)) == Ok(0)
    }

    /// True if the process's number is one of this node's.
    pub(super) fn counts_here(&self) -> bool {
        self.pid.is_some()
    }

    /// The process has ended: its descriptor is no longer needed.
    pub(super) fn bury(&mut self) {
        self.dead = true;
        self.pidfd = None;
    }

    /// Looks after the process where no descriptor tells of its end.
    pub(super) fn look(&mut self, file: &SegmentFile) {
        if self.pidfd.is_none() && !self.dead && self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.dead = self.is_gone(file);
        }
    }

    /// Without certainty it is not gone.
    fn is_gone(&self, file: &SegmentFile) -> bool {
        match file.is_held() {
            Some(held) => !held,
            None => self.pid.is_some_and(|pid| start(pid).is_none()),
        }
    }
}

/// The process id namespace of this process.
fn own_namespace() -> Option<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// When a living process started, nanoseconds since boot. `None`: there is no such process, or it is a zombie.
pub(crate) fn start(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may hold anything.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    // Field 22 of proc(5); the state was field 3.
    fields.nth(18)?.parse::<u64>().ok()?.checked_mul(TICK_NS)
}

/// True unless it is certain that a process of the node has nothing to do with a segment that bears its number and
/// belongs to this user.
pub(super) fn may_have_made(pid: u32, uid: u32, name: &Name) -> bool {
    // The directory in /proc belongs to the effective user, as a rule.
    if uid == 0 || rustix::fs::stat(format!("/proc/{pid}")).is_ok_and(|stat| stat.st_uid == uid) {
        return true;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let Some(ids) = status.lines().find_map(|line| line.strip_prefix("Uid:")) else { return true };
    // Real, effective, saved, of files.
    let mut ids = ids.split_ascii_whitespace().filter_map(|id| id.parse().ok());
    // Who can be root can have been anybody.
    ids.clone().any(|id: u32| id == uid) || ids.any(|id| id == 0) && has_mapped(pid, name) != Some(false)
}

/// True if the process has the segment mapped, false if it has not, `None` if that cannot be seen.
///
/// The path may be followed by " (deleted)", and be seen under another mount; the name is enough.
fn has_mapped(pid: u32, name: &Name) -> Option<bool> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(maps.windows(name.as_str().len()).any(|part| part == name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boottime_ns;
    use crate::segment::hand_made::HandMade;
    use crate::until::until;
    use miot_proto::segment::header as at;
    use std::process::{Child, Command, Stdio};

    struct Made {
        _dir: tempfile::TempDir,
        file: SegmentFile,
        path: std::path::PathBuf,
        header: Header,
    }

    /// A segment of a process that says so of itself.
    fn made(pid: u32, created_boot_ns: u64, namespace: u64) -> Made {
        let mut made = HandMade::new();
        made.set(at::PID, pid.into());
        made.set(at::CREATED_BOOT_NS, created_boot_ns);
        made.set(at::PID_NAMESPACE, namespace);
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, &made.bytes).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let file = SegmentFile::new(file.into());
        let header = Header::read(&file).unwrap();
        Made { _dir: dir, file, path, header }
    }

    fn child() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_living_process_is_known_from_a_later_one_of_its_number() {
        let deaths = Deaths::new().unwrap();
        let own = own_namespace().unwrap();
        let later = made(std::process::id(), 0, own);
        assert!(deaths.watch(&later.header, &later.file, 1).is_dead(), "it cannot have made it at boot");
        let holds = std::fs::File::open(&later.path).unwrap();
        assert!(!deaths.watch(&later.header, &later.file, 2).is_dead(), "somebody has it, clocks or not");
        drop(holds);
        let same = made(std::process::id(), boottime_ns(), own);
        let _holds = std::fs::File::open(&same.path).unwrap();
        assert!(!deaths.watch(&same.header, &same.file, 3).is_dead());
    }

    #[test]
    fn the_end_of_a_process_is_seen_even_before_it_is_reaped() {
        let deaths = Deaths::new().unwrap();
        let mut child = child();
        let made = made(child.id(), boottime_ns(), own_namespace().unwrap());
        let _holds = std::fs::File::open(&made.path).unwrap();
        let watch = deaths.watch(&made.header, &made.file, 7);
        assert!(!watch.is_dead());
        let mut ended = Vec::new();
        deaths.poll(&mut ended);
        assert!(ended.is_empty());
        drop(child.stdin.take());
        until("the end is told", || {
            deaths.poll(&mut ended);
            !ended.is_empty()
        });
        assert_eq!(ended, [7]);
        assert_eq!(start(child.id()), None, "a zombie is no living process");
        child.wait().unwrap();
        assert!(deaths.watch(&made.header, &made.file, 8).is_dead());
    }

    #[test]
    fn a_segment_that_nobody_holds_is_nobodys() {
        let made = made(std::process::id(), boottime_ns(), own_namespace().unwrap());
        assert!(Deaths::new().unwrap().watch(&made.header, &made.file, 1).is_dead());
    }

    #[test]
    fn where_numbers_mean_nothing_a_process_lives_as_long_as_it_holds_its_segment() {
        let deaths = Deaths::new().unwrap();
        // There is no such process here, or it is another one.
        for (pid, namespace) in [(u32::MAX >> 1, 1), (std::process::id(), 1), (1, 0)] {
            let made = made(pid, 0, namespace);
            let holds = std::fs::File::options().write(true).open(&made.path).unwrap();
            let mut watch = deaths.watch(&made.header, &made.file, 1);
            assert!(!watch.is_dead(), "{pid}");
            watch.looked -= LOOK_EVERY;
            watch.look(&made.file);
            assert!(!watch.is_dead(), "{pid}");
            drop(holds);
            watch.looked -= LOOK_EVERY;
            watch.look(&made.file);
            assert!(watch.is_dead(), "{pid}");
        }
    }

    #[test]
    fn a_process_has_not_made_the_files_of_strangers() {
        let name = Name::parse(b"1-0123456789abcdef.seg").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(may_have_made(std::process::id(), own, &name));
        assert!(may_have_made(std::process::id(), 0, &name));
        assert!(may_have_made(u32::MAX, 4711, &name), "gone: nothing is certain");
        assert!(!may_have_made(std::process::id(), 4711, &name));
    }
}
