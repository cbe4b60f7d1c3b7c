//! Connections and sessions of nodes, and their acknowledgments.

use super::acks::Acks;
use super::budget::Charge;
use crate::ids::{ConnId, NodeId, Seq, StreamId};
use miot_proto::wire::Message;
use std::collections::{HashMap, HashSet, VecDeque};
use tokio::sync::{mpsc, watch};

/// With thousands of nodes, a session is woken when so many messages have become durable. Other
/// acknowledgments go with the next message of the session, such as a question about the clock.
const RARE_ACK_AFTER: u64 = 64;

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
    /// Present while the session is connected.
    out: Option<AckReceiver>,
}

/// Where a connected session receives the acknowledged number.
#[derive(Debug)]
pub(super) struct AckReceiver {
    out: watch::Sender<Seq>,
    at_once: bool,
    /// The last number that has woken the session.
    told: Option<Seq>,
}

impl AckReceiver {
    /// `at_once`: the session is woken for each acknowledgment.
    pub(super) fn new(out: watch::Sender<Seq>, at_once: bool) -> AckReceiver {
        AckReceiver { out, at_once, told: None }
    }

    /// Sets the number. If `rarely`, the session is woken only for the first one, and then once
    /// [`RARE_ACK_AFTER`] messages were not acknowledged.
    fn set(&mut self, through: Seq, rarely: bool) {
        let waits = |told: Seq| rarely && !self.at_once && through.0.saturating_sub(told.0) < RARE_ACK_AFTER;
        let wakes = !self.told.is_some_and(waits);
        self.out.send_if_modified(|now| std::mem::replace(now, through) != through && wakes);
        if wakes {
            self.told = Some(through);
        }
    }

    /// Wakes the session for each acknowledgment from now on.
    fn tell_at_once(&mut self) {
        self.at_once = true;
        self.out.send_modify(|_| {});
    }
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
        acks: AckReceiver,
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

    /// The session waits for acknowledgments.
    pub(super) fn ack_at_once(&mut self, session: SessionKey) {
        if let Some(out) = self.sessions.get_mut(&session).and_then(|session| session.out.as_mut()) {
            out.tell_at_once();
        }
    }

    /// Acknowledges durable messages. `rarely`: see [`RARE_ACK_AFTER`].
    pub(super) fn acknowledge(&mut self, tickets: impl Iterator<Item = Ticket>, rarely: bool) {
        let mut changed = HashSet::new();
        for ticket in tickets {
            if let Some(session) = self.sessions.get_mut(&ticket.session) {
                session.acks.durable(ticket.seq);
                changed.insert(ticket.session);
            }
        }
        for key in changed {
            if let Some(Session { acks, out: Some(out) }) = self.sessions.get_mut(&key) {
                out.set(acks.through(), rarely);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_sessions_are_told_rarely() {
        let (out, mut told) = watch::channel(Seq(0));
        let mut receiver = AckReceiver::new(out, false);
        let mut numbers_told = |receiver: &mut AckReceiver, through, rarely| {
            receiver.set(Seq(through), rarely);
            (told.has_changed().unwrap(), *told.borrow_and_update())
        };
        assert_eq!(numbers_told(&mut receiver, 3, true), (true, Seq(3)), "the first one");
        assert_eq!(numbers_told(&mut receiver, 4, true), (false, Seq(4)), "for the next message");
        assert_eq!(numbers_told(&mut receiver, 5, false), (true, Seq(5)), "few sessions");
        assert_eq!(numbers_told(&mut receiver, 4 + RARE_ACK_AFTER, true), (false, Seq(4 + RARE_ACK_AFTER)));
        assert!(numbers_told(&mut receiver, 5 + RARE_ACK_AFTER, true).0);
        assert!(!numbers_told(&mut receiver, 6 + RARE_ACK_AFTER, true).0);
        receiver.tell_at_once();
        assert!(numbers_told(&mut receiver, 6 + RARE_ACK_AFTER, true).0, "the node asked");
        assert!(numbers_told(&mut receiver, 7 + RARE_ACK_AFTER, true).0);
        let (out, told) = watch::channel(Seq(0));
        let mut receiver = AckReceiver::new(out, true);
        (1..=3).for_each(|through| receiver.set(Seq(through), true));
        assert!(told.has_changed().unwrap(), "an earlier log-client");
    }
}
