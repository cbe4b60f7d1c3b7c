//! Order of preference of a node among log-servers.

use siphasher::sip::SipHasher24;
use std::hash::Hasher as _;

/// Returns the log-servers in the order in which a node prefers them: rendezvous hashing (Thaler
/// and Ravishankar, *Using Name-Based Mappings to Increase Hit Rates*, 1998).
///
/// The weight of a log-server is SipHash-2-4 with the key 0 of the name of the node, a zero byte
/// and the address; the greatest weight comes first. So each of n log-servers is the first choice
/// of an nth of the nodes, the order of the list does not matter, and an added or removed
/// log-server changes only the first choice of the nodes that it gets or had. The result is the
/// same in all versions.
#[must_use]
pub fn preference(node: &str, servers: &[String]) -> Vec<String> {
    let mut weighted: Vec<(u64, &String)> =
        servers.iter().map(|server| (weight(node, server), server)).collect();
    weighted.sort_unstable_by(|a, b| b.cmp(a));
    weighted.into_iter().map(|(_, server)| server.clone()).collect()
}

fn weight(node: &str, server: &str) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0, 0);
    hasher.write(node.as_bytes());
    hasher.write(&[0]);
    hasher.write(server.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{preference, weight};

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("log{n}.example.org:4747")).collect()
    }

    fn first(node: usize, servers: &[String]) -> String {
        preference(&format!("node{node:05}"), servers).swap_remove(0)
    }

    /// A changed hash would move nearly all nodes at an upgrade.
    #[test]
    fn weights_are_frozen() {
        assert_eq!(weight("node1", "a:4747"), 0x7ad8_f384_c1c0_ceac);
    }

    #[test]
    fn each_server_gets_its_share_whatever_the_order_of_the_list() {
        let servers = names(4);
        let reversed: Vec<String> = servers.iter().rev().cloned().collect();
        let mut counts = [0; 4];
        for node in 0..4000 {
            let chosen = first(node, &servers);
            assert_eq!(first(node, &reversed), chosen);
            counts[servers.iter().position(|server| *server == chosen).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn added_or_removed_server_moves_only_its_share() {
        let (three, four) = (names(3), names(4));
        let moved: Vec<usize> =
            (0..4000).filter(|node| first(*node, &three) != first(*node, &four)).collect();
        assert!((900..1100).contains(&moved.len()), "{}", moved.len());
        assert!(moved.iter().all(|node| first(*node, &four) == four[3]));
    }
}
