//! Backoff between connection attempts.

use fastrand::Rng;
use std::time::Duration;

/// Waits between two attempts: doubled from the first to the last.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(10);

/// A connection that lasted at least this long, or on which something was acknowledged, resets the
/// backoff.
const GOOD_AFTER: Duration = Duration::from_secs(30);

/// Exponential backoff. Each wait is shortened at random by up to a half, so that the nodes of a
/// cluster do not reconnect all at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    wait: Duration,
    random: Rng,
}

impl Backoff {
    /// Equal seeds give equal waits.
    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff { wait: FIRST, random: Rng::with_seed(seed) }
    }

    /// Records the end of a connection. After a good one, restarts at the first wait.
    pub(crate) fn connection_ended(&mut self, has_acknowledged: bool, lasted: Duration) {
        if has_acknowledged || lasted >= GOOD_AFTER {
            self.wait = FIRST;
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let share = 512 + self.random.u64(..512) as u32;
        let wait = self.wait * share / 1024;
        self.wait = (self.wait * 2).min(LAST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound() {
        let mut retry = Backoff::new(42);
        let waits: Vec<_> = (0..40).map(|_| retry.next()).collect();
        assert!(waits.iter().all(|wait| (FIRST / 2..=LAST).contains(wait)));
        assert!(waits[30..].iter().all(|wait| *wait >= LAST / 2));
        retry.connection_ended(false, GOOD_AFTER - Duration::from_millis(1));
        assert!(retry.next() >= LAST / 2);
        retry.connection_ended(true, Duration::ZERO);
        assert!(retry.next() <= FIRST);
    }

    /// However often the nodes of a cluster have tried (a server that is down for a minute, or
    /// restarts repeatedly), their attempts are spread over the whole of the last wait.
    #[test]
    fn reconnects_of_a_cluster_are_spread() {
        const NODES: usize = 500;
        const SLOTS: usize = 50;
        for attempts in [1, 3, 8, 20] {
            // Sessions are random numbers; consecutive seeds are spread as well.
            for seed in [|node: u64| node, |node: u64| node.wrapping_mul(0x9e37_79b9_7f4a_7c15)] {
                let mut nodes: Vec<_> = (1..=NODES as u64).map(|node| Backoff::new(seed(node))).collect();
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
                // Ten per slot on average.
                let crowd = *slots.iter().max().unwrap();
                assert!(crowd <= 40, "{crowd} of {NODES} in a fiftieth of the wait after {attempts}");
            }
        }
    }
}
