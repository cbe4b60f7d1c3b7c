//! Origin of a process: the job of a batch system and its step, the user, the control group, the
//! mounts it sees.
//!
//! It is encoded as one byte string: texts separated by NUL, in the order of the fields of [`Job`],
//! without empty ones at the end. The producer writes the first three fields and the last one, from
//! its environment, to the header of its segment. The log-client adds those that it gets from the
//! kernel. A string without NUL is an id only, as older versions wrote it.

/// Origin of a process, see the module. An empty field is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job<'a> {
    /// Job id in the notation of the batch system.
    pub id: &'a [u8],
    /// System that assigned the id, one of [`SYSTEMS`].
    pub system: &'a [u8],
    /// Step of the job, or the name that the launcher of a parallel program gives its run.
    pub step: &'a [u8],
    /// User name.
    pub user: &'a [u8],
    /// Path of the control group.
    pub cgroup: &'a [u8],
    /// Block sizes of the file systems that the process sees: lines of `SIZE MOUNT`, the size in
    /// bytes and the mount point. A mount with the block size of the file system that contains its
    /// mount point is omitted.
    pub block_sizes: &'a [u8],
    /// Number of ranks of the parallel program, in decimal digits.
    pub world_size: &'a [u8],
}

/// Names of the systems that assign job ids. `miot`: the user set `MIOT_JOB`; `systemd`: the id is
/// the name of a unit.
pub const SYSTEMS: [&str; 8] = ["miot", "slurm", "pbs", "flux", "lsf", "sge", "cobalt", "systemd"];

impl<'a> Job<'a> {
    /// Decodes the byte string that the module documents. Further texts after the last field are
    /// ignored.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> Job<'a> {
        let mut fields = bytes.split(|byte| *byte == 0);
        let mut next = || fields.next().unwrap_or_default();
        Job {
            id: next(),
            system: next(),
            step: next(),
            user: next(),
            cgroup: next(),
            block_sizes: next(),
            world_size: next(),
        }
    }

    /// Encodes the byte string that the module documents.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Job { id, system, step, user, cgroup, block_sizes, world_size } = *self;
        let mut bytes = [id, system, step, user, cgroup, block_sizes, world_size].join(&0);
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end);
        bytes
    }

    /// Returns job and step in the path of a control group: those of Slurm (`…/job_17/step_0/…`, in
    /// version 1 and 2 of control groups), otherwise the innermost unit of systemd.
    ///
    /// The path comes from the kernel, unlike the environment, which a program inherits and may
    /// change.
    #[must_use]
    pub fn from_cgroup(path: &'a [u8]) -> Job<'a> {
        let names = || path.split(|byte| *byte == b'/');
        let slurm = names().any(|name| name == b"slurm" || name.ends_with(b"slurmstepd.scope"));
        let job = names().find_map(|name| name.strip_prefix(b"job_")).filter(|id| is_number(id));
        if let Some(id) = job.filter(|_| slurm) {
            let step = names().find_map(|name| name.strip_prefix(b"step_")).unwrap_or_default();
            return Job { id, system: b"slurm", step, cgroup: path, ..Job::default() };
        }
        let is_unit = |name: &&[u8]| name.ends_with(b".service") || name.ends_with(b".scope");
        match names().rfind(is_unit) {
            Some(id) => Job { id, system: b"systemd", cgroup: path, ..Job::default() },
            None => Job { cgroup: path, ..Job::default() },
        }
    }

    /// Combines the origin from the environment (`self`) with the control group. The control group
    /// of a batch system determines the job; a unit of systemd is used only if there is no other
    /// job.
    #[must_use]
    pub fn with_cgroup(self, path: &'a [u8]) -> Job<'a> {
        let in_kernel = Job::from_cgroup(path);
        let by_user = self.system == b"miot";
        let other_job = in_kernel.system == b"slurm" && !by_user && in_kernel.id != self.id;
        if other_job || self.id.is_empty() {
            // A step of the job in the environment is not a step of the job in the control group.
            let step = if other_job && !self.id.is_empty() { b"" } else { self.step };
            let step = if step.is_empty() { in_kernel.step } else { step };
            return Job { id: in_kernel.id, system: in_kernel.system, step, cgroup: path, ..self };
        }
        let step = if self.step.is_empty() && in_kernel.id == self.id { in_kernel.step } else { self.step };
        Job { step, cgroup: path, ..self }
    }
}

/// Returns the block size of a path, bytes, from lines of [`Job::block_sizes`]: that of the longest
/// mount point that contains the path. Never 0, even if a line contains 0.
#[must_use]
pub fn block_size_of(lines: &[u8], path: &[u8]) -> Option<u32> {
    let line = |line: &[u8]| {
        let (size, mount) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
        let mount = &mount[1..];
        let below = path.strip_prefix(mount.strip_suffix(b"/").unwrap_or(mount))?;
        let is_in = below.is_empty() || below.starts_with(b"/");
        let size = std::str::from_utf8(size).ok()?.parse().ok().filter(|size| *size > 0)?;
        is_in.then_some((mount.len(), size))
    };
    let longest = lines.split(|byte| *byte == b'\n').filter_map(line).max_by_key(|(length, _)| *length)?;
    Some(longest.1)
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip_and_id_alone_is_valid() {
        let job = Job {
            id: b"17",
            system: b"slurm",
            step: b"0",
            user: b"ada",
            cgroup: b"/a",
            block_sizes: b"4096 /",
            world_size: b"32",
        };
        assert_eq!(Job::from_bytes(&job.to_bytes()), job);
        let some = Job { id: b"17", step: b"0", ..Job::default() };
        assert_eq!(some.to_bytes(), b"17\0\x000");
        assert_eq!(Job::from_bytes(&some.to_bytes()), some);
        assert_eq!(Job::default().to_bytes(), b"");
        assert_eq!(Job::from_bytes(b"77"), Job { id: b"77", ..Job::default() });
        let more = Job::from_bytes(b"1\x002\x003\x004\x005\x006\x007\x008");
        assert_eq!((more.block_sizes, more.world_size), (&b"6"[..], &b"7"[..]));
    }

    #[test]
    fn path_has_block_size_of_innermost_mount() {
        let lines = b"4096 /\n512 /boot/efi\n1048576 /my data\n8192 /my data/in\nnonsense\nx /y\n0 /z\n";
        for (path, size) in [
            ("/", 4096),
            ("/boot/efi", 512),
            ("/boot/efi/a", 512),
            ("/boot/efi2", 4096),
            ("/my data/inner", 1 << 20),
            ("/my data/in/ner", 8192),
            ("/y", 4096),
            ("/z", 4096),
        ] {
            assert_eq!(block_size_of(lines, path.as_bytes()), Some(size), "{path}");
        }
        assert_eq!(block_size_of(b"512 /a", b"/b"), None);
        assert_eq!(block_size_of(b"", b"/b"), None);
        assert_eq!(block_size_of(b"0 /", b"/b"), None);
    }

    /// Paths as slurmstepd and systemd create them.
    #[test]
    fn control_groups_of_slurm_and_systemd_are_parsed() {
        for (path, id, system, step) in [
            ("/system.slice/slurmstepd.scope/job_123/step_4/user/task_0", "123", "slurm", "4"),
            (
                "/system.slice/n17_slurmstepd.scope/job_123/step_batch/user/task_special",
                "123",
                "slurm",
                "batch",
            ),
            ("/slurm/uid_1000/job_9/step_extern/task_0", "9", "slurm", "extern"),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", "systemd", ""),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/run-u7.service",
                "run-u7.service",
                "systemd",
                "",
            ),
            ("/system.slice/job_1.service", "job_1.service", "systemd", ""),
            ("/home/job_5/step_1", "", "", ""),
            ("/slurm/uid_1000/job_x", "", "", ""),
            ("/", "", "", ""),
        ] {
            let found = Job::from_cgroup(path.as_bytes());
            let expected = Job {
                id: id.as_bytes(),
                system: system.as_bytes(),
                step: step.as_bytes(),
                cgroup: path.as_bytes(),
                ..Job::default()
            };
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn batch_systems_control_group_determines_job() {
        let slurm = b"/slurm/uid_1/job_9/step_2/task_0";
        let own = |id, system, step| Job { id, system, step, ..Job::default() };
        let in_slurm = |job: Job<'static>| {
            let Job { id, system, step, cgroup, .. } = job.with_cgroup(slurm);
            assert_eq!(cgroup, slurm);
            [id, system, step]
        };
        assert_eq!(in_slurm(own(b"9", b"slurm", b"7")), [&b"9"[..], b"slurm", b"7"], "they agree");
        assert_eq!(in_slurm(own(b"8", b"slurm", b"7")), [&b"9"[..], b"slurm", b"2"], "of another job");
        assert_eq!(in_slurm(own(b"", b"", b"")), [&b"9"[..], b"slurm", b"2"], "ssh into a job");
        assert_eq!(in_slurm(own(b"", b"", b"run@1")), [&b"9"[..], b"slurm", b"run@1"], "a launcher's name");
        assert_eq!(in_slurm(own(b"mine", b"miot", b"")), [&b"mine"[..], b"miot", b""], "set by the user");
        let unit = own(b"8", b"pbs", b"").with_cgroup(b"/system.slice/pbs.service");
        assert_eq!((unit.id, unit.system, unit.step), (&b"8"[..], &b"pbs"[..], &b""[..]));
        let alone = own(b"", b"", b"").with_cgroup(b"/system.slice/nightly.service");
        assert_eq!((alone.id, alone.system), (&b"nightly.service"[..], &b"systemd"[..]));
    }
}
