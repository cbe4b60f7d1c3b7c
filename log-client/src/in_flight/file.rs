//! Finds the file that a thread is waiting for, from the system call that it is in.
//!
//! `/proc/<pid>/task/<tid>/syscall` shows the number of the system call and its arguments: a
//! descriptor, which `/proc/<pid>/fd` resolves, or the address of a path in the process's memory.
//! This requires the right to trace the process (the same user and `kernel.yama.ptrace_scope` 0, or
//! root). Without that right, or if the thread is not in a system call, there is no result. The
//! thread runs on meanwhile, so the result may belong to its next request.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// Maximum length of a path with its NUL, bytes: the kernel's PATH_MAX.
const MAX_PATH: usize = 4096;

/// Arguments by which a system call names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileArgument {
    /// A descriptor: the argument with this index.
    Fd(usize),
    /// A path: the first argument.
    Path,
    /// A directory descriptor and a path relative to it: the first two arguments.
    At,
}

/// True if the process has such a thread.
pub(super) fn has_thread(pid: u32, tid: u32) -> bool {
    proc(pid, tid, "").exists()
}

/// The file of the system call that a thread is in; empty if it cannot be read.
pub(super) fn of(pid: u32, tid: u32) -> Vec<u8> {
    find(pid, tid).unwrap_or_default()
}

fn find(pid: u32, tid: u32) -> Option<Vec<u8>> {
    let text = std::fs::read_to_string(proc(pid, tid, "syscall")).ok()?;
    let (number, arguments) = parse(&text)?;
    let link =
        |name: String| Some(std::fs::read_link(proc(pid, tid, &name)).ok()?.into_os_string().into_vec());
    let fd = |fd: u64| link(format!("fd/{}", fd as i32));
    match names(number)? {
        FileArgument::Fd(argument) => fd(arguments[argument]),
        FileArgument::Path => join(|| link("cwd".into()), path_at(pid, tid, arguments[0])?),
        FileArgument::At => {
            let directory = || match arguments[0] as i32 {
                libc::AT_FDCWD => link("cwd".into()),
                _ => fd(arguments[0]),
            };
            join(directory, path_at(pid, tid, arguments[1])?)
        }
    }
}

/// The file that a process has open as this descriptor; empty if it cannot be resolved.
pub(super) fn of_descriptor(pid: u32, fd: u32) -> Vec<u8> {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    link.map_or_else(Vec::new, |path| path.into_os_string().into_vec())
}

fn proc(pid: u32, tid: u32, name: &str) -> PathBuf {
    format!("/proc/{pid}/task/{tid}/{name}").into()
}

/// Parses `number 0xarg …`: six arguments, stack and instruction pointer. Outside of system calls
/// the line is `running` or `-1 …`.
fn parse(text: &str) -> Option<(i64, [u64; 6])> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse::<i64>().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some((number, arguments))
}

/// The NUL-terminated bytes at an address of the process.
fn path_at(pid: u32, tid: u32, address: u64) -> Option<Vec<u8>> {
    let memory = File::open(proc(pid, tid, "mem")).ok()?;
    let mut bytes = [0; MAX_PATH];
    // A short read if the path is near the end of a mapping.
    let length = memory.read_at(&mut bytes, address).ok()?;
    let end = bytes[..length].iter().position(|byte| *byte == 0)?;
    Some(bytes[..end].to_vec())
}

/// Resolves a path relative to a directory. An empty path is the directory itself, as in `fstatat`
/// with `AT_EMPTY_PATH`.
fn join(directory: impl FnOnce() -> Option<Vec<u8>>, path: Vec<u8>) -> Option<Vec<u8>> {
    if path.first() == Some(&b'/') {
        return Some(path);
    }
    let directory = directory()?;
    if path.is_empty() {
        return Some(directory);
    }
    let joined = PathBuf::from(OsString::from_vec(directory)).join(std::ffi::OsStr::from_bytes(&path));
    Some(joined.into_os_string().into_vec())
}

fn names(number: i64) -> Option<FileArgument> {
    use libc::{
        SYS_chdir, SYS_close, SYS_copy_file_range, SYS_dup, SYS_dup3, SYS_faccessat, SYS_faccessat2,
        SYS_fadvise64, SYS_fallocate, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat,
        SYS_fcntl, SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock, SYS_fremovexattr, SYS_fsetxattr,
        SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_getdents64, SYS_getxattr, SYS_ioctl,
        SYS_lgetxattr, SYS_linkat, SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lseek, SYS_lsetxattr,
        SYS_mkdirat, SYS_mknodat, SYS_mmap, SYS_newfstatat, SYS_openat, SYS_openat2, SYS_pread64, SYS_preadv,
        SYS_preadv2, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readlinkat, SYS_readv,
        SYS_removexattr, SYS_renameat, SYS_renameat2, SYS_sendfile, SYS_setxattr, SYS_splice, SYS_statfs,
        SYS_statx, SYS_sync_file_range, SYS_syncfs, SYS_truncate, SYS_unlinkat, SYS_utimensat, SYS_write,
        SYS_writev,
    };
    #[allow(non_upper_case_globals)]
    Some(match number as libc::c_long {
        SYS_read | SYS_write | SYS_pread64 | SYS_pwrite64 | SYS_readv | SYS_writev | SYS_preadv
        | SYS_pwritev | SYS_preadv2 | SYS_pwritev2 | SYS_close | SYS_lseek | SYS_fsync | SYS_fdatasync
        | SYS_sync_file_range | SYS_syncfs | SYS_ftruncate | SYS_fallocate | SYS_fadvise64 | SYS_dup
        | SYS_dup3 | SYS_fcntl | SYS_fstat | SYS_fstatfs | SYS_fchmod | SYS_fchown | SYS_fchdir
        | SYS_fgetxattr | SYS_fsetxattr | SYS_flistxattr | SYS_fremovexattr | SYS_getdents64 | SYS_flock
        | SYS_ioctl | SYS_sendfile | SYS_copy_file_range | SYS_splice => FileArgument::Fd(0),
        SYS_mmap => FileArgument::Fd(4),
        SYS_chdir | SYS_truncate | SYS_statfs | SYS_getxattr | SYS_lgetxattr | SYS_setxattr
        | SYS_lsetxattr | SYS_listxattr | SYS_llistxattr | SYS_removexattr | SYS_lremovexattr => {
            FileArgument::Path
        }
        SYS_openat | SYS_openat2 | SYS_newfstatat | SYS_statx | SYS_faccessat | SYS_faccessat2
        | SYS_mkdirat | SYS_mknodat | SYS_unlinkat | SYS_renameat | SYS_renameat2 | SYS_linkat
        | SYS_readlinkat | SYS_fchmodat | SYS_fchownat | SYS_utimensat => FileArgument::At,
        other => return architecture_specific(other),
    })
}

/// System calls that only some architectures have.
#[cfg(target_arch = "x86_64")]
fn architecture_specific(number: libc::c_long) -> Option<FileArgument> {
    use libc::{
        SYS_access, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2, SYS_futimesat, SYS_getdents, SYS_lchown,
        SYS_link, SYS_lstat, SYS_mkdir, SYS_mknod, SYS_open, SYS_readlink, SYS_rename, SYS_rmdir, SYS_stat,
        SYS_unlink, SYS_utime, SYS_utimes,
    };
    #[allow(non_upper_case_globals)]
    match number {
        SYS_open | SYS_creat | SYS_stat | SYS_lstat | SYS_access | SYS_mkdir | SYS_rmdir | SYS_unlink
        | SYS_rename | SYS_link | SYS_readlink | SYS_chmod | SYS_chown | SYS_lchown | SYS_mknod
        | SYS_utime | SYS_utimes => Some(FileArgument::Path),
        SYS_futimesat => Some(FileArgument::At),
        SYS_dup2 | SYS_getdents => Some(FileArgument::Fd(0)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn architecture_specific(_: libc::c_long) -> Option<FileArgument> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::until::until;
    use std::process::{Command, Stdio};

    #[test]
    fn syscall_line_is_parsed_only_inside_a_call() {
        let line = "0 0x3 0x7f00 0x1000 0x0 0x0 0xffffffffffffff9c 0x7ffd 0x7f11\n";
        assert_eq!(parse(line), Some((0, [3, 0x7f00, 4096, 0, 0, u64::MAX - 99])));
        for other in ["running\n", "-1 0x7ffd 0x7f11\n", "", "0 0x3", "0 3 4 5 6 7 8 9 10"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn paths_are_joined_as_in_the_kernel() {
        let under = |path: &[u8]| join(|| Some(b"/data".to_vec()), path.to_vec());
        assert_eq!(under(b"/abs"), Some(b"/abs".to_vec()));
        assert_eq!(under(b"a/b"), Some(b"/data/a/b".to_vec()));
        assert_eq!(under(b""), Some(b"/data".to_vec()));
        assert_eq!(join(|| None, b"a".to_vec()), None);
    }

    /// A child that waits in a system call on `fifo`; killed on drop.
    struct BlockedChild(std::process::Child);

    impl Drop for BlockedChild {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn waits_for(directory: &std::path::Path, program: &str, arguments: &[&str]) -> Vec<u8> {
        let fifo = directory.join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let mut command = Command::new(program);
        command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
        let child = BlockedChild(command.spawn().unwrap());
        let mut found = Vec::new();
        until("the child blocks", || {
            found = of(child.0.id(), child.0.id());
            found.ends_with(b"fifo")
        });
        found
    }

    #[test]
    fn path_argument_is_read_from_process_memory() {
        let directory = tempfile::tempdir().unwrap();
        let found = waits_for(directory.path(), "cat", &["fifo"]);
        assert_eq!(found, directory.path().join("fifo").as_os_str().as_bytes());
    }

    #[test]
    fn descriptor_argument_is_resolved() {
        let directory = tempfile::tempdir().unwrap();
        // Opened for reading and writing, so that the read blocks and not the open.
        let found = waits_for(directory.path(), "sh", &["-c", "exec cat <> fifo"]);
        assert_eq!(found, directory.path().join("fifo").as_os_str().as_bytes());
    }
}
