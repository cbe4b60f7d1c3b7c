//! Whether the process that made a segment still lives in the image that made it.
//!
//! | what happened | how it is seen |
//! |---|---|
//! | the process ended, or is a zombie | its pidfd becomes readable |
//! | it ended and its number went to another | `/proc/<pid>/stat`: started after the segment was made |
//! | `exec`: same process, new image | `CLOSED` in the header; or the segment is not in `/proc/<pid>/maps` |
//!
//! The maps are looked at only when there is a reason: a newer segment of the same process, or a lane that
//! stays marked. Two segments of one process are no proof of `exec`: two hooks in it may each carry a
//! producer of their own.

use super::discover::Name;
use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Unit of start times in `/proc`: the kernel's USER_HZ.
const TICK_NS: u64 = 10_000_000;

/// How often a process that no pidfd could be had for is looked up.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The end of processes, all in one epoll instance.
#[derive(Debug)]
pub(super) struct Deaths {
    epoll: OwnedFd,
}

/// One process being watched.
#[derive(Debug)]
pub(super) struct Watch {
    id: u64,
    pid: u32,
    pidfd: Option<OwnedFd>,
    looked: Instant,
    dead: bool,
}

impl Deaths {
    pub(super) fn new() -> Result<Deaths, Errno> {
        Ok(Deaths { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Starts to watch a process; `id` names it to [`poll`](Self::poll).
    pub(super) fn watch(&self, pid: u32, id: u64) -> Watch {
        let mut watch = Watch { id, pid, pidfd: None, looked: Instant::now(), dead: false };
        match i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        {
            Some(Ok(pidfd)) => {
                let added = epoll::add(
                    &self.epoll,
                    pidfd.as_fd(),
                    epoll::EventData::new_u64(id),
                    epoll::EventFlags::IN,
                );
                watch.pidfd = added.is_ok().then_some(pidfd);
            }
            Some(Err(Errno::SRCH)) | None => watch.dead = true,
            // No descriptor to be had, or an old kernel: looked up now and then.
            Some(Err(_)) => watch.dead = start(pid).is_none(),
        }
        watch
    }

    /// The ids of the processes that have ended since the last time.
    pub(super) fn poll(&self, ended: &mut Vec<u64>) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
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

    /// The process has ended: its descriptor is no longer needed.
    pub(super) fn bury(&mut self) {
        self.dead = true;
        self.pidfd = None;
    }

    /// Looks the process up where no descriptor tells of its end.
    pub(super) fn look(&mut self) {
        if self.pidfd.is_none() && !self.dead && self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.dead = start(self.pid).is_none();
        }
    }

    /// The process started after a segment of its number was made, so it is another one.
    pub(super) fn check_age(&mut self, created_boot_ns: u64) {
        // Both in time since boot; a tick of slack for the rounding of /proc.
        if start(self.pid).is_none_or(|start| start > created_boot_ns.saturating_add(TICK_NS)) {
            self.bury();
        }
    }
}

/// When a living process started, nanoseconds since boot. `None`: there is no such process, or it is a zombie.
fn start(pid: u32) -> Option<u64> {
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

/// True if the process has the segment mapped, false if it has not, `None` if that cannot be seen.
pub(super) fn has_mapped(pid: u32, dir: &Path, name: &Name) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = rustix::fs::open(format!("/proc/{pid}/maps"), flags, rustix::fs::Mode::empty()).ok()?;
    let path = dir.join(name.as_str());
    let path = path.to_str()?.as_bytes();
    let mut lines = BufReader::new(std::fs::File::from(maps)).split(b'\n');
    loop {
        match lines.next() {
            // The path may be followed by " (deleted)", and be seen under another mount: the name, which no
            // other file has, is enough.
            Some(Ok(line)) => {
                let own = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
                if line.windows(own.len()).any(|part| part == own) {
                    return Some(true);
                }
            }
            Some(Err(_)) => return None,
            None => return Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boottime_ns;
    use std::process::{Command, Stdio};

    #[test]
    fn a_living_process_is_known_from_a_later_one_of_its_number() {
        let deaths = Deaths::new().unwrap();
        let mut own = deaths.watch(std::process::id(), 1);
        own.check_age(boottime_ns());
        assert!(!own.is_dead());
        own.check_age(0);
        assert!(own.is_dead(), "a segment made at boot is not this process's");
    }

    #[test]
    fn the_end_of_a_process_is_seen_even_before_it_is_reaped() {
        let deaths = Deaths::new().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let watch = deaths.watch(child.id(), 7);
        assert!(!watch.is_dead());
        let mut ended = Vec::new();
        deaths.poll(&mut ended);
        assert_eq!(ended, []);
        drop(child.stdin.take());
        while ended.is_empty() {
            deaths.poll(&mut ended);
        }
        assert_eq!(ended, [7]);
        assert_eq!(start(child.id()), None, "a zombie is no living process");
        child.wait().unwrap();
        assert!(deaths.watch(child.id(), 8).is_dead());
    }

    #[test]
    fn a_segment_is_looked_for_in_the_maps_of_its_process() {
        let name = Name::parse(b"1-0123456789abcdef.seg").unwrap();
        assert_eq!(has_mapped(std::process::id(), Path::new("/dev/shm/miot"), &name), Some(false));
        assert_eq!(has_mapped(u32::MAX, Path::new("/dev/shm/miot"), &name), None);
    }
}
