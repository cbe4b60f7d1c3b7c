//! Commands that begin under a filter of seccomp, because this program does: in a container, in a unit with
//! `SystemCallFilter=`.
//!
//! The hook cannot ask what such a filter allows, and records nothing where nobody says so. Here somebody can find out: a
//! process of our own makes the calls first.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// See `docs/guide/node-wide.md`.
pub(crate) const SECCOMP_ENV: &str = "MIOT_SECCOMP";

/// What to say to the hook in [`SECCOMP_ENV`]; `None`: nothing, there is no filter, or the user has said it.
pub(crate) fn word(hooks: &OsStr) -> Option<&'static str> {
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
