//! The log-servers of a set, and what is known of them.

use miot_proto::wire::{MAX_MEMBERS, MemberIdentity, Message, SetMember};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The log-servers of a set, in the order in which this node prefers them.
#[derive(Debug)]
pub(crate) struct Members {
    order: Vec<String>,
    known: Mutex<BTreeMap<String, MemberIdentity>>,
}

impl Members {
    pub(crate) fn new(order: Vec<String>) -> Members {
        Members { order, known: Mutex::default() }
    }

    /// Addresses, in order of preference.
    pub(crate) fn order(&self) -> &[String] {
        &self.order
    }

    /// Notes the identity of a log-server. Returns a text for the user if it cannot be in one set
    /// with another one.
    pub(crate) fn note(&self, address: &str, identity: MemberIdentity) -> Option<String> {
        let mut known = self.lock();
        let conflict = known.iter().filter(|(other, _)| *other != address).find_map(|(other, theirs)| {
            let conflict = identity.conflict_with(theirs)?;
            Some(format!("{address} and {other} cannot be in one set of log-servers: {conflict}"))
        });
        known.insert(address.to_owned(), identity);
        conflict
    }

    /// The message that tells the log-server at `own` about the others.
    pub(crate) fn message(&self, own: &str) -> Message {
        let known = self.lock();
        let others = self.order.iter().filter(|address| *address != own).take(MAX_MEMBERS);
        let others = others.map(|address| {
            let identity = known.get(address).cloned();
            SetMember { address: address.clone(), identity }
        });
        Message::Members { others: others.collect() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, MemberIdentity>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Members;
    use miot_proto::wire::MemberIdentity;

    #[test]
    fn one_partition_or_two_clusters_are_conflicts() {
        let identity = |cluster: &str, partition| MemberIdentity { cluster: cluster.into(), partition };
        let members = Members::new(vec!["a:1".into(), "b:1".into()]);
        assert_eq!(members.note("a:1", identity("x", 0)), None);
        assert!(members.note("b:1", identity("x", 0)).unwrap().contains("partition 0"));
        assert!(members.note("b:1", identity("", 1)).unwrap().contains("clusters differ"));
        assert_eq!(members.note("b:1", identity("x", 1)), None);
        assert_eq!(members.note("b:1", identity("x", 1)), None, "again the same one");
    }
}
