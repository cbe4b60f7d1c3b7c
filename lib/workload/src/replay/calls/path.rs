//! Requests on a path.

use super::returned::Result;
use super::{Buffer, Symlink, Target, c_string, libc_calls, opens_path, permissions};
use crate::replay::ReplayStep;
use crate::replay::root::relative_target;
use miot_proto::op::{Op, posix};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_int, c_uint};

/// Most bytes that `readlink` and the xattr calls get or pass.
const MAX_MEMORY: usize = 1 << 20;
/// Permissions of a directory that `mkdtemp` creates.
const PRIVATE_DIRECTORY: c_uint = 0o700;

impl Target {
    /// Makes a request on a path.
    pub(super) fn on_path(&self, step: &ReplayStep, buffer: &mut Buffer) -> Result<i64> {
        let operation = step.operation();
        if matches!(operation, posix::SYMLINK | posix::SYMLINKAT) {
            return self.symlink(step);
        }
        let path = self.full_path(step.path.as_deref(), symlink(step))?;
        if opens_path(step) {
            return self.open(step, &path);
        }
        match operation {
            posix::RENAME | posix::RENAMEAT | posix::RENAMEAT2 | posix::LINK | posix::LINKAT => {
                self.on_two_paths(step, &path)
            }
            _ if is_xattr(operation) => on_attribute(step, &path, memory(step, buffer)),
            posix::READLINK => libc_calls::readlink(&path, memory(step, buffer)),
            posix::READLINKAT => libc_calls::readlinkat(&path, memory(step, buffer)),
            _ => on_one_path(step, &path),
        }
    }

    /// Creates a link that leads to the recorded target below the root.
    fn symlink(&self, step: &ReplayStep) -> Result<i64> {
        let link = step.path2.as_deref().ok_or(Errno::NOENT)?;
        let content = c_string(&relative_target(link, step.path.as_deref().unwrap_or(b"")))?;
        let link = self.full_path(Some(link), Symlink::NoFollow)?;
        match step.operation() {
            posix::SYMLINK => libc_calls::symlink(&content, &link),
            _ => libc_calls::symlinkat(&content, &link),
        }
    }

    fn on_two_paths(&self, step: &ReplayStep, from: &CStr) -> Result<i64> {
        let to: CString = self.full_path(step.path2.as_deref(), Symlink::NoFollow)?;
        match step.operation() {
            posix::RENAME => libc_calls::rename(from, &to),
            posix::RENAMEAT => libc_calls::renameat(from, &to),
            posix::RENAMEAT2 => libc_calls::renameat2(from, &to, step.low_argument() as c_uint),
            posix::LINK => libc_calls::link(from, &to),
            _ => libc_calls::linkat(from, &to, 0),
        }
    }
}

/// Memory of the requested length, for what the call reads or writes.
fn memory<'a>(step: &ReplayStep, buffer: &'a mut Buffer) -> &'a mut [u8] {
    let length = usize::try_from(step.length.unwrap_or(0)).unwrap_or(0);
    buffer.slice(length.min(MAX_MEMORY))
}

fn on_one_path(step: &ReplayStep, path: &CStr) -> Result<i64> {
    let (low, high) = (step.low_argument(), step.high_argument());
    let mode = permissions(low as c_uint);
    match step.operation() {
        posix::TRUNCATE => libc_calls::truncate(path, step.length.unwrap_or(0)),
        posix::STAT => libc_calls::stat(path),
        posix::LSTAT => libc_calls::lstat(path),
        posix::FSTATAT => libc_calls::fstatat(path, low),
        posix::STATX => libc_calls::statx(path, low, high),
        posix::STATFS => libc_calls::statfs(path),
        posix::STATVFS => libc_calls::statvfs(path),
        posix::ACCESS => libc_calls::access(path, low),
        posix::FACCESSAT => libc_calls::faccessat(path, low, high as c_int),
        posix::EUIDACCESS => libc_calls::euidaccess(path, low),
        posix::MKDIR => libc_calls::mkdir(path, mode),
        posix::MKDTEMP => libc_calls::mkdir(path, PRIVATE_DIRECTORY),
        posix::MKDIRAT => libc_calls::mkdirat(path, mode),
        posix::MKFIFO => libc_calls::mkfifo(path, mode),
        posix::MKFIFOAT => libc_calls::mkfifoat(path, mode),
        posix::MKNOD => libc_calls::mknod(path, node_mode(low)),
        posix::MKNODAT => libc_calls::mknodat(path, node_mode(low)),
        posix::RMDIR => libc_calls::rmdir(path),
        posix::UNLINK => libc_calls::unlink(path),
        posix::UNLINKAT => libc_calls::unlinkat(path, low),
        posix::REMOVE => libc_calls::remove(path),
        posix::SCANDIR => libc_calls::scandir(path),
        posix::CHMOD => libc_calls::chmod(path, mode),
        posix::FCHMODAT => libc_calls::fchmodat(path, mode, high as c_int),
        posix::CHOWN => libc_calls::chown(path),
        posix::LCHOWN => libc_calls::lchown(path),
        posix::FCHOWNAT => libc_calls::fchownat(path, low),
        posix::UTIME => libc_calls::utime(path),
        posix::UTIMES => libc_calls::utimes(path),
        posix::LUTIMES => libc_calls::lutimes(path),
        posix::FUTIMESAT => libc_calls::futimesat(path),
        posix::UTIMENSAT => libc_calls::utimensat(path, low),
        posix::CHDIR => libc_calls::chdir(path),
        _ => Err(Errno::NOSYS),
    }
}

fn is_xattr(operation: Op) -> bool {
    matches!(
        operation,
        posix::GETXATTR
            | posix::LGETXATTR
            | posix::SETXATTR
            | posix::LSETXATTR
            | posix::LISTXATTR
            | posix::LLISTXATTR
            | posix::REMOVEXATTR
            | posix::LREMOVEXATTR
    )
}

fn on_attribute(step: &ReplayStep, path: &CStr, memory: &mut [u8]) -> Result<i64> {
    let name = c_string(step.path2.as_deref().unwrap_or(b""))?;
    match step.operation() {
        posix::GETXATTR => libc_calls::getxattr(path, &name, memory),
        posix::LGETXATTR => libc_calls::lgetxattr(path, &name, memory),
        posix::SETXATTR => libc_calls::setxattr(path, &name, memory),
        posix::LSETXATTR => libc_calls::lsetxattr(path, &name, memory),
        posix::LISTXATTR => libc_calls::listxattr(path, memory),
        posix::LLISTXATTR => libc_calls::llistxattr(path, memory),
        posix::REMOVEXATTR => libc_calls::removexattr(path, &name),
        posix::LREMOVEXATTR => libc_calls::lremovexattr(path, &name),
        _ => Err(Errno::NOSYS),
    }
}

/// Mode for `mknod`. A device becomes a regular file: the trace does not record which device it
/// was.
fn node_mode(recorded: c_int) -> c_uint {
    let kind = recorded as c_uint & libc::S_IFMT;
    let kind = if matches!(kind, libc::S_IFIFO | libc::S_IFSOCK) { kind } else { libc::S_IFREG };
    kind | permissions(recorded as c_uint)
}

/// Returns whether the call of a step follows a symbolic link at the end of its path.
fn symlink(step: &ReplayStep) -> Symlink {
    let has_no_follow = |flags: c_int| flags & libc::AT_SYMLINK_NOFOLLOW != 0;
    let is_no_follow = match step.operation() {
        posix::UNLINK
        | posix::UNLINKAT
        | posix::REMOVE
        | posix::RMDIR
        | posix::RENAME
        | posix::RENAMEAT
        | posix::RENAMEAT2
        | posix::READLINK
        | posix::READLINKAT
        | posix::MKDIR
        | posix::MKDIRAT
        | posix::MKDTEMP
        | posix::MKFIFO
        | posix::MKFIFOAT
        | posix::MKNOD
        | posix::MKNODAT
        | posix::LINK
        | posix::LINKAT
        | posix::LSTAT
        | posix::LCHOWN
        | posix::LUTIMES
        | posix::LGETXATTR
        | posix::LSETXATTR
        | posix::LLISTXATTR
        | posix::LREMOVEXATTR => true,
        posix::FSTATAT | posix::STATX | posix::FCHOWNAT | posix::UTIMENSAT => {
            has_no_follow(step.low_argument())
        }
        posix::FCHMODAT | posix::FACCESSAT => has_no_follow(step.high_argument() as c_int),
        _ => false,
    };
    if is_no_follow { Symlink::NoFollow } else { Symlink::Follow }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::ReplayRoot;
    use miot_proto::op::by_name;

    /// Attributes of a file outside are neither read nor changed through a link to it.
    #[test]
    fn attribute_calls_through_links_that_lead_out_are_refused() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), root.path().join("out")).unwrap();
        let target = Target::new(ReplayRoot::open(root.path()).unwrap(), 0);
        let made = |name: &str| {
            let op = by_name("posix", name).unwrap().op;
            let step = ReplayStep {
                op: (op.layer, op.number),
                path: Some(b"out".to_vec()),
                path2: Some(b"user.miot".to_vec()),
                length: Some(64),
                ..ReplayStep::default()
            };
            target.replay(&step, &mut Buffer::default())
        };
        let refused = [Errno::XDEV, Errno::LOOP].map(|errno| -i64::from(errno.raw_os_error()));
        for name in ["getxattr", "setxattr", "listxattr", "removexattr"] {
            assert!(refused.contains(&made(name)), "{name}: {}", made(name));
            let on_link = format!("l{name}");
            assert!(!refused.contains(&made(&on_link)), "{on_link} is about the link itself");
        }
    }
}
