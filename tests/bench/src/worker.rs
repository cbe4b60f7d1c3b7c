//! Workers: processes that run operations on request.

use crate::process;
use crate::proof::Watched;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running worker, ended when dropped.
pub(crate) struct Worker {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    calls: u64,
}

/// Times of one run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// CPU time of the threads that ran the operations, nanoseconds.
    pub(crate) cpu_ns: f64,
    /// Wall time, nanoseconds.
    pub(crate) wall_ns: f64,
}

/// Result of a paced run.
#[derive(Clone, Copy)]
pub(crate) struct Paced {
    /// Number of operations.
    pub(crate) recorded: f64,
    /// CPU time of the threads that ran the operations, nanoseconds.
    pub(crate) cpu_ns: f64,
    /// Wall time, nanoseconds.
    pub(crate) wall_ns: f64,
    /// Most operations of a thread between two sleeps.
    pub(crate) burst: f64,
}

/// Command of the worker program of this package for `way`.
pub(crate) fn own(way: &str) -> Result<Command> {
    let program = std::env::current_exe()?.with_file_name("miot-bench-worker");
    let mut command = Command::new(program);
    command.arg(way);
    Ok(command)
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(crate) fn start(name: &str, command: Command) -> Result<Worker> {
        let mut worker = Worker::spawn(name, command)?;
        worker.expect("ready")?;
        Ok(worker)
    }

    fn spawn(name: &str, mut command: Command) -> Result<Worker> {
        let mut child = process::ends_with_us(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{name}: cannot start {:?}", command.get_program()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name}: no pipes")
        };
        Ok(Worker { name: name.into(), child, input: Some(input), output: BufReader::new(output), calls: 0 })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Number of operations so far, without those of the setup.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Name of the variant.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Fails unless the process has mapped this file, e.g. a preloaded library: the loader ignores
    /// one that it cannot load.
    pub(crate) fn expect_mapped(&self, file: &Path) -> Result<()> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid()))?;
        let mapped = maps.lines().any(|line| line.ends_with(&*file.to_string_lossy()));
        ensure!(mapped, "{}: {} is not mapped", self.name, file.display());
        Ok(())
    }

    /// Runs a total of `count` operations, spread over `threads` threads. Each thread makes one
    /// more, which is not measured.
    pub(crate) fn run(&mut self, count: u64, threads: u64) -> Result<Run> {
        self.calls += threads * (1 + count / threads);
        match self.ask(&format!("run {count} {threads}"))?[..] {
            [cpu_ns, wall_ns] => Ok(Run { cpu_ns, wall_ns }),
            _ => bail!("{}: no answer to `run`", self.name),
        }
    }

    /// Runs `rate` operations a second for this number of milliseconds, spread over `threads`
    /// threads.
    pub(crate) fn paced(&mut self, rate: u64, milliseconds: u64, threads: u64) -> Result<Paced> {
        match self.ask(&format!("paced {rate} {milliseconds} {threads}"))?[..] {
            [recorded, cpu_ns, wall_ns, burst] => {
                self.calls += recorded as u64;
                Ok(Paced { recorded, cpu_ns, wall_ns, burst })
            }
            _ => bail!("{}: no answer to `paced`", self.name),
        }
    }

    /// CPU time in nanoseconds of the first operation of each new thread, minus that of its second
    /// one. With 0 threads, of the thread that executes commands.
    pub(crate) fn first(&mut self, threads: u64) -> Result<Vec<f64>> {
        self.calls += 2 * threads.max(1);
        self.ask(&format!("first {threads}"))
    }

    /// Starts threads that do one operation each and sleep afterwards.
    pub(crate) fn rest(&mut self, threads: u64) -> Result<()> {
        self.calls += threads;
        self.say(&format!("rest {threads}"))?;
        self.expect("resting")
    }

    fn ask(&mut self, question: &str) -> Result<Vec<f64>> {
        self.say(question)?;
        let line = self.hear()?;
        line.split_whitespace()
            .map(|word| word.parse().with_context(|| format!("{}: answered `{}`", self.name, line.trim())))
            .collect()
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("closed")?;
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .with_context(|| format!("{} has ended", self.name))
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "{} ended without an answer", self.name);
        Ok(line)
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let line = self.hear()?;
        ensure!(line.trim() == word, "{} said `{}` instead of `{word}`", self.name, line.trim());
        Ok(())
    }

    /// Closes the worker's input and waits for its end.
    pub(crate) fn finish(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "{}: {status}", self.name);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        // A worker that does not end by itself is killed. The kill has no effect on one that has
        // ended.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Operations of a stepped worker before those that are counted.
const WARM_UP: u64 = 1000;

/// User-mode instructions per operation: single-steps a new worker through `count` operations.
///
/// The count is exact and independent of the load and of performance counters, which virtual
/// machines rarely have. A system call counts as one instruction.
///
/// # Errors
/// Also if the operations were not recorded as expected.
#[cfg(target_arch = "x86_64")]
pub(crate) fn instructions(name: &str, mut command: Command, count: u64, watched: &Watched) -> Result<f64> {
    // SAFETY: only makes a system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut worker = Worker::spawn(name, command)?;
    let pid = worker.pid() as libc::pid_t;
    wait_for_stop(pid)?;
    resume(pid, libc::PTRACE_CONT)?;
    worker.expect("ready")?;
    let proof = watched.start()?;
    worker.say(&format!("step {count}"))?;
    while !wait_for_stop(pid)? {
        resume(pid, libc::PTRACE_CONT)?;
    }
    let mut steps = 0u64;
    loop {
        resume(pid, libc::PTRACE_SINGLESTEP)?;
        if wait_for_stop(pid)? {
            break;
        }
        steps += 1;
    }
    resume(pid, libc::PTRACE_CONT)?;
    worker.expect("done")?;
    proof.end(&worker, WARM_UP + count)?;
    worker.finish()?;
    Ok(steps as f64 / count as f64)
}

/// Waits until the traced process stops. Returns true if it has reached a breakpoint instruction.
fn wait_for_stop(pid: libc::pid_t) -> Result<bool> {
    /// `SI_KERNEL`: a trap that is not a single step.
    const BREAKPOINT: i32 = 0x80;
    let mut status = 0;
    // SAFETY: the out-pointers have the right types; the process is a traced child of this one.
    unsafe {
        ensure!(
            libc::waitpid(pid, &raw mut status, libc::__WALL) == pid,
            "waitpid: {}",
            std::io::Error::last_os_error()
        );
        ensure!(libc::WIFSTOPPED(status), "the worker ended while it was stepped through");
        let mut info: libc::siginfo_t = std::mem::zeroed();
        ensure!(
            libc::ptrace(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info) == 0,
            "PTRACE_GETSIGINFO: {}",
            std::io::Error::last_os_error()
        );
        Ok(info.si_signo == libc::SIGTRAP && info.si_code == BREAKPOINT)
    }
}

fn resume(pid: libc::pid_t, how: libc::c_uint) -> Result<()> {
    // SAFETY: a traced child of this process, which is stopped.
    let answer = unsafe { libc::ptrace(how, pid, 0, 0) };
    ensure!(answer == 0, "ptrace: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Fails if the loader cannot preload a library. It would start programs without it.
pub(crate) fn expect_preloads(library: &Path) -> Result<()> {
    let mut command = Command::new("true");
    let output = command.env("LD_PRELOAD", library).env("MIOT_DIR", "/nonexistent").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{}: {}: {said}", library.display(), output.status);
    Ok(())
}

/// Folder of the C sources.
pub(crate) fn c_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// Compiles `c/NAME.c` into `dir`.
pub(crate) fn compile(name: &str, dir: &Path, flags: &[&str]) -> Result<PathBuf> {
    let (source, out) = (c_sources().join(format!("{name}.c")), dir.join(name));
    let output = Command::new("cc")
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-I"])
        .arg(c_sources())
        .arg("-o")
        .arg(&out)
        .arg(source)
        .args(flags)
        .arg("-lpthread")
        .output()
        .context("cannot start the C compiler `cc`")?;
    ensure!(output.status.success(), "cc {name}.c: {}", String::from_utf8_lossy(&output.stderr));
    Ok(out)
}
