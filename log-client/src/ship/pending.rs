//! What the log-server has not acknowledged, and what it must be told again on a new connection.

use super::outbox::{About, Frame, Link, Outgoing, Subject};
use miot_proto::wire::Message;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
#[derive(Debug)]
pub(super) struct Pending {
    link: Arc<Link>,
    queue: VecDeque<Entry>,
    /// Index of the first entry that was not sent on this connection.
    unsent: usize,
    /// All numbers up to here were acknowledged.
    acknowledged: u64,
    /// Definitions in force, by their number: processes come before their streams.
    definitions: BTreeMap<u64, Vec<u8>>,
    defined: HashMap<Subject, u64>,
    /// To be sent when the queue is empty.
    watermark: Option<i64>,
    /// Clock questions not answered yet.
    questions: Vec<i64>,
    ended: bool,
}

#[derive(Debug)]
struct Entry {
    frame: Frame,
    /// To be sent right after the frame.
    watermark: Option<i64>,
}

impl Pending {
    pub(super) fn new(link: Arc<Link>) -> Pending {
        Pending {
            link,
            queue: VecDeque::new(),
            unsent: 0,
            acknowledged: 0,
            definitions: BTreeMap::new(),
            defined: HashMap::new(),
            watermark: None,
            questions: Vec::new(),
            ended: false,
        }
    }

    pub(super) fn push(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Frame(mut frame) => {
                if let About::Defines(subject, again) = &mut frame.about {
                    self.definitions.insert(frame.seq, std::mem::take(again));
                    self.defined.insert(*subject, frame.seq);
                }
                self.queue.push_back(Entry { frame, watermark: None });
            }
            Outgoing::Watermark(time) => {
                let all_sent = self.unsent == self.queue.len();
                match self.queue.back_mut() {
                    Some(last) if !all_sent => last.watermark = Some(time),
                    _ => self.watermark = Some(time),
                }
            }
            Outgoing::End => self.ended = true,
        }
    }

    /// Everything up to this number is safe with the server.
    pub(super) fn acknowledge(&mut self, through: u64) {
        let mut freed = 0;
        while let Some(entry) = self.queue.pop_front_if(|entry| entry.frame.seq <= through) {
            freed += entry.frame.bytes.len() as u64;
            self.unsent = self.unsent.saturating_sub(1);
            self.acknowledged = entry.frame.seq;
            if let About::Ends(subject) = entry.frame.about
                && let Some(seq) = self.defined.remove(&subject)
            {
                self.definitions.remove(&seq);
            }
        }
        self.link.held.fetch_sub(freed, Relaxed);
    }

    /// A new connection: everything is to be sent again. The definitions to begin with.
    pub(super) fn restart(&mut self, through: u64) -> Vec<u8> {
        self.acknowledge(through);
        self.unsent = 0;
        self.questions.clear();
        self.definitions.range(..=self.acknowledged).flat_map(|(_, frame)| frame).copied().collect()
    }

    pub(super) fn ask(&mut self, sent: i64) {
        self.questions.push(sent);
    }

    /// Appends what is to be sent next to `out`, about `limit` bytes.
    pub(super) fn take(&mut self, out: &mut Vec<u8>, limit: usize, clock: impl Fn() -> i64) {
        for sent in self.questions.drain(..) {
            Message::Pong { sent, answered: clock() }.put_frame(out);
        }
        while let Some(entry) = self.queue.get(self.unsent).filter(|_| out.len() < limit) {
            out.extend_from_slice(&entry.frame.bytes);
            if let Some(watermark) = entry.watermark {
                Message::Heartbeat { watermark }.put_frame(out);
            }
            self.unsent += 1;
        }
        if self.unsent == self.queue.len()
            && let Some(watermark) = self.watermark.take()
        {
            Message::Heartbeat { watermark }.put_frame(out);
        }
    }

    /// True once everything was acknowledged and nothing more comes.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.queue.is_empty()
    }

    /// Messages that were not acknowledged.
    pub(super) fn left(&self) -> u64 {
        self.queue.len() as u64
    }
}
