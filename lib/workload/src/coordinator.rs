//! Coordinator of a suite: starts the ranks, repeats measurements until they are precise, and
//! removes the files.

use crate::comm::{ConnectionLost, Ranks, StopHandle};
use crate::rank::{RankCommand, RankJob, RankReport, StepResult};
use crate::statistics::Sample;
use crate::suite::{Run, Suite};
use crate::times::{RankTimestamps, Times};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Repetitions before the confidence interval is used.
const MIN_REPETITIONS: usize = 3;
/// Share of the aggregate time below which B is negligible.
pub const NEGLIGIBLE_BARRIER_SHARE: f64 = 0.01;

/// One repetition of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Repetition {
    /// Times S, T and B.
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

/// Returns the bandwidth within T in MiB/s: from the first begin to the last end of an access, as
/// for the phases of a trace. It is the sum of all bytes divided by the sum of all T, so that the
/// predicted time of n phases is n times the mean T.
#[must_use]
pub fn access_bandwidth(repetitions: &[Repetition]) -> f64 {
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
    /// In order of time.
    pub repetitions: Vec<Repetition>,
    /// Bandwidth, MiB/s.
    pub bandwidth: Sample,
    /// B as a share of the aggregate time: mean of the repetitions.
    pub barrier_share: f64,
    /// True if the confidence interval is within the precision of the suite.
    pub is_precise: bool,
}

/// Why a suite stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A process has ended.
    #[error("{lost}{status}")]
    ConnectionLost {
        /// The lost connection.
        lost: ConnectionLost,
        /// Exit status of the process after a colon, empty if it is unknown.
        status: String,
    },
    /// A process reported an error.
    #[error("{0}")]
    Rank(String),
    /// No byte was accessed.
    #[error("run `{0}` accesses nothing")]
    Nothing(String),
    /// The directory cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// The processes of a suite and their directory. A drop kills the processes and removes the
/// directory with its files.
#[derive(Debug)]
pub struct Coordinator {
    directory: PathBuf,
    children: Vec<Child>,
    ranks: Ranks,
    processes: u64,
}

impl Coordinator {
    /// Starts the processes with `command`, which gets the rank. Each process gets a socket as
    /// standard input and must call [`crate::rank::serve`]. Files are created in a new directory in
    /// `target`.
    ///
    /// # Errors
    /// [`BenchError::Io`], [`BenchError::ConnectionLost`].
    pub fn start(
        target: &Path,
        processes: u64,
        mut command: impl FnMut(u64) -> Command,
    ) -> Result<Coordinator, BenchError> {
        let mut coordinator = Coordinator::with_ranks(target, processes, Ranks::new(Vec::new()))?;
        let path = &coordinator.directory.clone();
        let failed = |action| move |source| BenchError::Io { action, path: path.clone(), source };
        let mut sockets = Vec::new();
        for rank in 0..processes {
            let (ours, theirs) = UnixStream::pair().map_err(failed("connect a process for"))?;
            let child = command(rank).stdin(Stdio::from(OwnedFd::from(theirs))).spawn();
            coordinator.children.push(child.map_err(failed("start a process for"))?);
            sockets.push(ours);
        }
        coordinator.ranks = Ranks::new(sockets);
        coordinator.send_job()
    }

    /// Coordinates processes that an MPI launcher has started.
    ///
    /// # Errors
    /// [`BenchError::Io`], [`BenchError::ConnectionLost`].
    pub fn of_launched(target: &Path, processes: u64, ranks: Ranks) -> Result<Coordinator, BenchError> {
        Coordinator::with_ranks(target, processes, ranks)?.send_job()
    }

    /// Creates the directory.
    fn with_ranks(target: &Path, processes: u64, ranks: Ranks) -> Result<Coordinator, BenchError> {
        let directory = target.join(format!("miot-bench-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|source| BenchError::Io {
            action: "create",
            path: directory.clone(),
            source,
        })?;
        Ok(Coordinator { directory, children: Vec::new(), ranks, processes })
    }

    /// Sends the job to all ranks.
    fn send_job(mut self) -> Result<Coordinator, BenchError> {
        let directory = self.directory.as_os_str().as_bytes().to_vec();
        let job = RankJob { processes: self.processes, directory };
        self.ranks.send(&job).map_err(|lost| self.lost(lost))?;
        Ok(self)
    }

    /// Directory in which files are created.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Repeats the run until the mean has the precision of the suite. Calls `on_repetition` after
    /// each repetition.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn measure(
        &mut self,
        run: &Run,
        suite: &Suite,
        mut on_repetition: impl FnMut(&Repetition),
    ) -> Result<Outcome, BenchError> {
        let mut repetitions = Vec::new();
        loop {
            let repetition = self.repeat(run, repetitions.len() as u64 % run.phases)?;
            on_repetition(&repetition);
            repetitions.push(repetition);
            let bandwidths: Vec<f64> = repetitions.iter().map(|one| one.bandwidth).collect();
            let nothing = || BenchError::Nothing(run.name.clone());
            let bandwidth = Sample::of(&bandwidths).ok_or_else(nothing)?;
            let is_precise = repetitions.len() >= MIN_REPETITIONS && bandwidth.is_within(suite.precision);
            if is_precise || repetitions.len() >= suite.repetitions {
                self.remove_files()?;
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

    /// Doubles the number of extents until three consecutive repetitions have a negligible B and
    /// the precision of the suite. Returns the enlarged run; the largest one with files of at most
    /// `max_bytes` if none has.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn enlarge(&mut self, run: &Run, suite: &Suite, max_bytes: u64) -> Result<Run, BenchError> {
        let mut current = run.clone();
        loop {
            let mut bandwidths = Vec::new();
            let mut barrier = 0.0;
            for number in 0..MIN_REPETITIONS as u64 {
                let repetition = self.repeat(&current, number % current.phases)?;
                bandwidths.push(repetition.bandwidth);
                barrier += repetition.times.barrier / repetition.times.aggregate / MIN_REPETITIONS as f64;
            }
            let is_precise = Sample::of(&bandwidths).is_some_and(|sample| sample.is_within(suite.precision));
            self.remove_files()?;
            if is_precise && barrier < NEGLIGIBLE_BARRIER_SHARE {
                return Ok(current);
            }
            let larger = Run { pattern: current.pattern.times(2), ..current.clone() };
            let (_, sharing) = larger.pattern_rank(0, self.processes);
            let files = if larger.file_per_process { self.processes } else { 1 };
            let bytes = larger.file_bytes(sharing).ok().and_then(|bytes| bytes.checked_mul(files));
            match bytes {
                Some(bytes) if bytes <= max_bytes => current = larger,
                _ => return Ok(current),
            }
        }
    }

    fn repeat(&mut self, run: &Run, phase: u64) -> Result<Repetition, BenchError> {
        if phase == 0 {
            self.remove_files()?;
        }
        self.try_repeat(run, phase).map_err(|lost| self.lost(lost))?
    }

    /// Removes the files of a measurement.
    fn remove_files(&self) -> Result<(), BenchError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BenchError::Io { action: "remove", path, source }
        };
        for file in std::fs::read_dir(&self.directory).map_err(failed(&self.directory))? {
            let path = file.map_err(failed(&self.directory))?.path();
            std::fs::remove_file(&path).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Measures one repetition. Follows the same protocol as [`crate::rank`].
    fn try_repeat(
        &mut self,
        run: &Run,
        phase: u64,
    ) -> Result<Result<Repetition, BenchError>, ConnectionLost> {
        let run_text =
            toml::to_string(run).map_err(|error| ConnectionLost::Coordinator(io::Error::other(error)))?;
        self.ranks.send(&RankCommand::Measure { run: run_text, phase })?;
        for _step in ["create", "fill", "open", "open_shared", "prepare_caches"] {
            if let Err(error) = self.agree()? {
                return Ok(Err(BenchError::Rank(error)));
            }
        }
        self.ranks.barrier()?;
        self.ranks.barrier()?;
        if let Err(error) = self.agree()? {
            return Ok(Err(BenchError::Rank(error)));
        }
        let reports: Vec<RankReport> = self.ranks.receive()?;
        let timestamps: Vec<RankTimestamps> = reports.iter().map(|report| report.timestamps).collect();
        let Some(times) = Times::of(&timestamps) else {
            return Ok(Err(BenchError::Nothing(run.name.clone())));
        };
        let total = |of: fn(&RankReport) -> u64| reports.iter().map(of).sum::<u64>();
        let (read, written) = (total(|report| report.read), total(|report| report.written));
        let bandwidth = (read + written) as f64 / f64::from(1 << 20) / times.aggregate;
        Ok(Ok(Repetition { times, read, written, calls: total(|report| report.calls), bandwidth }))
    }

    /// Receives the result of a step from all ranks. Returns the first error, or lets all ranks
    /// continue.
    fn agree(&mut self) -> Result<StepResult<()>, ConnectionLost> {
        let results: Vec<StepResult<()>> = self.ranks.receive()?;
        match results.into_iter().find_map(Result::err) {
            Some(error) => Ok(Err(error)),
            None => self.ranks.send(&()).map(Ok),
        }
    }

    /// Adds the exit status of the process to a lost connection.
    fn lost(&mut self, lost: ConnectionLost) -> BenchError {
        let rank = match lost {
            ConnectionLost::Rank { rank, .. } => Some(rank),
            ConnectionLost::Coordinator(_) => None,
        };
        // `None` for a process that still runs: only its connection is lost.
        let exited =
            rank.and_then(|rank| self.children.get_mut(rank)).and_then(|child| child.try_wait().ok()?);
        let failed = exited.filter(|status: &ExitStatus| !status.success());
        BenchError::ConnectionLost {
            lost,
            status: failed.map_or_else(String::new, |status| format!(": {status}")),
        }
    }

    /// Returns a handle that stops the measurement from any thread.
    ///
    /// # Errors
    /// [`BenchError::Io`].
    pub fn stop_handle(&self) -> Result<StopHandle, BenchError> {
        let failed = |source| BenchError::Io {
            action: "watch the processes in",
            path: self.directory.clone(),
            source,
        };
        self.ranks.stop_handle().map_err(failed)
    }

    /// Ends the processes and waits for them.
    ///
    /// # Errors
    /// [`BenchError::ConnectionLost`].
    pub fn finish(mut self) -> Result<(), BenchError> {
        self.ranks.send(&RankCommand::End).map_err(|lost| self.lost(lost))?;
        for child in &mut self.children {
            let _ = child.wait();
        }
        Ok(())
    }
}

impl Drop for Coordinator {
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
    use super::{Repetition, access_bandwidth};
    use crate::times::Times;

    #[test]
    fn access_bandwidth_excludes_s_and_b() {
        let one = |accesses: f64| {
            let times = Times { start: 9.0, accesses, barrier: 9.0, aggregate: 18.0 + accesses };
            Repetition { times, read: 3 << 20, written: 1 << 20, calls: 1, bandwidth: 0.0 }
        };
        assert!((access_bandwidth(&[one(8.0)]) - 0.5).abs() < 1e-9);
        assert!((access_bandwidth(&[one(8.0), one(1.0), one(3.0)]) - 1.0).abs() < 1e-9);
        assert!(access_bandwidth(&[]).is_nan());
    }
}
