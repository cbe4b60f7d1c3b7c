//! A log-server alone, for simulated nodes.

use crate::daemons;
use crate::process::{self, Usage};
use anyhow::{Result, ensure};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;

/// A running log-server, killed when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    address: String,
    trace: PathBuf,
}

impl Server {
    /// Starts a log-server with its trace in `dir`. `settings` are lines of its configuration.
    pub(crate) fn start(dir: &Path, settings: &str) -> Result<Server> {
        Server::start_on(dir, &format!("127.0.0.1:{}", daemons::free_port()?), settings)
    }

    /// [`Server::start`] on this address.
    pub(crate) fn start_on(dir: &Path, address: &str, settings: &str) -> Result<Server> {
        std::fs::create_dir_all(dir)?;
        let (address, trace) = (address.to_string(), dir.join("trace"));
        let text = format!("listen = {address:?}\ntrace = {trace:?}\n{settings}\n");
        let child = daemons::spawn("log-server", dir, &text)?;
        let server = Server { child: Some(child), address, trace };
        daemons::wait_until("log-server", dir, || TcpStream::connect(&server.address).is_ok())?;
        Ok(server)
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Trace directory.
    pub(crate) fn trace(&self) -> &Path {
        &self.trace
    }

    /// Process id. 0 after its end.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Stops the log-server. Everything is sealed when this returns.
    pub(crate) fn stop(mut self) -> Result<Usage> {
        let usage = self.child.take().map(|mut child| process::terminate(&mut child)).unwrap_or_default();
        ensure!(usage.success, "the log-server ended with an error: {usage:?}");
        Ok(usage)
    }

    /// Kills the log-server with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.kill_child();
    }

    fn kill_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_child();
    }
}
