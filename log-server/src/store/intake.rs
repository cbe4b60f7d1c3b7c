//! What the store does with each input: connections, definitions, rows into the merge.

use super::{Conn, Ending, Store, Ticket};
use crate::error::Error;
use crate::input::{Input, Open, Opened, What};
use crate::now;
use crate::side::{self, ClockRow};
use miot_proto::wire::{Message, ProcessKey, ProcessLoss};
use miot_trace_store::Table;
use std::time::Instant;

/// Sessions of a node whose acknowledgements are remembered.
const SESSIONS: usize = 16;

impl Store {
    /// Takes one input. Not [`What::Finish`], which is for the loop.
    pub(super) fn take(&mut self, input: Input) -> Result<(), Error> {
        let Input { conn: number, charge, queued, what } = input;
        drop(queued);
        match what {
            What::Open(open) => {
                self.open(number, open);
                return Ok(());
            }
            What::Subscribe(subscription) => {
                // What the subscriber will not be sent must be found in the directory.
                self.commit()?;
                self.tail.subscribe(subscription);
                return Ok(());
            }
            _ => {}
        }
        // Without a connection it was replaced: what it still brings will be sent again on the new one.
        let Some(conn) = self.conns.get_mut(&number) else { return Ok(()) };
        let (node, session) = (conn.node, conn.session);
        let ticket = |seq| (seq > 0).then_some(Ticket { session: (node, session), seq, _charge: charge });
        match what {
            What::Clock(correction) => {
                self.corrections.insert(node, correction);
                let row = ClockRow { time: now(), node: self.catalog.node_name(node).to_owned(), correction };
                self.append(Table::Clocks, side::clocks(&[row])?)?;
            }
            What::Process(seq, process) => {
                self.new_processes.extend(self.catalog.define_process(node, &process));
                if let Some(id) = self.catalog.process_id(node, process.key)
                    && self.catalog.wants_handles(id)
                {
                    self.returned.insert(id);
                }
                self.received(number, seq);
                self.uncommitted.extend(ticket(seq));
            }
            What::Stream(seq, stream) => {
                match self.catalog.define_stream(node, &stream) {
                    Some((id, new)) => {
                        self.new_threads.extend(new);
                        let index = stream.number as usize;
                        match conn.streams.get_mut(index) {
                            Some(known) => *known = id,
                            None => conn.streams.push(id),
                        }
                        self.merge.add_stream(id, self.catalog.next_of(id));
                    }
                    None => self.refuse(number, "a stream of a process that is not known"),
                }
                self.received(number, seq);
                self.uncommitted.extend(ticket(seq));
            }
            What::Batch(seq, stream, columns) => {
                self.nodes.heard(node, Instant::now());
                let stream = conn.streams.get(stream as usize).copied().unwrap_or(0);
                if self.received(number, seq) && self.in_merge(number, stream) {
                    self.merge.push(stream, columns, ticket(seq));
                }
            }
            What::StreamEnd(seq, end) => {
                let stream = conn.streams.get(end.stream as usize).copied().unwrap_or(0);
                if self.received(number, seq) && self.in_merge(number, stream) {
                    self.merge.end(stream, end, ticket(seq));
                }
            }
            What::ProcessEnd(seq, key, time, lost) => {
                if self.received(number, seq) {
                    self.process_end(node, key, time, lost, ticket(seq));
                }
            }
            What::Heartbeat(watermark) => self.nodes.heartbeat(node, watermark, Instant::now()),
            What::Bye => self.nodes.parted(node),
            What::Closed => self.close(number),
            What::Open(_) | What::Subscribe(_) | What::Finish => {}
        }
        Ok(())
    }

    fn open(&mut self, number: u64, open: Open) {
        let Some(node) = self.catalog.node(&open.node) else {
            let reason = "this trace holds as many nodes as it can; begin a new one".to_owned();
            let _ = open.out.send(Message::Refused { reason });
            return;
        };
        let now = Instant::now();
        while self.nodes.len() <= node {
            self.nodes.add(i64::MIN, now);
        }
        if let Some(old) = self.present.insert(node, number)
            && let Some(old) = self.conns.remove(&old)
        {
            let reason = format!(
                "another log-client connected as node `{}`; if that was not a restart, give one of them another name",
                open.node
            );
            tracing::warn!(node = open.node, "a second connection of this node replaces the first");
            let _ = old.out.send(Message::Refused { reason });
            if let Some(session) = self.sessions.get_mut(&(node, old.session)) {
                session.out = None;
            }
        }
        self.nodes.connected(node, open.pace, now);
        self.remember(node, open.session);
        let session = self.sessions.entry((node, open.session)).or_default();
        session.out = Some(open.acks);
        let through = session.acks.through();
        let correction = self.corrections.get(&node).copied();
        let _ = open.reply.send(Opened { through, correction });
        let conn = Conn { node, session: open.session, streams: Vec::new(), out: open.out };
        self.conns.insert(number, conn);
        tracing::info!(node = open.node, session = open.session, through, "node connected");
    }

    /// Keeps the latest sessions of a node. What an earlier one still waits for is stored, but it will not
    /// come back to hear of it.
    fn remember(&mut self, node: usize, session: u64) {
        let recent = self.recent.entry(node).or_default();
        recent.retain(|known| *known != session);
        recent.push_back(session);
        if recent.len() > SESSIONS
            && let Some(old) = recent.pop_front()
        {
            self.sessions.remove(&(node, old));
        }
    }

    /// Notes a message for acknowledgement; false if all it brings is durable.
    fn received(&mut self, conn: u64, seq: u64) -> bool {
        let session =
            self.conns.get(&conn).and_then(|conn| self.sessions.get_mut(&(conn.node, conn.session)));
        seq == 0 || session.is_none_or(|session| session.acks.received(seq))
    }

    /// Makes sure that the merge has the stream, and goes on where the stream is.
    fn in_merge(&mut self, conn: u64, stream: u64) -> bool {
        if !self.catalog.streams.contains_key(&stream) {
            self.refuse(conn, "rows of a stream that ended long ago");
            return false;
        }
        self.merge.add_stream(stream, self.catalog.next_of(stream));
        true
    }

    fn refuse(&mut self, number: u64, reason: &str) {
        if let Some(conn) = self.conns.get(&number) {
            tracing::warn!(node = self.catalog.node_name(conn.node), reason, "a node is turned away");
            let _ = conn.out.send(Message::Refused { reason: reason.to_owned() });
        }
        self.close(number);
    }

    fn close(&mut self, number: u64) {
        if let Some(conn) = self.conns.remove(&number) {
            self.present.remove(&conn.node);
            self.nodes.disconnected(conn.node, Instant::now());
            if let Some(session) = self.sessions.get_mut(&(conn.node, conn.session)) {
                session.out = None;
            }
            tracing::info!(node = self.catalog.node_name(conn.node), "node disconnected");
        }
    }

    fn process_end(
        &mut self,
        node: usize,
        key: ProcessKey,
        time: i64,
        lost: ProcessLoss,
        ticket: Option<Ticket>,
    ) {
        match self.catalog.process_id(node, key) {
            Some(process) => self.endings.push(Ending { process, time, lost, ticket }),
            None => self.uncommitted.extend(ticket),
        }
    }
}
