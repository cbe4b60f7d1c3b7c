//! A log-server, nodes with their log-clients, and crowds of producers on them; in the end the judge.

use crate::built::built;
use crate::crowd::{Crowd, Habit};
use crate::judge::{Asked, Rules, Verdict, judge};
use crate::mortal::Mortal;
use crate::place::fresh;
use crate::process::{WATCHDOG, until};
use crate::random::Random;
use crate::room::Room;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a daemon says only of what is broken or hostile; here nothing is.
const NONSENSE: [&str; 7] =
    ["breaks the rules", "makes no sense", "senseless", "truncated", "damaged", "cannot be read", "panicked"];

/// A node.
#[derive(Debug)]
pub struct Station {
    /// Its MIOT directory.
    pub dir: PathBuf,
    /// Where its spool is.
    pub spool: PathBuf,
    /// Its log-client.
    pub client: Mortal,
    /// Its producers.
    pub crowd: Crowd,
}

impl Station {
    /// Segments that are there, and what the spool holds, if there are any.
    fn left(&self) -> Vec<String> {
        let list = |dir: &Path| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| format!("{:?} {:?}", entry.path(), entry.metadata().map(|m| m.len())))
        };
        let segments: Vec<String> = list(&self.dir).filter(|text| text.contains(".seg")).collect();
        if segments.is_empty() { segments } else { segments.into_iter().chain(list(&self.spool)).collect() }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Field {
    name: String,
    place: PathBuf,
    shared: tempfile::TempDir,
    /// The trace directory, as it is seen from here.
    pub trace: PathBuf,
    /// The log-server.
    pub server: Mortal,
    /// The nodes.
    pub stations: Vec<Station>,
    /// What producers that have ended committed.
    pub asked: Asked,
    next: u64,
}

impl Field {
    /// Starts a log-server on an empty trace directory.
    ///
    /// # Panics
    /// If the folders cannot be made.
    #[must_use]
    pub fn new(name: &str, server: impl FnOnce(&Path) -> Command) -> Field {
        let place = fresh(name);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|e| panic!("/dev/shm: {e}"));
        let trace = place.join("trace");
        let server = Mortal::start(server(&trace));
        let (stations, asked) = (Vec::new(), Asked::default());
        Field { name: name.to_owned(), place, shared, trace, server, stations, asked, next: 1 }
    }

    /// A folder on disk for the scenario.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Where a node has its MIOT directory if nothing else is said.
    #[must_use]
    pub fn dir(&self, node: &str) -> PathBuf {
        self.shared.path().join(node)
    }

    /// Adds a node whose log-client is started so on its MIOT directory, and waits until producers can record.
    pub fn add(&mut self, node: &str, client: impl FnOnce(&Path) -> Command) -> usize {
        let dir = self.dir(node);
        let client = Mortal::start(client(&dir));
        let crowd = Crowd::new(&built().folder.join("victim"), node, &dir, self.shared.path());
        self.settle(Station { spool: dir.join("spool"), dir, client, crowd })
    }

    /// The same in a room, with its MIOT directory and its spool at these places there.
    pub fn add_in(
        &mut self,
        room: &Arc<Room>,
        node: &str,
        dir: &Path,
        spool: &Path,
        client: &Command,
    ) -> usize {
        let client = Mortal::start(room.inside(client));
        let mut crowd = Crowd::new(&built().folder.join("victim"), node, dir, self.shared.path());
        crowd.room = Some(Arc::clone(room));
        self.settle(Station { dir: room.seen(dir), spool: room.seen(spool), client, crowd })
    }

    fn settle(&mut self, mut station: Station) -> usize {
        until("the log-client has made its control page", || {
            assert!(station.client.is_running(), "{}", station.client.printed());
            station.dir.join(miot_proto::control::FILE).exists()
        });
        self.stations.push(station);
        self.stations.len() - 1
    }

    /// Brings the producers of a node up to `many`, each of which is killed after between `life` milliseconds.
    pub fn populate(
        &mut self,
        node: usize,
        many: usize,
        life: (u64, u64),
        random: &mut Random,
        habit: impl Fn(&mut Random) -> Habit,
    ) {
        while self.stations[node].crowd.len() < many {
            let (habit, life) = (habit(random), random.millis(life.0, life.1));
            self.stations[node].crowd.add(self.next, habit, life);
            self.next += 1;
        }
    }

    /// Kills producers whose time has come.
    pub fn cull(&mut self) {
        self.stations.iter_mut().for_each(|station| station.crowd.cull(&mut self.asked));
    }

    /// Producers that were killed so far.
    #[must_use]
    pub fn killed(&self) -> u64 {
        self.stations.iter().map(|station| station.crowd.killed).sum()
    }

    /// Log-clients that were killed so far.
    #[must_use]
    pub fn clients_killed(&self) -> u64 {
        self.stations.iter().map(|station| station.client.kills).sum()
    }

    /// Waits until all that producers which have ended committed has left the nodes' shared memory. However much there is
    /// to do, something must be done all the time.
    ///
    /// # Panics
    /// If nothing happens any more.
    pub fn drain(&mut self) {
        let (mut before, mut patience) = (Vec::new(), Instant::now());
        loop {
            let left: Vec<String> = self.stations.iter().flat_map(Station::left).collect();
            if left.is_empty() {
                break;
            }
            if left != before {
                (before, patience) = (left.clone(), Instant::now() + WATCHDOG / 2);
            }
            for station in &mut self.stations {
                let wedged = !station.client.is_running() || Instant::now() > patience;
                assert!(!wedged, "segments are left\n{}\n{left:#?}", station.client.printed());
            }
            assert!(self.server.is_running(), "{}", self.server.printed());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the producers, has everything delivered, stops the daemons cleanly, and judges.
    ///
    /// # Panics
    /// If anything is wrong.
    pub fn end(self, rules: Rules) -> Verdict {
        self.end_and(rules, |_| ())
    }

    /// The same; who looks at the trace as well does it before it is removed.
    ///
    /// # Panics
    /// If anything is wrong.
    pub fn end_and(mut self, rules: Rules, look: impl FnOnce(&Path)) -> Verdict {
        for station in &mut self.stations {
            station.crowd.clear(&mut self.asked);
            station.client.revive();
        }
        self.server.revive();
        self.drain();
        let (killed, clients, servers) = (self.killed(), self.clients_killed(), self.server.kills);
        let ended: u64 = self.stations.iter().map(|station| station.crowd.ended).sum();
        for station in self.stations {
            let printed = station.client.stop();
            for nonsense in NONSENSE {
                assert!(!printed.contains(nonsense), "{printed}");
            }
            let spooled = fs::read_dir(&station.spool).map(Iterator::count);
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
