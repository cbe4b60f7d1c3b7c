//! Process and thread ids that are the same on several nodes, or again later, for formats that have no room for that.

use std::collections::HashSet;

/// One more than the largest process id of Linux.
pub(crate) const BEYOND: u32 = (1 << 22) + 1;

/// Numbers that are given once.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    given: HashSet<u32>,
    next: u32,
}

impl Numbers {
    /// This one if it is free, and one from [`BEYOND`] on if it is not.
    pub(crate) fn give(&mut self, wanted: u32) -> u32 {
        if self.given.insert(wanted) {
            return wanted;
        }
        loop {
            let number = BEYOND.wrapping_add(self.next);
            self.next = self.next.wrapping_add(1);
            if self.given.insert(number) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BEYOND, Numbers};

    #[test]
    fn a_number_is_given_once() {
        let mut numbers = Numbers::default();
        let given = [5, 5, BEYOND, 5, 6].map(|wanted| numbers.give(wanted));
        assert_eq!(given, [5, BEYOND, BEYOND + 1, BEYOND + 2, 6]);
    }
}
