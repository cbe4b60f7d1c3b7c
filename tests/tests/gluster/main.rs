//! The translator for GlusterFS clients, in mounts and in programs of libgfapi, compared with the
//! volume's own counters.
//!
//! Each test has its own glusterd in its own network, and needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod gfapi;
mod hangs;
mod mount;
mod mpi;
mod trouble;

use miot_tests::gluster::Gluster;
use miot_tests::trace::PrintedEvent;
use std::collections::BTreeMap;

/// Operations of a trace and of a volume's profile whose counts are equal.
const SAME: [(&[&str], &[&str]); 22] = [
    (&["read"], &["READ"]),
    (&["write"], &["WRITE"]),
    (&["fsync"], &["FSYNC"]),
    (&["fallocate"], &["FALLOCATE"]),
    (&["discard"], &["DISCARD"]),
    (&["zerofill"], &["ZEROFILL"]),
    (&["seek"], &["SEEK"]),
    (&["copy_range"], &["COPY_FILE_RANGE"]),
    (&["open"], &["OPEN"]),
    (&["create"], &["CREATE"]),
    (&["getattr"], &["STAT", "FSTAT"]),
    (&["truncate"], &["TRUNCATE", "FTRUNCATE"]),
    (&["setattr"], &["SETATTR", "FSETATTR"]),
    (&["readdir", "readdirplus"], &["READDIR", "READDIRP"]),
    (&["opendir"], &["OPENDIR"]),
    (&["unlink"], &["UNLINK"]),
    (&["rmdir"], &["RMDIR"]),
    (&["rename"], &["RENAME"]),
    (&["link"], &["LINK"]),
    (&["symlink"], &["SYMLINK"]),
    (&["readlink"], &["READLINK"]),
    (&["mkdir"], &["MKDIR"]),
];

/// Operations with a higher count in the brick: the client's distribution translator makes lookups
/// of its own and sets the layout of directories.
const MORE: [(&str, &[&str]); 2] = [("lookup", &["LOOKUP"]), ("setxattr", &["SETXATTR", "FSETXATTR"])];

/// Counts of the brick between two readings of its profile.
struct Profile(BTreeMap<String, u64>);

impl Profile {
    fn since(gluster: &Gluster, volume: &str, before: &BTreeMap<String, u64>) -> Profile {
        let mut counts = gluster.profile(volume);
        for (name, count) in &mut counts {
            *count -= before.get(name).unwrap_or(&0);
        }
        Profile(counts)
    }

    fn of(&self, operations: &[&str]) -> u64 {
        operations.iter().map(|operation| self.0.get(*operation).unwrap_or(&0)).sum()
    }

    /// Checks that every operation at the client's top reached the brick once, and that no other
    /// did.
    #[track_caller]
    fn agrees_with(&self, rows: &[&PrintedEvent]) {
        let count = |ops: &[&str]| rows.iter().filter(|row| ops.contains(&row.op.as_str())).count() as u64;
        for (ours, theirs) in SAME {
            assert_eq!(count(ours), self.of(theirs), "{ours:?} of {theirs:?} in {:?}", self.0);
        }
        let flushes = count(&["flush"]) + self.of(&["fd cleanup"]);
        assert_eq!(flushes, self.of(&["FLUSH"]), "{:?}", self.0);
        let bytes = |op: &str| -> u64 {
            rows.iter().filter(|row| row.op == op && row.result > 0).map(|row| row.result as u64).sum()
        };
        assert_eq!(bytes("read"), self.of(&["bytes read"]), "{:?}", self.0);
        assert_eq!(bytes("write"), self.of(&["bytes written"]), "{:?}", self.0);
        for (ours, theirs) in MORE {
            assert!(count(&[ours]) <= self.of(theirs), "{} {ours} of {:?}", count(&[ours]), self.0);
        }
        assert!(count(&["read"]) > 0 && count(&["write"]) > 0, "there are no reads and writes");
    }
}

/// Requests of the client layer.
fn client(rows: &[PrintedEvent]) -> Vec<&PrintedEvent> {
    rows.iter().filter(|row| row.layer == "client").collect()
}
