//! Running a suite: starts the ranks, gives orders, repeats until it is sure, and cleans up.

use crate::rank::{Done, Job, Order, Told};
use crate::statistics::Sample;
use crate::suite::{Run, Suite};
use crate::times::{Moments, Times};
use crate::world::{Lost, Ranks, Stopper};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Repetitions before anything can be said of their spread.
const LEAST_REPETITIONS: usize = 3;
/// B is negligible below this share of the aggregate time.
pub const NEGLIGIBLE: f64 = 0.01;

/// One repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Repetition {
    /// Its times.
    pub times: Times,
    /// Bytes read by all processes.
    pub read: u64,
    /// Bytes written by all processes.
    pub written: u64,
    /// Calls that moved them.
    pub calls: u64,
    /// MiB (2²⁰ bytes) per second of aggregate time.
    pub bandwidth: f64,
}

/// MiB per second of T alone, which is from the first begin to the last end of accesses as the time of a phase in a trace is: all bytes by all of
/// the time, so that the time of many phases is as many times that of a repetition in the mean.
#[must_use]
pub fn within_t(repetitions: &[Repetition]) -> f64 {
    let bytes: u64 = repetitions.iter().map(|one| one.read + one.written).sum();
    let seconds: f64 = repetitions.iter().map(|one| one.times.accesses).sum();
    bytes as f64 / f64::from(1 << 20) / seconds
}

/// A measurement with all its repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was measured.
    pub run: Run,
    /// Processes that took part.
    pub processes: u64,
    /// In the order they were made.
    pub repetitions: Vec<Repetition>,
    /// MiB per second.
    pub bandwidth: Sample,
    /// B as a share of the aggregate time: mean of the repetitions.
    pub barrier_share: f64,
    /// The confidence interval is as narrow as was asked.
    pub is_precise: bool,
}

/// Why a suite was given up.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A process has ended.
    #[error("{lost}{how}")]
    Lost {
        /// Which.
        lost: Lost,
        /// How it ended.
        how: String,
    },
    /// A process could not do its part.
    #[error("{0}")]
    Rank(String),
    /// No byte was accessed.
    #[error("run `{0}` accesses nothing")]
    Nothing(String),
    /// The directory cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The processes of a suite, in a directory of their own, which is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Conductor {
    directory: PathBuf,
    children: Vec<Child>,
    ranks: Ranks,
    processes: u64,
}

impl Conductor {
    /// Starts the processes with `command`, which gets a socket as standard input and is to call
    /// [`crate::rank::serve`]. Files are made in a new directory in `target`.
    ///
    /// # Errors
    /// [`Failed::Io`], [`Failed::Lost`].
    pub fn start(
        target: &Path,
        processes: u64,
        mut command: impl FnMut(u64) -> Command,
    ) -> Result<Conductor, Failed> {
        let mut conductor = Conductor::of(target, processes, Ranks::new(Vec::new()))?;
        let path = &conductor.directory.clone();
        let failed = |action| move |source| Failed::Io { action, path: path.clone(), source };
        let mut sockets = Vec::new();
        for rank in 0..processes {
            let (ours, theirs) = UnixStream::pair().map_err(failed("connect a process for"))?;
            let child = command(rank).stdin(Stdio::from(OwnedFd::from(theirs))).spawn();
            conductor.children.push(child.map_err(failed("start a process for"))?);
            sockets.push(ours);
        }
        conductor.ranks = Ranks::new(sockets);
        conductor.begin()
    }

    /// Conducts processes that something else has started.
    ///
    /// # Errors
    /// [`Failed::Io`], [`Failed::Lost`].
    pub fn of_launched(target: &Path, processes: u64, ranks: Ranks) -> Result<Conductor, Failed> {
        Conductor::of(target, processes, ranks)?.begin()
    }

    fn of(target: &Path, processes: u64, ranks: Ranks) -> Result<Conductor, Failed> {
        let directory = target.join(format!("miot-bench-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|source| Failed::Io {
            action: "make",
            path: directory.clone(),
            source,
        })?;
        Ok(Conductor { directory, children: Vec::new(), ranks, processes })
    }

    fn begin(mut self) -> Result<Conductor, Failed> {
        let directory = self.directory.as_os_str().as_bytes().to_vec();
        let job = Job { processes: self.processes, directory };
        self.ranks.tell(&job).map_err(|lost| self.lost(lost))?;
        Ok(self)
    }

    /// Where files are made.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Measures until the mean is as sure as the suite asks, and tells of each repetition as it is made.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn measure(
        &mut self,
        run: &Run,
        suite: &Suite,
        mut tell: impl FnMut(&Repetition),
    ) -> Result<Outcome, Failed> {
        let mut repetitions = Vec::new();
        loop {
            let repetition = self.repeat(run, repetitions.len() as u64 % run.phases)?;
            tell(&repetition);
            repetitions.push(repetition);
            let bandwidths: Vec<f64> = repetitions.iter().map(|one| one.bandwidth).collect();
            let nothing = || Failed::Nothing(run.name.clone());
            let bandwidth = Sample::of(&bandwidths).ok_or_else(nothing)?;
            let is_precise = repetitions.len() >= LEAST_REPETITIONS && bandwidth.is_within(suite.precision);
            if is_precise || repetitions.len() >= suite.repetitions {
                self.clear()?;
                let shares = repetitions.iter().map(|one| one.times.barrier / one.times.aggregate);
                let barrier_share = shares.sum::<f64>() / repetitions.len() as f64;
                let processes = self.processes;
                return Ok(Outcome {
                    run: run.clone(),
                    processes,
                    repetitions,
                    bandwidth,
                    barrier_share,
                    is_precise,
                });
            }
        }
    }

    /// The run with so many pieces, by doubling, that three repetitions in a row have a negligible B and lie within the
    /// precision that is asked; the largest that fits `most` bytes, if none does.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn enlarge(&mut self, run: &Run, suite: &Suite, most: u64) -> Result<Run, Failed> {
        let mut fitting = run.clone();
        loop {
            let mut bandwidths = Vec::new();
            let mut barrier = 0.0;
            for number in 0..LEAST_REPETITIONS as u64 {
                let repetition = self.repeat(&fitting, number % fitting.phases)?;
                bandwidths.push(repetition.bandwidth);
                barrier += repetition.times.barrier / repetition.times.aggregate / LEAST_REPETITIONS as f64;
            }
            let sure = Sample::of(&bandwidths).is_some_and(|sample| sample.is_within(suite.precision));
            self.clear()?;
            if sure && barrier < NEGLIGIBLE {
                return Ok(fitting);
            }
            let larger = Run { pattern: fitting.pattern.times(2), ..fitting.clone() };
            let (_, sharing) = larger.place(0, self.processes);
            let files = if larger.file_per_process { self.processes } else { 1 };
            let bytes = larger.file_bytes(sharing).ok().and_then(|bytes| bytes.checked_mul(files));
            match bytes {
                Some(bytes) if bytes <= most => fitting = larger,
                _ => return Ok(fitting),
            }
        }
    }

    fn repeat(&mut self, run: &Run, phase: u64) -> Result<Repetition, Failed> {
        if phase == 0 {
            self.clear()?;
        }
        self.try_repeat(run, phase).map_err(|lost| self.lost(lost))?
    }

    /// Removes the files of a measurement.
    fn clear(&self) -> Result<(), Failed> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Failed::Io { action: "remove", path, source }
        };
        for file in std::fs::read_dir(&self.directory).map_err(failed(&self.directory))? {
            let path = file.map_err(failed(&self.directory))?.path();
            std::fs::remove_file(&path).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// In step with [`crate::rank`].
    fn try_repeat(&mut self, run: &Run, phase: u64) -> Result<Result<Repetition, Failed>, Lost> {
        let run_text = toml::to_string(run).map_err(|error| Lost::Conductor(io::Error::other(error)))?;
        self.ranks.tell(&Order::Measure { run: run_text, phase })?;
        for _ in ["made", "filled", "opened", "shared", "ready"] {
            if let Err(why) = self.agree()? {
                return Ok(Err(Failed::Rank(why)));
            }
        }
        self.ranks.barrier()?;
        self.ranks.barrier()?;
        if let Err(why) = self.agree()? {
            return Ok(Err(Failed::Rank(why)));
        }
        let done: Vec<Done> = self.ranks.hear()?;
        let moments: Vec<Moments> = done.iter().map(|done| done.moments).collect();
        let Some(times) = Times::of(&moments) else { return Ok(Err(Failed::Nothing(run.name.clone()))) };
        let total = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
        let (read, written) = (total(|done| done.read), total(|done| done.written));
        let bandwidth = (read + written) as f64 / f64::from(1 << 20) / times.aggregate;
        Ok(Ok(Repetition { times, read, written, calls: total(|done| done.calls), bandwidth }))
    }

    /// The first complaint of a rank, or all may go on.
    fn agree(&mut self) -> Result<Told<()>, Lost> {
        let told: Vec<Told<()>> = self.ranks.hear()?;
        match told.into_iter().find_map(Result::err) {
            Some(why) => Ok(Err(why)),
            None => self.ranks.tell(&()).map(Ok),
        }
    }

    fn lost(&mut self, lost: Lost) -> Failed {
        let rank = match lost {
            Lost::Rank { rank, .. } => Some(rank),
            Lost::Conductor(_) => None,
        };
        // One that is still there has been cut off.
        let ended =
            rank.and_then(|rank| self.children.get_mut(rank)).and_then(|child| child.try_wait().ok()?);
        let how = ended.filter(|status: &ExitStatus| !status.success());
        Failed::Lost { lost, how: how.map_or_else(String::new, |status| format!(": {status}")) }
    }

    /// Who may end the measurement, from any thread.
    ///
    /// # Errors
    /// [`Failed::Io`].
    pub fn stopper(&self) -> Result<Stopper, Failed> {
        let failed =
            |source| Failed::Io { action: "watch the processes in", path: self.directory.clone(), source };
        self.ranks.stopper().map_err(failed)
    }

    /// Lets the processes end.
    ///
    /// # Errors
    /// [`Failed::Lost`].
    pub fn finish(mut self) -> Result<(), Failed> {
        self.ranks.tell(&Order::End).map_err(|lost| self.lost(lost))?;
        for child in &mut self.children {
            let _ = child.wait();
        }
        Ok(())
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::{Repetition, within_t};
    use crate::times::Times;

    #[test]
    fn within_t_is_without_s_and_b() {
        let one = |accesses: f64| {
            let times = Times { start: 9.0, accesses, barrier: 9.0, aggregate: 18.0 + accesses };
            Repetition { times, read: 3 << 20, written: 1 << 20, calls: 1, bandwidth: 0.0 }
        };
        assert!((within_t(&[one(8.0)]) - 0.5).abs() < 1e-9);
        assert!((within_t(&[one(8.0), one(1.0), one(3.0)]) - 1.0).abs() < 1e-9);
        assert!(within_t(&[]).is_nan());
    }
}
