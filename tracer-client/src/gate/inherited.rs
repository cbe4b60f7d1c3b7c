//! Whether this process image began under a filter.
//!
//! `/proc/self/status` says so, and is read with calls that the loader has made just before (`openat`, `read`, `close`):
//! whatever filter there is allows them. `prctl(PR_GET_SECCOMP)` would be cheaper and may be fatal.
//!
//! What an inherited filter allows cannot be asked. The one of a container is taken to answer with an error and not to
//! kill: it is the same that process 1 of the container is under, and was installed by somebody with privileges
//! (`NoNewPrivs` is 0), while what confines single programs (systemd's units, bubblewrap, other sandboxes) is not
//! inherited from process 1, or needs `NoNewPrivs`.

use crate::identity;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Confined {
    /// `Seccomp`: 0 where there is no filter.
    mode: u64,
    /// `Seccomp_filters`, since Linux 5.9.
    filters: Option<u64>,
    /// `NoNewPrivs`.
    gives_up_privileges: bool,
}

/// True if there is a filter that nobody vouches for.
pub(super) fn forbids() -> bool {
    if identity::records_under_filters() {
        return false;
    }
    match confined(c"/proc/self/status") {
        Some(own) if own.mode == 0 => false,
        Some(own) => !is_container(own, confined(c"/proc/1/status")),
        None => true,
    }
}

fn is_container(own: Confined, first: Option<Confined>) -> bool {
    own.filters.is_some() && !own.gives_up_privileges && first == Some(own)
}

/// `None`: it cannot be read.
fn confined(path: &CStr) -> Option<Confined> {
    // Longer where a user is in thousands of groups: read piece by piece, keeping the end of a piece for the next.
    const PIECE: usize = 1024;
    const LINE: usize = 64;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut found = Confined { mode: 0, filters: None, gives_up_privileges: false };
    let mut room = [0u8; LINE + PIECE];
    let mut kept = 0;
    let whole = loop {
        match rustix::io::read(&file, &mut room[kept..]) {
            Ok(0) => break true,
            Ok(more) => {
                let text = &room[..kept + more];
                found.take(text);
                let keep = text.len().min(LINE);
                let from = text.len() - keep;
                room.copy_within(from..from + keep, 0);
                kept = keep;
            }
            Err(Errno::INTR) => {}
            Err(_) => break false,
        }
    };
    // SAFETY: owned here and used no more. Not by dropping it, which may call libc's `close`.
    unsafe { rustix::io::close(rustix::fd::IntoRawFd::into_raw_fd(file)) };
    whole.then_some(found)
}

impl Confined {
    /// Takes what whole lines of this text say.
    fn take(&mut self, text: &[u8]) {
        if let Some(mode) = field(text, b"\nSeccomp:\t") {
            self.mode = mode;
        }
        if let Some(filters) = field(text, b"\nSeccomp_filters:\t") {
            self.filters = Some(filters);
        }
        if let Some(no_new) = field(text, b"\nNoNewPrivs:\t") {
            self.gives_up_privileges = no_new != 0;
        }
    }
}

/// The number of a field whose line is all there.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = text.windows(name.len()).position(|part| part == name)? + name.len();
    let rest = text.get(at..)?;
    let digits = rest.get(..rest.iter().position(|byte| *byte == b'\n')?)?;
    digits.iter().try_fold(0u64, |number, digit| {
        digit.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_this_process_is_confined() {
        let own = confined(c"/proc/self/status").unwrap();
        let said = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(said.contains(&format!("\nSeccomp:\t{}\n", own.mode)), "{own:?}");
        assert_eq!(own.gives_up_privileges, said.contains("\nNoNewPrivs:\t1"));
        assert_eq!(confined(c"/proc/self/none"), None);
    }

    #[test]
    fn fields_are_numbers_of_whole_lines() {
        assert_eq!(field(b"x\nSeccomp:\t2\ny", b"\nSeccomp:\t"), Some(2));
        assert_eq!(field(b"x\nSeccomp:\t2", b"\nSeccomp:\t"), None);
        assert_eq!(field(b"x\nSeccomp:\tz\n", b"\nSeccomp:\t"), None);
    }

    #[test]
    fn only_a_filter_that_process_1_is_under_as_well_is_a_containers() {
        let own = Confined { mode: 2, filters: Some(1), gives_up_privileges: false };
        assert!(is_container(own, Some(own)));
        let free = Confined { mode: 0, filters: Some(0), ..own };
        let stricter = Confined { filters: Some(2), ..own };
        let unprivileged = Confined { gives_up_privileges: true, ..own };
        let old = Confined { filters: None, ..own };
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
