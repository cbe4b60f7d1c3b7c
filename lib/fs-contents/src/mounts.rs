//! Mounts: file systems without stored files, and file systems that are mounted more than once.

use rustix::fs::{StatFs, makedev};
use std::collections::{HashMap, HashSet};

/// Kinds of file systems whose files the kernel generates.
const PSEUDO: [&str; 22] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Mounts of this mount namespace.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    pseudo: HashSet<u64>,
    shared: HashSet<u64>,
}

impl Mounts {
    pub(crate) fn read() -> Mounts {
        Mounts::parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Parses lines of proc_pid_mountinfo(5).
    fn parse(text: &str) -> Mounts {
        let (mut mounts, mut times) = (Mounts::default(), HashMap::<u64, u64>::new());
        for line in text.lines() {
            let mut fields = line.split(' ');
            let id = fields.next().and_then(|id| id.parse().ok());
            let device = fields.nth(1).and_then(|device| {
                let (major, minor) = device.split_once(':')?;
                Some(makedev(major.parse().ok()?, minor.parse().ok()?))
            });
            let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
            let (Some(id), Some(device), Some(kind)) = (id, device, kind) else { continue };
            if PSEUDO.contains(&kind) {
                mounts.pseudo.insert(id);
            }
            *times.entry(device).or_default() += 1;
        }
        mounts.shared = times.into_iter().filter(|(_, times)| *times > 1).map(|(device, _)| device).collect();
        mounts
    }

    /// Returns true if the kernel generates the files of the mount with this id.
    pub(crate) fn pseudo(&self, mount: u64) -> bool {
        self.pseudo.contains(&mount)
    }

    /// Returns true if the file system with this device number is mounted more than once.
    pub(crate) fn shared(&self, device: u64) -> bool {
        self.shared.contains(&device)
    }
}

/// Returns the name of a kind of file system whose files the kernel generates, by its `statfs`;
/// `None` for other kinds.
#[must_use]
pub fn pseudo(statfs: &StatFs) -> Option<&'static str> {
    const KINDS: [(u64, &str); 11] = [
        (0x9fa0, "proc"),
        (0x6265_6572, "sysfs"),
        (0x6462_6720, "debugfs"),
        (0x7472_6163, "tracefs"),
        (0x0027_e0eb, "cgroup"),
        (0x6367_7270, "cgroup2"),
        (0x1cd1, "devpts"),
        (0x7363_6673, "securityfs"),
        (0xcafe_4a11, "bpf"),
        (0x6265_6570, "configfs"),
        (0x1980_0202, "mqueue"),
    ];
    let kind = statfs.f_type as u64 & 0xffff_ffff;
    KINDS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::Mounts;
    use rustix::fs::makedev;

    #[test]
    fn mounts_are_read() {
        let mounts = Mounts::parse(
            "21 28 0:19 / /proc rw,relatime - proc proc rw\n\
             28 1 254:0 / / rw - ext4 /dev/vda rw\n\
             40 28 254:0 /a/b /mnt rw shared:3 master:1 - ext4 /dev/vda rw\n\
             41 28 0:30 / /x rw - tmpfs x rw\nnonsense\n",
        );
        assert!(mounts.pseudo(21) && !mounts.pseudo(28) && !mounts.pseudo(41));
        assert!(mounts.shared(makedev(254, 0)) && !mounts.shared(makedev(0, 30)));
    }
}
