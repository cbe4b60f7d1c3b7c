//! A log-client and a log-server of our own, as separate processes on the loopback.

use crate::process::{self, Usage};
use anyhow::{Context, Result, ensure};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Both daemons, running. What is left of them ends with this value.
pub(crate) struct Daemons {
    server: Child,
    client: Option<Child>,
    address: String,
    node: PathBuf,
    trace: PathBuf,
}

/// What the daemons used, from start to end.
pub(crate) struct Ended {
    pub(crate) client: Usage,
    pub(crate) server: Usage,
    /// Seconds from the signal to the end, of the log-client and of the log-server.
    pub(crate) stop_seconds: [f64; 2],
    /// Bytes of the live part before it was sealed.
    pub(crate) live_bytes: u64,
}

/// A program that was built with this one.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "{} is missing: build it with `cargo build --release`", path.display());
    Ok(path)
}

/// A TCP port of the loopback that nobody uses now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Daemons {
    /// Starts both: trace and configuration in `dir`, lanes in `node`. `when_full` is the policy of lanes.
    pub(crate) fn start(dir: &Path, node: &Path, when_full: &str) -> Result<Daemons> {
        std::fs::create_dir_all(dir)?;
        std::fs::create_dir_all(node)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let trace = dir.join("trace");
        let spawn = |name: &str, text: String| -> Result<Child> {
            let file = dir.join(format!("{name}.toml"));
            std::fs::write(&file, text)?;
            let log = std::fs::File::create(dir.join(format!("{name}.log")))?;
            Command::new(built(name)?)
                .arg("--config")
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .with_context(|| name.to_string())
        };
        let server = spawn("log-server", format!("listen = {address:?}\ntrace = {trace:?}\n"))?;
        let mut daemons = Daemons { server, client: None, address, node: node.into(), trace };
        wait_until("log-server", dir, || TcpStream::connect(&daemons.address).is_ok())?;
        let settings = format!(
            "dir = {node:?}\nnode = \"bench\"\nserver = {:?}\nwhen_full = {when_full:?}\nwait = \"60s\"\nstop = \"60s\"\n",
            daemons.address
        );
        daemons.client = Some(spawn("log-client", settings)?);
        let page = node.join(miot_proto::control::FILE);
        wait_until("log-client", dir, || page.exists())?;
        Ok(daemons)
    }

    /// For `MIOT_DIR`.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The log-server's host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The trace directory.
    pub(crate) fn trace(&self) -> &Path {
        &self.trace
    }

    /// Stops the log-client, which delivers what was recorded, then the log-server, which seals it.
    pub(crate) fn stop(mut self) -> Result<Ended> {
        let started = Instant::now();
        let client = self.client.as_mut().map(process::terminate).unwrap_or_default();
        let client_ended = started.elapsed().as_secs_f64();
        let live_bytes = folder_bytes(&self.trace.join("live"));
        let server = process::terminate(&mut self.server);
        let stop_seconds = [client_ended, started.elapsed().as_secs_f64() - client_ended];
        ensure!(client.success && server.success, "a daemon did not end well: {client:?}, {server:?}");
        Ok(Ended { client, server, stop_seconds, live_bytes })
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for child in self.client.iter_mut().chain([&mut self.server]) {
            if child.try_wait().is_ok_and(|status| status.is_none()) {
                process::terminate(child);
            }
        }
    }
}

fn wait_until(name: &str, dir: &Path, ready: impl Fn() -> bool) -> Result<()> {
    let patience = Instant::now() + Duration::from_secs(10);
    while !ready() {
        let log = || std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
        ensure!(Instant::now() < patience, "{name} does not come up: {}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Bytes of all files below a folder; zero if there is none.
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
