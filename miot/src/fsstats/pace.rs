//! How fast, and at whose expense.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep at a time, so that an end is noticed.
const NAP: Duration = Duration::from_millis(100);
/// Shorter waits are saved up: a sleep costs more than they are.
const WORTH: Duration = Duration::from_millis(2);

/// Lets so many files per second pass, all threads together.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time for one file.
    step: Option<Duration>,
    /// When the next may pass.
    next: Mutex<Option<Instant>>,
    pub(crate) stop: AtomicBool,
}

impl Pace {
    pub(crate) fn new(per_second: Option<f64>) -> Pace {
        Pace { step: per_second.map(|rate| Duration::from_secs_f64(1.0 / rate)), ..Pace::default() }
    }

    pub(crate) fn wait(&self) {
        let Some(step) = self.step else { return };
        let due = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            // What was not used is not made up for.
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

/// Gives way to everybody else, for the disk and for the processor, in all threads that are started after this.
pub(crate) fn give_way() -> std::io::Result<()> {
    const WHO_PROCESS: libc::c_long = 1;
    const CLASS_IDLE: libc::c_long = 3 << 13;
    // SAFETY: a system call on numbers alone, of the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0 as libc::c_long, CLASS_IDLE) };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    rustix::process::nice(19)?;
    Ok(())
}
