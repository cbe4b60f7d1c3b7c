//! A file system of a test's own: a small tmpfs in a mount namespace, so that nothing outside sees
//! it and nothing is left when the test ends.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Makes `command` run where `directory` is an empty tmpfs of `size` (as `mount` takes it: `2m`).
/// Needs root, or user namespaces.
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

/// The same, but the command runs as a user without rights of its own.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    const NOBODY: u32 = 65_534;
    command.uid(NOBODY).gid(NOBODY)
}

/// Unmounts `mount` in a script. It is busy, too, for the moment in which somebody asks it how full
/// it is, as the log-client of a test beside this one does.
pub const UNMOUNT: &str = r#"
until busy=$(umount mount 2>&1); do
    case $busy in *busy*) ;; *) echo "$busy" >&2; exit 1 ;; esac
done"#;
