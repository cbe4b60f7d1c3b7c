//! Commands that inherit a seccomp filter from this program, in a container or in a unit with
//! `SystemCallFilter=`.
//!
//! The hook cannot query which calls such a filter permits, and without that information it records
//! nothing. `miot run` can find out: a child process tries the calls first.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// See `docs/guide/node-wide.md`.
pub(crate) const SECCOMP_ENV: &str = "MIOT_SECCOMP";

/// Returns the value of [`SECCOMP_ENV`] for the hook; `None` if there is no filter, or the user has
/// set the variable.
pub(crate) fn seccomp_value(hooks: &OsStr) -> Option<&'static str> {
    if !is_confined() || std::env::var_os(SECCOMP_ENV).is_some() {
        return None;
    }
    let mut own = Command::new("/proc/self/exe");
    own.arg("--version")
        .env("LD_PRELOAD", hooks)
        .env(SECCOMP_ENV, "try")
        .env_remove(miot_proto::control::DIR_ENV);
    let tried = own.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if tried.is_ok_and(|status| status.success()) {
        return Some("record");
    }
    eprintln!(
        "miot run: the system call filter (seccomp) of this shell does not permit the calls of the hook: \
         programs are not recorded"
    );
    None
}

fn is_confined() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() != "0")
}
