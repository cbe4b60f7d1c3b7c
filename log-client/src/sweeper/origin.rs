//! What a process belongs to, besides what it says itself: its control group and its user's name.
//!
//! The producer has copied what its environment says, because that is gone when a process that lived for a moment is
//! found here. What the kernel knows is asked here, so that the program does not pay for it.

use super::life::Watch;
use miot_proto::job::Job;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A user database may be far away. Longest wait for a name, once for each user.
const PATIENCE: Duration = Duration::from_millis(20);
/// A user who has no name is asked for again after this.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Most names kept.
const MOST_NAMES: usize = 1 << 16;
/// Longest path of a control group that is recorded, bytes.
const MAX_CGROUP: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Origins {
    names: HashMap<u32, Known>,
    resolver: Option<(Sender<u32>, Receiver<Answer>)>,
}

/// A user and the name, if there is one.
type Answer = (u32, Option<String>);

#[derive(Debug)]
struct Known {
    name: Option<String>,
    asked: Instant,
}

impl Origins {
    /// The job of a process, as [`miot_proto::job`] has it. `said`: what its header says, `uid`: who owns its segment.
    pub(super) fn job(&mut self, said: &[u8], watch: &Watch, uid: u32) -> Vec<u8> {
        let cgroup = watch.pid().and_then(cgroup).filter(|_| watch.is_alive());
        let user = self.name(uid).unwrap_or_default().to_owned();
        // A producer fills in what it may: its user and control group are not for it to say.
        let said = Job { user: user.as_bytes(), cgroup: b"", ..Job::read(said) };
        match &cgroup {
            Some(path) => said.in_cgroup(path).bytes(),
            None => said.bytes(),
        }
    }

    fn name(&mut self, uid: u32) -> Option<&str> {
        self.hear();
        let due = |known: &Known| known.name.is_none() && known.asked.elapsed() >= ASK_AGAIN;
        if self.names.get(&uid).is_none_or(due) {
            self.ask(uid);
        }
        self.names.get(&uid)?.name.as_deref()
    }

    /// Takes the answers that have come.
    fn hear(&mut self) {
        let answers = self.resolver.as_ref().map(|(_, answers)| answers.try_iter().collect::<Vec<_>>());
        answers.into_iter().flatten().for_each(|(uid, name)| self.put(uid, name));
    }

    fn put(&mut self, uid: u32, name: Option<String>) {
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        self.names.insert(uid, Known { name, asked: Instant::now() });
    }

    fn ask(&mut self, uid: u32) {
        // Until it is answered, nobody waits for this name again.
        self.put(uid, None);
        let (questions, answers) = self.resolver.get_or_insert_with(resolver);
        if questions.send(uid).is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        while let Ok(answer) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            let is_it = answer.0 == uid;
            heard.push(answer);
            if is_it {
                break;
            }
        }
        heard.into_iter().for_each(|(uid, name)| self.put(uid, name));
    }
}

/// A thread that asks the system's user database; it ends with the [`Origins`], or with the process if it hangs.
fn resolver() -> (Sender<u32>, Receiver<Answer>) {
    let (questions, asked) = channel::<u32>();
    let (answer, answers) = channel();
    let spawned = std::thread::Builder::new().name("miot-users".into()).spawn(move || {
        for uid in asked {
            if answer.send((uid, miot_security::user_name(uid))).is_err() {
                break;
            }
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "names of users are not recorded: there is no thread to ask for them");
    }
    (questions, answers)
}

/// The path of a process's control group: that of the unified hierarchy, unless a batch system uses one of version 1.
fn cgroup(pid: u32) -> Option<Vec<u8>> {
    let lines = std::fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let path = choose(&lines)?;
    (path.len() <= MAX_CGROUP).then(|| path.to_vec())
}

/// Lines are `number:controllers:path`; of the unified hierarchy number 0 and no controllers.
fn choose(lines: &[u8]) -> Option<&[u8]> {
    let paths =
        || lines.split(|byte| *byte == b'\n').filter_map(|line| line.splitn(3, |b| *b == b':').nth(2));
    let unified = || {
        let found = lines.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
        found.filter(|path| !path.is_empty())
    };
    let of_slurm = paths().find(|path| Job::of_cgroup(path).system == b"slurm");
    of_slurm.or_else(unified).or_else(|| paths().find(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_group_of_a_batch_system_is_preferred() {
        let v2 = b"0::/user.slice/session-1.scope\n";
        assert_eq!(choose(v2), Some(&b"/user.slice/session-1.scope"[..]));
        let v1 = b"9:freezer:/slurm/uid_7/job_5/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/system.slice/slurmd.service\n";
        assert_eq!(choose(v1), Some(&b"/slurm/uid_7/job_5/step_0"[..]));
        assert_eq!(choose(b"4:cpu,cpuacct:/a:b\n"), Some(&b"/a:b"[..]));
        assert_eq!(choose(b""), None);
    }

    #[test]
    fn users_have_names_and_those_without_are_not_waited_for_again() {
        let mut origins = Origins::default();
        assert_eq!(origins.name(0), Some("root"));
        assert_eq!(origins.name(4_000_000_123), None);
        assert!(origins.names.contains_key(&4_000_000_123));
        assert_eq!(origins.name(0), Some("root"));
    }
}
