//! Samples of devices, until what came before them has been merged.
//!
//! A node names its samples by boot and time since that boot, ascending; so one that is sent again is known, also by a
//! server that has only the trace to go by.

use crate::side::DeviceRow;
use miot_proto::wire::Sample;
use miot_trace_store::{LastSamples, SAMPLED_BOOTS};
use std::collections::{BTreeMap, HashMap};

/// See the module. `T` is given back when a sample is in the trace.
#[derive(Debug)]
pub(super) struct Samples<T> {
    /// By merged time.
    waiting: BTreeMap<Place, Waiting<T>>,
    /// Where those that wait are.
    places: HashMap<Name, Place>,
    /// Gives samples of the same time their order.
    came: u64,
    /// Of each node, its latest boots and their last samples.
    last: HashMap<String, Vec<(String, u64)>>,
}

/// Merged time, and how many came before.
type Place = (i64, u64);
/// Node, boot, and time since boot.
type Name = (String, String, u64);

#[derive(Debug)]
struct Waiting<T> {
    name: Name,
    sample: Sample,
    tickets: Vec<T>,
}

impl<T> Samples<T> {
    /// `known`: last samples in the trace, by node and boot: time since boot, and merged time.
    pub(super) fn new(known: LastSamples) -> Samples<T> {
        let (waiting, places) = (BTreeMap::new(), HashMap::new());
        let mut samples = Samples { waiting, places, came: 0, last: HashMap::new() };
        for ((node, boot), (uptime, _)) in known {
            samples.last.entry(node).or_default().push((boot, uptime));
        }
        samples
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a sample, whose time is merged time. Gives the ticket back if the trace has the sample already, or has it
    /// before the next commit.
    pub(super) fn put(&mut self, node: String, sample: Sample, ticket: Option<T>) -> Option<T> {
        let boot = format!("{:032x}", sample.boot);
        let boots = self.last.entry(node.clone()).or_default();
        match boots.iter_mut().find(|(known, _)| *known == boot) {
            Some((_, last)) if *last >= sample.uptime => {
                let place = self.places.get(&(node, boot, sample.uptime));
                return match place.and_then(|place| self.waiting.get_mut(place)) {
                    Some(waiting) => {
                        waiting.tickets.extend(ticket);
                        None
                    }
                    None => ticket,
                };
            }
            Some((_, last)) => *last = sample.uptime,
            None => {
                boots.push((boot.clone(), sample.uptime));
                if boots.len() > SAMPLED_BOOTS {
                    boots.remove(0);
                }
            }
        }
        self.came += 1;
        let tickets = ticket.into_iter().collect();
        let (name, place) = ((node, boot, sample.uptime), (sample.time, self.came));
        self.places.insert(name.clone(), place);
        self.waiting.insert(place, Waiting { name, sample, tickets });
        None
    }

    /// Rows of the samples that ended before `until`, in order of time.
    pub(super) fn take(&mut self, until: Option<i64>) -> (Vec<DeviceRow>, Vec<T>) {
        let (mut rows, mut tickets) = (Vec::new(), Vec::new());
        while let Some(entry) = self.waiting.first_entry() {
            if until.is_some_and(|until| entry.key().0 >= until) {
                break;
            }
            let (place, Waiting { name, sample, tickets: of_it }) = entry.remove_entry();
            // A boot that was forgotten may have brought it again.
            if self.places.get(&name) == Some(&place) {
                self.places.remove(&name);
            }
            tickets.extend(of_it);
            let (node, boot, _) = name;
            rows.extend(sample.devices.into_iter().map(|device| DeviceRow {
                time: sample.time,
                node: node.clone(),
                interval: sample.interval,
                boot: boot.clone(),
                uptime: sample.uptime,
                device,
            }));
        }
        (rows, tickets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::wire::{Counters, Device, DeviceKind};

    fn sample(boot: u128, uptime: u64, time: i64) -> Sample {
        let name = format!("{boot}-{uptime}").into_bytes();
        let device = Device { kind: DeviceKind::Block, name, mount: vec![], counters: Counters::default() };
        Sample { boot, uptime, time, interval: 1, devices: vec![device] }
    }

    fn names(rows: &[DeviceRow]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.node, String::from_utf8_lossy(&row.device.name))).collect()
    }

    #[test]
    fn samples_come_in_order_of_time_once_their_time_has_come() {
        let mut samples = Samples::new(HashMap::new());
        assert!(samples.put("b".into(), sample(1, 10, 20), Some(1)).is_none());
        assert!(samples.put("a".into(), sample(2, 10, 10), Some(2)).is_none());
        assert!(samples.put("a".into(), sample(2, 20, 30), Some(3)).is_none());
        let (rows, tickets) = samples.take(Some(30));
        assert_eq!((names(&rows), tickets), (vec!["a 2-10".into(), "b 1-10".into()], vec![2, 1]));
        let (rows, tickets) = samples.take(None);
        assert_eq!((names(&rows), tickets), (vec!["a 2-20".to_owned()], vec![3]));
        assert!(samples.is_empty());
    }

    #[test]
    fn what_is_sent_again_is_known_and_acknowledged_no_sooner_than_the_first() {
        let known = HashMap::from([(("a".to_owned(), format!("{:032x}", 1)), (50, 5))]);
        let mut samples = Samples::new(known);
        assert_eq!(samples.put("a".into(), sample(1, 50, 5), Some(1)), Some(1), "an earlier server has it");
        assert_eq!(samples.put("a".into(), sample(1, 60, 6), Some(2)), None);
        assert_eq!(samples.put("a".into(), sample(1, 60, 7), Some(3)), None, "it waits");
        assert_eq!(samples.put("b".into(), sample(1, 60, 8), Some(4)), None, "another node");
        assert_eq!(samples.put("a".into(), sample(2, 10, 9), Some(5)), None, "another boot");
        let (rows, tickets) = samples.take(None);
        assert_eq!(names(&rows), ["a 1-60", "b 1-60", "a 2-10"]);
        assert_eq!(tickets, [2, 3, 4, 5]);
        assert_eq!(samples.put("a".into(), sample(1, 60, 7), Some(6)), Some(6), "given out");
    }
}
