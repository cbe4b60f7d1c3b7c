//! Numbered messages for one log-server, and the connection that delivers them. As in the
//! log-client, messages are kept until they are acknowledged, and are sent again on a new
//! connection, after the definitions that are in force.

use crate::Time;
use miot_log_client::testing::cluster::ConnectionWaits;
use miot_log_client::testing::samples;
use miot_proto::batch::Columns;
use miot_proto::event::RecordKind;
use miot_proto::op::posix;
use miot_proto::wire::{Message, ProcessKey, ProcessLoss, Resume};
use std::collections::VecDeque;

/// Messages per write, about.
const MESSAGES: usize = 64;

/// One event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) attempt: u64,
    /// Completion by the node's clock, nanoseconds since 1970.
    pub(crate) time: i64,
    /// True completion.
    pub(crate) truth: Time,
    /// The time was changed.
    pub(crate) moved: bool,
}

/// A message of a spool.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Process,
    ResumeProcess { time: i64 },
    Stream,
    ResumeStream { from: u64, time: i64 },
    Batch { after: u64, rows: Box<[Row]> },
    StreamEnd { attempts: u64, after: u64, time: i64 },
    ProcessEnd { time: i64 },
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    Item { seq: u64, item: Item },
    Heartbeat(i64),
    AckAtOnce,
    Bye,
}

/// What the messages of a spool have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) node: usize,
    pub(crate) key: ProcessKey,
    /// Number of the stream in this spool.
    pub(crate) stream: u32,
}

/// The connection of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// An attempt follows.
    Waiting,
    /// An attempt has begun.
    Connecting,
    Up(Connection),
}

/// A connection that was welcomed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Number at the log-server.
    pub(crate) number: u64,
    /// Counts the starts of the log-server.
    pub(crate) life: u32,
    /// Number of the last message sent.
    pub(crate) sent: u64,
    /// The log-server was asked to acknowledge at once.
    pub(crate) has_asked: bool,
    pub(crate) since: Time,
    pub(crate) acknowledged_before: u64,
    pub(crate) heard: Time,
    /// Arrival of the last bytes sent.
    pub(crate) arrives: Time,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Spool {
    pub(crate) number: u32,
    pub(crate) server: usize,
    pub(crate) session: u64,
    pub(crate) identity: Identity,
    /// Messages that are not acknowledged.
    messages: VecDeque<Item>,
    pub(crate) acknowledged: u64,
    /// Numbers of the definitions and their ends; 0: not written yet.
    process: (u64, u64),
    stream: (u64, u64),
    /// The last watermark.
    watermark: Option<i64>,
    /// The watermark to send.
    heartbeat: Option<i64>,
    pub(crate) ended: bool,
    pub(crate) link: Link,
    /// Number of the current attempt to connect.
    pub(crate) attempt: u64,
    pub(crate) waits: ConnectionWaits,
}

impl Spool {
    pub(crate) fn new(number: u32, server: usize, session: u64, identity: Identity) -> Spool {
        Spool {
            number,
            server,
            session,
            identity,
            messages: VecDeque::new(),
            acknowledged: 0,
            process: (0, 0),
            stream: (0, 0),
            watermark: None,
            heartbeat: None,
            ended: false,
            link: Link::Waiting,
            attempt: 0,
            waits: ConnectionWaits::new(session),
        }
    }

    /// Number of the last message.
    pub(crate) fn last(&self) -> u64 {
        self.acknowledged + self.messages.len() as u64
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.messages.is_empty()
    }

    pub(crate) fn push(&mut self, item: Item) {
        let seq = self.last() + 1;
        match item {
            Item::Process => self.process.0 = seq,
            Item::ProcessEnd { .. } => self.process.1 = seq,
            Item::Stream => self.stream.0 = seq,
            Item::StreamEnd { .. } => self.stream.1 = seq,
            _ => {}
        }
        self.messages.push_back(item);
    }

    /// Sets the watermark that follows everything written so far.
    pub(crate) fn set_watermark(&mut self, watermark: i64) {
        (self.watermark, self.heartbeat) = (Some(watermark), Some(watermark));
    }

    /// Starts a connection: the log-server has everything up to `through`. Returns the definitions
    /// in force, which are sent first.
    pub(crate) fn restart(&mut self, through: u64) -> Vec<Wire> {
        self.acknowledge(through);
        self.heartbeat = self.watermark;
        self.definitions()
    }

    pub(crate) fn acknowledge(&mut self, through: u64) {
        while self.acknowledged < through && self.messages.pop_front().is_some() {
            self.acknowledged += 1;
        }
    }

    /// The batches that are not acknowledged.
    pub(crate) fn batches(&self) -> impl Iterator<Item = (u64, &[Row])> {
        self.messages.iter().filter_map(|item| match item {
            Item::Batch { after, rows } => Some((*after, rows.as_ref())),
            _ => None,
        })
    }

    /// The definitions in force whose own message was acknowledged.
    fn definitions(&self) -> Vec<Wire> {
        let in_force = |(defined, ended): (u64, u64)| {
            defined > 0 && defined <= self.acknowledged && (ended == 0 || ended > self.acknowledged)
        };
        let repeated = |item| Wire::Item { seq: 0, item };
        let process = in_force(self.process).then(|| repeated(Item::Process));
        process.into_iter().chain(in_force(self.stream).then(|| repeated(Item::Stream))).collect()
    }

    /// Takes the next messages to send on a connection.
    pub(crate) fn take(&mut self, connection: &mut Connection) -> Vec<Wire> {
        let Connection { sent, has_asked, .. } = connection;
        let from = (*sent).saturating_sub(self.acknowledged) as usize;
        let mut out: Vec<Wire> = Vec::new();
        for item in self.messages.iter().skip(from).take(MESSAGES) {
            *sent += 1;
            out.push(Wire::Item { seq: *sent, item: item.clone() });
        }
        if *sent >= self.last() {
            out.extend(self.heartbeat.take().map(Wire::Heartbeat));
            if self.is_done() {
                out.push(Wire::Bye);
            } else if self.ended && !std::mem::replace(has_asked, true) {
                out.push(Wire::AckAtOnce);
            }
        }
        out
    }
}

impl Wire {
    /// The message, the rows of a batch, and about the length of its frame.
    pub(crate) fn message(&self, identity: Identity) -> (Message, Option<Columns>, usize) {
        let Identity { node, key, stream: number } = identity;
        let Wire::Item { seq, item } = self else {
            return match self {
                Wire::Heartbeat(watermark) => (Message::Heartbeat { watermark: *watermark }, None, 24),
                Wire::AckAtOnce => (Message::AckAtOnce, None, 9),
                _ => (Message::Bye, None, 9),
            };
        };
        let seq = *seq;
        match item {
            Item::Process => (Message::Process { seq, process: samples::process(key) }, None, 80),
            Item::ResumeProcess { time } => {
                let resume = Resume::Process { key, no_lane: 0, time: *time };
                (Message::Resume { seq, resume }, None, 60)
            }
            Item::Stream => (Message::Stream { seq, stream: samples::stream(number, key, 0) }, None, 70),
            Item::ResumeStream { from, time } => {
                let resume =
                    Resume::Stream { stream: number, from: *from, lost_nested: 0, filtered: 0, time: *time };
                (Message::Resume { seq, resume }, None, 40)
            }
            Item::Batch { after, rows } => {
                let columns = columns(node, rows);
                let length = 60 + 10 * rows.len();
                (
                    Message::Batch { seq, stream: number, after: *after, columns: Vec::new() },
                    Some(columns),
                    length,
                )
            }
            Item::StreamEnd { attempts, after, time } => {
                let mut end = samples::stream_end(number, *attempts, *after);
                end.time = *time;
                (Message::StreamEnd { seq, end }, None, 50)
            }
            Item::ProcessEnd { time } => {
                (Message::ProcessEnd { seq, key, time: *time, lost: ProcessLoss::default() }, None, 60)
            }
        }
    }
}

/// The rows of a batch. Offset and length identify the event: its true time, and its node.
fn columns(node: usize, rows: &[Row]) -> Columns {
    let mut columns = Columns::default();
    for row in rows {
        let mut event = samples::read(row.attempt);
        (event.offset, event.length, event.result) = (row.truth, node as u64 + 1, 1);
        if row.moved {
            event.flags |= miot_proto::event::flag::moved_bit(posix::READ);
        }
        columns.push(RecordKind::Request as u8, row.attempt, row.time, 1, &event, None);
    }
    columns
}
