//! The loop of the simulation.

use crate::figures::Figures;
use crate::network::{MAX_DELAY, Network};
use crate::node::Node;
use crate::plan::{Bug, Plan};
use crate::queue::Queue;
use crate::servers::{NodeEnd, Server};
use crate::spool::{Connection, Link, Wire};
use crate::{SECOND, Time};
use arrow_array::types::{UInt32Type, UInt64Type};
use fastrand::Rng;
use miot_log_client::servers::preference;
use miot_log_client::testing::cluster::ChoiceStep;
use miot_log_server::clock::Exchange;
use miot_log_server::testing::cluster::ToNode;
use miot_proto::event::flag;
use miot_trace_store::schema::column;
use miot_trace_store::set::SetState;
use miot_trace_store::{Reader, ids};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Mean time between two sweeps of a node: that of a log-client with thousands of others.
const SWEEP_EVERY: Time = SECOND;
/// A connection without any message is dead for a node (`dead_after`).
const DEAD_AFTER: Time = 30 * SECOND;
/// Maximum wait for a connection (`ship/tcp.rs`).
const CONNECT_TIMEOUT: Time = 10 * SECOND;
/// Maximum wait for the answer to the greeting (`ship/tcp.rs`).
const GREETING_TIMEOUT: Time = 30 * SECOND;
/// Exchanges that measure a clock when a node connects.
const EXCHANGES: usize = 4;
/// After the end of recording, everything must have arrived within this time.
const DRAIN: Time = 300 * SECOND;
/// Time between two looks at the set of traces.
const CHECKPOINT_EVERY: Time = 20 * SECOND;

/// An event of the loop.
#[derive(Debug)]
pub(crate) enum Event {
    /// A node records and sweeps.
    Sweep(usize),
    /// A node considers its log-server.
    Consider(usize),
    /// A node connects.
    Connect { node: usize, spool: u32, attempt: u64 },
    /// A log-server admits a connection.
    Admit { server: usize, life: u32, node: usize, spool: u32, attempt: u64 },
    /// A node is welcomed: number of the connection, life of the log-server, durable messages.
    Welcome { node: usize, spool: u32, attempt: u64, number: u64, life: u32, through: u64 },
    /// An attempt to connect has failed, or a connection has broken.
    Broken { node: usize, spool: u32, attempt: u64 },
    /// Messages arrive at a log-server.
    ToServer { server: usize, life: u32, number: u64, messages: Vec<Wire> },
    /// An acknowledgment arrives.
    Acknowledged { node: usize, spool: u32, attempt: u64, through: u64 },
    /// A node has closed a connection.
    Close { server: usize, life: u32, number: u64 },
    /// A round of a log-server's store.
    Round { server: usize, life: u32 },
    /// A fault of the plan.
    Fault(usize),
    /// A log-server starts again after an outage.
    Start { server: usize },
    /// Log-clients that were stopped continue.
    ContinueLogClient(usize),
    /// Threads that were stopped continue.
    ContinueThread(usize),
    /// A log-client restarts with other log-servers in its configuration.
    Reconfigure(usize),
    /// The set of traces is read while log-servers write it.
    Checkpoint,
}

/// The state of the simulation.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    epoch: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) random: Rng,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Node>,
    pub(crate) servers: Vec<Server>,
    /// Addresses of all log-servers.
    pub(crate) addresses: Vec<String>,
    /// Numbers of those in the configuration of the nodes.
    pub(crate) members: Vec<usize>,
    pub(crate) figures: Figures,
    checkpoints: Vec<Checkpoint>,
    attempts: u64,
    root: TempDir,
    /// Number of nodes that have not delivered everything.
    left: usize,
}

/// The set of traces at one time.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    /// Up to this time it was final, nanoseconds since 1970.
    pub(crate) until: i64,
    /// Partitions whose log-servers ran.
    pub(crate) written: Vec<u16>,
    /// Number of their rows before that time that are not marked late.
    pub(crate) rows: HashMap<u16, u64>,
}

/// What a run leaves for the judge.
#[derive(Debug)]
pub struct Outcome {
    /// The plan.
    pub plan: Plan,
    /// What was measured.
    pub figures: Figures,
    pub(crate) nodes: Vec<Node>,
    pub(crate) servers: Vec<Server>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Removes the traces.
    pub(crate) _root: TempDir,
}

/// Runs a plan to its end.
///
/// # Panics
/// If a log-server fails, or there is no space for traces.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let mut world = World::new(plan.clone());
    world.begin();
    let end = plan.recording.as_nanos() as Time + DRAIN;
    while world.left > 0
        && let Some((at, event)) = world.queue.next()
        && at < end
    {
        world.now = at;
        world.figures.steps += 1;
        world.handle(event);
    }
    world.figures.duration = Duration::from_nanos(world.now);
    world.figures.waited = world.servers.iter().map(|server| server.waited).sum();
    let World { figures, nodes, mut servers, checkpoints, root, .. } = world;
    servers.iter_mut().for_each(|server| drop(server.kill(false)));
    Outcome { plan: plan.clone(), figures, nodes, servers, checkpoints, _root: root }
}

impl World {
    fn new(plan: Plan) -> World {
        let shm = PathBuf::from("/dev/shm");
        let root = if shm.is_dir() { TempDir::new_in(shm) } else { TempDir::new() };
        let root = root.unwrap_or_else(|e| panic!("no space for traces: {e}"));
        let mut random = Rng::with_seed(plan.seed);
        let epoch = Instant::now();
        let all = plan.all_servers();
        let addresses: Vec<String> = (0..all).map(|n| format!("log{n:02}.example.org:4747")).collect();
        let servers = (0..all).map(|number| {
            let error = random.i64(-2_000_000..2_000_000);
            Server::new(number, &plan, root.path().join(format!("p{number:02}")), error)
        });
        let servers = servers.collect();
        let mut world = World {
            now: 0,
            epoch,
            queue: Queue::new(),
            network: Network::new(random.u64(..)),
            random,
            nodes: Vec::with_capacity(plan.nodes),
            servers,
            addresses,
            members: (0..plan.servers).collect(),
            figures: Figures { preferred: vec![0; plan.servers], ..Figures::default() },
            checkpoints: Vec::new(),
            attempts: 0,
            root,
            left: plan.nodes,
            plan,
        };
        for number in 0..world.plan.nodes {
            let order = world.order_of(number);
            world.figures.preferred[order[0]] += 1;
            world.nodes.push(Node::new(number, &world.plan, order, epoch));
        }
        world
    }

    /// The order in which a node prefers the log-servers of its configuration.
    pub(crate) fn order_of(&self, node: usize) -> Vec<usize> {
        let addresses: Vec<String> = self.members.iter().map(|n| self.addresses[*n].clone()).collect();
        let number = |address: &String| self.addresses.iter().position(|other| other == address);
        preference(&format!("node{node:06}"), &addresses).iter().filter_map(number).collect()
    }

    pub(crate) fn instant(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.now)
    }

    pub(crate) fn after(&mut self, time: Time, event: Event) {
        self.queue.add(self.now + time, event);
    }

    fn begin(&mut self) {
        for server in 0..self.plan.servers {
            self.start(server);
        }
        for node in 0..self.nodes.len() {
            let sweep = self.random.u64(..SWEEP_EVERY);
            self.after(sweep, Event::Sweep(node));
            let probe = self.nodes[node].choice.probe_every().as_nanos() as Time;
            let consider = self.random.u64(..probe);
            self.after(consider, Event::Consider(node));
            let connect = self.random.u64(..SECOND);
            self.attempt(node, 1, connect);
        }
        for (number, (at, _)) in self.plan.faults.clone().iter().enumerate() {
            self.after(at.as_nanos() as Time, Event::Fault(number));
        }
        self.after(CHECKPOINT_EVERY, Event::Checkpoint);
    }

    pub(crate) fn start(&mut self, server: usize) {
        self.servers[server].start(self.now, self.epoch);
        let life = self.servers[server].life;
        let offset = self.random.u64(..self.plan.merge_every.as_nanos() as Time);
        self.after(offset, Event::Round { server, life });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sweep(node) => self.sweep(node),
            Event::Consider(node) => self.consider(node),
            Event::Connect { node, spool, attempt } => self.connect(node, spool, attempt),
            Event::Admit { server, life, node, spool, attempt } => {
                self.admit((server, life), (node, spool, attempt));
            }
            Event::Welcome { node, spool, attempt, number, life, through } => {
                self.welcome((node, spool, attempt), (number, life), through);
            }
            Event::Broken { node, spool, attempt } => self.broken(node, spool, attempt),
            Event::ToServer { server, life, number, messages } => {
                self.receive(server, life, number, messages);
            }
            Event::Acknowledged { node, spool, attempt, through } => {
                self.acknowledged(node, spool, attempt, through);
            }
            Event::Close { server, life, number } => {
                let instant = self.instant();
                let server = &mut self.servers[server];
                if server.life == life {
                    server.closed(number, instant);
                }
            }
            Event::Round { server, life } => self.round(server, life),
            Event::Fault(number) => self.fault(number),
            Event::Start { server } => {
                if !self.servers[server].is_gone() {
                    self.start(server);
                }
            }
            Event::ContinueLogClient(node) => self.nodes[node].is_stopped = false,
            Event::ContinueThread(node) => self.nodes[node].continue_thread(self.now),
            Event::Reconfigure(node) => self.reconfigure(node),
            Event::Checkpoint => self.checkpoint(),
        }
    }

    /// Schedules the next attempt of a spool to connect.
    pub(crate) fn attempt(&mut self, node: usize, spool: u32, wait: Time) {
        self.attempts += 1;
        let attempt = self.attempts;
        if let Some(spool) = self.nodes[node].spool(spool) {
            (spool.link, spool.attempt) = (Link::Waiting, attempt);
            let number = spool.number;
            self.after(wait, Event::Connect { node, spool: number, attempt });
        }
    }

    fn sweep(&mut self, number: usize) {
        let (now, instant) = (self.now, self.instant());
        let is_over = now >= self.plan.recording.as_nanos() as Time;
        let node = &mut self.nodes[number];
        if !node.has_ended {
            node.record(now);
            if !node.is_stopped {
                match is_over {
                    true => node.finish(now, instant),
                    false => node.sweep(now, instant),
                }
            }
        }
        if !node.is_stopped {
            self.end_dead_connections(number);
            self.flush(number);
        }
        if self.is_delivered(number) {
            self.left -= 1;
            return;
        }
        let wait = SWEEP_EVERY * 3 / 4 + self.nodes[number].random.u64(..SWEEP_EVERY / 2);
        self.after(wait, Event::Sweep(number));
    }

    /// True if nothing is left that can be delivered.
    fn is_delivered(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        node.has_ended && node.spools.iter().all(|spool| self.servers[spool.server].is_gone())
    }

    fn end_dead_connections(&mut self, number: usize) {
        let now = self.now;
        let is_dead = |link: &Link| matches!(link, Link::Up(Connection { heard, .. }) if now.saturating_sub(*heard) >= DEAD_AFTER);
        let dead = self.nodes[number].spools.iter().filter(|spool| is_dead(&spool.link));
        for (spool, attempt) in dead.map(|spool| (spool.number, spool.attempt)).collect::<Vec<_>>() {
            self.close(number, spool);
            self.broken(number, spool, attempt);
        }
    }

    /// Closes the connection of a spool, as far as the network allows that to be noticed.
    pub(crate) fn close(&mut self, number: usize, spool: u32) {
        let now = self.now;
        let Some(spool) = self.nodes[number].spool(spool) else { return };
        if let Link::Up(Connection { number: connection, life, arrives, .. }) = spool.link {
            let server = spool.server;
            if self.network.cut_until(number, server, now).is_none() {
                let at = self.network.arrival(number, server, now, arrives);
                self.queue.add(at, Event::Close { server, life, number: connection });
            }
        }
    }

    /// Sends what is in the spools of a node, and removes those that are delivered.
    fn flush(&mut self, number: usize) {
        let now = self.now;
        let mut done = Vec::new();
        for spool in &mut self.nodes[number].spools {
            let Link::Up(connection) = &mut spool.link else { continue };
            let (mut connected, server) = (*connection, spool.server);
            loop {
                let messages = spool.take(&mut connected);
                if messages.is_empty() {
                    break;
                }
                let is_last = matches!(messages.last(), Some(Wire::Bye));
                connected.arrives = self.network.arrival(number, server, now, connected.arrives);
                let (life, connection) = (connected.life, connected.number);
                let event = Event::ToServer { server, life, number: connection, messages };
                self.queue.add(connected.arrives, event);
                if is_last {
                    let close = Event::Close { server, life, number: connection };
                    self.queue.add(connected.arrives + 1, close);
                    done.push(spool.number);
                    break;
                }
            }
            spool.link = Link::Up(connected);
        }
        self.nodes[number].spools.retain(|spool| !done.contains(&spool.number));
    }

    fn can_reach(&mut self, node: usize, server: usize) -> bool {
        self.servers[server].is_up() && self.network.cut_until(node, server, self.now).is_none()
    }

    fn consider(&mut self, number: usize) {
        let (now, instant) = (self.now, self.instant());
        if self.nodes[number].has_ended {
            return;
        }
        let probe = self.nodes[number].choice.probe_every().as_nanos() as Time;
        self.after(probe, Event::Consider(number));
        let node = &mut self.nodes[number];
        if node.is_stopped {
            return;
        }
        let current = node.current();
        let is_connected = node.spools.last().is_some_and(|spool| matches!(spool.link, Link::Up(_)));
        let target = match node.choice.next_step(current, is_connected, &node.order, instant) {
            ChoiceStep::Stay => None,
            ChoiceStep::Leave => {
                let others = node.order.clone().into_iter().filter(|server| *server != current);
                others
                    .into_iter()
                    .find(|server| self.can_reach(number, *server) && !self.waits(number, *server))
            }
            ChoiceStep::AskPreferred(server) => {
                let answers = self.can_reach(number, server);
                let may_return = self.nodes[number].choice.preferred_answered(answers, instant);
                (may_return && !self.waits(number, server)).then_some(server)
            }
        };
        let Some(server) = target else { return };
        let node = &mut self.nodes[number];
        node.switch(server, now);
        node.choice.changed(instant);
        self.figures.switches += 1;
        let spool = node.spools.last().map_or(0, |spool| spool.number);
        self.attempt(number, spool, 0);
        self.flush(number);
    }

    /// True if a spool waits for a log-server.
    fn waits(&self, node: usize, server: usize) -> bool {
        self.nodes[node].spools.iter().any(|spool| spool.server == server)
    }

    fn connect(&mut self, number: usize, spool: u32, attempt: u64) {
        let now = self.now;
        let is_stopped = self.nodes[number].is_stopped;
        let Some(spool) = self.nodes[number].spool(spool).filter(|spool| spool.attempt == attempt) else {
            return;
        };
        let (server, spool) = (spool.server, spool.number);
        if is_stopped {
            return self.after(SECOND, Event::Connect { node: number, spool, attempt });
        }
        if let Some(spool) = self.nodes[number].spool(spool) {
            spool.link = Link::Connecting;
        }
        self.figures.attempt(server, now);
        let failed = Event::Broken { node: number, spool, attempt };
        let delay = self.network.delay();
        if self.servers[server].is_gone() || self.network.cut_until(number, server, now).is_some() {
            return self.after(CONNECT_TIMEOUT, failed);
        }
        if !self.servers[server].is_up() {
            return self.after(2 * delay, failed);
        }
        let life = self.servers[server].life;
        let at = self.servers[server].admission(now + delay);
        if at > now + GREETING_TIMEOUT {
            return self.after(GREETING_TIMEOUT, failed);
        }
        self.queue.add(at, Event::Admit { server, life, node: number, spool, attempt });
    }

    fn admit(&mut self, (server, life): (usize, u32), (node, spool, attempt): (usize, u32, u64)) {
        let (now, instant) = (self.now, self.instant());
        let failed = Event::Broken { node, spool, attempt };
        if !self.servers[server].is_up() || self.servers[server].life != life {
            let delay = self.network.delay();
            return self.after(delay, failed);
        }
        if self.network.cut_until(node, server, now).is_some() {
            return self.after(GREETING_TIMEOUT, failed);
        }
        let exchanges: Vec<Exchange> = (0..EXCHANGES).map(|_| self.exchange(server, node, 0)).collect();
        let of_node = &mut self.nodes[node];
        let name = of_node.name.clone();
        let Some(waiting) = of_node.spool(spool).filter(|spool| spool.attempt == attempt) else { return };
        let (identity, session) = (waiting.identity, waiting.session);
        let node_end = (spool, attempt, session);
        match self.servers[server].connect((&identity, &name), node_end, &exchanges, (now, instant)) {
            None => {
                let delay = self.network.delay();
                self.after(delay, failed);
            }
            Some((number, through)) => {
                let at = self.network.arrival(node, server, now, now);
                self.queue.add(at, Event::Welcome { node, spool, attempt, number, life, through });
            }
        }
    }

    /// Measures the clock of a node, which holds the question for a time.
    fn exchange(&mut self, server: usize, node: usize, held: Time) -> Exchange {
        let delays = (self.network.delay(), held, self.network.delay());
        let node = &self.nodes[node];
        self.servers[server].measured(|at| node.time(at), self.now, delays)
    }

    fn welcome(
        &mut self,
        (number, spool, attempt): (usize, u32, u64),
        (connection, life): (u64, u32),
        through: u64,
    ) {
        let now = self.now;
        let node = &mut self.nodes[number];
        let is_current = node.spools.last().is_some_and(|last| last.number == spool);
        let Some(spool) = node.spool(spool).filter(|spool| spool.attempt == attempt) else { return };
        assert!(through <= spool.last(), "a log-server has messages that were never sent");
        let acknowledged_before = spool.acknowledged;
        let definitions = spool.restart(through);
        let (sent, server) = (spool.acknowledged, spool.server);
        let mut connected = Connection {
            number: connection,
            life,
            sent,
            since: now,
            has_asked: false,
            acknowledged_before,
            heard: now,
            arrives: now,
        };
        if !definitions.is_empty() {
            connected.arrives = self.network.arrival(number, server, now, now);
            let event = Event::ToServer { server, life, number: connection, messages: definitions };
            self.queue.add(connected.arrives, event);
        }
        spool.link = Link::Up(connected);
        if is_current && let Some(outage) = self.nodes[number].outage.take() {
            let outage = &mut self.figures.outages[outage];
            outage.missing -= 1;
            if outage.missing == 0 {
                outage.back = Some(now);
            }
        }
        if !self.nodes[number].is_stopped {
            self.flush(number);
        }
    }

    pub(crate) fn broken(&mut self, number: usize, spool: u32, attempt: u64) {
        let now = self.now;
        let Some(spool) = self.nodes[number].spool(spool).filter(|spool| spool.attempt == attempt) else {
            return;
        };
        if let Link::Up(Connection { since, acknowledged_before, .. }) = spool.link {
            let has_acknowledged = spool.acknowledged > acknowledged_before;
            spool.waits.connection_ended(has_acknowledged, Duration::from_nanos(now - since));
        }
        let (wait, spool) = (spool.waits.next_wait().as_nanos() as Time, spool.number);
        self.attempt(number, spool, wait);
    }

    fn receive(&mut self, server: usize, life: u32, number: u64, messages: Vec<Wire>) {
        let (now, instant) = (self.now, self.instant());
        if self.servers[server].life != life {
            return;
        }
        let Some(end) = self.servers[server].end(number).copied() else { return };
        if self.servers[server].wants_exchange(number, instant) {
            // The question was sent after the answer to the one before.
            let most = now.saturating_sub(end.answered + 2 * MAX_DELAY);
            let held = if self.plan.crowded { self.network.wait_for_message().min(most) } else { 0 };
            let exchange = self.exchange(server, end.node, held);
            if let Some(end) = self.servers[server].end(number) {
                end.answered = now;
            }
            self.servers[server].exchange(number, exchange, instant);
            // The question has reached the node.
            self.heard(end.node, end.spool, end.attempt);
        }
        let last = messages.iter().rev().find_map(|wire| match wire {
            Wire::Item { seq, .. } if *seq > 0 => Some(*seq),
            _ => None,
        });
        self.servers[server].receive(number, messages, instant);
        if self.plan.bug == Some(Bug::IgnoresWatermarks) {
            self.servers[server].ignore_watermark(number, instant);
        }
        if self.plan.bug == Some(Bug::AcknowledgesEarly)
            && let Some(through) = last
        {
            let at = self.network.arrival(end.node, server, now, now);
            let (node, spool, attempt) = (end.node, end.spool, end.attempt);
            self.queue.add(at, Event::Acknowledged { node, spool, attempt, through });
        }
    }

    fn heard(&mut self, node: usize, spool: u32, attempt: u64) {
        let now = self.now;
        if let Some(spool) = self.nodes[node].spool(spool).filter(|spool| spool.attempt == attempt)
            && let Link::Up(connection) = &mut spool.link
        {
            connection.heard = now;
        }
    }

    fn acknowledged(&mut self, node: usize, spool: u32, attempt: u64, through: u64) {
        self.heard(node, spool, attempt);
        if let Some(spool) = self.nodes[node].spool(spool).filter(|spool| spool.attempt == attempt) {
            spool.acknowledge(through);
        }
    }

    fn round(&mut self, server: usize, life: u32) {
        let (now, instant) = (self.now, self.instant());
        if !self.servers[server].is_up() || self.servers[server].life != life {
            return;
        }
        self.figures.memory = self.figures.memory.max(self.servers[server].memory());
        for (NodeEnd { node, spool, attempt, arrives, .. }, number, message) in
            self.servers[server].round(instant)
        {
            let at = self.network.arrival(node, server, now, arrives);
            match message {
                ToNode::Acknowledged(through) => {
                    if let Some(end) = self.servers[server].end(number) {
                        end.arrives = at;
                    }
                    self.queue.add(at, Event::Acknowledged { node, spool, attempt, through });
                }
                ToNode::Refused(_) => self.queue.add(at, Event::Broken { node, spool, attempt }),
            }
        }
        self.after(self.plan.merge_every.as_nanos() as Time, Event::Round { server, life });
    }

    /// Reads the set of traces while log-servers write it.
    fn checkpoint(&mut self) {
        let dirs: Vec<PathBuf> =
            self.servers.iter().filter(|server| server.life > 0).map(|server| server.dir.clone()).collect();
        let state = SetState::examine(&dirs).unwrap_or_else(|e| panic!("{e}"));
        if let Some(until) = state.until {
            let written = state.members.iter().filter(|member| member.is_written);
            let written = written.filter_map(|member| member.partition).collect();
            let rows = rows_of(&state).unwrap_or_else(|e| panic!("cannot read the set: {e}"));
            self.checkpoints.push(Checkpoint { until, written, rows });
        }
        self.after(CHECKPOINT_EVERY, Event::Checkpoint);
    }
}

/// Number of rows of each partition that a reader of the set gets, without those marked late.
fn rows_of(state: &SetState) -> Result<HashMap<u16, u64>, miot_trace_store::Error> {
    let mut rows = HashMap::new();
    let reader = Reader::of_set(state, |dir| Reader::open(dir))?;
    for batch in reader.events() {
        let batch = batch?;
        let streams = column::<UInt64Type>(&batch, "stream");
        let flags = column::<UInt32Type>(&batch, "flags");
        for (stream, flags) in
            streams.iter().flat_map(|ids| ids.values()).zip(flags.iter().flat_map(|f| f.values()))
        {
            if flags & u32::from(flag::LATE) == 0
                && let Some(partition) = ids::partition_of(*stream)
            {
                *rows.entry(partition).or_default() += 1;
            }
        }
    }
    Ok(rows)
}
