//! Names that wait to be opened, by the users whose files they are, in turn: who makes many files waits for himself.

use super::discover::Name;
use std::collections::{BTreeMap, VecDeque};

/// Names of one user that wait.
const MOST: usize = 1 << 14;

/// A name, and a time before which its process can have recorded nothing, nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) name: Name,
    pub(super) not_before: i64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    by_user: BTreeMap<u32, VecDeque<Arrival>>,
    /// The user whose turn it is, or the next one there is.
    turn: u32,
}

impl Arrivals {
    /// False: this user has too many already.
    pub(super) fn push(&mut self, uid: u32, arrival: Arrival) -> bool {
        let waiting = self.by_user.entry(uid).or_default();
        let fits = waiting.len() < MOST;
        if fits {
            waiting.push_back(arrival);
        }
        fits
    }

    /// The next one, and its user.
    pub(super) fn pop(&mut self) -> Option<(u32, Arrival)> {
        let uid = *self.by_user.range(self.turn..).chain(&self.by_user).next()?.0;
        self.turn = uid.wrapping_add(1);
        let waiting = self.by_user.get_mut(&uid)?;
        let arrival = waiting.pop_front()?;
        if waiting.is_empty() {
            self.by_user.remove(&uid);
        }
        Some((uid, arrival))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.by_user.values().map(VecDeque::len).sum()
    }

    /// Puts the one that was taken last back to where it was.
    pub(super) fn put_back(&mut self, uid: u32, arrival: Arrival) {
        self.by_user.entry(uid).or_default().push_front(arrival);
        self.turn = uid;
    }

    /// A time before which none of their processes can have recorded anything; `None` if nothing waits.
    pub(super) fn not_before(&self) -> Option<i64> {
        let first = self.by_user.values().filter_map(|waiting| waiting.front());
        first.map(|arrival| arrival.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(nonce: u64) -> Arrival {
        let name = Name::parse(format!("7-{nonce:016x}.seg").as_bytes()).unwrap();
        Arrival { name, not_before: nonce as i64 }
    }

    #[test]
    fn users_take_turns() {
        let mut arrivals = Arrivals::default();
        for (uid, nonce) in [(1000, 1), (1000, 2), (1000, 3), (0, 4), (u32::MAX, 5)] {
            assert!(arrivals.push(uid, arrival(nonce)));
        }
        assert_eq!(arrivals.not_before(), Some(1));
        let mut order = Vec::new();
        while let Some((uid, next)) = arrivals.pop() {
            if order.is_empty() {
                arrivals.put_back(uid, next.clone());
                assert_eq!(arrivals.pop(), Some((uid, next.clone())));
            }
            order.push((uid, next.not_before));
        }
        assert_eq!(order, [(0, 4), (1000, 1), (u32::MAX, 5), (1000, 2), (1000, 3)]);
        assert_eq!(arrivals.not_before(), None);
    }

    #[test]
    fn one_user_does_not_keep_out_others() {
        let mut arrivals = Arrivals::default();
        while arrivals.push(1000, arrival(9)) {}
        assert!(arrivals.push(1001, arrival(9)));
    }
}
