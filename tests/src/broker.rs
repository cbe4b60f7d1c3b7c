//! A NATS server on loopback, as an administrator starts it.

use crate::daemons::{client_command, lasting_port, server_command};
use crate::killable_daemon::KillableDaemon;
use crate::object_store::tool;
use crate::process::until;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Ends the words of a protocol line.
const END: &str = "\r\n";

/// Longest time until the server answers a request.
const ANSWER: Duration = Duration::from_secs(30);

/// Messages of a stream of the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamMessages {
    /// Number of messages since the stream was created.
    pub received: u64,
    /// Number of messages that no log-server has read.
    pub waiting: u64,
}

/// A NATS server that may be killed.
#[derive(Debug)]
pub struct Broker {
    /// Port on loopback.
    pub port: u16,
    /// The server.
    pub daemon: KillableDaemon,
    store: PathBuf,
    config: PathBuf,
}

impl Broker {
    /// Starts a server with JetStream, its store and its configuration in `place`. `more`: further
    /// lines of the configuration.
    #[must_use]
    pub fn start(place: &Path, more: &str) -> Broker {
        let store = place.join("jetstream");
        Broker::without_jetstream(place, &format!("jetstream {{ store_dir: {store:?} }}\n{more}"))
    }

    /// Starts a server with these lines of configuration.
    #[must_use]
    pub fn without_jetstream(place: &Path, more: &str) -> Broker {
        let port = lasting_port();
        let config = place.join("nats.conf");
        write_config(&config, port, more);
        let mut command = Command::new(tool("test-broker", "nats-server"));
        command.arg("-c").arg(&config);
        let store = place.join("jetstream");
        let mut broker = Broker { port, daemon: KillableDaemon::start(command), store, config };
        broker.until_ready();
        broker
    }

    /// Address for `transport`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Restarts the killed server. Its store is empty if `wiped`.
    ///
    /// # Panics
    /// If the store cannot be removed.
    pub fn restart(&mut self, wiped: bool) {
        self.daemon.kill();
        if wiped && self.store.exists() {
            fs::remove_dir_all(&self.store).unwrap_or_else(|e| panic!("{}: {e}", self.store.display()));
        }
        self.daemon.restart();
        self.until_ready();
    }

    /// Restarts the server with other lines of configuration.
    pub fn reconfigure(&mut self, more: &str) {
        write_config(&self.config, self.port, more);
        self.restart(false);
    }

    /// Sends a request of JetStream, as any client of NATS may. Returns the answer.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn request(&self, api: &str, body: &str) -> String {
        self.try_request(api, body).unwrap_or_else(|| panic!("{api} is not answered"))
    }

    /// [`Broker::request`] of a server that may not answer.
    fn try_request(&self, api: &str, body: &str) -> Option<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let mut text = String::new();
        let _ = write!(text, "CONNECT {{\"verbose\":false}}{END}SUB answer 1{END}");
        let _ = write!(text, "PUB $JS.API.{api} answer {}{END}{body}{END}", body.len());
        (&stream).write_all(text.as_bytes()).ok()?;
        lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("MSG answer"))?;
        lines.next()?.ok()
    }

    /// Messages of a stream, if the server answers and has it.
    #[must_use]
    pub fn messages(&self, stream: &str) -> Option<StreamMessages> {
        let answer = self.try_request(&format!("STREAM.INFO.{stream}"), "")?;
        let answer: Value = serde_json::from_str(&answer).ok()?;
        let state = |name: &str| answer["state"][name].as_u64();
        Some(StreamMessages { received: state("last_seq")?, waiting: state("messages")? })
    }

    fn until_ready(&mut self) {
        let (port, daemon) = (self.port, &mut self.daemon);
        until("the broker is ready", || {
            assert!(daemon.is_running(), "nats-server ended\n{}", daemon.printed());
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
}

fn write_config(file: &Path, port: u16, more: &str) {
    let text = format!("listen: \"127.0.0.1:{port}\"\n{more}\n");
    fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// Command line of a log-server that reads a broker.
#[must_use]
pub fn server_behind(url: &str, trace: &Path) -> Command {
    let mut command = server_command("127.0.0.1:0", trace);
    command.env("MIOT_SERVER_TRANSPORT", url).env("MIOT_SERVER_HTTP", "off");
    command
}

/// Command line of a log-client that sends to a broker.
#[must_use]
pub fn client_before(url: &str, node: &str, dir: &Path) -> Command {
    let mut command = client_command("localhost:4747", node, dir);
    command.env("MIOT_CLIENT_TRANSPORT", url).env("MIOT_CLIENT_HTTP", "off");
    command
}
