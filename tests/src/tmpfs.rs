//! A small tmpfs in a mount namespace of the test. Nothing outside sees it, and it disappears with
//! the test.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Command that runs `command` with an empty tmpfs of `size` (in the syntax of `mount`: `2m`) at
/// `directory`. It needs root or user namespaces.
#[must_use]
pub fn with_tmpfs<S: AsRef<OsStr>>(directory: &Path, size: &str, command: &[S]) -> Command {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.arg("--mount").args(["sh", "-c"]);
    unshare.arg("mount -t tmpfs -o size=$1 tmpfs \"$2\" && shift 2 && exec \"$@\"");
    unshare.args(["sh", size]).arg(directory).args(command);
    unshare
}

/// Makes the command run as the unprivileged user `nobody`.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    const NOBODY: u32 = 65_534;
    command.uid(NOBODY).gid(NOBODY)
}

/// Shell commands that unmount `mount`. They retry, because the mount is busy while another
/// process queries its free space, such as the log-client of a parallel test.
pub const UNMOUNT: &str = r#"
until busy=$(umount mount 2>&1); do
    case $busy in *busy*) ;; *) echo "$busy" >&2; exit 1 ;; esac
done"#;
