//! The store of a log-server among others, at times that a simulation passes. Without sockets and
//! without the tasks of sessions: messages are decoded and unencoded rows are passed. Everything
//! behind that is the log-server's own: the rules of the protocol, memory budgets, the correction
//! of clocks, and the whole store with its trace directory.

use crate::ServerClock;
use crate::clock::{ClockEffort, Correction, Exchange, NodeClock};
use crate::error::Error;
use crate::ids::{ConnId, Seq};
use crate::net::limits::NodePermit;
use crate::session::{Converted, DEAD_AFTER, OpenDefinitions, input_of, memory_size};
use crate::settings::config::Config;
use crate::shared::Shared;
use crate::store::budget::Charge;
use crate::store::input::{ConnectRequest, Input, InputKind, NodeInput};
use crate::store::watermarks::FlowControl;
use crate::store::{RunSummary, Store};
use miot_proto::batch::Columns;
use miot_proto::wire::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};

/// A log-server, see the module.
pub struct SimulatedServer {
    shared: Arc<Shared>,
    store: Store,
    clock: ServerClock,
    effort: ClockEffort,
    last_connection: u64,
    /// In the order in which they were opened, so that runs are equal.
    connections: BTreeMap<u64, Connection>,
}

/// A connection of a node.
struct Connection {
    definitions: OpenDefinitions,
    permit: NodePermit,
    flow: Arc<FlowControl>,
    clock: NodeClock,
    /// Time of the next exchange that measures the clock.
    exchange_due: Instant,
    acks: watch::Receiver<Seq>,
    /// The last acknowledgment that was sent.
    acknowledged: Seq,
    /// A question about the clock was sent: an acknowledgment goes with it.
    has_asked: bool,
    out: mpsc::UnboundedReceiver<Message>,
    heard: Instant,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// The store has it.
    Taken,
    /// There is no memory for it: the node is not read until later.
    NoMemory,
    /// The connection does not exist.
    Closed,
}

/// What the log-server sends to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToNode {
    /// Everything up to this number is durable.
    Acknowledged(u64),
    /// The connection is closed, with a reason.
    Refused(String),
}

/// State after a round of the store.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Time up to which the trace is final, nanoseconds since 1970, if everything merged is
    /// durable.
    pub final_time: Option<i64>,
    /// Number of durable events since the start.
    pub committed: u64,
}

impl std::fmt::Debug for SimulatedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedServer")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl SimulatedServer {
    /// Creates or continues a trace at `now`. `time`: the server's time at `epoch`, nanoseconds
    /// since 1970.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn open(config: Config, now: Instant, epoch: Instant, time: i64) -> Result<SimulatedServer, Error> {
        let clock = ServerClock { start: epoch, time };
        let (shared, store) = Shared::open_at(config, None, (now, clock))?;
        let (effort, connections) = (ClockEffort::Full, BTreeMap::new());
        Ok(SimulatedServer { shared, store, clock, effort, last_connection: 0, connections })
    }

    /// Connects a node whose clock these exchanges measure. Returns the number of the connection,
    /// and up to which number the messages of the session are durable; `None` if the node is
    /// refused.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn connect(
        &mut self,
        node: &str,
        session: u64,
        exchanges: &[Exchange],
        now: Instant,
    ) -> Result<Option<(u64, u64)>, Error> {
        let Ok(permit) = self.shared.limits.node(node) else { return Ok(None) };
        let flow = FlowControl { memory: Some(Arc::clone(permit.memory())), ..FlowControl::default() };
        let flow = Arc::new(flow);
        let (acks_in, acks) = watch::channel(Seq(0));
        let (out_in, out) = mpsc::unbounded_channel();
        let (reply, mut connected) = oneshot::channel();
        let (node, flow_of_store) = (node.to_owned(), Arc::clone(&flow));
        let request = ConnectRequest {
            node,
            session,
            flow: flow_of_store,
            acks: acks_in,
            ack_at_once: false,
            out: out_in,
            reply,
        };
        self.last_connection += 1;
        let number = self.last_connection;
        self.send(self.shared.input(ConnId(number), InputKind::Connect(request)), now)?;
        let Ok(connected) = connected.try_recv() else { return Ok(None) };
        let definitions = OpenDefinitions::new(self.shared.config.node_streams);
        let mut clock = NodeClock::new(&connected.corrections, connected.reached);
        clock.set_effort(self.effort);
        let connection = Connection {
            definitions,
            permit,
            flow,
            clock,
            exchange_due: now,
            acks,
            acknowledged: Seq(0),
            has_asked: false,
            out,
            heard: now,
        };
        self.connections.insert(number, connection);
        for exchange in exchanges {
            self.add_exchange(number, *exchange, now);
        }
        self.correct_clock(number, now, now)?;
        Ok(Some((number, connected.through.0)))
    }

    /// True if the node's clock should be measured now.
    #[must_use]
    pub fn wants_exchange(&self, connection: u64, now: Instant) -> bool {
        self.connections.get(&connection).is_some_and(|connection| connection.exchange_due <= now)
    }

    /// Acknowledges, and asks about clocks, as a log-server with thousands of nodes.
    pub fn set_crowded(&mut self) {
        self.effort = ClockEffort::Low;
        self.store.acknowledge_rarely();
    }

    /// Adds an exchange that measures the node's clock.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn exchange(&mut self, connection: u64, exchange: Exchange, now: Instant) -> Result<(), Error> {
        self.wait_for_answer(connection, now)?;
        self.add_exchange(connection, exchange, now);
        self.correct_clock(connection, now, now)
    }

    /// Does what a session does at its due times until now while a question has no answer.
    fn wait_for_answer(&mut self, number: u64, now: Instant) -> Result<(), Error> {
        while let Some(connection) = self.connections.get_mut(&number)
            && connection.exchange_due < now
        {
            let due = connection.exchange_due;
            connection.exchange_due = due + connection.clock.pause();
            self.correct_clock(number, due, now)?;
        }
        Ok(())
    }

    fn add_exchange(&mut self, number: u64, exchange: Exchange, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.clock.add(exchange);
            connection.exchange_due = now + connection.clock.pause();
            connection.has_asked = true;
            connection.heard = now;
        }
    }

    /// Begins new pieces of the correction at a time if they matter.
    fn correct_clock(&mut self, number: u64, at: Instant, now: Instant) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let node_time = connection.clock.estimated(self.clock.at(at));
        let pieces = connection.clock.decide(node_time);
        self.correct_with(number, pieces, now)
    }

    /// Sends new pieces of the correction to the store.
    fn correct_with(&mut self, number: u64, pieces: Vec<Correction>, now: Instant) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        if pieces.is_empty() {
            return Ok(());
        }
        connection.flow.sent.fetch_add(1, Ordering::AcqRel);
        let input = self.shared.input(ConnId(number), InputKind::Node(NodeInput::Clock(pieces)));
        self.send(input, now)
    }

    /// Receives a message of `length` bytes, with the rows of a batch beside it.
    ///
    /// # Errors
    /// Those of a log-server. A message that breaks the rules of the protocol.
    pub fn receive(
        &mut self,
        number: u64,
        message: Message,
        rows: Option<Columns>,
        length: usize,
        now: Instant,
    ) -> Result<Reception, Error> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(Reception::Closed) };
        let memory = connection.permit.memory();
        let Some(mut charge) = poll_once(memory.reserve(length, &connection.flow)) else {
            connection.heard = now;
            return Ok(Reception::NoMemory);
        };
        connection.heard = now;
        if connection.definitions.check(&message).is_err() {
            return Err(Error::Thread("received a message that breaks the rules of the protocol"));
        }
        let queued = match &rows {
            Some(rows) => {
                charge.set(memory_size(rows));
                self.shared.queue.charge(memory_size(rows))
            }
            None => Charge::none(&self.shared.queue),
        };
        let time = self.clock.at(now);
        let converted = input_of(message, rows.map(Arc::new), &mut connection.clock, time);
        let Some(Converted { input, pieces, .. }) = converted else { return Ok(Reception::Taken) };
        let flow = Arc::clone(&connection.flow);
        self.correct_with(number, pieces, now)?;
        flow.sent.fetch_add(1, Ordering::AcqRel);
        let input = Input { conn: ConnId(number), charge, queued, kind: InputKind::Node(input) };
        self.send(input, now)?;
        Ok(Reception::Taken)
    }

    /// Records that a connection has ended.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn closed(&mut self, number: u64, now: Instant) -> Result<(), Error> {
        if self.connections.remove(&number).is_none() {
            return Ok(());
        }
        let input = self.shared.input(ConnId(number), InputKind::Node(NodeInput::Closed));
        self.send(input, now)
    }

    /// Wakes the sessions that wait for memory: they try again before the next round.
    pub fn wake(&self) {
        self.store.wake_sessions();
    }

    /// Merges and commits what is due, as the store's thread does in each round.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn round(&mut self, now: Instant) -> Result<Round, Error> {
        let final_time = self.store.round_at(now)?;
        Ok(Round { final_time, committed: self.store.committed() })
    }

    /// Takes what the log-server sends: connection and message. Ends connections that were refused,
    /// and those without any message for too long.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn take_messages(&mut self, now: Instant) -> Result<Vec<(u64, ToNode)>, Error> {
        let (mut messages, mut ended) = (Vec::new(), Vec::new());
        for (number, connection) in &mut self.connections {
            while let Ok(message) = connection.out.try_recv() {
                if let Message::Refused { reason, .. } = message {
                    messages.push((*number, ToNode::Refused(reason)));
                    ended.push(*number);
                }
            }
            if now.saturating_duration_since(connection.heard) >= DEAD_AFTER && !connection.flow.is_waiting()
            {
                messages.push((*number, ToNode::Refused("silent for too long".to_owned())));
                ended.push(*number);
            }
            let is_announced = connection.acks.has_changed().unwrap_or(false);
            if std::mem::take(&mut connection.has_asked) || is_announced {
                let through = *connection.acks.borrow_and_update();
                if through > connection.acknowledged {
                    connection.acknowledged = through;
                    messages.push((*number, ToNode::Acknowledged(through.0)));
                }
            }
        }
        for number in ended {
            self.closed(number, now)?;
        }
        Ok(messages)
    }

    /// Memory reserved for everything that is not durable, bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shared.budget.used()
    }

    /// Stops the server: writes everything to the trace and seals it.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn finish(mut self, now: Instant) -> Result<RunSummary, Error> {
        self.store.take_waiting(now)?;
        self.store.finish()
    }

    fn send(&mut self, input: Input, now: Instant) -> Result<(), Error> {
        let _ = self.shared.store.send(input);
        self.store.take_waiting(now)
    }
}

/// Returns the output of a future that is ready at once.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
