//! A daemon that is killed (SIGKILL) and started again, and stopped cleanly in the end.

use crate::process::{Background, signal_id};
use crate::random::Random;
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// Milliseconds, from and to: how long it lives, and how long it is dead.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between a start and the kill.
    pub live: (u64, u64),
    /// Between a kill and the start.
    pub dead: (u64, u64),
}

/// See the module.
#[derive(Debug)]
pub struct KillableDaemon {
    command: Command,
    running: Option<Background>,
    until: Instant,
    /// How often it was killed.
    pub kills: u64,
    printed: String,
}

impl KillableDaemon {
    /// Starts it.
    #[must_use]
    pub fn start(mut command: Command) -> KillableDaemon {
        let running = Some(Background::start(&mut command));
        KillableDaemon { command, running, until: Instant::now(), kills: 0, printed: String::new() }
    }

    /// Kills it, or starts it again, when it is time.
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

    /// Kills it, if it lives.
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

    /// Starts it again, if it is dead.
    pub fn restart(&mut self) {
        if self.running.is_none() {
            self.running = Some(Background::start(&mut self.command));
        }
    }

    /// Sends a signal, if it lives.
    pub fn signal(&self, signal: Signal) {
        if let Some(daemon) = &self.running {
            signal_id(daemon.id(), signal);
        }
    }

    /// Its process id, if it lives.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(Background::id)
    }

    /// True if it lives.
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(Background::running)
    }

    /// All it has printed, in all its lives.
    #[must_use]
    pub fn printed(&self) -> String {
        self.printed.clone() + &self.running.as_ref().map(Background::printed).unwrap_or_default()
    }

    /// Waits for no longer than `limit` for the end of its present life. True if that has come.
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

    /// A clean end. All it has printed.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(mut self) -> String {
        self.restart();
        let Some(daemon) = self.running.take() else { return self.printed };
        let (status, text) = daemon.stop(Signal::TERM);
        self.printed.push_str(&text);
        assert!(status.success(), "{status}\n{}", self.printed);
        self.printed
    }
}
