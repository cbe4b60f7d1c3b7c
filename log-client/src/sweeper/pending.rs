//! Names of segments that wait to be opened, served round robin by file owner: a user who creates
//! many files delays only their own.

use super::discover::SegmentName;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of waiting names per user.
const MAX_PER_USER: usize = 1 << 14;

/// A waiting name, and a time before which its process has not recorded anything, nanoseconds since
/// 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingSegment {
    pub(super) name: SegmentName,
    pub(super) not_before: i64,
}

/// Queues of waiting names, one per user.
#[derive(Debug, Default)]
pub(super) struct PendingSegments {
    by_user: BTreeMap<u32, VecDeque<PendingSegment>>,
    /// The queue served next is that of the first user id from this one on.
    turn: u32,
}

impl PendingSegments {
    /// Appends a name. Returns false if this user has [`MAX_PER_USER`] already.
    pub(super) fn push(&mut self, uid: u32, pending_segment: PendingSegment) -> bool {
        let waiting = self.by_user.entry(uid).or_default();
        let fits = waiting.len() < MAX_PER_USER;
        if fits {
            waiting.push_back(pending_segment);
        }
        fits
    }

    /// Removes and returns the next name, with its owner.
    pub(super) fn pop(&mut self) -> Option<(u32, PendingSegment)> {
        let uid = *self.by_user.range(self.turn..).chain(&self.by_user).next()?.0;
        self.turn = uid.wrapping_add(1);
        let waiting = self.by_user.get_mut(&uid)?;
        let pending_segment = waiting.pop_front()?;
        if waiting.is_empty() {
            self.by_user.remove(&uid);
        }
        Some((uid, pending_segment))
    }

    /// Number of waiting names.
    pub(super) fn len(&self) -> usize {
        self.by_user.values().map(VecDeque::len).sum()
    }

    /// Puts the name that was popped last back to the front.
    pub(super) fn put_back(&mut self, uid: u32, pending_segment: PendingSegment) {
        self.by_user.entry(uid).or_default().push_front(pending_segment);
        self.turn = uid;
    }

    /// Minimum of `not_before` over all waiting names; `None` if there are none.
    pub(super) fn not_before(&self) -> Option<i64> {
        let first = self.by_user.values().filter_map(|waiting| waiting.front());
        first.map(|pending_segment| pending_segment.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending_segment(nonce: u64) -> PendingSegment {
        let name = SegmentName::parse(format!("7-{nonce:016x}.seg").as_bytes()).unwrap();
        PendingSegment { name, not_before: nonce as i64 }
    }

    #[test]
    fn users_are_served_round_robin() {
        let mut pending = PendingSegments::default();
        for (uid, nonce) in [(1000, 1), (1000, 2), (1000, 3), (0, 4), (u32::MAX, 5)] {
            assert!(pending.push(uid, pending_segment(nonce)));
        }
        assert_eq!(pending.not_before(), Some(1));
        let mut order = Vec::new();
        while let Some((uid, next)) = pending.pop() {
            if order.is_empty() {
                pending.put_back(uid, next.clone());
                assert_eq!(pending.pop(), Some((uid, next.clone())));
            }
            order.push((uid, next.not_before));
        }
        assert_eq!(order, [(0, 4), (1000, 1), (u32::MAX, 5), (1000, 2), (1000, 3)]);
        assert_eq!(pending.not_before(), None);
    }

    #[test]
    fn one_user_does_not_exclude_others() {
        let mut pending = PendingSegments::default();
        while pending.push(1000, pending_segment(9)) {}
        assert!(pending.push(1001, pending_segment(9)));
    }
}
