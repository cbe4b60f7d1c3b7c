//! When to try again.

use crate::random::Random;
use std::time::Duration;

/// Waits between two attempts: doubled from the first to the last.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(10);

/// Waits between attempts: doubling, and each shortened by up to a half at random, so that the nodes of a
/// cluster do not all return at once.
#[derive(Debug)]
pub(super) struct Retry {
    wait: Duration,
    random: Random,
}

impl Retry {
    /// Equal seeds wait equally long.
    pub(super) fn new(seed: u64) -> Retry {
        Retry { wait: FIRST, random: Random::new(seed) }
    }

    /// The far end is well.
    pub(super) fn reset(&mut self) {
        self.wait = FIRST;
    }

    pub(super) fn next(&mut self) -> Duration {
        let share = 512 + self.random.below(512) as u32;
        let wait = self.wait * share / 1024;
        self.wait = (self.wait * 2).min(LAST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound_and_never_vanish() {
        let mut retry = Retry::new(42);
        let waits: Vec<_> = (0..40).map(|_| retry.next()).collect();
        assert!(waits.iter().all(|wait| (FIRST / 2..=LAST).contains(wait)));
        assert!(waits[30..].iter().all(|wait| *wait >= LAST / 2));
        retry.reset();
        assert!(retry.next() <= FIRST);
    }

    /// A server that is away for a minute, or restarts over and over: however often they have tried, the nodes of a
    /// cluster are spread over the whole of the last wait.
    #[test]
    fn the_nodes_of_a_cluster_do_not_come_back_at_once() {
        const NODES: usize = 500;
        const SLOTS: usize = 50;
        for attempts in [1, 3, 8, 20] {
            // Sessions are random numbers; those that are not are spread as well.
            for seed in [|node: u64| node, |node: u64| node.wrapping_mul(0x9e37_79b9_7f4a_7c15)] {
                let mut nodes: Vec<_> = (1..=NODES as u64).map(|node| Retry::new(seed(node))).collect();
                let waits: Vec<Duration> = nodes
                    .iter_mut()
                    .map(|retry| (0..attempts).map(|_| retry.next()).last().unwrap_or_default())
                    .collect();
                let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
                assert!(*most >= *least * 3 / 2, "from {least:?} to {most:?} after {attempts}");
                let mut slots = [0; SLOTS];
                for wait in &waits {
                    let at = (*wait - *least).as_nanos() * SLOTS as u128 / ((*most - *least).as_nanos() + 1);
                    slots[at as usize] += 1;
                }
                // Ten a slot on average.
                let crowd = *slots.iter().max().unwrap();
                assert!(crowd <= 40, "{crowd} of {NODES} in a fiftieth of the wait after {attempts}");
            }
        }
    }
}
