//! A log-server with certificates, and its nodes and readers.

use miot_tests::built::built;
use miot_tests::daemons::{free_port, preloaded, ready, started};
use miot_tests::process::{Background, Ended, run};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use miot_tls::{Files, Role, TlsClient};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Creates the empty folder of a test.
pub(crate) fn place(name: &str) -> PathBuf {
    fresh(&format!("tls-{name}"))
}

/// Runs `miot pki`.
pub(crate) fn pki(words: &[&str], dir: &Path, more: &[&str]) -> Ended {
    run(Command::new(&built().miot).arg("pki").args(words).arg(dir).args(more))
}

/// Creates an authority in `dir` with certificates for the server `localhost`, the nodes `good` and
/// `other`, and the reader `alice`.
pub(crate) fn authority(dir: &Path) {
    let _ = pki(&["init"], dir, &[]).success();
    let _ = pki(&["server"], dir, &["--name", "localhost", "--name", "127.0.0.1"]).success();
    let _ = pki(&["node"], dir, &["good", "other"]).success();
    let _ = pki(&["reader"], dir, &["alice"]).success();
}

/// Files of a certificate, its key and the authority.
#[derive(Clone, Debug)]
pub(crate) struct Papers(pub(crate) [PathBuf; 3]);

impl Papers {
    /// Files that the authority in `dir` created for `role/name`.
    pub(crate) fn new(dir: &Path, whose: &str) -> Papers {
        let file = |end| dir.join(format!("{whose}.{end}"));
        Papers([file("pem"), file("key"), dir.join("ca.pem")])
    }

    pub(crate) fn with_authority_of(mut self, dir: &Path) -> Papers {
        self.0[2] = dir.join("ca.pem");
        self
    }

    /// Options that name the files, for any program of MIOT.
    pub(crate) fn options(&self) -> Vec<String> {
        let keys = ["certificate", "key", "authority"];
        let option = |(key, file): (&str, &PathBuf)| [format!("--tls-{key}"), file.display().to_string()];
        keys.into_iter().zip(&self.0).flat_map(option).collect()
    }

    /// TLS configuration for a connection made by the test itself.
    pub(crate) fn client(&self, role: Role) -> TlsClient {
        let [certificate, key, authority] = &self.0;
        let files = Files::new(Some(certificate), Some(key), Some(authority)).unwrap().unwrap();
        TlsClient::load(files, role).unwrap()
    }
}

pub(crate) struct Site {
    pub(crate) place: PathBuf,
    /// Directory of `miot pki`.
    pub(crate) pki: PathBuf,
    pub(crate) port: u16,
    pub(crate) trace: PathBuf,
    shared: tempfile::TempDir,
    server: Option<Background>,
}

impl Site {
    pub(crate) fn start(name: &str) -> Site {
        Site::with(name, |_| {})
    }

    /// Starts a site with further settings of the log-server.
    pub(crate) fn with(name: &str, more: impl FnOnce(&mut Command)) -> Site {
        let place = place(name);
        let (pki, trace, port) = (place.join("pki"), place.join("trace"), free_port());
        authority(&pki);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut command = server_command(port, &trace, Some(&Papers::new(&pki, "server/localhost")));
        more(&mut command);
        Site { server: Some(ready(&mut command)), place, pki, port, trace, shared }
    }

    /// The log-server.
    pub(crate) fn server(&self) -> &Background {
        self.server.as_ref().unwrap()
    }

    /// Stops the log-server and starts a new one.
    pub(crate) fn restart(&mut self) {
        self.server.take().unwrap().end();
        let papers = self.papers("server/localhost");
        self.server = Some(ready(&mut server_command(self.port, &self.trace, Some(&papers))));
    }

    pub(crate) fn papers(&self, whose: &str) -> Papers {
        Papers::new(&self.pki, whose)
    }

    /// MIOT directory of a node.
    pub(crate) fn dir(&self, node: &str) -> PathBuf {
        self.shared.path().join(node)
    }

    pub(crate) fn client_command(&self, node: &str, papers: Option<&Papers>) -> Command {
        let mut command = Command::new(&built().log_client);
        command.args(["--log", "trace", "--node", node, "--stop", "60s"]).arg("--dir").arg(self.dir(node));
        command.args(["--server", &format!("localhost:{}", self.port)]);
        command.args(papers.iter().flat_map(|papers| papers.options()));
        command
    }

    /// Starts a log-client and waits until it has created its control page.
    pub(crate) fn client(&self, node: &str, papers: &Papers) -> Background {
        started(&mut self.client_command(node, Some(papers)), &self.dir(node))
    }

    /// Starts a log-client with its own certificate.
    pub(crate) fn honest(&self, node: &str) -> Background {
        self.client(node, &self.papers(&format!("node/{node}")))
    }

    /// Runs a log-client that ends by itself.
    pub(crate) fn ended(&self, node: &str, papers: Option<&Papers>) -> Ended {
        run(&mut self.client_command(node, papers))
    }

    /// Makes `count` writes of 512 bytes on a node.
    pub(crate) fn write(&self, node: &str, count: usize) {
        let mut dd = preloaded("dd", &self.dir(node));
        let out = format!("of={}", self.place.join(format!("out-{node}")).display());
        let _ = run(dd.args(["if=/dev/zero", "bs=512", &format!("count={count}"), &out])).success();
    }

    /// Stops the log-clients and the log-server. Returns the trace and the log of the log-server.
    pub(crate) fn end(self, clients: impl IntoIterator<Item = Background>) -> (Vec<PrintedEvent>, String) {
        for client in clients {
            let text = client.end();
            self.no_secrets(&text);
        }
        let Site { server, trace, place, .. } = self;
        let text = server.unwrap().end();
        no_secrets(&place, &text);
        assert_good(&trace);
        (events(&trace), text)
    }

    /// Checks that no part of any key was printed.
    pub(crate) fn no_secrets(&self, text: &str) {
        no_secrets(&self.place, text);
    }
}

fn no_secrets(dir: &Path, text: &str) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            no_secrets(&path, text);
        } else if path.extension().is_some_and(|end| end == "key") {
            let key = fs::read_to_string(&path).unwrap();
            let secret = key.lines().filter(|line| !line.starts_with("-----"));
            for line in secret.chain(["PRIVATE KEY"]) {
                assert!(!text.contains(line), "{} in {text}", path.display());
            }
        }
    }
}

pub(crate) fn server_command(port: u16, trace: &Path, papers: Option<&Papers>) -> Command {
    let mut command = Command::new(&built().log_server);
    command.args(["--log", "trace", "--listen", &format!("127.0.0.1:{port}")]).arg("--trace").arg(trace);
    command.args(papers.iter().flat_map(|papers| papers.options()));
    command
}

/// Command `miot tail -f` for the log-server at this port.
pub(crate) fn tail_command(port: u16, papers: Option<&Papers>) -> Command {
    reader(&["tail", "-f", "--format", "json"], port, papers)
}

/// Command `miot top`, once, for the log-server at this port.
pub(crate) fn top_command(port: u16, papers: Option<&Papers>) -> Command {
    reader(&["top", "--format", "json"], port, papers)
}

fn reader(words: &[&str], port: u16, papers: Option<&Papers>) -> Command {
    let mut miot = Command::new(&built().miot);
    miot.args(words).arg(format!("localhost:{port}"));
    miot.args(papers.iter().flat_map(|papers| papers.options()));
    miot
}

/// Opens a TCP connection to the log-server, with a watchdog.
pub(crate) fn connected(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(miot_tests::process::WATCHDOG)).unwrap();
    stream
}

/// Answer of the HTTP listener of this machine without TLS.
pub(crate) fn get(port: u16, path: &str) -> String {
    let mut stream = connected(port);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Number of writes of 512 bytes on a node.
pub(crate) fn writes(rows: &[PrintedEvent], node: &str) -> usize {
    rows.iter().filter(|row| row.node == node && row.op == "write" && row.result == 512).count()
}
