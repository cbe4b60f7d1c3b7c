//! Processes: what they use, and ending those that were started here.

use std::process::Child;
use std::time::{Duration, Instant};

/// CPU time a process and its threads have used so far, seconds; zero if it is gone.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    // /proc/PID/stat counts in ticks of 10 ms; schedstat of the threads counts in nanoseconds, but forgets
    // threads that have ended.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
    };
    ticks().unwrap_or(0.0)
}

/// Asks a child to end and waits for it; kills it if it takes more than 30 seconds.
pub(crate) fn terminate(child: &mut Child) -> Usage {
    // SAFETY: a child that was not waited for, so that its number is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    wait(child, Duration::from_secs(30))
}

/// What a process used in its life, its waited-for children included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time in user and kernel mode, seconds.
    pub(crate) cpu: f64,
    /// True if it ended by itself with exit code 0.
    pub(crate) success: bool,
}

/// Waits for a child; kills it if it takes longer than `patience`.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Usage {
    let pid = child.id() as libc::pid_t;
    let until = Instant::now() + patience;
    let (mut status, mut usage) = (0, no_usage());
    loop {
        // SAFETY: out-pointers of the right types.
        let answer = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
        match answer {
            0 if Instant::now() > until => {
                eprintln!("process {pid} does not end and is killed");
                // SAFETY: not waited for yet.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            0 => {}
            _ => break,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage {
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        success: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
    }
}

fn no_usage() -> libc::rusage {
    // SAFETY: a struct of integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}
