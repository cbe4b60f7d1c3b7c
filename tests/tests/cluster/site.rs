//! Five network namespaces on a bridge, with their daemons.

use crate::truth::WRONG_CLOCKS;
use miot_tests::browser::{Browser, home, show_certificates};
use miot_tests::built::built;
use miot_tests::daemons::{preloaded, ready, started};
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{Background, run, signal_id};
use miot_tests::steered::Steered;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the nodes; their addresses end in 11 to 14.
pub(crate) const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Address of the log-server.
const SERVER: &str = "10.77.0.1";

pub(crate) struct Site {
    place: PathBuf,
    trace: PathBuf,
    shared: tempfile::TempDir,
    hub: Namespaces,
    rooms: Vec<Namespaces>,
    /// Network namespace of an administrator, without a node.
    console: Namespaces,
    /// Log-server. `None` only while it is replaced.
    server: Option<Background>,
    clients: Vec<Background>,
}

impl Site {
    /// Starts all daemons. Prints a message and returns `None` where namespaces are not permitted.
    pub(crate) fn start(name: &str) -> Option<Site> {
        let place = fresh(&format!("cluster-{name}"));
        let hub = Namespaces::new(&["--net"])?;
        hub.shell(&format!("ip link set lo up; ip link add br0 type bridge; ip addr add {SERVER}/24 dev br0; ip link set br0 up"));
        let wire = |n: usize, kinds| -> Option<Namespaces> {
            let room = Namespaces::new(kinds)?;
            hub.shell(&format!(
                "ip link add v{n} type veth peer name eth0 netns {}; ip link set v{n} master br0; ip link set v{n} up",
                room.id()
            ));
            room.shell(&format!(
                "ip link set lo up; ip addr add 10.77.0.1{n}/24 dev eth0; ip link set eth0 up"
            ));
            Some(room)
        };
        let rooms = (1..=NODES.len()).map(|n| wire(n, &["--net"])).collect::<Option<Vec<Namespaces>>>()?;
        let console = wire(9, &["--mount", "--net"])?;
        let pki = place.join("pki");
        let make = |words: &[&str], more: &[&str]| {
            let _ = run(Command::new(&built().miot).arg("pki").args(words).arg(&pki).args(more)).success();
        };
        make(&["init"], &[]);
        make(&["server"], &["--name", SERVER]);
        make(&["node"], &NODES);
        make(&["reader"], &["alice"]);
        make(&["operator"], &["bob"]);
        let trace = place.join("trace");
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let server = serve(&hub, &trace, &pki);
        let mut site =
            Site { place, trace, shared, hub, rooms, console, server: Some(server), clients: Vec::new() };
        site.clients = NODES.iter().map(|node| site.client(node)).collect();
        Some(site)
    }

    /// Kills the log-server, and meanwhile the log-client of a node. Restarts both.
    pub(crate) fn kill_server_and(&mut self, node: &str) {
        let n = NODES.iter().position(|known| *known == node).unwrap();
        let _ = self.server.take().unwrap().stop(Signal::KILL);
        let _ = self.clients.remove(n).stop(Signal::KILL);
        let client = self.client(node);
        self.clients.insert(n, client);
        self.server = Some(serve(&self.hub, &self.trace, &self.place.join("pki")));
    }

    fn client(&self, node: &str) -> Background {
        let mut command = Command::new(&built().log_client);
        command.args(["--node", node, "--server", &format!("{SERVER}:4747"), "--stop", "60s"]);
        command.args(["--http", "127.0.0.1:4749", "--dir"]).arg(self.dir(node));
        command.args(papers(&self.place.join("pki"), &format!("node/{node}")));
        if let Some((_, seconds)) = WRONG_CLOCKS.iter().find(|(wrong, _)| *wrong == node) {
            command.env("MIOT_TEST_CLOCK", format!("offset={seconds}s"));
        }
        started(&mut self.room(node).inside(&command), &self.dir(node))
    }

    fn room(&self, node: &str) -> &Namespaces {
        &self.rooms[NODES.iter().position(|known| *known == node).unwrap()]
    }

    pub(crate) fn dir(&self, node: &str) -> PathBuf {
        self.shared.path().join(node)
    }

    /// Starts a traced program of a job on a node.
    pub(crate) fn program(&self, node: &str, job: &str) -> Steered {
        let mut command = preloaded(env!("CARGO_BIN_EXE_steered"), &self.dir(node));
        let mut program = Steered::start(
            command.env("SLURM_JOB_ID", job).arg(self.place.join(format!("data-{node}-{job}"))),
        );
        // The program gets a segment with its first request.
        let _ = program.tell("fwrite 1");
        program
    }

    /// Signals the log-client of a node.
    pub(crate) fn signal(&self, node: &str, signal: Signal) {
        let n = NODES.iter().position(|known| *known == node).unwrap();
        signal_id(self.clients[n].id(), signal);
    }

    /// Connects or disconnects a node's cable.
    pub(crate) fn link(&self, node: &str, up: bool) {
        let n = NODES.iter().position(|known| *known == node).unwrap() + 1;
        self.hub.shell(&format!("ip link set v{n} {}", if up { "up" } else { "down" }));
    }

    /// Runs `miot ctl --server` beside the log-server as a user. Returns its exit code and all its
    /// output.
    pub(crate) fn ctl(&self, who: &str, words: &[&str]) -> (i32, String) {
        let whose = match who {
            "bob" => "operator/bob",
            "alice" => "reader/alice",
            node => &format!("node/{node}"),
        };
        let mut command = Command::new(&built().miot);
        command.args(["ctl", "--server", &format!("{SERVER}:4747"), "--format", "json"]).args(words);
        let ended = run(&mut self.hub.inside(command.args(papers(&self.place.join("pki"), whose))));
        (ended.code(), ended.stdout + &ended.stderr)
    }

    /// Runs `miot ctl --server` as the operator. It must succeed.
    pub(crate) fn steer(&self, words: &[&str]) -> String {
        let (code, text) = self.ctl("bob", words);
        assert_eq!(code, 0, "{words:?}: {text}");
        text
    }

    pub(crate) fn status(&self) -> Value {
        let text = self.steer(&["status"]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Runs `miot top` on the log-server as a reader. Returns the counters.
    pub(crate) fn top(&self) -> Value {
        let mut command = Command::new(&built().miot);
        command.args(["top", &format!("{SERVER}:4747"), "--window", "all", "--format", "json"]);
        command.args(papers(&self.place.join("pki"), "reader/alice"));
        let text = run(&mut self.hub.inside(&command)).success().stdout;
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Address of the page.
    pub(crate) fn url(&self) -> String {
        format!("https://{SERVER}:4748/")
    }

    /// Starts the browser of alice, a reader, at the console. May be called once.
    pub(crate) fn browser(&self) -> Browser {
        show_certificates(&self.console, &self.url());
        Browser::of(&self.console, &home(&self.place.join("alice"), &self.place.join("pki"), Some("alice")))
    }

    /// Shell command for `miot top` of alice at the console.
    pub(crate) fn top_line(&self) -> String {
        let mut command = Command::new(&built().miot);
        command.args(["top", &format!("{SERVER}:4747"), "--window", "all"]);
        command.args(papers(&self.place.join("pki"), "reader/alice"));
        let command = self.console.inside(&command);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}' ", word.to_str().unwrap())).collect()
    }

    /// Events in the trace so far.
    pub(crate) fn so_far(&self) -> Vec<PrintedEvent> {
        events(&self.trace)
    }

    /// HTTP answer of the log-server: status and body. `who`: over TLS with this certificate;
    /// otherwise plain.
    pub(crate) fn get(&self, who: Option<&str>, path: &str) -> (u16, String) {
        let scheme = if who.is_some() { "https" } else { "http" };
        let host = if who.is_some() { SERVER } else { "127.0.0.1" };
        let pki = self.place.join("pki");
        let mut python = python(&format!("{scheme}://{host}:4748{path}"));
        if let Some(who) = who {
            python.args([pki.join("ca.pem"), pki.join(format!("{who}.pem")), pki.join(format!("{who}.key"))]);
        }
        answer(&mut self.hub.inside(&python))
    }

    /// HTTP answer of the log-client of a node to its own machine.
    pub(crate) fn get_from(&self, node: &str, path: &str) -> (u16, String) {
        answer(&mut self.room(node).inside(&python(&format!("http://127.0.0.1:4749{path}"))))
    }

    /// Stops all daemons and checks the trace.
    pub(crate) fn end(self) -> Vec<PrintedEvent> {
        for daemon in self.clients.into_iter().chain(self.server) {
            daemon.end();
        }
        assert_good(&self.trace);
        events(&self.trace)
    }
}

/// Starts a log-server and waits until it is ready.
fn serve(hub: &Namespaces, trace: &Path, pki: &Path) -> Background {
    let mut command = Command::new(&built().log_server);
    command.args(["--listen", &format!("{SERVER}:4747"), "--http", "0.0.0.0:4748", "--trace"]).arg(trace);
    command.args(papers(pki, &format!("server/{SERVER}")));
    ready(&mut hub.inside(&command))
}

/// Certificate, key and authority.
fn papers(pki: &Path, whose: &str) -> Vec<String> {
    let file = |name: String| pki.join(name).display().to_string();
    let [certificate, key] = ["pem", "key"].map(|end| file(format!("{whose}.{end}")));
    let options = [("certificate", certificate), ("key", key), ("authority", file("ca.pem".into()))];
    options.into_iter().flat_map(|(key, file)| [format!("--tls-{key}"), file]).collect()
}

/// Python client with independent implementations of HTTP and TLS.
fn python(url: &str) -> Command {
    const ASK: &str = "\
import ssl, sys, urllib.request, urllib.error
context = None
if len(sys.argv) > 2:
    context = ssl.create_default_context(cafile=sys.argv[2])
    context.load_cert_chain(sys.argv[3], sys.argv[4])
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=60, context=context)
    print(answer.status); print(answer.read().decode(), end='')
except urllib.error.HTTPError as error:
    print(error.code); print(error.read().decode(), end='')
";
    let mut python = Command::new("python3");
    python.args(["-c", ASK, url]);
    python
}

fn answer(command: &mut Command) -> (u16, String) {
    let text = run(command).success().stdout;
    let (status, body) = text.split_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}
