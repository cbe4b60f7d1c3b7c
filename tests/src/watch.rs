//! Subscribers (`miot tail -f`), and a check that the events of each connection are one contiguous
//! piece of the trace.

use crate::built::built;
use crate::judge::{Key, Placed};
use crate::process::Background;
use crate::trace::{PrintedEvent, rows};
use miot_proto::event::flag;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::process::Command;

/// Consecutive subscribers with the same options: when one ends, another is started.
#[derive(Debug)]
pub struct Watch {
    address: String,
    /// The only node of the subscription.
    node: Option<&'static str>,
    tail: Option<Background>,
    /// Output of each finished subscriber.
    seen: Vec<String>,
}

impl Watch {
    /// Subscribes at an address to all nodes or to one.
    #[must_use]
    pub fn start(address: &str, node: Option<&'static str>) -> Watch {
        let mut watch = Watch { address: address.to_owned(), node, tail: None, seen: Vec::new() };
        watch.tail = Some(watch.subscribe());
        watch
    }

    fn subscribe(&self) -> Background {
        let mut tail = Command::new(&built().miot);
        tail.args(["tail", "-f", "--format", "json"]).arg(&self.address);
        Background::start(tail.args(self.node.iter().flat_map(|node| ["--node", node])))
    }

    /// Subscribes again if the last subscriber has ended because its server was killed or
    /// disconnected it.
    pub fn tend(&mut self) {
        if self.tail.as_mut().is_some_and(|tail| !tail.running()) {
            self.seen.extend(self.tail.take().map(|tail| tail.printed()));
            self.tail = Some(self.subscribe());
        }
    }

    /// True if the present subscriber has received an event.
    #[must_use]
    pub fn sees(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.printed().contains("\n{"))
    }

    /// Ends the subscription and compares the events of each connection with the trace. Returns the
    /// number of events received.
    ///
    /// `whole`: the server was not killed, so that it stored all events it sent, and no event is
    /// missing in between.
    ///
    /// # Panics
    /// If a connection received an event twice, out of order, not stored, or not at all.
    #[must_use]
    pub fn end(mut self, trace: &[Placed], whole: bool) -> usize {
        if let Some(tail) = self.tail.take() {
            self.seen.push(tail.stop(Signal::TERM).1);
        }
        let stored: HashMap<(u64, u64), &Placed> =
            trace.iter().map(|placed| ((placed.key.1, placed.key.2), placed)).collect();
        let mut count = 0;
        for text in &self.seen {
            let lines =
                text.split_inclusive('\n').filter(|line| line.starts_with('{') && line.ends_with('\n'));
            let rows = rows(&lines.collect::<String>()).unwrap_or_else(|e| panic!("{e}"));
            count += rows.len();
            self.connection(&rows, &stored, trace, whole);
        }
        count
    }

    fn connection(
        &self,
        rows: &[PrintedEvent],
        stored: &HashMap<(u64, u64), &Placed>,
        trace: &[Placed],
        whole: bool,
    ) {
        let (mut last, mut first): (Option<Key>, Option<Key>) = (None, None);
        let (mut streams, mut seen): (HashMap<u64, u64>, HashSet<(u64, u64)>) = Default::default();
        for row in rows {
            let key = (row.time, row.stream, row.seq);
            assert!(self.node.is_none_or(|node| node == row.node), "not asked for: {row:?}");
            let before = streams.insert(row.stream, row.seq);
            assert!(before < Some(row.seq), "after {before:?} of its stream {row:?}");
            seen.insert((row.stream, row.seq));
            if whole {
                let placed =
                    stored.get(&(row.stream, row.seq)).unwrap_or_else(|| panic!("not stored: {row:?}"));
                assert_eq!(placed.key, key, "stored otherwise: {row:?}");
            }
            if row.flags & u64::from(flag::LATE) == 0 {
                assert!(last < Some(key), "after {last:?} {row:?}");
                last = Some(key);
                first = first.or(last);
            }
        }
        if let (Some(first), Some(last), true) = (first, last, whole) {
            let wanted = |placed: &&Placed| {
                !placed.late
                    && (first..=last).contains(&placed.key)
                    && self.node.is_none_or(|node| node == placed.node)
            };
            for placed in trace.iter().filter(wanted) {
                assert!(seen.contains(&(placed.key.1, placed.key.2)), "not shown: {placed:?}");
            }
        }
    }
}
