//! What a run has measured.

use crate::{SECOND, Time};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Number of nodes that prefer each log-server, at the start.
    pub preferred: Vec<usize>,
    /// Number of nodes whose preferred log-server changed when the set changed, and the number that
    /// had to change.
    pub moved: Vec<(usize, usize)>,
    /// Restarts of log-servers.
    pub outages: Vec<Outage>,
    /// Attempts to connect at each log-server in each second.
    pub(crate) attempts: HashMap<(usize, Time), u64>,
    /// Number of changes of a log-server.
    pub switches: u64,
    /// Maximum memory of a log-server for events that are not durable, bytes.
    pub memory: usize,
    /// Number of messages that had to wait because a log-server had no memory.
    pub waited: u64,
    /// Number of simulated events of the loop.
    pub steps: u64,
    /// Virtual duration.
    pub duration: Duration,
}

/// A restart.
#[derive(Clone, Debug)]
pub struct Outage {
    /// Number of log-servers.
    pub servers: usize,
    /// When they were killed.
    pub(crate) killed: Time,
    /// When they started again.
    pub(crate) started: Time,
    /// Number of nodes that were connected.
    pub nodes: usize,
    pub(crate) missing: usize,
    /// When the last of the nodes was connected again.
    pub(crate) back: Option<Time>,
}

impl Outage {
    /// Time from the start of the log-servers until all nodes were connected again.
    #[must_use]
    pub fn until_back(&self) -> Option<Duration> {
        self.back.map(|back| Duration::from_nanos(back.saturating_sub(self.started)))
    }
}

impl Figures {
    pub(crate) fn attempt(&mut self, server: usize, now: Time) {
        *self.attempts.entry((server, now / SECOND)).or_default() += 1;
    }

    /// Most nodes of a log-server in relation to the mean.
    #[must_use]
    pub fn balance(&self) -> f64 {
        let (most, all) = (self.preferred.iter().max(), self.preferred.iter().sum::<usize>());
        most.map_or(0.0, |most| *most as f64 * self.preferred.len() as f64 / all.max(1) as f64)
    }

    /// Most attempts to connect in one second: at one log-server, and at all together.
    #[must_use]
    pub fn most_attempts(&self) -> (u64, u64) {
        let mut of_second: HashMap<Time, u64> = HashMap::new();
        self.attempts.iter().for_each(|((_, second), count)| *of_second.entry(*second).or_default() += count);
        let most = |counts: &mut dyn Iterator<Item = u64>| counts.max().unwrap_or(0);
        (most(&mut self.attempts.values().copied()), most(&mut of_second.into_values()))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.preferred.iter().min(), self.preferred.iter().max());
        writeln!(
            f,
            "nodes per log-server: {} to {}, most / mean {:.3}",
            least.unwrap_or(&0),
            most.unwrap_or(&0),
            self.balance()
        )?;
        for (moved, due) in &self.moved {
            writeln!(f, "changed set: {moved} nodes prefer another log-server, {due} had to")?;
        }
        for outage in &self.outages {
            let away = Duration::from_nanos(outage.started.saturating_sub(outage.killed));
            write!(
                f,
                "restart of {} after {:.1} s: {} nodes ",
                outage.servers,
                away.as_secs_f64(),
                outage.nodes
            )?;
            match outage.until_back() {
                Some(time) => writeln!(f, "back {:.2} s after the start", time.as_secs_f64())?,
                None => writeln!(f, "not all back, {} missing", outage.missing)?,
            }
        }
        let (one, all) = self.most_attempts();
        writeln!(f, "attempts to connect in one second: at most {one} at one log-server, {all} at all")?;
        writeln!(f, "changes of the log-server: {}", self.switches)?;
        writeln!(
            f,
            "memory of a log-server: at most {} KiB; {} messages waited",
            self.memory >> 10,
            self.waited
        )?;
        write!(f, "{} steps, {:.0} s of virtual time", self.steps, self.duration.as_secs_f64())
    }
}
