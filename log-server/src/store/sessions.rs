//! Connections and sessions of nodes, and their acknowledgments.

use super::acks::Acks;
use super::budget::Charge;
use crate::ids::{ConnId, NodeId, Seq, StreamId};
use miot_proto::wire::Message;
use std::collections::{HashMap, HashSet, VecDeque};
use tokio::sync::{mpsc, watch};

/// Number of sessions per node whose acknowledgments are kept.
const MAX_SESSIONS: usize = 16;

/// One log-client process: its node and its random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) node: NodeId,
    pub(super) session: u64,
}

/// A message that must be acknowledged, and its memory until then.
#[derive(Debug)]
pub(super) struct Ticket {
    session: SessionKey,
    seq: Seq,
    _charge: Charge,
}

impl Ticket {
    /// Creates the ticket of a message; `None` for a message without a number.
    pub(super) fn new(session: SessionKey, seq: Seq, charge: Charge) -> Option<Ticket> {
        (seq != Seq::NONE).then_some(Ticket { session, seq, _charge: charge })
    }
}

#[derive(Debug, Default)]
struct Session {
    acks: Acks,
    /// Receives the acknowledged number while the session is connected.
    out: Option<watch::Sender<Seq>>,
}

/// Connection of a node.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: SessionKey,
    /// Ids of the streams that have not ended, by their short numbers.
    pub(super) streams: HashMap<u32, StreamId>,
    pub(super) out: mpsc::UnboundedSender<Message>,
}

/// Connections and sessions of all nodes.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    connections: HashMap<ConnId, Connection>,
    /// The connection of each connected node.
    current: HashMap<NodeId, ConnId>,
    sessions: HashMap<SessionKey, Session>,
    /// The latest sessions of each node.
    recent: HashMap<NodeId, VecDeque<u64>>,
}

impl Sessions {
    /// Adds a connection. Returns the number up to which its session is durable, and the connection
    /// of the node that it replaces.
    pub(super) fn connect(
        &mut self,
        conn: ConnId,
        session: SessionKey,
        out: mpsc::UnboundedSender<Message>,
        acks: watch::Sender<Seq>,
    ) -> (Seq, Option<Connection>) {
        let replaced = self.current.insert(session.node, conn).and_then(|old| self.connections.remove(&old));
        if let Some(old) = &replaced {
            self.detach(old.session);
        }
        self.keep_latest(session);
        let entry = self.sessions.entry(session).or_default();
        entry.out = Some(acks);
        let through = entry.acks.through();
        self.connections.insert(conn, Connection { session, streams: HashMap::new(), out });
        (through, replaced)
    }

    /// Removes a connection. `None` if it was replaced before.
    pub(super) fn disconnect(&mut self, conn: ConnId) -> Option<Connection> {
        let connection = self.connections.remove(&conn)?;
        self.current.remove(&connection.session.node);
        self.detach(connection.session);
        Some(connection)
    }

    fn detach(&mut self, session: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.out = None;
        }
    }

    /// Keeps the latest sessions of a node. Events of an older session are still stored, but the
    /// session does not return for its acknowledgments.
    fn keep_latest(&mut self, SessionKey { node, session }: SessionKey) {
        let recent = self.recent.entry(node).or_default();
        recent.retain(|known| *known != session);
        recent.push_back(session);
        if recent.len() > MAX_SESSIONS
            && let Some(session) = recent.pop_front()
        {
            self.sessions.remove(&SessionKey { node, session });
        }
    }

    pub(super) fn connection(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(&conn)
    }

    /// Records the arrival of a message. Returns false if everything in it is durable already.
    pub(super) fn received(&mut self, conn: ConnId, seq: Seq) -> bool {
        let connection = self.connections.get(&conn);
        let session = connection.and_then(|connection| self.sessions.get_mut(&connection.session));
        seq == Seq::NONE || session.is_none_or(|session| session.acks.received(seq))
    }

    /// Acknowledges durable messages.
    pub(super) fn acknowledge(&mut self, tickets: impl Iterator<Item = Ticket>) {
        let mut changed = HashSet::new();
        for ticket in tickets {
            if let Some(session) = self.sessions.get_mut(&ticket.session) {
                session.acks.durable(ticket.seq);
                changed.insert(ticket.session);
            }
        }
        for session in changed.iter().filter_map(|key| self.sessions.get(key)) {
            if let Some(out) = &session.out {
                let new = session.acks.through();
                out.send_if_modified(|through| std::mem::replace(through, new) != new);
            }
        }
    }
}
