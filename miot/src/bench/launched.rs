//! A benchmark with processes started by an MPI launcher: `mpiexec -n 4 miot bench --mpi …`.

use super::{Arguments, measure, suite, target};
use anyhow::Context as _;
use clap::Args;
use miot_workload::comm::{Ranks, join_launched};
use miot_workload::coordinator::{Coordinator, Repetition, access_bandwidth};
use miot_workload::mpi::Mpi;
use miot_workload::{Suite, rank};
use serde::Deserialize;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Removes leftovers after a launcher killed all processes, as it does when one of them dies.
#[derive(Args, Debug)]
pub(crate) struct Sweep {
    /// Directory to remove when standard input ends
    directory: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mpi = Arc::new(Mpi::init()?);
    let (place, ranks) = join_launched(&mpi)?;
    let processes = mpi.size()? as u64;
    let conducted = std::thread::scope(|scope| {
        let coordinator = ranks.map(|ranks| scope.spawn(move || conduct(arguments, ranks, processes)));
        let served = rank::serve(place);
        match coordinator.map(std::thread::ScopedJoinHandle::join) {
            Some(Ok(conducted)) => conducted.map(|()| true),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            // Rank 0 reports the reason.
            None => Ok(served.is_ok()),
        }
    });
    mpi.finalize()?;
    Ok(if conducted? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn conduct(arguments: &Arguments, ranks: Ranks, processes: u64) -> anyhow::Result<()> {
    let suite = Suite { processes, ..suite(arguments)? };
    suite.check()?;
    let mut coordinator = Coordinator::of_launched(&target(arguments)?, processes, ranks)?;
    let _sweeper = Sweeper::of(coordinator.directory())?;
    measure(&mut coordinator, &suite, arguments)?;
    Ok(coordinator.finish()?)
}

/// Cleanup process that survives if this process is killed.
struct Sweeper(Child);

impl Sweeper {
    fn of(directory: &Path) -> anyhow::Result<Sweeper> {
        let program = std::env::current_exe().context("cannot determine the path of this program")?;
        let mut command = Command::new(program);
        command.arg("bench-sweep").arg(directory);
        // The launcher waits for the end of output, and kills the process group.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Sweeper(command.spawn().context("cannot start the cleanup process")?))
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns the bandwidth of each run of a suite within T, MiB per second, with processes that
/// `launcher` starts.
pub(crate) fn reached(launcher: &str, directory: &Path, suite: &Suite) -> anyhow::Result<Vec<f64>> {
    #[derive(Deserialize)]
    struct Outcome {
        repetitions: Vec<Repetition>,
    }
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let mut words = launcher.split_whitespace();
    let mut command = Command::new(words.next().context("the launcher has no name")?);
    command.args(words).arg("-n").arg(suite.processes.to_string()).arg(program);
    // Not through standard input: a launcher gives up if its first process does not read it at
    // once. All processes can read this directory, also on other nodes.
    let file = tempfile::Builder::new().prefix("miot-suite-").suffix(".toml").tempfile_in(directory);
    let mut file = file.with_context(|| format!("cannot create a file in {}", directory.display()))?;
    file.write_all(miot_workload::suite::to_toml(suite)?.as_bytes()).context("cannot write the suite")?;
    command.args(["bench", "--mpi", "--format", "json"]).arg(file.path()).arg("--dir").arg(directory);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {launcher}"))?;
    anyhow::ensure!(output.status.success(), "the benchmark failed: {launcher}: {}", output.status);
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let reached: Vec<f64> = lines
        .map(|line| {
            serde_json::from_slice::<Outcome>(line).map(|outcome| access_bandwidth(&outcome.repetitions))
        })
        .collect::<Result<_, _>>()
        .context("the output of the benchmark is not valid")?;
    anyhow::ensure!(reached.len() == suite.runs.len(), "the benchmark skipped some phases");
    Ok(reached)
}

pub(crate) fn sweep(arguments: &Sweep) -> anyhow::Result<ExitCode> {
    /// Attempts, 100 ms apart: other processes may still write while they are being killed.
    const TRIES: usize = 50;
    // Not the function of libc, which glibc has since 2.34 only.
    // SAFETY: closes descriptors of the launcher that were inherited and that nothing here uses.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for _ in 0..TRIES {
        if !arguments.directory.exists() {
            break;
        }
        let _ = std::fs::remove_dir_all(&arguments.directory);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(ExitCode::SUCCESS)
}
