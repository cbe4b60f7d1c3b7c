//! Which steps wait for which of other threads: those on the same file or name, in the order of the trace (as Weiss et al., *ROOT:
//! Replaying Multithreaded Traces with Resource-Oriented Ordering*, 2013, order by resource).
//!
//! Steps come in the order of completion, and each waits for steps before it only, so that there is always one that waits for none.

use std::collections::HashMap;

/// What a step does to a file or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Goes through it.
    Above,
    /// Needs it to be there, or not to be there.
    Name,
    /// Reads it.
    Read,
    /// Writes it at a place that it says.
    Write,
    /// Makes, removes, renames, cuts, appends, locks: in one order with everything else.
    Alone,
}

/// A step of a thread: slot of the thread, number of the step in it from 1, completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) thread: u32,
    pub(super) number: u32,
    pub(super) begin: i64,
    pub(super) end: i64,
    /// It is submitted at its begin, which other steps of its thread come after: it may wait only for what was over by then.
    pub(super) asynchronous: bool,
}

/// The last of each thread.
type Last = Vec<At>;

#[derive(Debug, Default)]
struct Resource {
    alone: Option<At>,
    names: Last,
    reads: Last,
    writes: Last,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    resources: HashMap<Vec<u8>, Resource>,
    /// What each thread has waited for already.
    known: Vec<HashMap<u32, u32>>,
}

impl Order {
    /// What a step must wait for, and that it was.
    pub(super) fn add(&mut self, at: At, uses: &[(&[u8], Use)]) -> Vec<(u32, u32)> {
        let mut waits: HashMap<u32, u32> = HashMap::new();
        // Requests that overlapped had no order, unless `strictly`.
        let mut wait = |before: &At, strictly: bool| {
            let apart = before.end <= at.begin;
            if before.thread == at.thread || at.asynchronous && !apart {
                return;
            }
            let number = if apart || strictly { before.number } else { before.number - 1 };
            if number > 0 {
                let least = waits.entry(before.thread).or_default();
                *least = (*least).max(number);
            }
        };
        for (name, way) in uses {
            if let Some(resource) = self.resources.get(*name) {
                resource.alone.iter().for_each(|before| wait(before, true));
                match way {
                    Use::Above | Use::Name => {}
                    Use::Read => resource.writes.iter().for_each(|before| wait(before, false)),
                    Use::Write => resource.reads.iter().for_each(|before| wait(before, false)),
                    Use::Alone => {
                        let all = [&resource.names, &resource.reads, &resource.writes];
                        all.into_iter().flatten().for_each(|before| wait(before, true));
                    }
                }
            }
        }
        for (name, way) in uses.iter().filter(|(_, way)| *way != Use::Above) {
            if !self.resources.contains_key(*name) {
                self.resources.insert(name.to_vec(), Resource::default());
            }
            let Some(resource) = self.resources.get_mut(*name) else { continue };
            let last = match way {
                Use::Name | Use::Above => &mut resource.names,
                Use::Read => &mut resource.reads,
                Use::Write => &mut resource.writes,
                Use::Alone => {
                    *resource = Resource { alone: Some(at), ..Resource::default() };
                    continue;
                }
            };
            match last.iter_mut().find(|before| before.thread == at.thread) {
                Some(before) => *before = at,
                None => last.push(at),
            }
        }
        self.unknown(&at, waits)
    }

    /// Without what the thread has waited for before.
    fn unknown(&mut self, at: &At, waits: HashMap<u32, u32>) -> Vec<(u32, u32)> {
        let thread = at.thread as usize;
        if self.known.len() <= thread {
            self.known.resize_with(thread + 1, HashMap::new);
        }
        let known = &mut self.known[thread];
        waits
            .into_iter()
            .filter(|(other, number)| {
                let before = known.entry(*other).or_default();
                let more = number > before;
                *before = (*before).max(*number);
                // What the thread has waited for may have been after the submission.
                more || at.asynchronous
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{At, Order, Use};

    #[test]
    fn conflicts_wait_and_others_do_not() {
        let mut order = Order::default();
        let mut add = |thread, number, begin, end, name: &str, way| {
            let mut waits =
                order.add(At { thread, number, begin, end, asynchronous: false }, &[(name.as_bytes(), way)]);
            waits.sort_unstable();
            waits
        };
        assert_eq!(add(0, 1, 0, 1, "f", Use::Alone), []);
        assert_eq!(add(1, 1, 2, 3, "f", Use::Write), [(0, 1)]);
        assert_eq!(add(0, 2, 2, 4, "f", Use::Write), [], "writes have no order");
        assert_eq!(add(2, 1, 5, 6, "f", Use::Read), [(0, 2), (1, 1)]);
        assert_eq!(add(2, 2, 7, 8, "f", Use::Read), [], "it has waited already");
        assert_eq!(
            add(0, 3, 1, 9, "f", Use::Write),
            [(2, 1)],
            "the last one it overlapped, the one before it waits for"
        );
        assert_eq!(add(1, 2, 1, 10, "f", Use::Alone), [(0, 3), (2, 2)]);
        assert_eq!(add(3, 1, 11, 12, "f", Use::Name), [(1, 2)]);
        assert_eq!(add(3, 2, 11, 12, "g", Use::Alone), []);
    }

    #[test]
    fn a_submission_waits_though_a_later_request_that_was_over_sooner_has() {
        let mut order = Order::default();
        let mut add = |thread, number, begin, end, asynchronous, way| {
            order.add(At { thread, number, begin, end, asynchronous }, &[(b"f", way)])
        };
        assert_eq!(add(0, 1, 0, 1, false, Use::Write), []);
        assert_eq!(add(1, 1, 3, 4, false, Use::Read), [(0, 1)]);
        assert_eq!(add(1, 2, 2, 9, true, Use::Read), [(0, 1)]);
        assert_eq!(add(1, 3, 10, 11, false, Use::Read), [], "it comes after both");
    }
}
