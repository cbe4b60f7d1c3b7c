//! A node with a log-server and a log-client, controlled by `miot ctl` and `miot top`.

use crate::built::built;
use crate::daemons::{client, free_port, server, started};
use crate::process::{Background, Ended, run, signal_id, until};
use crate::trace::PrintedEvent;
use crate::traced::{assert_good, events};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Daemons of a node and their directories.
#[derive(Debug)]
pub struct Node {
    /// Trace directory.
    pub trace: PathBuf,
    /// MIOT directory.
    pub dir: PathBuf,
    /// Port of the log-server on loopback.
    pub port: u16,
    server: Background,
    client: Background,
}

impl Node {
    /// Starts both daemons. `place` is a folder on disk, `shared` one in shared memory.
    #[must_use]
    pub fn start(place: &Path, shared: &Path) -> Node {
        let (port, trace, dir) = (free_port(), place.join("trace"), shared.join("miot"));
        let server = server(port, &trace);
        let client = client(port, "node", &dir);
        Node { trace, dir, port, server, client }
    }

    /// Like [`Node::start`], with a configuration file for the log-client, which must not set
    /// directory and server.
    #[must_use]
    pub fn with_configuration(place: &Path, shared: &Path, file: &Path) -> Node {
        let (port, trace, dir) = (free_port(), place.join("trace"), shared.join("miot"));
        let server = server(port, &trace);
        let mut command = Command::new(&built().log_client);
        command.arg("--config").arg(file).arg("--dir").arg(&dir);
        command.args(["--server", &format!("127.0.0.1:{port}"), "--node", "node"]);
        let client = started(&mut command, &dir);
        Node { trace, dir, port, server, client }
    }

    /// Runs `miot ctl` on this node.
    #[must_use]
    pub fn ctl(&self, words: &[&str]) -> Ended {
        run(Command::new(&built().miot).arg("ctl").args(words).arg("--dir").arg(&self.dir))
    }

    /// Runs `miot ctl` on this node and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn steer(&self, words: &[&str]) -> String {
        self.ctl(words).success().stdout
    }

    /// Returns `miot ctl status` as JSON.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn status(&self) -> Value {
        let text = self.steer(&["status", "--format", "json"]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Returns the requests in flight, as `miot top` reports them.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn in_flight(&self, words: &[&str]) -> Vec<Value> {
        let text = self.top(&[&["--format", "json"], words].concat());
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// Returns the output of `miot top --in-flight`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn top(&self, words: &[&str]) -> String {
        let mut top = Command::new(&built().miot);
        run(top.args(["top", "--in-flight"]).args(words).arg("--dir").arg(&self.dir)).success().stdout
    }

    /// Sends a signal to the log-client.
    pub fn signal(&self, signal: Signal) {
        signal_id(self.client.id(), signal);
    }

    /// Stops the log-client (SIGSTOP) and waits until all its threads have stopped.
    ///
    /// # Panics
    /// If they do not stop.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.client.id());
        until("the log-client stands still", || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap_or_else(|e| panic!("{tasks}: {e}")).flatten();
            tasks.all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        });
    }

    /// Log of the log-client.
    #[must_use]
    pub fn log(&self) -> String {
        self.client.printed()
    }

    /// Events in the trace so far.
    #[must_use]
    pub fn so_far(&self) -> Vec<PrintedEvent> {
        // This file is the last one that a new trace directory gets.
        if self.trace.join("miot-trace.json").exists() { events(&self.trace) } else { Vec::new() }
    }

    /// Stops the log-client, then the log-server, and checks the trace.
    ///
    /// # Panics
    /// If a daemon ends with an error or the check finds a problem.
    pub fn end(self) -> Vec<PrintedEvent> {
        self.client.end();
        self.server.end();
        assert_good(&self.trace);
        events(&self.trace)
    }
}
