//! Block sizes of the file systems that a process sees: the alignment that its requests should
//! have.

use crate::devices::mounts;
use miot_proto::job::block_size_of;
use rustix::fs::{stat, statfs};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Maximum size of an answer, bytes.
const MAX_BYTES: usize = 4096;

/// The mount namespace of a process, if this log-client has the right to read it.
pub(super) fn namespace(pid: u32) -> Option<u64> {
    Some(stat(format!("/proc/{pid}/ns/mnt")).ok()?.st_ino)
}

/// Lines of [`miot_proto::job::Job::block_sizes`] for a mount namespace, seen by the first of these
/// processes that is in it and does not end meanwhile. Blocks as long as the servers of mounted
/// file systems do.
pub(super) fn block_size_lines((wanted, pids): (u64, [u32; 3])) -> Option<Vec<u8>> {
    let is_in = |pid: &u32| namespace(*pid) == Some(wanted);
    pids.into_iter().filter(is_in).find_map(|pid| lines_of(pid).filter(|_| is_in(&pid)))
}

/// Lines as this process sees the file systems: `f_bsize` of statfs(2), which Darshan uses as well.
/// Virtual file systems have no blocks and are left out.
fn lines_of(pid: u32) -> Option<Vec<u8>> {
    let mut places: Vec<Vec<u8>> = mounts::all(&std::fs::read(format!("/proc/{pid}/mountinfo")).ok()?)
        // statfs of an autofs mount would trigger the mount.
        .filter(|mount| mount.kind != b"autofs" && !mount.place.contains(&b'\n'))
        .map(|mount| mount.place)
        .collect();
    places.sort_by_key(Vec::len);
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let mut lines = Vec::new();
    for place in places {
        let relative = OsStr::from_bytes(place.strip_prefix(b"/").unwrap_or(&place));
        let Ok(found) = statfs(root.join(relative)) else { continue };
        let Ok(size @ 1..) = u32::try_from(found.f_bsize) else { continue };
        if found.f_blocks == 0 || block_size_of(&lines, &place) == Some(size) {
            continue;
        }
        let before = lines.len();
        lines.extend_from_slice(format!("{size} ").as_bytes());
        lines.extend_from_slice(&place);
        lines.push(b'\n');
        if lines.len() > MAX_BYTES {
            lines.truncate(before);
            break;
        }
    }
    (!lines.is_empty()).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_match_statfs() {
        let pid = std::process::id();
        let own = namespace(pid).unwrap();
        // 0 stands for a process that has ended.
        let lines = block_size_lines((own, [0, 0, pid])).unwrap();
        let here = std::env::current_exe().unwrap();
        let expected = u32::try_from(statfs(&here).unwrap().f_bsize).unwrap();
        assert_eq!(block_size_of(&lines, here.as_os_str().as_bytes()), Some(expected));
        assert_eq!((namespace(0), block_size_lines((own, [0; 3]))), (None, None));
        assert_eq!(block_size_lines((own + 1, [pid; 3])), None);
    }
}
