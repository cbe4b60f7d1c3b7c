//! Size, settings, faults and deliberate bugs of a run.

use fastrand::Rng;
use std::time::Duration;

/// A run of the simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All random numbers follow from it.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of log-servers at the start. [`Fault::AddServer`] adds more.
    pub servers: usize,
    /// Duration for which nodes record.
    pub recording: Duration,
    /// Mean time between two events of a node.
    pub event_every: Duration,
    /// The setting of the log-clients.
    pub fail_over_after: Option<Duration>,
    /// Memory of a log-server for events that are not durable, bytes.
    pub memory: u64,
    /// Time between two merges, and minimum time between two commits.
    pub merge_every: Duration,
    /// Processor time of a log-server for a node that connects.
    pub connect_time: Duration,
    /// What happens, and when.
    pub faults: Vec<(Duration, Fault)>,
    /// A bug that the judge must find.
    pub bug: Option<Bug>,
    /// As with thousands of nodes: log-servers acknowledge rarely, and nodes answer questions about
    /// their clocks with their next messages.
    pub crowded: bool,
}

/// What happens to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// These log-servers are killed, and start again.
    Restart {
        /// Numbers of the log-servers.
        servers: Vec<usize>,
        /// Time until they start.
        away: Duration,
    },
    /// A log-server is killed and never returns. Nodes cannot reach its machine.
    Gone {
        /// Number of the log-server.
        server: usize,
    },
    /// Some nodes cannot reach some log-servers.
    Partition {
        /// One node in this many.
        one_in: u64,
        /// Numbers of the log-servers.
        servers: Vec<usize>,
        /// Duration.
        lasts: Duration,
    },
    /// The log-clients of some nodes are stopped: programs record, and nothing is read.
    StopLogClients {
        /// One node in this many.
        one_in: u64,
        /// Duration.
        lasts: Duration,
    },
    /// A thread of some nodes is stopped between reading the clock and committing its record.
    StopThreads {
        /// One node in this many.
        one_in: u64,
        /// Duration.
        lasts: Duration,
    },
    /// Another log-server starts, and all log-clients restart with it in their configuration.
    AddServer,
    /// All log-clients restart without this log-server in their configuration. It runs on until
    /// they have delivered what is left for it.
    RemoveServer {
        /// Number of the log-server.
        server: usize,
    },
}

/// A deliberate bug, to test the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Log-servers acknowledge what they have received, before it is durable.
    AcknowledgesEarly,
    /// A node that changes its log-server offers unacknowledged batches to both.
    OffersTwice,
    /// The watermark of a node does not wait for a stopped thread, whose record keeps its time.
    IgnoresStoppedThreads,
    /// Log-servers do not wait for the watermarks of their nodes.
    IgnoresWatermarks,
    /// A log-client loses a batch that it has taken from the lane.
    LosesBatches,
}

impl Plan {
    /// A run without faults.
    #[must_use]
    pub fn quiet(seed: u64, nodes: usize, servers: usize) -> Plan {
        Plan {
            seed,
            nodes,
            servers,
            recording: Duration::from_secs(40),
            event_every: Duration::from_secs(2),
            fail_over_after: None,
            memory: 512 << 20,
            merge_every: Duration::from_millis(250),
            connect_time: Duration::from_millis(1),
            faults: Vec::new(),
            bug: None,
            crowded: false,
        }
    }

    /// A run in which everything happens: a restart of one log-server and of all, partitions of the
    /// network, stopped log-clients and threads, an added and a removed log-server, and one that is
    /// gone for good. Log-servers and times follow from the seed.
    #[must_use]
    pub fn everything(seed: u64, nodes: usize, servers: usize) -> Plan {
        assert!(servers >= 2, "expected at least 2 log-servers, found {servers}");
        let mut random = Rng::with_seed(seed ^ 0x5eed);
        let seconds =
            |from: u64, to: u64, random: &mut Rng| Duration::from_millis(random.u64(from * 1000..to * 1000));
        let away = seconds(1, 8, &mut random);
        let (one, gone) = (random.usize(..servers), random.usize(..servers));
        let removed = (gone + 1 + random.usize(..servers - 1)) % servers;
        let some = |random: &mut Rng| -> Vec<usize> {
            let chosen: Vec<usize> = (0..servers).filter(|_| random.u8(..3) == 0).collect();
            if chosen.is_empty() { vec![random.usize(..servers)] } else { chosen }
        };
        let (cut, cut_again) = (some(&mut random), some(&mut random));
        let faults = vec![
            (seconds(10, 14, &mut random), Fault::Restart { servers: vec![one], away }),
            (
                seconds(16, 30, &mut random),
                Fault::Partition { one_in: 5, servers: cut, lasts: seconds(2, 12, &mut random) },
            ),
            (
                seconds(20, 30, &mut random),
                Fault::StopThreads { one_in: 20, lasts: seconds(3, 12, &mut random) },
            ),
            (
                seconds(24, 34, &mut random),
                Fault::StopLogClients { one_in: 20, lasts: seconds(8, 40, &mut random) },
            ),
            (
                seconds(40, 44, &mut random),
                Fault::Restart { servers: (0..servers).collect(), away: seconds(1, 8, &mut random) },
            ),
            (
                seconds(50, 60, &mut random),
                Fault::Partition { one_in: 3, servers: cut_again, lasts: seconds(25, 70, &mut random) },
            ),
            (seconds(62, 66, &mut random), Fault::AddServer),
            (seconds(70, 74, &mut random), Fault::Gone { server: gone }),
            (seconds(90, 95, &mut random), Fault::RemoveServer { server: removed }),
        ];
        Plan {
            recording: Duration::from_secs(120),
            fail_over_after: Some(Duration::from_secs(12)),
            faults,
            ..Plan::quiet(seed, nodes, servers)
        }
    }

    /// The same run of a crowded cluster, see [`Plan::crowded`].
    #[must_use]
    pub fn as_crowded(self) -> Plan {
        Plan { crowded: true, ..self }
    }

    /// The same run with a bug.
    #[must_use]
    pub fn with(self, bug: Bug) -> Plan {
        Plan { bug: Some(bug), ..self }
    }

    /// Number of log-servers, with those that are added.
    #[must_use]
    pub fn all_servers(&self) -> usize {
        self.servers + self.faults.iter().filter(|(_, fault)| *fault == Fault::AddServer).count()
    }
}
