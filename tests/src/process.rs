//! Runs programs with a watchdog, which stops a program that hangs and reports its output.

use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest run time of any program of a test. It is far above the normal time, so that only a hang
/// reaches it.
pub const WATCHDOG: Duration = Duration::from_secs(300);

/// Longest time until the last lines of a program that has ended are read. Children that it leaves
/// may keep its outputs open.
const LAST_LINES: Duration = Duration::from_secs(5);

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// Exit code, or 128 + signal.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Returns itself if the exit code is 0.
    ///
    /// # Panics
    /// With the whole output otherwise.
    #[must_use]
    pub fn success(self) -> Ended {
        assert!(self.status.success(), "{}\nstdout: {}\nstderr: {}", self.status, self.stdout, self.stderr);
        self
    }
}

/// Runs a program to its end, with an empty standard input.
///
/// # Panics
/// If it cannot be started or reaches the watchdog's limit.
#[must_use]
pub fn run(command: &mut Command) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    let mut child = command.process_group(0).spawn().unwrap_or_else(|e| panic!("{shown}: {e}"));
    let out = reader(child.stdout.take());
    let err = reader(child.stderr.take());
    let status = wait(&mut child, WATCHDOG);
    if status.is_none() {
        // Children of the program keep the pipes open, so the whole group is killed.
        kill_group(&child);
    }
    let texts = [out, err].map(|thread| thread.join().unwrap_or_default());
    let [stdout, stderr] = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let status =
        status.unwrap_or_else(|| panic!("{shown}: still running\nstdout: {stdout}\nstderr: {stderr}"));
    Ended { status, stdout, stderr }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _: io::Result<usize> = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for the end of a program. Returns `None` after `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while start.elapsed() < limit {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    None
}

/// Waits until a condition holds.
///
/// # Panics
/// With `what` in the message if the condition does not hold before the watchdog's limit.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "{what}: not after {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to one process.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    signal_id(child.id(), signal);
}

/// Sends a signal to the process of this id.
pub fn signal_id(id: u32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(id as i32) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn kill_group(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

/// A background program that is stopped (by its process id) when the test ends, even if the test
/// fails.
#[derive(Debug)]
pub struct Background {
    child: Child,
    /// Output so far.
    pub output: std::sync::Arc<std::sync::Mutex<String>>,
    collectors: [JoinHandle<()>; 2],
}

impl Background {
    /// Starts the program. The lines of both outputs are collected together.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Background {
        let shown = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}"));
        let output = std::sync::Arc::<std::sync::Mutex<String>>::default();
        let collectors = [collect(child.stdout.take(), &output), collect(child.stderr.take(), &output)];
        Background { child, output, collectors }
    }

    /// Returns a copy of the output so far.
    #[must_use]
    pub fn printed(&self) -> String {
        self.output.lock().map(|text| text.clone()).unwrap_or_default()
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// True while it runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops a daemon with SIGTERM, waits, and returns its output.
    ///
    /// # Panics
    /// If it does not end, or ends with an error.
    #[track_caller]
    pub fn end(self) -> String {
        let (status, text) = self.stop(rustix::process::Signal::TERM);
        assert!(status.success() && !text.contains("panicked"), "{status}\n{text}");
        text
    }

    /// Sends a signal, waits for the end, and returns exit status and output.
    ///
    /// # Panics
    /// If the program does not end.
    #[must_use]
    pub fn stop(self, how: rustix::process::Signal) -> (ExitStatus, String) {
        signal(&self.child, how);
        self.ended()
    }

    /// Waits for the end, and returns exit status and output.
    ///
    /// # Panics
    /// If the program does not end.
    #[must_use]
    pub fn ended(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child, WATCHDOG);
        let ended = Instant::now();
        while ended.elapsed() < LAST_LINES && !self.collectors.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = self.printed();
        (status.unwrap_or_else(|| panic!("does not stop\n{text}")), text)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects whole lines: both outputs of a program are collected at the same time.
fn collect(
    pipe: Option<impl Read + Send + 'static>,
    into: &std::sync::Arc<std::sync::Mutex<String>>,
) -> JoinHandle<()> {
    let into = into.clone();
    std::thread::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while let Ok(1..) = pipe.read_until(b'\n', &mut line) {
            if let Ok(mut text) = into.lock() {
                text.push_str(&String::from_utf8_lossy(&line));
            }
            line.clear();
        }
    })
}
