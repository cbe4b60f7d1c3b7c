//! The daemons as an administrator starts them, on loopback.

use crate::built::built;
use crate::process::{Background, until};
use miot_proto::control::{self, word};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// A port that was free a moment ago.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("no free port: {e}"));
    listener.local_addr().unwrap_or_else(|e| panic!("{e}")).port()
}

/// How a log-server is started.
#[must_use]
pub fn server_command(listen: &str, trace: &Path) -> Command {
    let mut command = Command::new(&built().log_server);
    command.arg("--listen").arg(listen).arg("--trace").arg(trace);
    command
}

/// How a log-client is started.
#[must_use]
pub fn client_command(server: &str, node: &str, dir: &Path) -> Command {
    let mut command = Command::new(&built().log_client);
    command.arg("--server").arg(server).arg("--node").arg(node).arg("--dir").arg(dir);
    command
}

/// A log-server that is ready for connections.
#[must_use]
pub fn server(port: u16, trace: &Path) -> Background {
    ready(&mut server_command(&format!("127.0.0.1:{port}"), trace))
}

/// A log-server that is started by `command` and is ready for connections.
#[must_use]
pub fn ready(command: &mut Command) -> Background {
    let mut server = Background::start(command);
    until("the log-server is ready", || {
        assert!(server.running(), "log-server ended\n{}", server.printed());
        server.printed().contains("log-server is ready")
    });
    server
}

/// A log-client that has made its MIOT directory.
#[must_use]
pub fn client(port: u16, node: &str, dir: &Path) -> Background {
    started(&mut client_command(&format!("127.0.0.1:{port}"), node, dir), dir)
}

/// A log-client that is started by `command` and has made its MIOT directory.
#[must_use]
pub fn started(command: &mut Command, dir: &Path) -> Background {
    let mut client = Background::start(command);
    until("the log-client has made its control page", || {
        assert!(client.running(), "log-client ended\n{}", client.printed());
        dir.join(control::FILE).exists()
    });
    client
}

/// How often the log-client that serves this directory has swept.
///
/// # Panics
/// If it has no control page.
#[must_use]
pub fn sweeps(dir: &Path) -> u64 {
    let page = std::fs::read(dir.join(control::FILE)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let word = page.get(word::SWEEPS..word::SWEEPS + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// A command that is traced as a daemon's node traces: two variables and nothing else.
#[must_use]
pub fn preloaded(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &built().hook).env(control::DIR_ENV, dir);
    if is_confined() {
        // The user who runs the tests has allowed all system calls.
        command.env("MIOT_SECCOMP", "record");
    }
    command
}

/// True if these tests run under a filter of seccomp, as in a container.
fn is_confined() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp:") && !line.ends_with('0'))
}
