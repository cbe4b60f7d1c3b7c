//! What the store does with each input.

use super::Store;
use super::input::{ConnectRequest, Connected, Input, InputKind, NodeInput, ReaderInput};
use super::processes::Ending;
use super::sessions::{AckReceiver, SessionKey, Ticket};
use crate::clock::Reached;
use crate::error::{Error, Refusal};
use crate::ids::catalog::LimitReached;
use crate::ids::{ConnId, NodeId, Seq, StreamId};
use crate::live::past::JoinRequest;
use miot_proto::event::flag;
use miot_proto::wire::{Message, Process, Resume, Stream};
use miot_trace_store::TracePosition;
use std::ops::ControlFlow;
use std::time::Instant;

/// Connection and time of an input.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    conn: ConnId,
    now: Instant,
}

impl Store {
    /// Takes one input at `now`. Breaks at [`InputKind::Finish`].
    pub(super) fn take(&mut self, input: Input, now: Instant) -> Result<ControlFlow<()>, Error> {
        let Input { conn, charge, queued, kind } = input;
        drop(queued);
        match kind {
            InputKind::Connect(request) => self.connect(conn, request, now),
            InputKind::Reader(input) => self.take_from_reader(input)?,
            InputKind::Node(input) => {
                // A missing connection was replaced: the node sends the input again on the new one.
                let Some(connection) = self.sessions.connection(conn) else {
                    return Ok(ControlFlow::Continue(()));
                };
                let session = connection.session;
                self.watermarks.input_taken(session.node);
                let ticket = |seq| Ticket::new(session, seq, charge);
                self.take_from_node(Arrival { conn, now }, session, input, ticket)?;
            }
            InputKind::Finish => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_from_reader(&mut self, input: ReaderInput) -> Result<(), Error> {
        // Rows that the subscriber does not receive must be in the directory.
        self.commit()?;
        match input {
            ReaderInput::Subscribe(subscription) => self.tail.subscribe(*subscription),
            ReaderInput::Join(JoinRequest { subscription, reply }) => {
                let end = TracePosition::end(&self.settings.config.trace, self.sink.part());
                let _ = match end {
                    Ok(end) if !self.sink.is_failing() => {
                        self.tail.subscribe(*subscription);
                        reply.send(Ok(end))
                    }
                    _ => reply.send(Err(subscription)),
                };
            }
        }
        Ok(())
    }

    fn take_from_node(
        &mut self,
        arrival: Arrival,
        session: SessionKey,
        input: NodeInput,
        ticket: impl FnOnce(Seq) -> Option<Ticket>,
    ) -> Result<(), Error> {
        let node = session.node;
        match input {
            NodeInput::Clock(pieces) => {
                self.clocks.add(node, &pieces);
                self.definitions.clocks.extend(pieces.into_iter().map(|piece| (node, piece)));
            }
            NodeInput::Process { seq, process } => {
                if self.define_process(arrival, node, &process) {
                    self.sessions.received(arrival.conn, seq);
                    self.uncommitted.extend(ticket(seq));
                }
            }
            NodeInput::Stream { seq, stream } => {
                if self.define_stream(arrival, node, &stream) {
                    self.sessions.received(arrival.conn, seq);
                    self.uncommitted.extend(ticket(seq));
                }
            }
            NodeInput::Batch { seq, number, after, columns } => {
                self.watermarks.rows_received(node, arrival.now);
                // Only the conversion of times has marked rows so far: those that it has cut.
                let mut times = columns.time.iter().zip(&columns.flags).rev();
                if let Some((latest, _)) = times.find(|(_, flags)| **flags & flag::LATE == 0) {
                    self.clocks.advance(node, *latest);
                }
                if let Some(stream) = self.stream_of_message(arrival, number, seq) {
                    self.merge.push(stream, after, columns, ticket(seq));
                }
            }
            NodeInput::GivenUp { seq, number, given_up } => {
                self.watermarks.rows_received(node, arrival.now);
                if let Some(stream) = self.stream_of_message(arrival, number, seq) {
                    self.merge.give_up(stream, given_up, ticket(seq));
                }
            }
            NodeInput::StreamEnd { seq, end } => {
                let stream = self.stream_of_message(arrival, end.stream, seq);
                if let Some(connection) = self.sessions.connection(arrival.conn) {
                    connection.streams.remove(&end.stream);
                }
                if let Some(stream) = stream {
                    self.merge.end(stream, end, ticket(seq));
                }
            }
            NodeInput::ProcessEnd { seq, key, time, lost } => {
                if self.sessions.received(arrival.conn, seq) {
                    let ticket = ticket(seq);
                    match self.catalog.process_id(node, key) {
                        Some(process) => {
                            let ending = Ending { time, lost, returned: false, ticket };
                            self.processes.add_ending(process, ending);
                        }
                        None => self.uncommitted.extend(ticket),
                    }
                }
            }
            NodeInput::Resume { seq, resume } => self.resume(arrival, node, seq, resume, ticket),
            NodeInput::Devices { seq, sample } => {
                self.watermarks.rows_received(node, arrival.now);
                if self.sessions.received(arrival.conn, seq) {
                    let name = self.catalog.node_name(node).to_owned();
                    // A known sample is durable at the next commit at the latest.
                    self.uncommitted.extend(self.samples.add(name, sample, ticket(seq)));
                }
            }
            NodeInput::Heartbeat { watermark } => {
                self.clocks.advance(node, watermark);
                self.watermarks.heartbeat(node, watermark, arrival.now);
            }
            NodeInput::Aside => self.watermarks.exempt(node, arrival.now),
            NodeInput::AckAtOnce => self.sessions.ack_at_once(session),
            NodeInput::Bye => self.watermarks.said_goodbye(node),
            NodeInput::Closed => self.close(arrival),
        }
        Ok(())
    }

    /// Records what other log-servers have of a stream or process.
    fn resume(
        &mut self,
        arrival: Arrival,
        node: NodeId,
        seq: Seq,
        resume: Resume,
        ticket: impl FnOnce(Seq) -> Option<Ticket>,
    ) {
        match resume {
            Resume::Stream { stream: number, from, lost_nested, filtered, time } => {
                let Some(stream) = self.stream_of_message(arrival, number, seq) else { return };
                let process = self.catalog.streams.get(&stream).map(|stream| stream.process);
                for (place, count) in self.catalog.stream_resumed(stream, lost_nested, filtered) {
                    if let Some(process) = process {
                        self.add_total(time, process, Some(stream), place, count);
                    }
                }
                self.merge.resume(stream, from, time, ticket(seq));
            }
            Resume::Process { key, no_lane, time } => {
                if !self.sessions.received(arrival.conn, seq) {
                    return;
                }
                if let Some(process) = self.catalog.process_id(node, key) {
                    for (place, count) in self.catalog.process_resumed(process, no_lane) {
                        self.add_total(time, process, None, place, count);
                    }
                }
                self.uncommitted.extend(ticket(seq));
            }
        }
    }

    /// Connects a node, and answers its request.
    fn connect(&mut self, conn: ConnId, request: ConnectRequest, now: Instant) {
        let Some(node) = self.catalog.node(&request.node) else {
            let reason = "this trace already has the maximum number of nodes; start a new trace".to_owned();
            let _ = request.out.send(Message::Refused { reason, transient: false });
            return;
        };
        while self.watermarks.len() <= node.0 {
            self.watermarks.add(i64::MIN, now);
        }
        let session = SessionKey { node, session: request.session };
        let receiver = AckReceiver::new(request.acks, request.ack_at_once);
        let (through, replaced) = self.sessions.connect(conn, session, request.out, receiver);
        if let Some(old) = replaced {
            let reason = format!(
                "another log-client connected as node `{}`; if that was not a restart, give one of them another name",
                request.node
            );
            tracing::warn!(node = request.node, "a second connection of this node replaces the first");
            let _ = old.out.send(Message::Refused { reason, transient: false });
        }
        self.watermarks.connected(node, request.flow, now, self.settings.config.silent_after);
        let (corrections, reached) = self.clocks.of(node);
        // Only a broken node has a time in the future; no new correction could apply before it.
        let latest = self.clock.at(now);
        let reached = reached.map(|reached| Reached { time: reached.time.min(latest), ..reached });
        let _ = request.reply.send(Connected { through, corrections, reached });
        tracing::info!(node = request.node, session = request.session, through = through.0, "node connected");
    }

    /// Defines a process. Returns false if the node was refused.
    fn define_process(&mut self, arrival: Arrival, node: NodeId, process: &Process) -> bool {
        match self.catalog.define_process(node, process) {
            Ok(new) => self.definitions.processes.extend(new),
            Err(limit) => {
                self.refuse_for_limit(arrival, limit);
                return false;
            }
        }
        if let Some(id) = self.catalog.process_id(node, process.key) {
            if self.catalog.wants_handles(id) {
                self.processes.needs_handles(id);
            }
            self.processes.defined_again(id);
        }
        true
    }

    /// Defines a stream. Returns false if the node was refused.
    fn define_stream(&mut self, arrival: Arrival, node: NodeId, stream: &Stream) -> bool {
        match self.catalog.define_stream(node, stream) {
            Ok(Some((id, new))) => {
                self.definitions.threads.extend(new);
                if let Some(connection) = self.sessions.connection(arrival.conn) {
                    connection.streams.insert(stream.number, id);
                }
                self.merge.add_stream(id, self.catalog.next_of(id));
                true
            }
            Ok(None) => {
                self.refuse(arrival, "a stream of an unknown process");
                false
            }
            Err(limit) => {
                self.refuse_for_limit(arrival, limit);
                false
            }
        }
    }

    /// Records the arrival of a message of a stream, and adds the stream to the merge, where it
    /// continues at its next attempt number. `None` if the message needs no handling: it is durable
    /// already, or its stream is unknown and the node was refused.
    fn stream_of_message(&mut self, arrival: Arrival, number: u32, seq: Seq) -> Option<StreamId> {
        let connection = self.sessions.connection(arrival.conn);
        let stream = connection.and_then(|connection| connection.streams.get(&number).copied());
        let stream = stream.unwrap_or(StreamId(0));
        if !self.sessions.received(arrival.conn, seq) {
            return None;
        }
        if !self.catalog.has_stream(stream) {
            self.refuse(arrival, "rows of a stream that ended long ago");
            return None;
        }
        self.merge.add_stream(stream, self.catalog.next_of(stream));
        Some(stream)
    }

    fn refuse_for_limit(&mut self, arrival: Arrival, LimitReached { what, limit }: LimitReached) {
        self.refuse(arrival, &Refusal::Streams { what, limit }.to_string());
    }

    fn refuse(&mut self, arrival: Arrival, reason: &str) {
        if let Some(connection) = self.sessions.connection(arrival.conn) {
            let node = self.catalog.node_name(connection.session.node);
            tracing::warn!(node, reason, "node refused");
            let _ = connection.out.send(Message::Refused { reason: reason.to_owned(), transient: false });
        }
        self.close(arrival);
    }

    fn close(&mut self, arrival: Arrival) {
        if let Some(connection) = self.sessions.disconnect(arrival.conn) {
            let node = connection.session.node;
            self.watermarks.disconnected(node, arrival.now);
            tracing::info!(node = self.catalog.node_name(node), "node disconnected");
        }
    }
}
