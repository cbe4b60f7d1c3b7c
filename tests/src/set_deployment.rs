//! Several log-servers, nodes whose log-clients choose among them, and producers on the nodes.

use crate::built::built;
use crate::daemons::lasting_port;
use crate::judge::{Asked, Rules, Verdict, judge_set};
use crate::killable_daemon::KillableDaemon;
use crate::process::{Ended, WATCHDOG, run, until};
use crate::producers::{ProducerLoad, Producers};
use crate::random::Random;
use crate::test_dir::fresh;
use miot_log_client::servers::preference;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A log-server of the set.
#[derive(Debug)]
pub struct SetServer {
    /// `host:port`.
    pub address: String,
    /// Trace directory.
    pub trace: PathBuf,
    /// The daemon.
    pub daemon: KillableDaemon,
}

/// A node of the set.
#[derive(Debug)]
pub struct SetNode {
    /// Name.
    pub name: String,
    /// MIOT directory.
    pub dir: PathBuf,
    /// Log-client.
    pub client: KillableDaemon,
    /// Producers.
    pub producers: Producers,
}

/// A running set.
#[derive(Debug)]
pub struct SetDeployment {
    name: String,
    place: PathBuf,
    shared: tempfile::TempDir,
    /// Log-servers, by partition.
    pub servers: Vec<SetServer>,
    /// Nodes.
    pub nodes: Vec<SetNode>,
    /// Load of each producer.
    pub load: ProducerLoad,
    /// Requests that finished producers have committed.
    pub asked: Asked,
    next: u64,
}

impl SetDeployment {
    /// Starts this many log-servers on empty trace directories.
    ///
    /// # Panics
    /// If the folders cannot be made.
    #[must_use]
    pub fn new(name: &str, servers: usize) -> SetDeployment {
        let place = fresh(name);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|e| panic!("/dev/shm: {e}"));
        let mut set = SetDeployment {
            name: name.to_owned(),
            place,
            shared,
            servers: Vec::new(),
            nodes: Vec::new(),
            load: ProducerLoad { threads: 2, requests: 400, stride: 1, pause: 100_000, paths: 0 },
            asked: Asked::default(),
            next: 1,
        };
        for _ in 0..servers {
            set.add_server();
        }
        set
    }

    /// Directory on disk for this deployment.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Starts another log-server, with the next partition.
    pub fn add_server(&mut self) {
        self.add_server_with(|_| ());
    }

    /// [`SetDeployment::add_server`], with further settings.
    pub fn add_server_with(&mut self, configure: impl FnOnce(&mut Command)) {
        let partition = self.servers.len();
        let (address, trace) =
            (format!("127.0.0.1:{}", lasting_port()), self.place.join(format!("p{partition}")));
        let mut command = server_of_set(&address, &trace, partition, "test");
        configure(&mut command);
        let daemon = KillableDaemon::start(command);
        self.servers.push(SetServer { address, trace, daemon });
    }

    /// Addresses of the log-servers, in the form of the option `--server`.
    #[must_use]
    pub fn addresses(&self) -> String {
        self.servers.iter().map(|server| server.address.clone()).collect::<Vec<_>>().join(",")
    }

    /// Traces, in the form that `miot` takes.
    #[must_use]
    pub fn traces(&self) -> String {
        self.servers.iter().map(|server| server.trace.display().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Command of a log-client with these log-servers.
    #[must_use]
    pub fn client(&self, name: &str, servers: &str, fail_over_after: &str) -> Command {
        let mut client = Command::new(&built().log_client);
        client.args(["--server", servers, "--node", name]).arg("--dir").arg(self.shared.path().join(name));
        client.env("MIOT_CLIENT_LOG", "warn").env("MIOT_CLIENT_STOP", "240s").env("MIOT_CLIENT_HTTP", "off");
        client.env("MIOT_CLIENT_FAIL_OVER_AFTER", fail_over_after);
        client
    }

    /// Names of `count` nodes, of which each log-server is the preferred one of some.
    ///
    /// # Panics
    /// If the addresses are not those of this set.
    #[must_use]
    pub fn names(&self, count: usize) -> Vec<String> {
        let servers: Vec<String> = self.servers.iter().map(|server| server.address.clone()).collect();
        let prefers = |name: &String, server: usize| preference(name, &servers)[0] == servers[server];
        let mut names: Vec<String> = Vec::new();
        for number in 0.. {
            if names.len() == count {
                break;
            }
            let name = format!("n{number}");
            if prefers(&name, names.len() % servers.len()) {
                names.push(name);
            }
        }
        names
    }

    /// Adds a node.
    pub fn add_node(&mut self, name: &str, servers: &str, fail_over_after: &str) {
        self.add_node_with(name, self.client(name, servers, fail_over_after));
    }

    /// Adds a node whose log-client is started by this command, one of [`SetDeployment::client`].
    pub fn add_node_with(&mut self, name: &str, client: Command) {
        let dir = self.shared.path().join(name);
        let mut client = KillableDaemon::start(client);
        until("the log-client has made its control page", || {
            assert!(client.is_running(), "{}", client.printed());
            dir.join(miot_proto::control::FILE).exists()
        });
        let producers = Producers::new(&built().folder.join("victim"), name, &dir, self.shared.path());
        self.nodes.push(SetNode { name: name.to_owned(), dir, client, producers });
    }

    /// Kills the log-client of a node and starts it with other log-servers.
    pub fn reconfigure(&mut self, node: usize, servers: &str, fail_over_after: &str) {
        let name = self.nodes[node].name.clone();
        let command = self.client(&name, servers, fail_over_after);
        let node = &mut self.nodes[node];
        node.client.kill();
        node.client = KillableDaemon::start(command);
    }

    /// Keeps `many` producers running on each node for this time.
    pub fn work(&mut self, time: Duration, many: usize, random: &mut Random) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.step(many, random);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Starts producers until each node has `many`, and kills those whose time is up.
    pub fn step(&mut self, many: usize, random: &mut Random) {
        for node in &mut self.nodes {
            while node.producers.len() < many {
                node.producers.add(self.next, self.load, random.millis(500, 4000));
                self.next += 1;
            }
            node.producers.kill_due(&mut self.asked);
        }
    }

    /// Runs `miot`.
    #[must_use]
    pub fn miot(&self, words: &[&str]) -> Ended {
        run(Command::new(&built().miot).args(words))
    }

    /// Names of the spools of a node that wait for other log-servers.
    #[must_use]
    pub fn spools(&self, node: usize) -> Vec<String> {
        let spool = self.nodes[node].dir.join("spool");
        let mut names: Vec<String> = fs::read_dir(spool)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Kills the producers, waits until everything is delivered, stops the daemons, and judges the
    /// traces. `look` gets the names of the traces before they are removed.
    ///
    /// # Panics
    /// If any check fails.
    pub fn end(mut self, rules: Rules, look: impl FnOnce(&SetDeployment)) -> Verdict {
        let kills = self.stop();
        let traces: Vec<&Path> = self.servers.iter().map(|server| server.trace.as_path()).collect();
        let verdict = judge_set(&traces, &self.asked, rules);
        eprintln!("{}: {kills} daemons killed; {verdict}", self.name);
        look(&self);
        let _ = fs::remove_dir_all(&self.place);
        verdict
    }

    /// Kills the producers, waits until everything is delivered, and stops the daemons. Returns the
    /// number of daemons that were killed.
    ///
    /// # Panics
    /// If anything is left on a node, or a daemon ends with an error.
    pub fn stop(&mut self) -> u64 {
        for server in &mut self.servers {
            server.daemon.restart();
        }
        for node in &mut self.nodes {
            node.producers.clear(&mut self.asked);
            node.client.restart();
        }
        self.drain();
        let mut kills = 0;
        for node in std::mem::take(&mut self.nodes) {
            kills += node.client.kills;
            let printed = node.client.stop();
            assert!(!printed.contains("panicked"), "{printed}");
            let left = fs::read_dir(node.dir.join("spool")).map(|entries| entries.count()).unwrap_or(0);
            assert_eq!(left, 0, "the spool is empty\n{printed}");
        }
        for server in &mut self.servers {
            kills += server.daemon.kills;
            server.daemon.stop_now();
            let printed = server.daemon.printed();
            assert!(!printed.contains("panicked"), "{printed}");
        }
        kills
    }

    /// Waits until all segments of finished producers are delivered.
    fn drain(&mut self) {
        let (mut before, mut patience) = (Vec::new(), Instant::now());
        loop {
            let mut left = Vec::new();
            for node in &mut self.nodes {
                let entries = fs::read_dir(&node.dir).into_iter().flatten().flatten();
                let names = entries
                    .map(|entry| format!("{:?} {:?}", entry.path(), entry.metadata().map(|m| m.len())));
                left.extend(names.filter(|name| name.contains(".seg")));
            }
            if left.is_empty() {
                return;
            }
            if left != before {
                (before, patience) = (left.clone(), Instant::now() + WATCHDOG / 2);
            }
            assert!(Instant::now() < patience, "segments are left: {left:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Command of a log-server of a set.
#[must_use]
pub fn server_of_set(address: &str, trace: &Path, partition: usize, cluster: &str) -> Command {
    let mut server = Command::new(&built().log_server);
    server.args(["--listen", address, "--http", "off", "--cluster", cluster]).arg("--trace").arg(trace);
    server.args(["--partition", &partition.to_string()]).env("MIOT_SERVER_LOG", "warn");
    server
}
