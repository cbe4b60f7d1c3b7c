//! Device samples that wait until all earlier events have been merged.
//!
//! A sample is identified by node, boot and time since that boot, which ascend; so a repeated
//! sample is recognized, even by a server that knows only the trace.

use crate::columns::side_tables::DeviceRow;
use miot_proto::wire::DeviceSample;
use miot_trace_store::{LastSamples, SAMPLED_BOOTS};
use std::collections::{BTreeMap, HashMap};

/// Device samples in order of merged time. `T` is returned when a sample is in the trace.
#[derive(Debug)]
pub(super) struct DeviceSamples<T> {
    /// Samples that have not been written yet.
    waiting: BTreeMap<Position, WaitingSample<T>>,
    /// Positions of the waiting samples.
    positions: HashMap<SampleKey, Position>,
    /// Number of samples so far: orders samples with the same time.
    count: u64,
    /// By node: its latest boots and the uptime of their last samples.
    last: HashMap<String, Vec<(String, u64)>>,
}

/// Merged time, nanoseconds since 1970, and the number of the sample.
type Position = (i64, u64);
/// Node, boot, and nanoseconds since boot.
type SampleKey = (String, String, u64);

#[derive(Debug)]
struct WaitingSample<T> {
    key: SampleKey,
    sample: DeviceSample,
    tickets: Vec<T>,
}

impl<T> DeviceSamples<T> {
    /// Creates the queue. `known`: last samples in the trace by node and boot: time since boot, and
    /// merged time.
    pub(super) fn new(known: LastSamples) -> DeviceSamples<T> {
        let (waiting, positions) = (BTreeMap::new(), HashMap::new());
        let mut samples = DeviceSamples { waiting, positions, count: 0, last: HashMap::new() };
        for ((node, boot), (uptime, _)) in known {
            samples.last.entry(node).or_default().push((boot, uptime));
        }
        samples
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a sample, whose time is merged time. Returns the ticket if the sample is in the trace
    /// already, or will be before the next commit.
    pub(super) fn add(&mut self, node: String, sample: DeviceSample, ticket: Option<T>) -> Option<T> {
        let boot = format!("{:032x}", sample.boot);
        let boots = self.last.entry(node.clone()).or_default();
        match boots.iter_mut().find(|(known, _)| *known == boot) {
            Some((_, last)) if *last >= sample.uptime => {
                let position = self.positions.get(&(node, boot, sample.uptime));
                return match position.and_then(|position| self.waiting.get_mut(position)) {
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
        self.count += 1;
        let tickets = ticket.into_iter().collect();
        let (key, position) = ((node, boot, sample.uptime), (sample.time, self.count));
        self.positions.insert(key.clone(), position);
        self.waiting.insert(position, WaitingSample { key, sample, tickets });
        None
    }

    /// Removes the samples that ended before `until`. Returns their rows in order of time, and
    /// their tickets.
    pub(super) fn take(&mut self, until: Option<i64>) -> (Vec<DeviceRow>, Vec<T>) {
        let (mut rows, mut tickets) = (Vec::new(), Vec::new());
        while let Some(entry) = self.waiting.first_entry() {
            if until.is_some_and(|until| entry.key().0 >= until) {
                break;
            }
            let (position, WaitingSample { key, sample, tickets: its_tickets }) = entry.remove_entry();
            // A sample of a forgotten boot may have been added twice.
            if self.positions.get(&key) == Some(&position) {
                self.positions.remove(&key);
            }
            tickets.extend(its_tickets);
            let (node, boot, _) = key;
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
    use miot_proto::wire::{Device, DeviceCounters, DeviceKind};

    fn sample(boot: u128, uptime: u64, time: i64) -> DeviceSample {
        let name = format!("{boot}-{uptime}").into_bytes();
        let device =
            Device { kind: DeviceKind::Block, name, mount: vec![], counters: DeviceCounters::default() };
        DeviceSample { boot, uptime, time, interval: 1, devices: vec![device] }
    }

    fn names(rows: &[DeviceRow]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.node, String::from_utf8_lossy(&row.device.name))).collect()
    }

    #[test]
    fn samples_are_written_in_order_when_due() {
        let mut samples = DeviceSamples::new(HashMap::new());
        assert!(samples.add("b".into(), sample(1, 10, 20), Some(1)).is_none());
        assert!(samples.add("a".into(), sample(2, 10, 10), Some(2)).is_none());
        assert!(samples.add("a".into(), sample(2, 20, 30), Some(3)).is_none());
        let (rows, tickets) = samples.take(Some(30));
        assert_eq!((names(&rows), tickets), (vec!["a 2-10".into(), "b 1-10".into()], vec![2, 1]));
        let (rows, tickets) = samples.take(None);
        assert_eq!((names(&rows), tickets), (vec!["a 2-20".to_owned()], vec![3]));
        assert!(samples.is_empty());
    }

    #[test]
    fn repeated_sample_is_acknowledged_with_the_first() {
        let known = HashMap::from([(("a".to_owned(), format!("{:032x}", 1)), (50, 5))]);
        let mut samples = DeviceSamples::new(known);
        assert_eq!(
            samples.add("a".into(), sample(1, 50, 5), Some(1)),
            Some(1),
            "in the trace of an earlier server"
        );
        assert_eq!(samples.add("a".into(), sample(1, 60, 6), Some(2)), None);
        assert_eq!(samples.add("a".into(), sample(1, 60, 7), Some(3)), None, "the first one waits");
        assert_eq!(samples.add("b".into(), sample(1, 60, 8), Some(4)), None, "another node");
        assert_eq!(samples.add("a".into(), sample(2, 10, 9), Some(5)), None, "another boot");
        let (rows, tickets) = samples.take(None);
        assert_eq!(names(&rows), ["a 1-60", "b 1-60", "a 2-10"]);
        assert_eq!(tickets, [2, 3, 4, 5]);
        assert_eq!(samples.add("a".into(), sample(1, 60, 7), Some(6)), Some(6), "already written");
    }
}
