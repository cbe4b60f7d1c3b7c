//! Rate and priority of a walk.

#![expect(clippy::disallowed_types, reason = "stop flag of the walk")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest single sleep, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(100);
/// Shortest sleep. Shorter waits accumulate, because a sleep would cost more.
const WORTH: Duration = Duration::from_millis(2);

/// Limits the rate of a walk, in files per second of all threads together.
#[derive(Debug, Default)]
pub struct Pace {
    /// Time for one file.
    step: Option<Duration>,
    /// Time at which the next file may be counted.
    next: Mutex<Option<Instant>>,
    pub(crate) stop: AtomicBool,
}

impl Pace {
    /// Creates a limit of files per second; `None` for no limit.
    #[must_use]
    pub fn new(per_second: Option<f64>) -> Pace {
        Pace { step: per_second.map(|rate| Duration::from_secs_f64(1.0 / rate)), ..Pace::default() }
    }

    pub(crate) fn wait(&self) {
        let Some(step) = self.step else { return };
        let due = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            // Unused time does not accumulate.
            let due = next.unwrap_or(now).max(now.checked_sub(WORTH).unwrap_or(now));
            *next = Some(due + step);
            due
        };
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left < WORTH || self.stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// Sets the lowest priority for disk and processor, in this thread and all threads that it starts
/// after this.
///
/// # Errors
/// Errors of the system calls.
pub fn give_way() -> std::io::Result<()> {
    const WHO_PROCESS: libc::c_long = 1;
    const CLASS_IDLE: libc::c_long = 3 << 13;
    // SAFETY: `ioprio_set` takes only numbers, and changes only the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0 as libc::c_long, CLASS_IDLE) };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    rustix::process::nice(19)?;
    Ok(())
}
