//! LTTng-UST as a peer: a session daemon of the benchmark, with one session at a time.

use crate::process::Usage;
use crate::{daemons, worker};
use anyhow::{Context, Result, bail, ensure};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of tries to start a relay daemon, with other ports each time, and the timeout of each.
const RELAY_TRIES: usize = 3;
const RELAY_PATIENCE: Duration = Duration::from_secs(10);

/// A session daemon, ended when this value is dropped.
pub(crate) struct Lttng {
    home: PathBuf,
    worker: PathBuf,
    daemon: Option<Child>,
}

/// Destination of a session's trace.
pub(crate) enum To<'a> {
    /// Written by the consumer daemon into this folder.
    Local(&'a Path),
    /// Sent to the relay daemon on these loopback ports (control, data).
    Relay(u16, u16),
}

impl Lttng {
    /// Builds the tracepoint provider and starts a session daemon. Prints the reason and returns
    /// `None` where LTTng is not installed.
    pub(crate) fn start(dir: &Path) -> Result<Option<Lttng>> {
        for tool in ["lttng", "lttng-sessiond", "lttng-relayd"] {
            if Command::new(tool)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_err()
            {
                eprintln!(
                    "LTTng IS SKIPPED: no `{tool}`; the Debian packages are lttng-tools, liblttng-ust-dev and babeltrace2"
                );
                return Ok(None);
            }
        }
        let worker = match worker::compile("lttng", dir, &["-llttng-ust", "-ldl"]) {
            Ok(worker) => worker,
            Err(error) => {
                eprintln!("LTTng IS SKIPPED: {error:#}; the Debian package is liblttng-ust-dev");
                return Ok(None);
            }
        };
        let home = dir.join("lttng-home");
        std::fs::create_dir_all(&home)?;
        let mut lttng = Lttng { home, worker, daemon: None };
        // As root there is one session daemon per machine, and sessions of other users would be
        // measured as well.
        let taken = || eprintln!("LTTng IS SKIPPED: somebody else's session daemon runs here; stop it");
        if lttng.command("lttng").arg("list").output()?.status.success() {
            taken();
            return Ok(None);
        }
        let log = std::fs::File::create(dir.join("lttng-sessiond.log"))?;
        let daemon = crate::process::ends_with_us(&mut lttng.command("lttng-sessiond"))
            .arg("--no-kernel")
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("lttng-sessiond")?;
        lttng.daemon = Some(daemon);
        let patience = Instant::now() + Duration::from_secs(10);
        while !lttng.command("lttng").arg("list").output()?.status.success() {
            ensure!(Instant::now() < patience, "lttng-sessiond does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        // A second daemon ends at once.
        if let Some(daemon) = &mut lttng.daemon
            && daemon.try_wait()?.is_some()
        {
            taken();
            return Ok(None);
        }
        Ok(Some(lttng))
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LTTNG_HOME", &self.home)
            .env("LTTNG_UST_REGISTER_TIMEOUT", "-1")
            .env("LTTNG_UST_ALLOW_BLOCKING", "1")
            .stdin(Stdio::null());
        command
    }

    fn lttng(&self, args: &[&str]) -> Result<String> {
        let output = self.command("lttng").args(args).output()?;
        ensure!(
            output.status.success(),
            "lttng {}: {}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a session that records the benchmark's tracepoints, with large buffers. `blocking`:
    /// producers wait instead of dropping.
    pub(crate) fn record(&self, session: &str, to: &To<'_>, blocking: bool) -> Result<()> {
        self.record_into(session, to, blocking, [8, 4 << 20])
    }

    /// Like [`Lttng::record`], with the given number and size of sub-buffers per processor.
    pub(crate) fn record_into(
        &self,
        session: &str,
        to: &To<'_>,
        blocking: bool,
        buffers: [u64; 2],
    ) -> Result<()> {
        match to {
            To::Local(dir) => self.lttng(&["create", session, "--output", &dir.display().to_string()])?,
            To::Relay(control, data) => self.lttng(&[
                "create",
                session,
                "-C",
                &format!("tcp://127.0.0.1:{control}"),
                "-D",
                &format!("tcp://127.0.0.1:{data}"),
            ])?,
        };
        let timeout = if blocking { "inf" } else { "0" };
        self.lttng(&[
            "enable-channel",
            "-u",
            "-s",
            session,
            "io",
            "--subbuf-size",
            &buffers[1].to_string(),
            "--num-subbuf",
            &buffers[0].to_string(),
            "--blocking-timeout",
            timeout,
        ])?;
        self.lttng(&["enable-event", "-u", "-s", session, "-c", "io", "miot_bench:*"])?;
        self.lttng(&["start", session])?;
        Ok(())
    }

    /// Stops a session and waits until its buffers are written. Returns the number of dropped
    /// events and the time of the stop.
    pub(crate) fn stop(&self, session: &str) -> Result<(u64, Instant)> {
        self.lttng(&["stop", session])?;
        let stopped = Instant::now();
        let listing = self.lttng(&["list", session])?;
        let discarded = listing
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Discarded events:"))
            .filter_map(|count| count.trim().parse::<u64>().ok())
            .sum();
        self.lttng(&["destroy", session])?;
        Ok((discarded, stopped))
    }

    /// Command of a worker with tracepoints. `way` is `pair` or `end`.
    pub(crate) fn worker(&self, way: &str) -> Command {
        let mut command = self.command(&self.worker);
        command.arg(way);
        command
    }

    /// Process ids of the session daemon and of the consumer daemons it started.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let Some(daemon) = &self.daemon else { bail!("the session daemon is somebody else's") };
        let mut pids = vec![daemon.id()];
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let parent =
                stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            if parent.is_some_and(|parent: u32| pids.contains(&parent)) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// Starts a relay daemon that writes into `dir`. Returns it with its ports for control and
    /// data. If another process takes a port between the choice and the start, other ports are
    /// tried.
    pub(crate) fn relay(&self, dir: &Path) -> Result<(Child, [u16; 2])> {
        let log = self.home.join("relayd.log");
        for _ in 0..RELAY_TRIES {
            let [control, data, live] = daemons::free_ports()?;
            let output = std::fs::File::create(&log)?;
            let mut daemon = crate::process::ends_with_us(&mut self.command("lttng-relayd"))
                .args(["-C", &format!("tcp://127.0.0.1:{control}"), "-D", &format!("tcp://127.0.0.1:{data}")])
                .args(["-L", &format!("tcp://127.0.0.1:{live}"), "-o"])
                .arg(dir)
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()?;
            let patience = Instant::now() + RELAY_PATIENCE;
            while Instant::now() < patience {
                if TcpStream::connect(("127.0.0.1", data)).is_ok() {
                    return Ok((daemon, [control, data]));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            crate::process::terminate(&mut daemon);
        }
        bail!("lttng-relayd does not come up: {}", std::fs::read_to_string(&log).unwrap_or_default());
    }
}

/// Puts the events of a trace in order with babeltrace2. Returns their number and what it used.
///
/// # Errors
/// babeltrace2 is missing or fails.
pub(crate) fn order(dir: &Path) -> Result<(u64, Usage)> {
    // Merges all streams by time and counts; nothing is printed per event.
    let mut tool = Command::new("babeltrace2")
        .arg(dir)
        .args(["--component", "sink.utils.counter", "--params", "step=+1000000000000"])
        .stdout(Stdio::piped())
        .spawn()
        .context("babeltrace2")?;
    let mut counts = String::new();
    if let Some(mut out) = tool.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut counts)?;
    }
    let used = crate::process::wait(&mut tool, Duration::from_secs(120));
    ensure!(used.success, "{}: babeltrace2 failed", dir.display());
    let found = counts
        .lines()
        .filter_map(|line| line.trim().strip_suffix("Event messages")?.trim().parse::<u64>().ok())
        .next_back();
    Ok((found.with_context(|| format!("{}: babeltrace2 printed {counts}", dir.display()))?, used))
}

/// Counts the events that a trace lacks. `discarded`: LTTng's own count, which was once seen below
/// zero; a difference is printed.
pub(crate) fn missing(dir: &Path, made: u64, discarded: u64) -> Result<u64> {
    let (found, _) = order(dir)?;
    ensure!(found <= made, "LTTng has {found} events of {made} in {}", dir.display());
    let missing = made - found;
    if missing != discarded {
        eprintln!("{}: {missing} of {made} events are missing; LTTng says {discarded}", dir.display());
    }
    Ok(missing)
}

impl Drop for Lttng {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            crate::process::terminate(daemon);
        }
    }
}
