//! Processes: their resource usage, the processors that they run on, and their end.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// CPU time in seconds that a process and its threads have used so far. 0 if it has ended.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    // /proc/PID/stat counts in ticks of 10 ms. schedstat of the threads counts in nanoseconds, but
    // excludes threads that have ended.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
    };
    ticks().unwrap_or(0.0)
}

/// CPU time of the present threads of a process, exact, in user and kernel mode.
pub(crate) fn threads_cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let spent = tasks.filter_map(|task| {
        let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedstat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

/// CPU time of the calling thread so far, seconds.
pub(crate) fn this_thread_cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer has the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns a number of `/proc/PID/status`, summed over the threads if each has one; 0 if there is
/// none.
pub(crate) fn status(pid: u32, key: &str) -> u64 {
    let number = |path: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let whole = std::path::PathBuf::from(format!("/proc/{pid}"));
    if !key.ends_with("switches") {
        return number(whole.join("status")).unwrap_or(0);
    }
    let tasks = std::fs::read_dir(whole.join("task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| number(task.path().join("status"))).sum()
}

/// Bytes that the files of a folder occupy.
pub(crate) fn blocks(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.blocks() * 512).sum()
}

/// Raises the limit of open files to the hard limit, for this process and its children.
pub(crate) fn allow_many_files() -> anyhow::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the in- and out-pointers have the right type.
    let answer = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    anyhow::ensure!(answer == 0, "the limit of open files: {}", Error::last_os_error());
    Ok(())
}

/// Returns the output of a command that must exit with code 0.
pub(crate) fn said(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| anyhow::anyhow!("cannot start {name}: {error}"))?;
    anyhow::ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Sends SIGTERM to a child and waits for it. Kills it if it takes more than 30 seconds.
pub(crate) fn terminate(child: &mut Child) -> Usage {
    // SAFETY: a child that was not waited for, so that its process id is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    wait(child, Duration::from_secs(30))
}

/// A running child, killed when dropped.
#[derive(Debug)]
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn new(child: Child) -> Running {
        Running(Some(child))
    }

    /// [`terminate`].
    pub(crate) fn terminate(mut self) -> Usage {
        // Afterwards its process id may be that of another process.
        self.0.take().map(|mut child| terminate(&mut child)).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Resources that a process used in its life, including its waited-for children.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time in user and kernel mode, seconds.
    pub(crate) cpu: f64,
    /// CPU time in kernel mode, seconds.
    pub(crate) kernel: f64,
    /// Page faults without a read from a disk.
    pub(crate) faults: u64,
    /// True if it ended by itself with exit code 0.
    pub(crate) success: bool,
    /// Status of `wait`: the exit code times 256, or the number of the signal.
    pub(crate) status: i32,
}

/// Waits for a child that ends soon, without polling.
pub(crate) fn wait_for(child: &mut Child) -> Result<Usage> {
    let (mut status, mut usage) = (0, no_usage());
    // SAFETY: the out-pointers have the right types.
    let answer = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) };
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(used(status, &usage)) }
}

fn used(status: libc::c_int, usage: &libc::rusage) -> Usage {
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage {
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        kernel: seconds(usage.ru_stime),
        faults: usage.ru_minflt as u64,
        success: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        status,
    }
}

/// Waits for a child. Kills it if it takes longer than `patience`.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Usage {
    let pid = child.id() as libc::pid_t;
    let until = Instant::now() + patience;
    let (mut status, mut usage) = (0, no_usage());
    loop {
        // SAFETY: the out-pointers have the right types.
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
    used(status, &usage)
}

/// Resources that a process used from now to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) usage: Usage,
    pub(crate) seconds: f64,
    /// Peak resident memory, bytes.
    pub(crate) peak: u64,
}

/// Waits for a child that was just started. Its memory is polled, because the value of `wait`
/// includes the memory of the process that started it.
pub(crate) fn measure(child: &mut Child, patience: Duration) -> Measured {
    let (pid, started) = (child.id(), Instant::now());
    let ended = AtomicBool::new(false);
    // On a busy machine the child may end before the other thread runs.
    let first = status(pid, "VmHWM");
    std::thread::scope(|scope| {
        let peak = scope.spawn(|| {
            let mut peak = first;
            while !ended.load(Ordering::Relaxed) {
                peak = peak.max(status(pid, "VmHWM"));
                std::thread::sleep(Duration::from_millis(2));
            }
            peak
        });
        let usage = wait(child, patience);
        let seconds = started.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        Measured { usage, seconds, peak: peak.join().unwrap_or(0) << 10 }
    })
}

fn no_usage() -> libc::rusage {
    // SAFETY: a struct of integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// Makes the process end when the calling thread ends, so that a killed run leaves no daemons.
pub(crate) fn ends_with_us(command: &mut Command) -> &mut Command {
    signaled_with_us(command, libc::SIGTERM)
}

/// Like [`ends_with_us`], for a process that may be stopped.
pub(crate) fn killed_with_us(command: &mut Command) -> &mut Command {
    signaled_with_us(command, libc::SIGKILL)
}

fn signaled_with_us(command: &mut Command, signal: libc::c_int) -> &mut Command {
    // SAFETY: only makes a system call between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, signal) {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        })
    }
}

/// While this value exists, this thread and the processes that it starts leave the last processor
/// to [pinned](Aside::pin) processes. With only one processor, nothing is pinned.
pub(crate) struct Aside(Option<libc::cpu_set_t>);

impl Aside {
    /// Leaves the last processor.
    pub(crate) fn step() -> Result<Aside> {
        let before = allowed()?;
        let Some(last) = last_of_many(&before) else { return Ok(Aside(None)) };
        let mut others = before;
        // SAFETY: a processor of the set.
        unsafe { libc::CPU_CLR(last, &mut others) };
        allow(&others)?;
        Ok(Aside(Some(before)))
    }

    /// Makes the process run on the free processor.
    pub(crate) fn pin(&self, command: &mut Command) {
        let Some(last) = self.0.as_ref().and_then(last_of_many) else { return };
        // SAFETY: a set of bits, for which zero is valid, and a processor of the set. Between fork
        // and exec there is only a system call.
        unsafe {
            let mut only: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(last, &mut only);
            command.pre_exec(move || allow(&only));
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = allow(before)
        {
            eprintln!("miot-bench stays on some processors: {error}");
        }
    }
}

/// Returns the last processor of a set with more than one.
fn last_of_many(set: &libc::cpu_set_t) -> Option<usize> {
    // SAFETY: in bounds of the set.
    let mut members = (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, set) });
    members.next()?;
    members.next_back()
}

fn allowed() -> Result<libc::cpu_set_t> {
    // SAFETY: a set of bits, for which zero is valid, as an out-pointer with its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) {
            -1 => Err(Error::last_os_error()),
            _ => Ok(set),
        }
    }
}

fn allow(set: &libc::cpu_set_t) -> Result<()> {
    // SAFETY: an in-pointer with its size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(set), set) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}
