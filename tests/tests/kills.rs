//! Everything between the nodes and the object store is killed in one run: two log-servers, the
//! broker between them and some nodes, and the uploaders of their sealed parts. The judge reads the
//! copies in the store.
//!
//! `MIOT_KILLS`: number of kills, default 200. `MIOT_SEED`: the seed, which is printed. Timing
//! differs as well, so a seed does not reproduce a run, only the kind of run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::broker::{Broker, StreamMessages};
use miot_tests::judge::{Rules, judge_set};
use miot_tests::killable_daemon::KillableDaemon;
use miot_tests::object_store::{BUCKET, KillAt, KillingProxy, S3, S3Server};
use miot_tests::process::{WATCHDOG, until};
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use miot_tests::set_deployment::SetDeployment;
use miot_tests::test_dir::fresh;
use miot_tests::uploads::{assert_complete, files, uploader, waiting_parts};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of log-servers.
const SERVERS: usize = 2;
/// Nodes of each log-server that send by TCP.
const DIRECT: usize = 2;
/// A kill during an upload is at one of this number of requests. A part takes about a dozen.
const REQUESTS: u64 = 12;
/// Milliseconds from the start of a daemon's work to its kill, and from the kill to the next start.
const LIVE: (u64, u64) = (0, 1200);
const DEAD: (u64, u64) = (0, 300);

/// What was killed, and how. The order is that of the printed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kill {
    Server,
    ServerDuringUpload,
    UploadAtRequest,
    UploadAtAnswer,
    Broker,
    BrokerAndStore,
    BrokerAndStoreWithMessages,
}

const KINDS: [Kill; 7] = [
    Kill::Server,
    Kill::ServerDuringUpload,
    Kill::UploadAtRequest,
    Kill::UploadAtAnswer,
    Kill::Broker,
    Kill::BrokerAndStore,
    Kill::BrokerAndStoreWithMessages,
];

/// Kills so far.
#[derive(Debug)]
struct Kills {
    /// Number of kills after which no other one is planned.
    many: u64,
    counts: BTreeMap<Kill, u64>,
    /// Kills while sealed parts of the same log-server, or of any for a broker, were not uploaded.
    with_waiting_parts: u64,
    last: Instant,
}

impl Kills {
    fn new(many: u64) -> Kills {
        Kills { many, counts: BTreeMap::new(), with_waiting_parts: 0, last: Instant::now() }
    }

    /// Counts a kill. One during an upload counts only with a part to upload: the first requests of
    /// an uploader are for the manifest.
    fn add(&mut self, kill: Kill, waiting: usize) {
        self.last = Instant::now();
        let uploads = [Kill::ServerDuringUpload, Kill::UploadAtRequest, Kill::UploadAtAnswer];
        if waiting == 0 && uploads.contains(&kill) {
            return;
        }
        *self.counts.entry(kill).or_default() += 1;
        self.with_waiting_parts += u64::from(waiting > 0);
    }

    fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// True if there are as many as required, and a twentieth of them of each kind.
    fn are_enough(&self) -> bool {
        let is_enough = |kind: &Kill| self.counts.get(kind).is_some_and(|count| count * 20 >= self.many);
        self.total() >= self.many && KINDS.iter().all(is_enough)
    }
}

/// State of a daemon in the sequence of its kills.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Started, and has not worked yet.
    Started,
    /// Is killed at this time, or gets a planned kill then.
    Working(Instant),
    /// The proxy kills it at a request.
    Planned(KillAt),
    /// Is started again at this time.
    Dead(Instant),
}

impl Phase {
    fn ended(random: &mut Random) -> Phase {
        Phase::Dead(Instant::now() + random.millis(DEAD.0, DEAD.1))
    }

    fn working(random: &mut Random) -> Phase {
        Phase::Working(Instant::now() + random.millis(LIVE.0, LIVE.1))
    }
}

/// A log-server of the set, and its uploader.
#[derive(Debug)]
struct Partition {
    server: Phase,
    /// The log-server is killed at a request of its uploader.
    during_upload: bool,
    uploader: KillableDaemon,
    upload: Phase,
    /// Between the uploader and the store.
    proxy: KillingProxy,
}

impl Partition {
    fn new(trace: &Path, partition: usize, s3: u16) -> Partition {
        let proxy = KillingProxy::without_plan(s3);
        let uploader = KillableDaemon::start(uploader(trace, &prefix(partition), proxy.port));
        Partition { server: Phase::Started, during_upload: false, uploader, upload: Phase::Started, proxy }
    }

    /// True if both daemons run and are not going to be killed.
    fn is_settled(&self) -> bool {
        [self.server, self.upload].iter().all(|phase| matches!(phase, Phase::Started | Phase::Working(_)))
    }

    fn has_plan(&self) -> bool {
        [self.server, self.upload].iter().any(|phase| matches!(phase, Phase::Planned(_)))
    }

    /// Plans a kill at a request that uploads a part.
    fn plan(&self, process: u32, random: &mut Random) -> Phase {
        let at = if random.one_in(2) { KillAt::Request } else { KillAt::Answer };
        self.proxy.plan(at, 1 + random.below(REQUESTS) as usize, process);
        Phase::Planned(at)
    }

    fn kill_or_restart_server(
        &mut self,
        daemon: &mut KillableDaemon,
        trace: &Path,
        random: &mut Random,
        kills: &mut Kills,
    ) {
        match self.server {
            Phase::Started | Phase::Working(_) if kills.are_enough() => {}
            Phase::Started if daemon.printed_since_start().contains("node connected") => {
                self.server = Phase::working(random);
                self.during_upload = random.one_in(3);
            }
            Phase::Working(time) if Instant::now() >= time => {
                if !self.during_upload {
                    daemon.kill();
                    kills.add(Kill::Server, waiting_parts(trace));
                    self.server = Phase::ended(random);
                } else if !self.has_plan() {
                    self.server = self.plan(daemon.id().unwrap(), random);
                }
            }
            Phase::Planned(_) if daemon.was_killed() => {
                kills.add(Kill::ServerDuringUpload, waiting_parts(trace));
                self.server = Phase::ended(random);
            }
            Phase::Dead(time) if Instant::now() >= time => {
                daemon.restart();
                self.server = Phase::Started;
            }
            _ => {}
        }
    }

    fn kill_or_restart_uploader(&mut self, trace: &Path, random: &mut Random, kills: &mut Kills) {
        match self.upload {
            Phase::Started | Phase::Working(_) if kills.are_enough() => {}
            Phase::Started => self.upload = Phase::working(random),
            Phase::Working(time) if Instant::now() >= time && !self.has_plan() => {
                self.upload = self.plan(self.uploader.id().unwrap(), random);
            }
            Phase::Planned(at) if self.uploader.was_killed() => {
                let kill = if at == KillAt::Request { Kill::UploadAtRequest } else { Kill::UploadAtAnswer };
                kills.add(kill, waiting_parts(trace));
                self.upload = Phase::ended(random);
            }
            Phase::Dead(time) if Instant::now() >= time => {
                self.uploader.restart();
                self.upload = Phase::Started;
            }
            _ => {}
        }
    }
}

/// The broker, in the sequence of its kills.
#[derive(Debug)]
struct KilledBroker {
    nats: Broker,
    phase: Phase,
    kill: Kill,
    /// Messages that its streams had received at its start.
    received: u64,
    /// Time of the next question for its messages.
    ask: Instant,
}

impl KilledBroker {
    fn start(place: &Path) -> KilledBroker {
        let nats = Broker::start(place, "");
        KilledBroker { nats, phase: Phase::Started, kill: Kill::Broker, received: 0, ask: Instant::now() }
    }

    /// Messages of all streams.
    fn messages(&self) -> StreamMessages {
        let all = (0..SERVERS).filter_map(|partition| self.nats.messages(&stream(partition)));
        all.fold(StreamMessages::default(), |sum, next| StreamMessages {
            received: sum.received + next.received,
            waiting: sum.waiting + next.waiting,
        })
    }

    fn kill_or_restart(&mut self, waiting_parts: impl Fn() -> usize, random: &mut Random, kills: &mut Kills) {
        match self.phase {
            Phase::Started | Phase::Working(_) if kills.are_enough() || Instant::now() < self.ask => {}
            Phase::Started => {
                self.ask = Instant::now() + Duration::from_millis(50);
                if self.messages().received > self.received {
                    self.phase = Phase::working(random);
                    let kinds = [Kill::Broker, Kill::BrokerAndStore, Kill::BrokerAndStoreWithMessages];
                    self.kill = kinds[random.place(kinds.len())];
                }
            }
            Phase::Working(time) if Instant::now() >= time => {
                self.ask = Instant::now() + Duration::from_millis(10);
                let messages = self.messages();
                if self.kill == Kill::BrokerAndStoreWithMessages && messages.waiting == 0 {
                    return;
                }
                self.nats.daemon.kill();
                kills.add(self.kill, waiting_parts());
                self.received = messages.received;
                self.phase = Phase::ended(random);
            }
            Phase::Dead(time) if Instant::now() >= time => {
                let wiped = self.kill != Kill::Broker;
                self.nats.restart(wiped);
                if wiped {
                    self.received = 0;
                }
                self.phase = Phase::Started;
            }
            _ => {}
        }
    }
}

fn prefix(partition: usize) -> String {
    format!("site/p{partition}")
}

fn stream(partition: usize) -> String {
    format!("MIOT{partition}")
}

/// Starts log-servers that seal small parts, and nodes by TCP and through the broker. The last
/// log-server removes parts that are uploaded.
fn set(broker: &Broker) -> SetDeployment {
    let mut set = SetDeployment::new("kills", 0);
    for partition in 0..SERVERS {
        set.add_server_with(|server| {
            server
                .env("MIOT_SERVER_TRANSPORT", broker.url())
                .env("MIOT_SERVER_BROKER_STREAM", stream(partition));
            server.env("MIOT_SERVER_LOG", "info").env("MIOT_SERVER_SILENT_AFTER", "500ms");
            server.env("MIOT_SERVER_SEAL_ROWS", "1500").env("MIOT_SERVER_SEAL_AFTER", "1s");
            server.env("MIOT_SERVER_STORE", format!("s3://{BUCKET}/{}", prefix(partition)));
            if partition + 1 == SERVERS {
                server.env("MIOT_SERVER_KEEP_BYTES", "1 B");
            }
        });
    }
    let addresses = set.addresses();
    let mut nodes: Vec<_> = set
        .names(SERVERS * DIRECT)
        .into_iter()
        .map(|name| (set.client(&name, &addresses, "0s"), name))
        .collect();
    for partition in 0..SERVERS {
        let name = format!("through.{partition}");
        let mut client = set.client(&name, &set.servers[partition].address, "0s");
        client.env("MIOT_CLIENT_TRANSPORT", broker.url()).env("MIOT_CLIENT_BROKER_STREAM", stream(partition));
        nodes.push((client, name));
    }
    for (mut client, name) in nodes {
        client.env("MIOT_CLIENT_WHEN_FULL", "wait");
        set.add_node_with(&name, client);
    }
    set.load = ProducerLoad { threads: 1, requests: 400, stride: 1, pause: 300_000, paths: 200 };
    set
}

/// Compares the objects of a trace with the files of its sealed parts. If it does not keep all of
/// them, some must be gone. Returns the number of parts in the store.
fn compare(copy: &Path, trace: &Path, keeps_all: bool) -> u64 {
    let (copy, trace) = (files(copy), files(trace));
    let is_sealed = |name: &&PathBuf| {
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("part-") && (name.ends_with(".parquet") || name.ends_with(".sealed"))
    };
    let [stored, local] = [&copy, &trace].map(|files| files.keys().filter(is_sealed).collect::<Vec<_>>());
    for name in &local {
        assert!(copy.get(*name) == trace.get(*name), "{} is not the same in the store", name.display());
    }
    if keeps_all {
        assert_eq!(stored, local);
    } else {
        assert!(stored.len() > local.len(), "no part was removed after its upload");
    }
    stored.iter().filter(|name| name.starts_with("events")).count() as u64
}

#[test]
fn nothing_is_lost_or_repeated_although_the_whole_centre_is_killed() {
    let mut random = Random::new("kills");
    let place = fresh("kills-centre");
    let s3 = S3::start(S3Server::SeaweedFs, &place);
    let mut broker = KilledBroker::start(&place);
    let mut set = set(&broker.nats);
    until("the log-servers have begun their traces", || {
        set.servers.iter().all(|server| server.trace.join("miot-trace.json").exists())
    });
    let mut partitions: Vec<Partition> = (0..SERVERS)
        .map(|partition| Partition::new(&set.servers[partition].trace, partition, s3.port))
        .collect();

    let (start, mut kills) = (Instant::now(), Kills::new(number("MIOT_KILLS", 200)));
    while !(kills.are_enough()
        && broker.nats.daemon.is_running()
        && partitions.iter().all(Partition::is_settled))
    {
        set.step(2, &mut random);
        for (partition, server) in partitions.iter_mut().zip(&mut set.servers) {
            partition.kill_or_restart_server(&mut server.daemon, &server.trace, &mut random, &mut kills);
            partition.kill_or_restart_uploader(&server.trace, &mut random, &mut kills);
        }
        let waiting = || set.servers.iter().map(|server| waiting_parts(&server.trace)).sum();
        broker.kill_or_restart(waiting, &mut random, &mut kills);
        let idle = kills.last.elapsed();
        assert!(idle < WATCHDOG, "no kill for {idle:?}: {kills:?}\n{broker:?}\n{partitions:?}\n{set:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!(
        "kills: {} in {:?}: {:?}, of these {} while parts were not uploaded",
        kills.total(),
        start.elapsed(),
        kills.counts,
        kills.with_waiting_parts
    );
    assert!(kills.with_waiting_parts > 0);

    let _ = set.stop();
    let traces: Vec<PathBuf> = set.servers.iter().map(|server| server.trace.clone()).collect();
    let waiting = || traces.iter().map(|trace| waiting_parts(trace)).sum::<usize>();
    let mut left = waiting();
    while left > 0 {
        let before = left;
        until("another part is uploaded", || {
            left = waiting();
            left < before
        });
    }
    for partition in partitions {
        let printed = partition.uploader.stop();
        assert!(!printed.contains("panicked"), "{printed}");
    }
    let copies: Vec<PathBuf> =
        (0..SERVERS).map(|partition| place.join(format!("copy-{partition}"))).collect();
    let mut parts = 0;
    for (partition, (copy, trace)) in copies.iter().zip(&traces).enumerate() {
        s3.download(&prefix(partition), copy);
        parts += compare(copy, trace, partition + 1 < SERVERS);
    }
    let copies: Vec<&Path> = copies.iter().map(PathBuf::as_path).collect();
    let verdict = judge_set(&copies, &set.asked, Rules { lost_at: &[], served: true });
    assert_eq!((verdict.sealed, verdict.nodes.len()), (parts, SERVERS * (DIRECT + 1)), "{verdict}");
    let names = copies.iter().map(|copy| copy.display().to_string()).collect::<Vec<_>>();
    assert_complete(Path::new(&names.join(",")));
    eprintln!("kills: the store has {parts} parts after {:?}; {verdict}", start.elapsed());
    drop(s3);
    let _ = (fs::remove_dir_all(set.place()), fs::remove_dir_all(&place));
}
