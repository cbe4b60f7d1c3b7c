//! Which steps wait for which steps of other threads: steps on the same file or path keep the order
//! of the trace. (Ordering by resource as in Weiss et al., *ROOT: Replaying Multithreaded Traces
//! with Resource-Oriented Ordering*, 2013.)
//!
//! Steps are added in order of completion, and each waits for earlier steps only. So there is
//! always a step that waits for none.

use std::collections::HashMap;

/// How a step accesses a file or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Resolves a path through it.
    Traverse,
    /// Depends on whether it exists.
    Lookup,
    /// Reads its data or entries.
    Read,
    /// Writes at a given offset.
    Write,
    /// Creates, removes, renames, truncates, appends or locks it: has an order with all other
    /// accesses.
    Exclusive,
}

/// Position and times of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPosition {
    /// Slot of its thread.
    pub(super) thread: u32,
    /// Number of the step in its thread, from 1.
    pub(super) number: u32,
    pub(super) begin: i64,
    pub(super) end: i64,
    /// It is submitted at its start, and other steps of its thread follow. So it may wait only for
    /// steps that had completed by then.
    pub(super) asynchronous: bool,
}

/// The last access of each thread.
type LastAccesses = Vec<StepPosition>;

#[derive(Debug, Default)]
struct Resource {
    exclusive: Option<StepPosition>,
    lookups: LastAccesses,
    reads: LastAccesses,
    writes: LastAccesses,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    resources: HashMap<Vec<u8>, Resource>,
    /// By slot of the waiting thread: steps of other threads that it has waited for.
    waited: Vec<HashMap<u32, u32>>,
}

impl Order {
    /// Adds a step with its accesses. Returns the steps that it must wait for: slot, number of
    /// steps.
    pub(super) fn add(&mut self, at: StepPosition, accesses: &[(&[u8], Access)]) -> Vec<(u32, u32)> {
        let mut waits: HashMap<u32, u32> = HashMap::new();
        // Requests that overlapped have no order, unless one of them is exclusive.
        let mut wait = |before: &StepPosition, is_exclusive: bool| {
            let is_disjoint = before.end <= at.begin;
            if before.thread == at.thread || at.asynchronous && !is_disjoint {
                return;
            }
            let number = if is_disjoint || is_exclusive { before.number } else { before.number - 1 };
            if number > 0 {
                let least = waits.entry(before.thread).or_default();
                *least = (*least).max(number);
            }
        };
        for (path, access) in accesses {
            if let Some(resource) = self.resources.get(*path) {
                resource.exclusive.iter().for_each(|before| wait(before, true));
                match access {
                    Access::Traverse | Access::Lookup => {}
                    Access::Read => resource.writes.iter().for_each(|before| wait(before, false)),
                    Access::Write => resource.reads.iter().for_each(|before| wait(before, false)),
                    Access::Exclusive => {
                        let all = [&resource.lookups, &resource.reads, &resource.writes];
                        all.into_iter().flatten().for_each(|before| wait(before, true));
                    }
                }
            }
        }
        for (path, access) in accesses.iter().filter(|(_, access)| *access != Access::Traverse) {
            if !self.resources.contains_key(*path) {
                self.resources.insert(path.to_vec(), Resource::default());
            }
            let Some(resource) = self.resources.get_mut(*path) else { continue };
            let last = match access {
                Access::Lookup | Access::Traverse => &mut resource.lookups,
                Access::Read => &mut resource.reads,
                Access::Write => &mut resource.writes,
                Access::Exclusive => {
                    *resource = Resource { exclusive: Some(at), ..Resource::default() };
                    continue;
                }
            };
            match last.iter_mut().find(|before| before.thread == at.thread) {
                Some(before) => *before = at,
                None => last.push(at),
            }
        }
        self.without_waited(&at, waits)
    }

    /// Returns the waits without those that the thread has made before.
    fn without_waited(&mut self, at: &StepPosition, waits: HashMap<u32, u32>) -> Vec<(u32, u32)> {
        let thread = at.thread as usize;
        if self.waited.len() <= thread {
            self.waited.resize_with(thread + 1, HashMap::new);
        }
        let waited = &mut self.waited[thread];
        waits
            .into_iter()
            .filter(|(other, number)| {
                let before = waited.entry(*other).or_default();
                let is_new = number > before;
                *before = (*before).max(*number);
                // The earlier wait of the thread may come after the submission.
                is_new || at.asynchronous
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Order, StepPosition};

    #[test]
    fn only_conflicting_steps_wait() {
        let mut order = Order::default();
        let mut add = |thread, number, begin, end, path: &str, access| {
            let mut waits = order.add(
                StepPosition { thread, number, begin, end, asynchronous: false },
                &[(path.as_bytes(), access)],
            );
            waits.sort_unstable();
            waits
        };
        assert_eq!(add(0, 1, 0, 1, "f", Access::Exclusive), []);
        assert_eq!(add(1, 1, 2, 3, "f", Access::Write), [(0, 1)]);
        assert_eq!(add(0, 2, 2, 4, "f", Access::Write), [], "writes have no order");
        assert_eq!(add(2, 1, 5, 6, "f", Access::Read), [(0, 2), (1, 1)]);
        assert_eq!(add(2, 2, 7, 8, "f", Access::Read), [], "it has waited already");
        assert_eq!(
            add(0, 3, 1, 9, "f", Access::Write),
            [(2, 1)],
            "it overlaps the last read and waits for the one before"
        );
        assert_eq!(add(1, 2, 1, 10, "f", Access::Exclusive), [(0, 3), (2, 2)]);
        assert_eq!(add(3, 1, 11, 12, "f", Access::Lookup), [(1, 2)]);
        assert_eq!(add(3, 2, 11, 12, "g", Access::Exclusive), []);
    }

    #[test]
    fn submission_waits_even_if_its_thread_has_waited() {
        let mut order = Order::default();
        let mut add = |thread, number, begin, end, asynchronous, access| {
            order.add(StepPosition { thread, number, begin, end, asynchronous }, &[(b"f", access)])
        };
        assert_eq!(add(0, 1, 0, 1, false, Access::Write), []);
        assert_eq!(add(1, 1, 3, 4, false, Access::Read), [(0, 1)]);
        assert_eq!(add(1, 2, 2, 9, true, Access::Read), [(0, 1)]);
        assert_eq!(add(1, 3, 10, 11, false, Access::Read), [], "it comes after both");
    }
}
