//! Starts the program `log-server`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub fn log_server() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_log-server"));
    command.env_remove("MIOT_SERVER_CONFIG").stdin(Stdio::null());
    command
}

/// Starts the log-server and waits until it is ready. Returns the process and its address.
pub fn start(command: &mut Command, trace: &Path) -> (Child, SocketAddr) {
    command.args(["--listen", "127.0.0.1:0", "--trace"]).arg(trace).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let ready = lines.by_ref().map(Result::unwrap).find(|line| line.contains("log-server is ready"));
    let ready = ready.unwrap_or_else(|| panic!("ended before it was ready: {:?}", child.wait()));
    let address = ready.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    let address = address.parse().unwrap();
    std::thread::spawn(move || lines.count());
    (child, address)
}
