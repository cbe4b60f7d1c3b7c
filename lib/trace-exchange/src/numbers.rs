//! Distinct process and thread ids, for formats that do not support an id that occurs on several
//! nodes or is reused.

use std::collections::HashSet;

/// Largest process id of Linux, plus 1.
pub(crate) const BEYOND: u32 = (1 << 22) + 1;

/// Numbers that are assigned once.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    assigned: HashSet<u32>,
    next: u32,
}

impl Numbers {
    /// Returns the wanted number if it is free, otherwise a number from [`BEYOND`] on.
    pub(crate) fn give(&mut self, wanted: u32) -> u32 {
        if self.assigned.insert(wanted) {
            return wanted;
        }
        loop {
            let number = BEYOND.wrapping_add(self.next);
            self.next = self.next.wrapping_add(1);
            if self.assigned.insert(number) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BEYOND, Numbers};

    #[test]
    fn numbers_are_assigned_once() {
        let mut numbers = Numbers::default();
        let assigned = [5, 5, BEYOND, 5, 6].map(|wanted| numbers.give(wanted));
        assert_eq!(assigned, [5, BEYOND, BEYOND + 1, BEYOND + 2, 6]);
    }
}
