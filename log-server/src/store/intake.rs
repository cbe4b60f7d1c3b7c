//! What the store does with each input: connections, definitions, rows into the merge.

use super::{Conn, Ending, Store, Ticket};
use crate::error::{Error, Refusal};
use crate::history::remember;
use crate::input::{Input, Open, Opened, What};
use crate::past::Join;
use crate::side;
use miot_proto::wire::{Message, ProcessKey, ProcessLoss};
use miot_trace_store::{Place, Table};
use std::collections::HashMap;
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
            What::Join(Join { subscription, reply }) => {
                self.commit()?;
                let place = Place::end(&self.config.trace, self.sink.part());
                let _ = match place {
                    Ok(place) if !self.sink.is_failing() => {
                        self.tail.subscribe(*subscription);
                        reply.send(Ok(place))
                    }
                    _ => reply.send(Err(subscription)),
                };
                return Ok(());
            }
            _ => {}
        }
        // Without a connection it was replaced: what it still brings will be sent again on the new one.
        let Some(conn) = self.conns.get_mut(&number) else { return Ok(()) };
        let (node, session) = (conn.node, conn.session);
        self.nodes.taken(node);
        let ticket = |seq| (seq > 0).then_some(Ticket { session: (node, session), seq, _charge: charge });
        match what {
            What::Clock(pieces) => {
                let before = self.corrections.entry(node).or_default();
                pieces.iter().for_each(|piece| remember(before, *piece));
                let rows = side::clocks(self.catalog.node_name(node), &pieces)?;
                self.append(Table::Clocks, rows)?;
                self.new_clocks = true;
            }
            What::Process(seq, process) => {
                match self.catalog.define_process(node, &process) {
                    Ok(new) => self.new_processes.extend(new),
                    Err(full) => {
                        self.refuse(number, &Refusal::Streams(full.what, full.limit).to_string());
                        return Ok(());
                    }
                }
                if let Some(id) = self.catalog.process_id(node, process.key) {
                    if self.catalog.wants_handles(id) {
                        self.returned.insert(id);
                    }
                    let endings = self.endings.get_mut(&id).into_iter().flatten();
                    endings.for_each(|ending| ending.returned = true);
                }
                self.received(number, seq);
                self.uncommitted.extend(ticket(seq));
            }
            What::Stream(seq, stream) => {
                match self.catalog.define_stream(node, &stream) {
                    Ok(Some((id, new))) => {
                        self.new_threads.extend(new);
                        conn.streams.insert(stream.number, id);
                        self.merge.add_stream(id, self.catalog.next_of(id));
                    }
                    Ok(None) => self.refuse(number, "a stream of a process that is not known"),
                    Err(full) => {
                        self.refuse(number, &Refusal::Streams(full.what, full.limit).to_string());
                        return Ok(());
                    }
                }
                self.received(number, seq);
                self.uncommitted.extend(ticket(seq));
            }
            What::Batch(seq, stream, after, columns) => {
                self.nodes.heard(node, Instant::now());
                let stream = conn.streams.get(&stream).copied().unwrap_or(0);
                if let Some(latest) = columns.time.last() {
                    reach(&mut self.reached, node, *latest);
                }
                if self.received(number, seq) && self.in_merge(number, stream) {
                    self.merge.push(stream, after, columns, ticket(seq));
                }
            }
            What::GivenUp(seq, stream, given_up) => {
                self.nodes.heard(node, Instant::now());
                let stream = conn.streams.get(&stream).copied().unwrap_or(0);
                if self.received(number, seq) && self.in_merge(number, stream) {
                    self.merge.give_up(stream, given_up, ticket(seq));
                }
            }
            What::StreamEnd(seq, end) => {
                let stream = conn.streams.remove(&end.stream).unwrap_or(0);
                if self.received(number, seq) && self.in_merge(number, stream) {
                    self.merge.end(stream, end, ticket(seq));
                }
            }
            What::ProcessEnd(seq, key, time, lost) => {
                if self.received(number, seq) {
                    self.process_end(node, key, time, lost, ticket(seq));
                }
            }
            What::Devices(seq, sample) => {
                self.nodes.heard(node, Instant::now());
                if self.received(number, seq) {
                    let name = self.catalog.node_name(node).to_owned();
                    // What is known already is as durable as everything before the next commit.
                    self.uncommitted.extend(self.samples.put(name, sample, ticket(seq)));
                }
            }
            What::Heartbeat(watermark) => {
                reach(&mut self.reached, node, watermark);
                self.nodes.heartbeat(node, watermark, Instant::now());
            }
            What::Aside => self.nodes.aside(node, Instant::now()),
            What::Bye => self.nodes.parted(node),
            What::Closed => self.close(number),
            What::Open(_) | What::Subscribe(_) | What::Join(_) | What::Finish => {}
        }
        Ok(())
    }

    fn open(&mut self, number: u64, open: Open) {
        let Some(node) = self.catalog.node(&open.node) else {
            let reason = "this trace holds as many nodes as it can; begin a new one".to_owned();
            let _ = open.out.send(Message::Refused { reason, passing: false });
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
            let _ = old.out.send(Message::Refused { reason, passing: false });
            if let Some(session) = self.sessions.get_mut(&(node, old.session)) {
                session.out = None;
            }
        }
        self.nodes.connected(node, open.pace, now, self.config.silent_after);
        self.remember(node, open.session);
        let session = self.sessions.entry((node, open.session)).or_default();
        session.out = Some(open.acks);
        let through = session.acks.through();
        let corrections = self.corrections.get(&node).into_iter().flatten().copied().collect();
        // A time in the future is a broken node's, and nothing can be applied before it is over.
        let reached = self.reached.get(&node).map(|reached| (*reached).min(crate::now()));
        let _ = open.reply.send(Opened { through, corrections, reached });
        let conn = Conn { node, session: open.session, streams: HashMap::new(), out: open.out };
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
        if !self.catalog.has_stream(stream) {
            self.refuse(conn, "rows of a stream that ended long ago");
            return false;
        }
        self.merge.add_stream(stream, self.catalog.next_of(stream));
        true
    }

    fn refuse(&mut self, number: u64, reason: &str) {
        if let Some(conn) = self.conns.get(&number) {
            tracing::warn!(node = self.catalog.node_name(conn.node), reason, "a node is turned away");
            let _ = conn.out.send(Message::Refused { reason: reason.to_owned(), passing: false });
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
            Some(process) => {
                let ending = Ending { time, lost, returned: false, ticket };
                self.endings.entry(process).or_default().push(ending);
                self.settling.insert(process);
            }
            None => self.uncommitted.extend(ticket),
        }
    }
}

fn reach(reached: &mut HashMap<usize, i64>, node: usize, time: i64) {
    let reached = reached.entry(node).or_insert(time);
    *reached = time.max(*reached);
}
