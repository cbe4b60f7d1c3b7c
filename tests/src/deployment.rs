//! A log-server, nodes with log-clients, and producers on the nodes. At the end the judge checks
//! the trace.

use crate::built::built;
use crate::judge::{Asked, Rules, Verdict, judge};
use crate::killable_daemon::KillableDaemon;
use crate::namespaces::Namespaces;
use crate::process::{WATCHDOG, until};
use crate::producers::{ProducerLoad, Producers};
use crate::random::Random;
use crate::test_dir::fresh;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of a daemon that only broken or hostile input causes. There is none here.
const NONSENSE: [&str; 9] = [
    "lane quarantined",
    "too many violations",
    "its header is invalid",
    "cannot parse",
    "truncated",
    "damaged",
    "cannot be read",
    "cannot read a file of the spool",
    "panicked",
];

/// A node of the deployment.
#[derive(Debug)]
pub struct DeployedNode {
    /// MIOT directory.
    pub dir: PathBuf,
    /// Directory of the spool.
    pub spool: PathBuf,
    /// Log-client.
    pub client: KillableDaemon,
    /// Producers.
    pub producers: Producers,
}

impl DeployedNode {
    /// Describes the remaining segments and the contents of the spool, if there are any.
    fn left(&self) -> Vec<String> {
        let list = |dir: &Path| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| format!("{:?} {:?}", entry.path(), entry.metadata().map(|m| m.len())))
        };
        let segments: Vec<String> = list(&self.dir).filter(|text| text.contains(".seg")).collect();
        if segments.is_empty() { segments } else { segments.into_iter().chain(list(&self.spool)).collect() }
    }
}

/// A running deployment.
#[derive(Debug)]
pub struct Deployment {
    name: String,
    place: PathBuf,
    shared: tempfile::TempDir,
    /// Trace directory, as seen from the test.
    pub trace: PathBuf,
    /// Log-server.
    pub server: KillableDaemon,
    /// Nodes.
    pub nodes: Vec<DeployedNode>,
    /// Requests that finished producers have committed.
    pub asked: Asked,
    next: u64,
}

impl Deployment {
    /// Starts a log-server on an empty trace directory.
    ///
    /// # Panics
    /// If the folders cannot be made.
    #[must_use]
    pub fn new(name: &str, server: impl FnOnce(&Path) -> Command) -> Deployment {
        let place = fresh(name);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|e| panic!("/dev/shm: {e}"));
        let trace = place.join("trace");
        let server = KillableDaemon::start(server(&trace));
        let (nodes, asked) = (Vec::new(), Asked::default());
        Deployment { name: name.to_owned(), place, shared, trace, server, nodes, asked, next: 1 }
    }

    /// Directory on disk for this deployment.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Default MIOT directory of a node.
    #[must_use]
    pub fn dir(&self, node: &str) -> PathBuf {
        self.shared.path().join(node)
    }

    /// Adds a node whose log-client is started by the returned command, and waits until producers
    /// can record.
    pub fn add(&mut self, node: &str, client: impl FnOnce(&Path) -> Command) -> usize {
        let dir = self.dir(node);
        let client = KillableDaemon::start(client(&dir));
        let producers = Producers::new(&built().folder.join("victim"), node, &dir, self.shared.path());
        self.settle(DeployedNode { spool: dir.join("spool"), dir, client, producers })
    }

    /// Adds a node inside namespaces, with its MIOT directory and its spool at these paths inside.
    pub fn add_in(
        &mut self,
        namespaces: &Arc<Namespaces>,
        node: &str,
        dir: &Path,
        spool: &Path,
        client: &Command,
    ) -> usize {
        let client = KillableDaemon::start(namespaces.inside(client));
        let mut producers = Producers::new(&built().folder.join("victim"), node, dir, self.shared.path());
        producers.namespaces = Some(Arc::clone(namespaces));
        self.settle(DeployedNode {
            dir: namespaces.seen(dir),
            spool: namespaces.seen(spool),
            client,
            producers,
        })
    }

    fn settle(&mut self, mut node: DeployedNode) -> usize {
        until("the log-client has made its control page", || {
            assert!(node.client.is_running(), "{}", node.client.printed());
            node.dir.join(miot_proto::control::FILE).exists()
        });
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Starts producers until the node has `many`. Each is killed after a random time within
    /// `life`, in milliseconds.
    pub fn populate(
        &mut self,
        node: usize,
        many: usize,
        life: (u64, u64),
        random: &mut Random,
        load: impl Fn(&mut Random) -> ProducerLoad,
    ) {
        while self.nodes[node].producers.len() < many {
            let (load, life) = (load(random), random.millis(life.0, life.1));
            self.nodes[node].producers.add(self.next, load, life);
            self.next += 1;
        }
    }

    /// Kills producers whose time is up.
    pub fn kill_due(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.producers.kill_due(&mut self.asked));
    }

    /// Number of producers that were killed so far.
    #[must_use]
    pub fn killed(&self) -> u64 {
        self.nodes.iter().map(|node| node.producers.killed).sum()
    }

    /// Number of times that log-clients were killed so far.
    #[must_use]
    pub fn clients_killed(&self) -> u64 {
        self.nodes.iter().map(|node| node.client.kills).sum()
    }

    /// Waits until all events of finished producers have left the nodes' shared memory. There is no
    /// limit to the total time, but progress must not stop.
    ///
    /// # Panics
    /// If there is no progress any more.
    pub fn drain(&mut self) {
        let (mut before, mut patience) = (Vec::new(), Instant::now());
        loop {
            let left: Vec<String> = self.nodes.iter().flat_map(DeployedNode::left).collect();
            if left.is_empty() {
                break;
            }
            if left != before {
                (before, patience) = (left.clone(), Instant::now() + WATCHDOG / 2);
            }
            for node in &mut self.nodes {
                let wedged = !node.client.is_running() || Instant::now() > patience;
                assert!(!wedged, "segments are left\n{}\n{left:#?}", node.client.printed());
            }
            assert!(self.server.is_running(), "{}", self.server.printed());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the producers, waits until all events are delivered, stops the daemons cleanly, and
    /// judges the trace.
    ///
    /// # Panics
    /// If any check fails.
    pub fn end(self, rules: Rules) -> Verdict {
        self.end_and(rules, |_| ())
    }

    /// Like [`Deployment::end`], but calls `look` with the trace directory before it is removed.
    ///
    /// # Panics
    /// If any check fails.
    pub fn end_and(mut self, rules: Rules, look: impl FnOnce(&Path)) -> Verdict {
        for node in &mut self.nodes {
            node.producers.clear(&mut self.asked);
            node.client.restart();
        }
        self.server.restart();
        self.drain();
        let (killed, clients, servers) = (self.killed(), self.clients_killed(), self.server.kills);
        let ended: u64 = self.nodes.iter().map(|node| node.producers.ended).sum();
        for node in self.nodes {
            let printed = node.client.stop();
            for nonsense in NONSENSE {
                assert!(!printed.contains(nonsense), "{printed}");
            }
            let spooled = fs::read_dir(&node.spool).map(Iterator::count);
            assert_eq!(spooled.unwrap_or_else(|e| panic!("{e}")), 0, "the spool is empty\n{printed}");
        }
        let printed = self.server.stop();
        assert!(!printed.contains("panicked"), "{printed}");
        let verdict = judge(&self.trace, &self.asked, rules);
        eprintln!(
            "{}: {killed} producers, {clients} log-clients and {servers} log-servers killed, {ended} producers ended; {verdict}",
            self.name,
        );
        look(&self.trace);
        let _ = fs::remove_dir_all(&self.place);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::NONSENSE;
    use crate::built::root;
    use std::fs;
    use std::path::Path;

    fn sources(folder: &Path, all: &mut String) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, all);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// A text that no daemon logs any more would never be found.
    #[test]
    fn nonsense_is_what_daemons_log() {
        let mut all = String::new();
        for folder in ["log-client/src", "log-server/src", "lib/trace-store/src"] {
            sources(&root().join(folder), &mut all);
        }
        for text in NONSENSE.iter().filter(|text| **text != "panicked") {
            assert!(all.contains(text), "no daemon logs {text:?}");
        }
    }
}
