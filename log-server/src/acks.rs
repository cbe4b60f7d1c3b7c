//! Up to which sequence number a session's messages are durable.

use std::collections::VecDeque;

/// The messages of one session that have been received and are not durable yet. They are received in order
/// and become durable in any order.
#[derive(Debug, Default)]
pub struct Acks {
    /// Where nothing waits, all up to here are durable.
    last: u64,
    /// From the first that is not durable on, in order: durable? Numbers that are left out were never sent.
    window: VecDeque<(u64, bool)>,
}

impl Acks {
    /// A message arrived. The first one of a session fixes where it goes on: what is before was
    /// acknowledged in another life of this server. Numbers that are left out are never sent, so they hold
    /// nothing back. Returns false for a repeat of a message that is durable.
    pub fn received(&mut self, seq: u64) -> bool {
        if seq <= self.through() {
            return false;
        }
        if self.window.back().is_none_or(|(newest, _)| seq > *newest) {
            self.window.push_back((seq, false));
        }
        true
    }

    /// The message with this number is durable.
    pub fn durable(&mut self, seq: u64) {
        if let Ok(index) = self.window.binary_search_by_key(&seq, |(seq, _)| *seq) {
            self.window[index].1 = true;
        }
        while let Some((seq, _)) = self.window.pop_front_if(|(_, durable)| *durable) {
            self.last = seq;
        }
    }

    /// All messages up to this one are durable.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.window.front().map_or(self.last, |(seq, _)| seq - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unbroken_run_is_acknowledged() {
        let mut acks = Acks::default();
        for seq in 1..=5 {
            assert!(acks.received(seq));
        }
        acks.durable(2);
        acks.durable(1);
        assert_eq!(acks.through(), 2);
        acks.durable(4);
        assert_eq!(acks.through(), 2);
        acks.durable(3);
        assert_eq!(acks.through(), 4);
        acks.durable(4);
        assert!(!acks.received(4) && acks.received(5));
        acks.durable(5);
        acks.durable(99);
        assert_eq!(acks.through(), 5);
    }

    #[test]
    fn a_session_of_an_earlier_server_goes_on() {
        let mut acks = Acks::default();
        assert!(acks.received(1000) && acks.received(1001) && acks.received(1000));
        acks.durable(1000);
        assert_eq!(acks.through(), 1000);
        assert!(acks.received(1004), "1002 and 1003 were never sent");
        acks.durable(1001);
        assert_eq!(acks.through(), 1003);
        assert!(acks.received(u64::MAX), "a node that lost as many goes on");
        acks.durable(1004);
        assert_eq!(acks.through(), u64::MAX - 1);
        acks.durable(u64::MAX);
        assert_eq!(acks.through(), u64::MAX);
    }
}
