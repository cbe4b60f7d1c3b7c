//! Starts the daemons on loopback as an administrator does.

use crate::built::built;
use crate::process::{Background, until};
use miot_proto::control::{self, word};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns a port that was free at the time of the call.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("no free port: {e}"));
    listener.local_addr().unwrap_or_else(|e| panic!("{e}")).port()
}

/// Returns a free port below those that the kernel gives to connections, so that no connection
/// takes it while a daemon is restarted.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn lasting_port() -> u16 {
    let candidates = std::iter::repeat_with(|| free_port() % 12_000 + 10_000);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(1000).find(is_free).unwrap_or_else(|| panic!("no free port"))
}

/// Command line of a log-server.
#[must_use]
pub fn server_command(listen: &str, trace: &Path) -> Command {
    let mut command = Command::new(&built().log_server);
    command.arg("--listen").arg(listen).arg("--trace").arg(trace);
    command
}

/// Command line of a log-client.
#[must_use]
pub fn client_command(server: &str, node: &str, dir: &Path) -> Command {
    let mut command = Command::new(&built().log_client);
    command.arg("--server").arg(server).arg("--node").arg(node).arg("--dir").arg(dir);
    command
}

/// Starts a log-server and waits until it accepts connections.
#[must_use]
pub fn server(port: u16, trace: &Path) -> Background {
    ready(&mut server_command(&format!("127.0.0.1:{port}"), trace))
}

/// Starts a log-server by `command` and waits until it accepts connections.
#[must_use]
pub fn ready(command: &mut Command) -> Background {
    let mut server = Background::start(command);
    until("the log-server is ready", || {
        assert!(server.running(), "log-server ended\n{}", server.printed());
        server.printed().contains("log-server is ready")
    });
    server
}

/// Starts a log-client and waits until its MIOT directory exists.
#[must_use]
pub fn client(port: u16, node: &str, dir: &Path) -> Background {
    started(&mut client_command(&format!("127.0.0.1:{port}"), node, dir), dir)
}

/// Starts a log-client by `command` and waits until its MIOT directory exists.
#[must_use]
pub fn started(command: &mut Command, dir: &Path) -> Background {
    let mut client = Background::start(command);
    until("the log-client has made its control page", || {
        assert!(client.running(), "log-client ended\n{}", client.printed());
        dir.join(control::FILE).exists()
    });
    client
}

/// Number of sweeps of the log-client that serves this directory.
///
/// # Panics
/// If the directory has no control page.
#[must_use]
pub fn sweeps(dir: &Path) -> u64 {
    let page = std::fs::read(dir.join(control::FILE)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let word = page.get(word::SWEEPS..word::SWEEPS + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Waits until the log-client that serves this directory has checked all processes for having
/// executed another program: every tenth of them each second.
pub fn until_all_inspected(dir: &Path) {
    let (began, before) = (Instant::now(), sweeps(dir));
    until("the log-client has checked all processes", || {
        began.elapsed() > Duration::from_secs(11) && sweeps(dir) > before + 10
    });
}

/// Command that is traced as on a node with daemons: with only two environment variables.
#[must_use]
pub fn preloaded(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &built().hook).env(control::DIR_ENV, dir);
    if is_confined() {
        // The user who runs the tests has permitted all system calls.
        command.env("MIOT_SECCOMP", "record");
    }
    command
}

/// True if the tests run under a seccomp filter, as in a container.
fn is_confined() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp:") && !line.ends_with('0'))
}
