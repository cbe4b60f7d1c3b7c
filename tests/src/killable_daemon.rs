//! A daemon that is killed (SIGKILL) and restarted, and stopped cleanly at the end.

use crate::process::{Background, signal_id};
use crate::random::Random;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// Ranges in milliseconds of the times between kills and restarts.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time from a start to the kill.
    pub live: (u64, u64),
    /// Time from a kill to the next start.
    pub dead: (u64, u64),
}

/// A daemon that may be running or killed.
#[derive(Debug)]
pub struct KillableDaemon {
    command: Command,
    running: Option<Background>,
    until: Instant,
    /// Number of kills.
    pub kills: u64,
    printed: String,
}

impl KillableDaemon {
    /// Starts the daemon.
    #[must_use]
    pub fn start(mut command: Command) -> KillableDaemon {
        let running = Some(Background::start(&mut command));
        KillableDaemon { command, running, until: Instant::now(), kills: 0, printed: String::new() }
    }

    /// Kills or restarts the daemon when its time is up.
    ///
    /// # Panics
    /// If it ended by itself.
    pub fn kill_or_restart(&mut self, random: &mut Random, pace: Pace) {
        if Instant::now() < self.until {
            return;
        }
        let (from, to) = if self.running.is_some() {
            self.kill();
            pace.dead
        } else {
            self.restart();
            pace.live
        };
        self.until = Instant::now() + random.millis(from, to);
    }

    /// Kills the daemon if it runs.
    ///
    /// # Panics
    /// If it ended by itself.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.running.take() {
            assert!(daemon.running(), "ended by itself\n{}{}", self.printed, daemon.printed());
            let (_, text) = daemon.stop(Signal::KILL);
            self.printed.push_str(&text);
            self.kills += 1;
        }
    }

    /// Returns true, and counts the kill, if something else has killed the daemon since its start,
    /// e.g. [`KillingProxy`](crate::object_store::KillingProxy).
    ///
    /// # Panics
    /// If it ended by itself.
    pub fn was_killed(&mut self) -> bool {
        let Some(daemon) = self.running.take_if(|daemon| !daemon.running()) else { return false };
        let (status, text) = daemon.ended();
        self.printed.push_str(&text);
        let is_kill = status.signal() == Some(Signal::KILL.as_raw());
        assert!(is_kill, "ended by itself: {status}\n{}", self.printed);
        self.kills += 1;
        true
    }

    /// Restarts the daemon if it does not run.
    pub fn restart(&mut self) {
        if self.running.is_none() {
            self.running = Some(Background::start(&mut self.command));
        }
    }

    /// Sends a signal if the daemon runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(daemon) = &self.running {
            signal_id(daemon.id(), signal);
        }
    }

    /// Process id, if the daemon runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(Background::id)
    }

    /// True if the daemon runs.
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(Background::running)
    }

    /// Output of all runs so far.
    #[must_use]
    pub fn printed(&self) -> String {
        self.printed.clone() + &self.running.as_ref().map(Background::printed).unwrap_or_default()
    }

    /// Output of the present run so far.
    #[must_use]
    pub fn printed_since_start(&self) -> String {
        self.running.as_ref().map(Background::printed).unwrap_or_default()
    }

    /// Waits at most `limit` for the end of the present run. Returns true if it has ended.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.is_running() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Stops the daemon cleanly. Returns the output of all runs.
    ///
    /// # Panics
    /// If it ends with an error.
    pub fn stop(mut self) -> String {
        self.stop_now();
        self.printed
    }

    /// Like [`KillableDaemon::stop`], for a daemon that may be started again.
    ///
    /// # Panics
    /// If it ends with an error.
    pub fn stop_now(&mut self) {
        self.restart();
        if let Some(daemon) = self.running.take() {
            let (status, text) = daemon.stop(Signal::TERM);
            self.printed.push_str(&text);
            assert!(status.success(), "{status}\n{}", self.printed);
        }
    }
}
