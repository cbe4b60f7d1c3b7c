//! A node: a log-server, a log-client, and `miot ctl` and `miot top` on them.

use crate::built::built;
use crate::daemons::{client, free_port, server, started};
use crate::process::{Background, Ended, run, signal_id, until};
use crate::trace::Row;
use crate::traced::{assert_good, events};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The daemons of a node, and their directories.
#[derive(Debug)]
pub struct Node {
    /// The trace directory.
    pub trace: PathBuf,
    /// The MIOT directory.
    pub dir: PathBuf,
    /// The log-server's port on loopback.
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

    /// The same with a configuration file for the log-client, which must not say anything about
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

    /// `miot ctl` on this node.
    #[must_use]
    pub fn ctl(&self, words: &[&str]) -> Ended {
        run(Command::new(&built().miot).arg("ctl").args(words).arg("--dir").arg(&self.dir))
    }

    /// `miot ctl` on this node, which succeeds. What it printed.
    ///
    /// # Panics
    /// If it does not.
    pub fn steer(&self, words: &[&str]) -> String {
        self.ctl(words).success().stdout
    }

    /// `miot ctl status`, as JSON.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn status(&self) -> Value {
        let text = self.steer(&["status", "--format", "json"]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Requests in flight, as `miot top` has them.
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

    /// What `miot top --in-flight` prints.
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

    /// Stops the log-client (SIGSTOP) and waits until all its threads stand still.
    ///
    /// # Panics
    /// If they do not.
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

    /// What the log-client has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.client.printed()
    }

    /// Events that are in the trace by now.
    #[must_use]
    pub fn so_far(&self) -> Vec<Row> {
        // The last file that is made of a new trace.
        if self.trace.join("miot-trace.json").exists() { events(&self.trace) } else { Vec::new() }
    }

    /// Stops the log-client, then the log-server, and checks the trace.
    ///
    /// # Panics
    /// If one of the three finds something wrong.
    pub fn end(self) -> Vec<Row> {
        self.client.end();
        self.server.end();
        assert_good(&self.trace);
        events(&self.trace)
    }
}
