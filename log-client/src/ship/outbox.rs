//! The sweeper's end: facts become numbered frames.

use crate::facts::{Fact, Sink};
use crossbeam::channel::{Receiver, Sender, bounded};
use miot_proto::wire::{Message, ProcessKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;

/// Frames between the threads. Few: the memory bound is on the other side.
const CHANNEL: usize = 256;

/// What passes between the threads.
#[derive(Debug)]
pub(super) enum Outgoing {
    Frame(Frame),
    Watermark(i64),
    /// Nothing more comes.
    End,
}

/// A numbered message, ready to be sent.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) seq: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) about: About,
}

/// What a frame does to the definitions.
#[derive(Debug)]
pub(super) enum About {
    Records,
    /// Defines a process or a stream; with the frame that says so again on another connection.
    Defines(Subject, Vec<u8>),
    Ends(Subject),
}

/// What is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Process(ProcessKey),
    Stream(u32),
}

/// What was handed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shipped {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    pub(crate) processes: u64,
    pub(crate) lost_full: u64,
    pub(crate) lost_nested: u64,
    pub(crate) lost_no_lane: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox {
    sender: Sender<Outgoing>,
    link: Arc<Link>,
    limit: u64,
    seq: u64,
    plain: Vec<u8>,
    columns: Vec<u8>,
    shipped: Shipped,
    unannounced: bool,
    broken: bool,
}

/// What both ends share.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Bytes handed over and not acknowledged.
    pub(super) held: AtomicU64,
    pub(super) news: Notify,
}

/// The other end of an [`Outbox`].
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(super) receiver: Receiver<Outgoing>,
    pub(super) link: Arc<Link>,
}

/// Both ends. `limit`: bytes held before [`Outbox::has_room`] says no.
pub(crate) fn channel(limit: u64) -> (Outbox, Inbox) {
    let (sender, receiver) = bounded(CHANNEL);
    let link = Arc::new(Link::default());
    let outbox = Outbox {
        sender,
        link: Arc::clone(&link),
        limit,
        seq: 0,
        plain: Vec::new(),
        columns: Vec::new(),
        shipped: Shipped::default(),
        unannounced: false,
        broken: false,
    };
    (outbox, Inbox { receiver, link })
}

impl Outbox {
    pub(crate) fn shipped(&self) -> Shipped {
        self.shipped
    }

    /// Says that nothing more comes.
    pub(crate) fn end(&mut self) {
        self.hand_over(Outgoing::End);
        self.announce();
    }

    fn number(&mut self, message: impl FnOnce(u64) -> Message, about: About) {
        self.seq += 1;
        let bytes = message(self.seq).frame();
        self.shipped.bytes += bytes.len() as u64;
        self.link.held.fetch_add(bytes.len() as u64, Relaxed);
        self.hand_over(Outgoing::Frame(Frame { seq: self.seq, bytes, about }));
    }

    fn hand_over(&mut self, outgoing: Outgoing) {
        self.unannounced = true;
        if self.sender.is_full() {
            self.announce();
        }
        self.broken |= self.sender.send(outgoing).is_err();
    }

    /// Wakes the other end, once for all that was sent since the last time: waking costs a system call.
    fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.link.news.notify_one();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // The other end notices that nobody sends any more.
        self.link.news.notify_one();
    }
}

impl Sink for Outbox {
    fn has_room(&self) -> bool {
        !self.broken && self.link.held.load(Relaxed) < self.limit
    }

    fn send(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Process(process) => {
                self.shipped.processes += 1;
                let again = Message::Process { seq: 0, process: process.clone() }.frame();
                let about = About::Defines(Subject::Process(process.key), again);
                self.number(|seq| Message::Process { seq, process }, about);
            }
            Fact::Stream(stream) => {
                self.shipped.streams += 1;
                let again = Message::Stream { seq: 0, stream: stream.clone() }.frame();
                let about = About::Defines(Subject::Stream(stream.number), again);
                self.number(|seq| Message::Stream { seq, stream }, about);
            }
            Fact::Batch { stream, columns } => {
                self.shipped.events += columns.len() as u64;
                let mut encoded = std::mem::take(&mut self.columns);
                encoded.clear();
                columns.encode(&mut self.plain, &mut encoded);
                let mut batch = Message::Batch { seq: 0, stream, columns: encoded };
                self.number(
                    |number| {
                        if let Message::Batch { seq, .. } = &mut batch {
                            *seq = number;
                        }
                        batch
                    },
                    About::Records,
                );
            }
            Fact::StreamEnd(end) => {
                self.shipped.lost_full = self.shipped.lost_full.saturating_add(end.lost_full);
                self.shipped.lost_nested = self.shipped.lost_nested.saturating_add(end.lost_nested);
                self.number(|seq| Message::StreamEnd { seq, end }, About::Ends(Subject::Stream(end.stream)));
            }
            Fact::ProcessEnd { key, time, lost } => {
                self.shipped.lost_no_lane = self.shipped.lost_no_lane.saturating_add(lost.no_lane);
                let end = |seq| Message::ProcessEnd { seq, key, time, lost };
                self.number(end, About::Ends(Subject::Process(key)));
            }
            Fact::Watermark(time) => {
                // The last fact of a sweep.
                self.hand_over(Outgoing::Watermark(time));
                self.announce();
            }
        }
    }
}
