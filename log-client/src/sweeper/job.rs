//! Context of a process that its header does not contain: its control group, its user's name, the
//! file systems it sees.
//!
//! The producer copies its environment, because that may be gone when a short-lived process is
//! found. Data that the kernel has is looked up here, so that the program does not pay for it.

use super::block_sizes;
use super::lookup::LookupCache;
use super::process_watch::ProcessWatch;
use miot_proto::job::Job;

/// Maximum length of a recorded control group path, bytes.
const MAX_CGROUP: usize = 1024;

/// Looks up the context of processes, with caches.
#[derive(Debug)]
pub(super) struct JobLookup {
    /// User names by user id.
    users: LookupCache<u32, u32, String>,
    /// Block sizes by mount namespace, seen by processes that may be in it.
    file_systems: LookupCache<u64, (u64, [u32; 3]), Vec<u8>>,
}

impl Default for JobLookup {
    fn default() -> JobLookup {
        let users = LookupCache::new("miot-users", miot_daemon::user_name);
        let mut file_systems = LookupCache::new("miot-mounts", block_sizes::block_size_lines);
        // Most processes see the same file systems as this one.
        let own = std::process::id();
        if let Some(namespace) = block_sizes::namespace(own) {
            file_systems.prepare(namespace, (namespace, [own; 3]));
        }
        JobLookup { users, file_systems }
    }
}

impl JobLookup {
    /// The job of a process in the format of [`miot_proto::job`]. `header_job`: the job in its
    /// header; `parent`: its parent according to its header; `uid`: owner of its segment.
    pub(super) fn job(&mut self, header_job: &[u8], parent: u32, watch: &ProcessWatch, uid: u32) -> Vec<u8> {
        let cgroup = watch.pid().and_then(cgroup).filter(|_| watch.is_alive());
        let user = self.users.get(uid, uid).cloned().unwrap_or_default();
        let block_sizes = self.block_sizes(parent, watch).unwrap_or_default();
        // These three fields are not the producer's to fill in.
        let header_job = Job {
            user: user.as_bytes(),
            cgroup: b"",
            block_sizes: &block_sizes,
            ..Job::from_bytes(header_job)
        };
        match &cgroup {
            Some(path) => header_job.with_cgroup(path).to_bytes(),
            None => header_job.to_bytes(),
        }
    }

    /// A process that has ended saw the same file systems as its parent, or as this process, except
    /// for temporary mounts.
    fn block_sizes(&mut self, parent: u32, watch: &ProcessWatch) -> Option<Vec<u8>> {
        let own = watch.pid()?;
        let this = std::process::id();
        let pids = [if watch.is_alive() { own } else { parent }, parent, this];
        let namespace = pids.into_iter().find_map(block_sizes::namespace)?;
        self.file_systems.get(namespace, (namespace, pids)).cloned()
    }
}

/// The control group path of a process: of the unified hierarchy, unless a batch system uses one of
/// version 1.
fn cgroup(pid: u32) -> Option<Vec<u8>> {
    let lines = std::fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let path = select_path(&lines)?;
    (path.len() <= MAX_CGROUP).then(|| path.to_vec())
}

/// Lines are `number:controllers:path`. The unified hierarchy has number 0 and no controllers.
fn select_path(lines: &[u8]) -> Option<&[u8]> {
    let paths =
        || lines.split(|byte| *byte == b'\n').filter_map(|line| line.splitn(3, |b| *b == b':').nth(2));
    let unified = || {
        let found = lines.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
        found.filter(|path| !path.is_empty())
    };
    let of_slurm = paths().find(|path| Job::from_cgroup(path).system == b"slurm");
    of_slurm.or_else(unified).or_else(|| paths().find(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_group_of_batch_system_is_preferred() {
        let v2 = b"0::/user.slice/session-1.scope\n";
        assert_eq!(select_path(v2), Some(&b"/user.slice/session-1.scope"[..]));
        let v1 = b"9:freezer:/slurm/uid_7/job_5/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/system.slice/slurmd.service\n";
        assert_eq!(select_path(v1), Some(&b"/slurm/uid_7/job_5/step_0"[..]));
        assert_eq!(select_path(b"4:cpu,cpuacct:/a:b\n"), Some(&b"/a:b"[..]));
        assert_eq!(select_path(b""), None);
    }
}
