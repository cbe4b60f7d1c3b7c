//! Log-servers, and the ends of their connections.

use crate::plan::Plan;
use crate::spool::{Identity, Wire};
use crate::{EPOCH, Time};
use miot_log_server::Config;
use miot_log_server::clock::Exchange;
use miot_log_server::testing::cluster::{Reception, SimulatedServer, ToNode};
use miot_proto::wire::Message;
use miot_trace_store::{Reader, Table};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A log-server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dir: PathBuf,
    config: Config,
    state: State,
    /// Counts its starts.
    pub(crate) life: u32,
    /// Time at which it can admit the next connection.
    free_at: Time,
    connect_time: Time,
    crowded: bool,
    /// Error of its clock, nanoseconds.
    pub(crate) clock_error: i64,
    connections: HashMap<u64, NodeEnd>,
    /// Messages for which there was no memory.
    stalled: BTreeMap<u64, VecDeque<Wire>>,
    /// Number of rows in the trace at the start.
    rows_before: u64,
    /// Number of durable rows of the trace, and the time up to which it was final then.
    pub(crate) finals: Vec<(u64, i64)>,
    pub(crate) waited: u64,
}

#[derive(Debug)]
enum State {
    Up(Box<SimulatedServer>),
    /// Its process does not run.
    Down,
    /// Its machine cannot be reached.
    Gone,
}

/// The node's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeEnd {
    pub(crate) node: usize,
    pub(crate) spool: u32,
    pub(crate) attempt: u64,
    identity: Identity,
    /// Arrival of the last bytes sent to the node.
    pub(crate) arrives: Time,
    /// Time of the last answer about its clock.
    pub(crate) answered: Time,
}

/// A welcomed connection: its number, and the last durable message of the session.
pub(crate) type Welcome = (u64, u64);

impl Server {
    pub(crate) fn new(number: usize, plan: &Plan, dir: PathBuf, clock_error: i64) -> Server {
        let config = Config {
            trace: dir.clone(),
            partition: u16::try_from(number).unwrap_or(u16::MAX),
            cluster: "simulation".to_owned(),
            http: Some("off".to_owned()),
            memory: plan.memory,
            merge_every: plan.merge_every,
            commit_every: plan.merge_every,
            connections: plan.nodes * 4 + 256,
            // The judge checks the rows in the order in which they were appended.
            seal_rows: u64::MAX,
            seal_bytes: u64::MAX,
            seal_after: Duration::from_secs(1 << 30),
            ..Config::default()
        };
        Server {
            dir,
            config,
            state: State::Down,
            life: 0,
            free_at: 0,
            connect_time: plan.connect_time.as_nanos() as Time,
            crowded: plan.crowded,
            clock_error,
            connections: HashMap::new(),
            stalled: BTreeMap::new(),
            rows_before: 0,
            finals: Vec::new(),
            waited: 0,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// The server's time, nanoseconds since 1970.
    fn time(&self, now: Time) -> i64 {
        EPOCH + self.clock_error + now as i64
    }

    /// Starts the process, with the trace that is there.
    pub(crate) fn start(&mut self, now: Time, epoch: Instant) {
        let instant = epoch + Duration::from_nanos(now);
        let opened = SimulatedServer::open(self.config.clone(), instant, epoch, self.time(0));
        let mut server = opened.unwrap_or_else(|e| panic!("cannot start a log-server: {e}"));
        if self.crowded {
            server.set_crowded();
        }
        let rows = Reader::open(&self.dir).and_then(|reader| reader.count(Table::Events));
        self.rows_before = rows.map_or(0, |parts| parts.values().sum());
        self.life += 1;
        self.state = State::Up(Box::new(server));
    }

    /// Kills the process. Returns the ends of its connections.
    pub(crate) fn kill(&mut self, is_gone: bool) -> Vec<NodeEnd> {
        if !self.is_gone() {
            self.state = if is_gone { State::Gone } else { State::Down };
        }
        self.free_at = 0;
        self.stalled.clear();
        let mut ends: Vec<(u64, NodeEnd)> = self.connections.drain().collect();
        ends.sort_unstable_by_key(|(number, _)| *number);
        ends.into_iter().map(|(_, end)| end).collect()
    }

    /// Time at which a connection that arrives now is admitted: one after the other.
    pub(crate) fn admission(&mut self, now: Time) -> Time {
        self.free_at = self.free_at.max(now) + self.connect_time;
        self.free_at
    }

    /// Connects a node.
    pub(crate) fn connect(
        &mut self,
        (node, name): (&Identity, &str),
        (spool, attempt, session): (u32, u64, u64),
        exchanges: &[Exchange],
        now: (Time, Instant),
    ) -> Option<Welcome> {
        let State::Up(server) = &mut self.state else { return None };
        let welcome = server.connect(name, session, exchanges, now.1);
        let welcome = welcome.unwrap_or_else(|e| panic!("a log-server has failed: {e}"))?;
        let end =
            NodeEnd { node: node.node, spool, attempt, identity: *node, arrives: now.0, answered: now.0 };
        self.connections.insert(welcome.0, end);
        Some(welcome)
    }

    /// The node's end of a connection.
    pub(crate) fn end(&mut self, number: u64) -> Option<&mut NodeEnd> {
        self.connections.get_mut(&number)
    }

    pub(crate) fn wants_exchange(&self, number: u64, instant: Instant) -> bool {
        matches!(&self.state, State::Up(server) if server.wants_exchange(number, instant))
    }

    pub(crate) fn exchange(&mut self, number: u64, exchange: Exchange, instant: Instant) {
        if let State::Up(server) = &mut self.state {
            let result = server.exchange(number, exchange, instant);
            result.unwrap_or_else(|e| panic!("a log-server has failed: {e}"));
        }
    }

    /// An exchange of messages with a node that measures its clock. `there` and `back`: delays;
    /// `held`: time from the question to the answer.
    pub(crate) fn measured(
        &self,
        node: impl Fn(Time) -> i64,
        now: Time,
        (there, held, back): (Time, Time, Time),
    ) -> Exchange {
        let answered = now.saturating_sub(back);
        let arrived = answered.saturating_sub(held);
        let sent = arrived.saturating_sub(there);
        Exchange::new(self.time(sent), (node(arrived), node(answered)), self.time(now))
    }

    /// A bug: the merge does not wait for the node.
    pub(crate) fn ignore_watermark(&mut self, number: u64, instant: Instant) {
        if let State::Up(server) = &mut self.state {
            let result = server.receive(number, Message::SuspendWatermark, None, 9, instant);
            result.unwrap_or_else(|e| panic!("a log-server has failed: {e}"));
        }
    }

    /// Receives messages of a connection, in order.
    pub(crate) fn receive(&mut self, number: u64, messages: Vec<Wire>, instant: Instant) {
        let Some(end) = self.connections.get(&number) else { return };
        if let Some(stalled) = self.stalled.get_mut(&number) {
            self.waited += messages.len() as u64;
            stalled.extend(messages);
            return;
        }
        let identity = end.identity;
        let mut messages = VecDeque::from(messages);
        self.receive_until_full(number, identity, &mut messages, instant);
        if !messages.is_empty() {
            self.waited += messages.len() as u64;
            self.stalled.insert(number, messages);
        }
    }

    fn receive_until_full(
        &mut self,
        number: u64,
        identity: Identity,
        messages: &mut VecDeque<Wire>,
        instant: Instant,
    ) {
        let State::Up(server) = &mut self.state else { return };
        while let Some(wire) = messages.front() {
            let (message, rows, length) = wire.message(identity);
            let received = server.receive(number, message, rows, length, instant);
            match received.unwrap_or_else(|e| panic!("a log-server has failed: {e}")) {
                Reception::Taken => drop(messages.pop_front()),
                Reception::NoMemory => return,
                Reception::Closed => messages.clear(),
            }
        }
    }

    /// A round of the store. Returns what it sends to nodes.
    pub(crate) fn round(&mut self, instant: Instant) -> Vec<(NodeEnd, u64, ToNode)> {
        if let State::Up(server) = &self.state {
            server.wake();
        }
        for (number, mut messages) in std::mem::take(&mut self.stalled) {
            if let Some(end) = self.connections.get(&number) {
                let identity = end.identity;
                self.receive_until_full(number, identity, &mut messages, instant);
                if !messages.is_empty() {
                    self.stalled.insert(number, messages);
                }
            }
        }
        let State::Up(server) = &mut self.state else { return Vec::new() };
        let round = server.round(instant).unwrap_or_else(|e| panic!("a log-server has failed: {e}"));
        if let Some(time) = round.final_time
            && self.finals.last().is_none_or(|(_, last)| time > *last)
        {
            self.finals.push((self.rows_before + round.committed, time));
        }
        let messages = server.take_messages(instant);
        let messages = messages.unwrap_or_else(|e| panic!("a log-server has failed: {e}"));
        let addressed = messages.into_iter().filter_map(|(number, message)| {
            let end = match &message {
                ToNode::Refused(_) => self.connections.remove(&number),
                ToNode::Acknowledged(_) => self.connections.get(&number).copied(),
            };
            Some((end?, number, message))
        });
        addressed.collect()
    }

    /// The node has closed a connection.
    pub(crate) fn closed(&mut self, number: u64, instant: Instant) {
        self.stalled.remove(&number);
        if self.connections.remove(&number).is_some()
            && let State::Up(server) = &mut self.state
        {
            server.closed(number, instant).unwrap_or_else(|e| panic!("a log-server has failed: {e}"));
        }
    }

    /// Memory for events that are not durable, bytes.
    pub(crate) fn memory(&self) -> usize {
        match &self.state {
            State::Up(server) => server.memory(),
            _ => 0,
        }
    }
}
