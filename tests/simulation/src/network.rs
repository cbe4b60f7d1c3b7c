//! Delays and partitions of the network.

use crate::{MILLISECOND, Time};
use fastrand::Rng;

/// Maximum delay of a message.
pub(crate) const MAX_DELAY: Time = 2 * MILLISECOND;
/// Delay of a message.
const DELAY: std::ops::Range<Time> = 50_000..MAX_DELAY;

/// The network between nodes and log-servers.
#[derive(Debug)]
pub(crate) struct Network {
    random: Rng,
    partitions: Vec<Partition>,
}

#[derive(Debug)]
struct Partition {
    /// Selects the nodes.
    salt: u64,
    one_in: u64,
    servers: Vec<usize>,
    until: Time,
}

/// True for one node in `one_in`. `salt` selects which.
pub(crate) fn is_chosen(node: usize, salt: u64, one_in: u64) -> bool {
    Rng::with_seed(salt ^ (node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..one_in) == 0
}

impl Network {
    pub(crate) fn new(seed: u64) -> Network {
        Network { random: Rng::with_seed(seed), partitions: Vec::new() }
    }

    pub(crate) fn delay(&mut self) -> Time {
        self.random.u64(DELAY)
    }

    /// Time for which an answer waits for the next message of its node.
    pub(crate) fn wait_for_message(&mut self) -> Time {
        self.random.u64(..1600 * MILLISECOND)
    }

    /// Starts a partition.
    pub(crate) fn cut(&mut self, one_in: u64, servers: Vec<usize>, until: Time) {
        let salt = self.random.u64(..);
        self.partitions.push(Partition { salt, one_in, servers, until });
    }

    /// Time at which a node can reach a log-server again; `None` if it can now.
    pub(crate) fn cut_until(&mut self, node: usize, server: usize, now: Time) -> Option<Time> {
        self.partitions.retain(|partition| partition.until > now);
        let of_pair = self.partitions.iter().filter(|partition| {
            partition.servers.contains(&server) && is_chosen(node, partition.salt, partition.one_in)
        });
        of_pair.map(|partition| partition.until).max()
    }

    /// Time of arrival of what is sent now, in order after what arrives at `after`. Data that is
    /// sent during a partition arrives when the partition is over: TCP sends it again.
    pub(crate) fn arrival(&mut self, node: usize, server: usize, now: Time, after: Time) -> Time {
        let sent = self.cut_until(node, server, now).unwrap_or(now);
        (sent + self.delay()).max(after + 1)
    }
}
