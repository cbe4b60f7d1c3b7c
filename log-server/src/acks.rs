//! Up to which sequence number a session's messages are durable.

use std::collections::VecDeque;

/// The messages of one session that have been received and are not durable yet. They are received in order
/// and become durable in any order.
#[derive(Debug, Default)]
pub struct Acks {
    through: u64,
    /// Of `through + 1` and its successors: durable?
    window: VecDeque<bool>,
}

impl Acks {
    /// A message arrived. The first one of a session fixes where it goes on: what is before was
    /// acknowledged in another life of this server. Numbers that are left out are never sent, so they hold
    /// nothing back. Returns false for a repeat of a message that is durable.
    pub fn received(&mut self, seq: u64) -> bool {
        if seq <= self.through {
            return false;
        }
        if self.window.is_empty() {
            self.through = seq - 1;
        }
        let index = (seq - self.through) as usize - 1;
        if index >= self.window.len() {
            // A gap of any width would be a way to take memory.
            let gap = index - self.window.len();
            if gap > MAX_GAP {
                return true;
            }
            self.window.extend(std::iter::repeat_n(true, gap));
            self.window.push_back(false);
        }
        true
    }

    /// The message with this number is durable.
    pub fn durable(&mut self, seq: u64) {
        let index = seq.checked_sub(self.through).and_then(|n| n.checked_sub(1)).map(|i| i as usize);
        if let Some(mark) = index.and_then(|i| self.window.get_mut(i)) {
            *mark = true;
        }
        while self.window.front() == Some(&true) {
            self.window.pop_front();
            self.through += 1;
        }
    }

    /// All messages up to this one are durable.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through
    }
}

/// More numbers left out at once than this are not from our log-client; they are never acknowledged.
const MAX_GAP: usize = 1 << 16;

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
        assert!(acks.received(u64::MAX));
        acks.durable(u64::MAX);
        acks.durable(1004);
        assert_eq!(acks.through(), 1004);
    }
}
