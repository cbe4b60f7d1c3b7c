//! All faults at once: producers, log-clients and the log-server are killed, links are faulty,
//! log-clients are stopped, the disk of the server and the shared memory of a node are full from
//! time to time, and subscribers read the events. `MIOT_EVERYTHING_SECONDS`: default 15.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::faulty_link::FaultyLink;
use miot_tests::judge::{Rules, placed};
use miot_tests::killable_daemon::Pace;
use miot_tests::namespaces::{Namespaces, fill};
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use miot_tests::watch::Watch;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["a", "b", "c"];
const CLIENT: Pace = Pace { live: (500, 5000), dead: (0, 300) };
const SERVER: Pace = Pace { live: (1000, 8000), dead: (0, 500) };

/// A file system that is full from time to time.
struct Full {
    mount: PathBuf,
    ballast: Option<(PathBuf, Instant)>,
}

impl Full {
    fn new(mount: &Path) -> Full {
        Full { mount: mount.to_owned(), ballast: None }
    }

    fn fill_or_empty(&mut self, random: &mut Random) {
        match &self.ballast {
            Some((_, until)) if Instant::now() < *until => {}
            Some(_) => self.empty(),
            None if random.one_in(500) => {
                let leave = random.below(1 << 20);
                let until = Instant::now() + random.millis(100, 2000);
                self.ballast = Some((fill(&self.mount, leave).unwrap(), until));
            }
            None => {}
        }
    }

    fn empty(&mut self) {
        if let Some((file, _)) = self.ballast.take() {
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn all_faults_at_once_lose_no_event() {
    let mut random = Random::new("everything");
    let seconds = Duration::from_secs(number("MIOT_EVERYTHING_SECONDS", 15));
    let Some(room) = Namespaces::new(&["--mount"]).map(Arc::new) else { return };
    let outside = miot_tests::test_dir::fresh("everything-mounts");
    let [disk, lanes] = ["disk", "lanes"].map(|folder| outside.join(folder));
    for (folder, size) in [(&disk, "1g"), (&lanes, "128m")] {
        fs::create_dir(folder).unwrap();
        room.mount(folder, size);
    }
    let port = free_port();
    let mut deployment = Deployment::new("everything", |_| {
        let mut server = server_command(&format!("127.0.0.1:{port}"), &disk.join("trace"));
        server.env("MIOT_SERVER_LOG", "error").env("MIOT_SERVER_SILENT_AFTER", "500ms");
        room.inside(server.env("MIOT_SERVER_SEAL_ROWS", "100000"))
    });
    deployment.trace = room.seen(&disk.join("trace"));
    let links: Vec<FaultyLink> =
        NODES.iter().map(|_| FaultyLink::start(port, 200, random.number()).unwrap()).collect();
    for (n, (node, link)) in NODES.iter().zip(&links).enumerate() {
        let client = |dir: &Path| {
            let mut client = client_command(&format!("127.0.0.1:{}", link.port), node, dir);
            client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
            client.env("MIOT_CLIENT_SPOOL_BYTES", "16 MiB");
            client
        };
        if n == 0 {
            let dir = lanes.join("miot");
            deployment.add_in(&room, node, &dir, &dir.join("spool"), &client(&dir));
        } else {
            deployment.add(node, client);
        }
    }
    let mut full = [Full::new(&room.seen(&disk)), Full::new(&room.seen(&lanes))];
    let mut watch = Watch::start(&format!("127.0.0.1:{port}"), Some("b"));
    let mut still: Option<(usize, Instant)> = None;
    let start = Instant::now();
    while start.elapsed() < seconds {
        for node in 0..NODES.len() {
            deployment.populate(node, 2, (0, 3000), &mut random, |random| ProducerLoad {
                pause: 100_000,
                ..ProducerLoad::any(random)
            });
            if still.is_none_or(|(still, _)| still != node) && (node > 0 || full[1].ballast.is_none()) {
                deployment.nodes[node].client.kill_or_restart(&mut random, CLIENT);
            }
        }
        if full[0].ballast.is_none() {
            deployment.server.kill_or_restart(&mut random, SERVER);
        }
        deployment.kill_due();
        watch.tend();
        full.iter_mut().for_each(|full| full.fill_or_empty(&mut random));
        match still {
            Some((node, until)) if Instant::now() > until => {
                deployment.nodes[node].client.signal(Signal::CONT);
                still = None;
            }
            None if random.one_in(300) => {
                let node = random.place(NODES.len());
                deployment.nodes[node].client.signal(Signal::STOP);
                still = Some((node, Instant::now() + random.millis(100, 2000)));
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some((node, _)) = still {
        deployment.nodes[node].client.signal(Signal::CONT);
    }
    full.iter_mut().for_each(Full::empty);
    links.iter().for_each(FaultyLink::stop_faults);
    let rules = Rules { lost_at: &["lane_full", "no_lane"], served: false };
    let verdict = deployment.end_and(rules, |trace| {
        let stored = placed(trace);
        eprintln!(
            "everything: a subscriber received {} of {} events",
            watch.end(&stored, false),
            stored.len()
        );
    });
    for link in &links {
        eprintln!("everything: {:?}", link.done);
    }
    let _ = fs::remove_dir_all(&outside);
    assert_eq!(verdict.nodes.len(), NODES.len());
}
