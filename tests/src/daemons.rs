//! The daemons as an administrator starts them, on loopback.

use crate::built::built;
use crate::process::{Background, until};
use std::net::{TcpListener, TcpStream};
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

/// A log-server that is ready for connections.
#[must_use]
pub fn server(port: u16, trace: &Path) -> Background {
    let mut command = Command::new(&built().log_server);
    command.arg("--listen").arg(format!("127.0.0.1:{port}")).arg("--trace").arg(trace);
    let mut server = Background::start(&mut command);
    until("the log-server listens", || {
        assert!(server.running(), "log-server ended\n{}", server.printed());
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    server
}

/// A log-client that has made its MIOT directory.
#[must_use]
pub fn client(port: u16, node: &str, dir: &Path) -> Background {
    let mut command = Command::new(&built().log_client);
    command.arg("--server").arg(format!("127.0.0.1:{port}")).arg("--node").arg(node).arg("--dir").arg(dir);
    let mut client = Background::start(&mut command);
    until("the log-client has made its control page", || {
        assert!(client.running(), "log-client ended\n{}", client.printed());
        dir.join(miot_proto::control::FILE).exists()
    });
    client
}

/// A command that is traced as a daemon's node traces: two variables and nothing else.
#[must_use]
pub fn preloaded(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &built().hook).env(miot_proto::control::DIR_ENV, dir);
    command
}
