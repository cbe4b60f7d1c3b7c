//! The sequence number up to which the messages of a session are durable.

use crate::ids::Seq;
use std::collections::VecDeque;

/// Messages of one session that were received and are not durable yet. Messages are received in
/// order and become durable in any order.
#[derive(Debug, Default)]
pub struct Acks {
    /// While `window` is empty, all messages up to this one are durable.
    last: u64,
    /// Sequence numbers in order, from the first one that is not durable; true: durable. Numbers
    /// that are missing were never sent.
    window: VecDeque<(u64, bool)>,
}

impl Acks {
    /// Records the arrival of a message. The first message of a session defines where the session
    /// continues: earlier messages were acknowledged by an earlier server process. A number that is
    /// skipped is never sent, so it holds nothing back. Returns false for a repeated message that
    /// is durable.
    pub fn received(&mut self, Seq(seq): Seq) -> bool {
        if seq <= self.through().0 {
            return false;
        }
        if self.window.back().is_none_or(|(newest, _)| seq > *newest) {
            self.window.push_back((seq, false));
        }
        true
    }

    /// Marks the message with this number as durable.
    pub fn durable(&mut self, Seq(seq): Seq) {
        if let Ok(index) = self.window.binary_search_by_key(&seq, |(seq, _)| *seq) {
            self.window[index].1 = true;
        }
        while let Some((seq, _)) = self.window.pop_front_if(|(_, durable)| *durable) {
            self.last = seq;
        }
    }

    /// Number up to which all messages are durable.
    #[must_use]
    pub fn through(&self) -> Seq {
        Seq(self.window.front().map_or(self.last, |(seq, _)| seq - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gapless_prefix_is_acknowledged() {
        let mut acks = Acks::default();
        for seq in 1..=5 {
            assert!(acks.received(Seq(seq)));
        }
        acks.durable(Seq(2));
        acks.durable(Seq(1));
        assert_eq!(acks.through(), Seq(2));
        acks.durable(Seq(4));
        assert_eq!(acks.through(), Seq(2));
        acks.durable(Seq(3));
        assert_eq!(acks.through(), Seq(4));
        acks.durable(Seq(4));
        assert!(!acks.received(Seq(4)) && acks.received(Seq(5)));
        acks.durable(Seq(5));
        acks.durable(Seq(99));
        assert_eq!(acks.through(), Seq(5));
    }

    #[test]
    fn session_of_an_earlier_server_continues() {
        let mut acks = Acks::default();
        assert!(acks.received(Seq(1000)) && acks.received(Seq(1001)) && acks.received(Seq(1000)));
        acks.durable(Seq(1000));
        assert_eq!(acks.through(), Seq(1000));
        assert!(acks.received(Seq(1004)), "1002 and 1003 were never sent");
        acks.durable(Seq(1001));
        assert_eq!(acks.through(), Seq(1003));
        assert!(acks.received(Seq(u64::MAX)), "a node that lost so many messages continues");
        acks.durable(Seq(1004));
        assert_eq!(acks.through(), Seq(u64::MAX - 1));
        acks.durable(Seq(u64::MAX));
        assert_eq!(acks.through(), Seq(u64::MAX));
    }
}
