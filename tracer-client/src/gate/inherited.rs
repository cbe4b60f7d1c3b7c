//! Finds out whether this process image started under a filter.
//!
//! The kernel reports it in `/proc/self/status`, which is read with calls that the loader has made
//! just before (`openat`, `read`, `close`): any filter in force allows them.
//! `prctl(PR_GET_SECCOMP)` would cost less but may be fatal.
//!
//! The calls that an inherited filter allows cannot be queried. A container's filter is assumed to
//! return an error instead of killing the process. A filter is taken for a container's if process 1
//! of the container has the same one and it was installed with privileges (`NoNewPrivs` is 0).
//! Filters of single programs (systemd units, bubblewrap, other sandboxes) are either not inherited
//! from process 1 or need `NoNewPrivs`.

use crate::identity;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;

/// Confinement of a process as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeccompStatus {
    /// Field `Seccomp`: 0 if there is no filter.
    mode: u64,
    /// Field `Seccomp_filters`, since Linux 5.9.
    filters: Option<u64>,
    /// Field `NoNewPrivs`.
    no_new_privileges: bool,
}

/// Returns whether there is a filter that may kill the process for a call of the tracer: neither
/// the environment nor process 1 shows that it is harmless. `None`: no descriptor is free to find
/// out.
pub(super) fn is_restrictive() -> Option<bool> {
    if identity::trusts_inherited_filters() {
        return Some(false);
    }
    match read_status(c"/proc/self/status") {
        Ok(own) if own.mode == 0 => Some(false),
        Ok(own) => Some(!is_container(own, read_status(c"/proc/1/status").ok())),
        Err(Errno::MFILE | Errno::NFILE) => None,
        Err(_) => Some(true),
    }
}

fn is_container(own: SeccompStatus, first: Option<SeccompStatus>) -> bool {
    own.filters.is_some() && !own.no_new_privileges && first == Some(own)
}

/// Reads a `status` file of `/proc`.
///
/// # Errors
/// The error of the kernel.
fn read_status(path: &CStr) -> Result<SeccompStatus, Errno> {
    // The file is long if a user is in thousands of groups. It is read in chunks, and the end of
    // each chunk is kept for the next.
    const CHUNK: usize = 1024;
    const LINE: usize = 64;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = SeccompStatus { mode: 0, filters: None, no_new_privileges: false };
    let mut buffer = [0u8; LINE + CHUNK];
    let mut kept = 0;
    let result = loop {
        match rustix::io::read(&file, &mut buffer[kept..]) {
            Ok(0) => break Ok(found),
            Ok(more) => {
                let text = &buffer[..kept + more];
                // Nothing else matters if there is no filter.
                if found.parse(text) == Some(0) {
                    break Ok(found);
                }
                let keep = text.len().min(LINE);
                let from = text.len() - keep;
                buffer.copy_within(from..from + keep, 0);
                kept = keep;
            }
            Err(Errno::INTR) => {}
            Err(error) => break Err(error),
        }
    };
    // SAFETY: `close` requires
    // - an open descriptor that this function owns: opened above;
    // - no use of it afterwards: `into_raw_fd` has consumed it.
    // It is not closed by dropping it, which may call libc's `close`.
    unsafe { rustix::io::close(rustix::fd::IntoRawFd::into_raw_fd(file)) };
    result
}

impl SeccompStatus {
    /// Parses the fields whose lines are complete in this text, and returns `mode` if it is among
    /// them. Every program that records waits for it: one pass over the text.
    fn parse(&mut self, text: &[u8]) -> Option<u64> {
        let mut seen = None;
        let mut lines = text.split(|byte| *byte == b'\n');
        // What comes before the first line break and after the last one may be cut.
        lines.next();
        lines.next_back();
        for line in lines {
            if line.first() != Some(&b'S') && line.first() != Some(&b'N') {
                continue;
            }
            if let Some(mode) = field(line, b"Seccomp:\t") {
                (self.mode, seen) = (mode, Some(mode));
            } else if let Some(filters) = field(line, b"Seccomp_filters:\t") {
                self.filters = Some(filters);
            } else if let Some(no_new) = field(line, b"NoNewPrivs:\t") {
                self.no_new_privileges = no_new != 0;
            }
        }
        seen
    }
}

/// Returns the number of a line if the line is a field of this name.
fn field(line: &[u8], name: &[u8]) -> Option<u64> {
    line.strip_prefix(name)?.iter().try_fold(0u64, |number, digit| {
        digit.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_matches_the_file_of_the_kernel() {
        let own = read_status(c"/proc/self/status").unwrap();
        let expected = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(expected.contains(&format!("\nSeccomp:\t{}\n", own.mode)), "{own:?}");
        assert_eq!(own.no_new_privileges, expected.contains("\nNoNewPrivs:\t1"));
        assert_eq!(read_status(c"/proc/self/none"), Err(Errno::NOENT));
    }

    #[test]
    fn only_complete_lines_are_parsed() {
        let mode = |text: &[u8]| {
            let mut found = SeccompStatus { mode: 7, filters: None, no_new_privileges: false };
            found.parse(text);
            found.mode
        };
        assert_eq!(mode(b"x\nSeccomp:\t2\ny"), 2);
        assert_eq!(mode(b"x\nSeccomp:\t2\n"), 2);
        assert_eq!(mode(b"x\nSeccomp:\t2"), 7);
        assert_eq!(mode(b"Seccomp:\t2\n"), 7);
        assert_eq!(mode(b"x\nSeccomp:\tz\n"), 7);
    }

    #[test]
    fn only_a_filter_shared_with_process_1_is_a_containers() {
        let own = SeccompStatus { mode: 2, filters: Some(1), no_new_privileges: false };
        assert!(is_container(own, Some(own)));
        let free = SeccompStatus { mode: 0, filters: Some(0), ..own };
        let stricter = SeccompStatus { filters: Some(2), ..own };
        let unprivileged = SeccompStatus { no_new_privileges: true, ..own };
        let old = SeccompStatus { filters: None, ..own };
        for (own, first) in [
            (own, None),
            (own, Some(free)),
            (stricter, Some(own)),
            (unprivileged, Some(unprivileged)),
            (old, Some(old)),
        ] {
            assert!(!is_container(own, first), "{own:?} {first:?}");
        }
    }
}
