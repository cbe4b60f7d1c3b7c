//! A log-client and a log-server of the benchmark, as separate processes on loopback.

use crate::process::{self, Usage};
use crate::sink::Sink;
use anyhow::{Context, Result, ensure};
use miot_log_client::ControlView;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Both daemons, running. They are stopped when this value is dropped.
pub(crate) struct Daemons {
    server: Server,
    client: Option<Child>,
    address: String,
    /// Address of the log-client's metrics.
    metrics: String,
    node: PathBuf,
    trace: PathBuf,
    log: PathBuf,
    /// Line of both configurations.
    transport: String,
}

/// Receiver of the log-client's batches.
enum Server {
    Ours(Child),
    /// Discards them.
    Sink(#[allow(dead_code, reason = "ends when it is dropped")] Sink),
}

/// Resources that the daemons used, from start to end.
pub(crate) struct Ended {
    pub(crate) client: Usage,
    pub(crate) server: Usage,
    /// Seconds from the signal to the end, of the log-client and of the log-server.
    pub(crate) stop_seconds: [f64; 2],
    /// Bytes of the live part before it was sealed.
    pub(crate) live_bytes: u64,
    /// Records lost for any reason, as reported by the log-client.
    pub(crate) lost: u64,
    /// Records that the log-client found.
    pub(crate) events: u64,
}

/// Path of a program that was built with this one.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "{} is missing: build it with `cargo build --profile dist`", path.display());
    Ok(path)
}

/// Returns an unused TCP port on loopback.
pub(crate) fn free_port() -> Result<u16> {
    Ok(free_ports::<1>()?[0])
}

/// Returns several different unused ports.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let held = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

impl Daemons {
    /// Starts both daemons, with trace and configuration in `dir` and lanes in `node`. `when_full`
    /// is the policy of the lanes.
    pub(crate) fn start(dir: &Path, node: &Path, when_full: &str) -> Result<Daemons> {
        Daemons::start_through(dir, node, when_full, None)
    }

    /// Like [`Daemons::start`], with a broker between both daemons.
    pub(crate) fn start_through(
        dir: &Path,
        node: &Path,
        when_full: &str,
        broker: Option<&str>,
    ) -> Result<Daemons> {
        std::fs::create_dir_all(dir)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let trace = dir.join("trace");
        let transport = broker.map_or(String::new(), |url| format!("transport = {url:?}\n"));
        let text = format!("listen = {address:?}\ntrace = {trace:?}\n{transport}");
        let server = Server::Ours(spawn("log-server", dir, &text)?);
        let mut daemons = Daemons::new(server, address, dir, node);
        daemons.transport = transport;
        wait_until("log-server", dir, || TcpStream::connect(&daemons.address).is_ok())?;
        daemons.start_client(dir, when_full)?;
        Ok(daemons)
    }

    /// Starts a log-client whose server discards everything, so that no log-server uses processor
    /// time.
    pub(crate) fn start_client_alone(dir: &Path, node: &Path, when_full: &str) -> Result<Daemons> {
        std::fs::create_dir_all(dir)?;
        let sink = Sink::start()?;
        let address = sink.address().to_string();
        let mut daemons = Daemons::new(Server::Sink(sink), address, dir, node);
        daemons.start_client(dir, when_full)?;
        Ok(daemons)
    }

    fn new(server: Server, address: String, dir: &Path, node: &Path) -> Daemons {
        let (trace, log) = (dir.join("trace"), dir.join("log-client.log"));
        Daemons {
            server,
            client: None,
            address,
            metrics: String::new(),
            node: node.into(),
            trace,
            log,
            transport: String::new(),
        }
    }

    fn start_client(&mut self, dir: &Path, when_full: &str) -> Result<()> {
        let node = &self.node;
        std::fs::create_dir_all(node)?;
        self.metrics = format!("127.0.0.1:{}", free_port()?);
        let settings = format!(
            "dir = {node:?}\nnode = \"bench\"\nserver = {:?}\nhttp = {:?}\nwhen_full = {when_full:?}\nwait = \"60s\"\nstop = \"60s\"\n{}",
            self.address, self.metrics, self.transport
        );
        self.client = Some(spawn("log-client", dir, &settings)?);
        // It drains nothing before its first sweep, which is after its clocks are calibrated.
        let has_swept = || ControlView::of_node(node).is_ok_and(|view| view.reader().sweeps > 0);
        wait_until("log-client", dir, has_swept)
    }

    /// Value of `MIOT_DIR`.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// Host and port of the log-server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Trace directory.
    pub(crate) fn trace(&self) -> &Path {
        &self.trace
    }

    /// Process id of the log-client, while it runs.
    pub(crate) fn client_pid(&self) -> Option<u32> {
        self.client.as_ref().map(Child::id)
    }

    /// Process ids of the log-client and, if there is one, of the log-server.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let server = match &self.server {
            Server::Ours(child) => Some(child.id()),
            Server::Sink(_) => None,
        };
        self.client_pid().into_iter().chain(server).collect()
    }

    /// Records that programs have made so far, of which the log-client has read or missed each.
    /// Waits until the number is stable.
    ///
    /// # Errors
    /// The log-client does not report the numbers.
    pub(crate) fn records(&self) -> Result<u64> {
        /// The log-client updates its report once a second.
        const STEP: Duration = Duration::from_millis(1300);
        let mut last = None;
        loop {
            std::thread::sleep(STEP);
            let now = self.reported_records()?;
            if last == Some(now) {
                return Ok(now);
            }
            last = Some(now);
        }
    }

    fn reported_records(&self) -> Result<u64> {
        let mut connection = TcpStream::connect(&self.metrics).context("the log-client's metrics")?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut page = String::new();
        connection.read_to_string(&mut page)?;
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse::<f64>().ok())
                .with_context(|| format!("no {name}: {page}"))
        };
        let lost = ["lane_full", "nested", "no_lane"]
            .into_iter()
            .map(|place| value(&format!("miot_client_lost_events_total{{place=\"{place}\"}}")));
        let all = lost.chain([value("miot_client_events_read_total")]);
        Ok(all.sum::<Result<f64>>()? as u64)
    }

    /// Stops the log-client, which delivers its records, then the log-server, which seals them.
    pub(crate) fn stop(mut self) -> Result<Ended> {
        let started = Instant::now();
        let client = self.client.as_mut().map(process::terminate).unwrap_or_default();
        let client_ended = started.elapsed().as_secs_f64();
        let live_bytes = folder_bytes(&self.trace.join("live"));
        let server = match &mut self.server {
            Server::Ours(child) => process::terminate(child),
            Server::Sink(_) => Usage { success: true, ..Usage::default() },
        };
        let stop_seconds = [client_ended, started.elapsed().as_secs_f64() - client_ended];
        ensure!(client.success && server.success, "a daemon ended with an error: {client:?}, {server:?}");
        let report = std::fs::read_to_string(&self.log)?;
        let lost = ["lost_full", "lost_nested", "lost_no_lane"];
        let lost = lost.iter().map(|key| reported(&report, key)).sum::<Option<u64>>().with_context(|| {
            format!("the log-client's report has no losses: {}", report.lines().last().unwrap_or(""))
        })?;
        let events = reported(&report, "events").unwrap_or(0);
        Ok(Ended { client, server, stop_seconds, live_bytes, lost, events })
    }
}

/// Number in the last lines of the log-client's log.
fn reported(log: &str, key: &str) -> Option<u64> {
    let words = log.lines().rfind(|line| line.contains("stopped"))?.split_whitespace();
    words.filter_map(|word| word.split_once('=')).find(|(name, _)| *name == key)?.1.parse().ok()
}

impl Drop for Daemons {
    fn drop(&mut self) {
        let server = match &mut self.server {
            Server::Ours(child) => Some(child),
            Server::Sink(_) => None,
        };
        for child in self.client.iter_mut().chain(server) {
            if child.try_wait().is_ok_and(|status| status.is_none()) {
                process::terminate(child);
            }
        }
    }
}

/// Environment of the log-server in its systemd unit.
fn unit_environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let unit = include_str!("../../../deploy/systemd/miot-log-server.service");
    unit.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='))
}

pub(crate) fn spawn(name: &str, dir: &Path, text: &str) -> Result<Child> {
    let file = dir.join(format!("{name}.toml"));
    std::fs::write(&file, text)?;
    let log = std::fs::File::create(dir.join(format!("{name}.log")))?;
    let mut command = Command::new(built(name)?);
    if name == "log-server" {
        command.envs(unit_environment());
    }
    process::ends_with_us(&mut command)
        .arg("--config")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| name.to_string())
}

pub(crate) fn wait_until(name: &str, dir: &Path, ready: impl Fn() -> bool) -> Result<()> {
    let patience = Instant::now() + Duration::from_secs(10);
    while !ready() {
        let log = || std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
        ensure!(Instant::now() < patience, "{name} does not come up: {}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Bytes of all files below a folder. 0 if there is none.
pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}
