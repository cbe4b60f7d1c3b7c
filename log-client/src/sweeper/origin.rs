//! What a process belongs to, besides what it says itself: its control group, its user's name, the file systems it sees.
//!
//! The producer has copied what its environment says, because that is gone when a process that lived for a moment is
//! found here. What the kernel knows is asked here, so that the program does not pay for it.

use super::ask::Ask;
use super::block_sizes;
use super::life::Watch;
use miot_proto::job::Job;

/// Longest path of a control group that is recorded, bytes.
const MAX_CGROUP: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Origins {
    /// Names by user.
    users: Ask<u32, u32, String>,
    /// Block sizes by mount namespace, of which one process is asked.
    file_systems: Ask<u64, u32, Vec<u8>>,
}

impl Default for Origins {
    fn default() -> Origins {
        Origins {
            users: Ask::new("miot-users", miot_daemon::user_name),
            file_systems: Ask::new("miot-mounts", block_sizes::seen_by),
        }
    }
}

impl Origins {
    /// The job of a process, as [`miot_proto::job`] has it. `said`: what its header says, `parent`: its parent, as its
    /// header says, `uid`: who owns its segment.
    pub(super) fn job(&mut self, said: &[u8], parent: u32, watch: &Watch, uid: u32) -> Vec<u8> {
        let cgroup = watch.pid().and_then(cgroup).filter(|_| watch.is_alive());
        let user = self.users.of(uid, uid).cloned().unwrap_or_default();
        let block_sizes = self.block_sizes(parent, watch).unwrap_or_default();
        // A producer fills in what it may: the rest is not for it to say.
        let said = Job { user: user.as_bytes(), cgroup: b"", block_sizes: &block_sizes, ..Job::read(said) };
        match &cgroup {
            Some(path) => said.in_cgroup(path).bytes(),
            None => said.bytes(),
        }
    }

    /// A process that has ended saw what its parent sees, or what is seen here, but for what was made for the occasion.
    fn block_sizes(&mut self, parent: u32, watch: &Watch) -> Option<Vec<u8>> {
        let own = watch.pid()?;
        let own = watch.is_alive().then_some(own);
        let known = |pid: u32| Some((block_sizes::namespace(pid)?, pid));
        let (namespace, pid) = own.into_iter().chain([parent, std::process::id()]).find_map(known)?;
        self.file_systems.of(namespace, pid).cloned()
    }
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
}
