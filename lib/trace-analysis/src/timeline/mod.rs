//! Timeline: bytes, operations and durations by interval of time.
//!
//! Bytes and durations are those of outermost requests ([`miot_trace_events::Outermost`]);
//! operations are counted for each layer. A request counts in the interval in which it completed;
//! its bytes are distributed evenly over its duration.

mod intervals;

pub use intervals::{Intervals, Join, MOST};

use crate::bursts::{Bursts, Interval};
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::Event;
use serde::Serialize;

/// Kinds of operations, in the order of [`Operations`].
pub const KINDS: [&str; 4] = ["read", "write", "sync", "meta"];
/// Numbers of requests by kind; a copy is a write.
pub type Operations = [u64; KINDS.len()];
/// Number of slots: one for each layer, and the first one for layers of later versions.
const LAYERS: usize = Layer::ALL.len() + 1;
/// Number of steps of durations: two per power of two, up to 2⁴⁴ ns (about five hours).
pub const STEPS: usize = 2 * 44;

/// Returns the step of a duration: `2k` from 2ᵏ ns on, `2k + 1` from 1.5 · 2ᵏ ns on.
#[must_use]
pub fn step(nanoseconds: u64) -> usize {
    let power = nanoseconds.max(1).ilog2();
    let half = if power == 0 { 0 } else { (nanoseconds >> (power - 1)) & 1 };
    (2 * power as usize + half as usize).min(STEPS - 1)
}

/// Returns the shortest duration of a step in nanoseconds.
#[must_use]
pub fn step_begin(step: usize) -> u64 {
    let power = 1u64 << (step / 2);
    power + (step % 2) as u64 * (power / 2)
}

/// Returns the index of an operation's class in [`KINDS`].
#[must_use]
pub fn kind(class: OpClass) -> usize {
    match class {
        OpClass::Read => 0,
        OpClass::Write | OpClass::Copy => 1,
        OpClass::Sync => 2,
        OpClass::Meta => 3,
    }
}

#[derive(Clone, Debug)]
struct Cell {
    operations: [Operations; LAYERS],
    requests: u64,
    read: u64,
    written: u64,
    /// Outermost requests by duration.
    durations: [u64; STEPS],
}

impl Default for Cell {
    fn default() -> Self {
        Cell { operations: Default::default(), requests: 0, read: 0, written: 0, durations: [0; STEPS] }
    }
}

impl Join for Cell {
    fn join(&mut self, other: Cell) {
        for (layer, others) in self.operations.iter_mut().zip(other.operations) {
            layer.iter_mut().zip(others).for_each(|(count, more)| *count += more);
        }
        self.requests = self.requests.saturating_add(other.requests);
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self.durations.iter_mut().zip(other.durations).for_each(|(count, more)| *count += more);
    }
}

/// Assigns the events of a trace to intervals. Memory is bounded.
#[derive(Debug, Default)]
pub struct Timeline {
    cells: Intervals<Cell>,
}

/// Result by interval; all lists have the same length.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Begin of the first interval, nanoseconds since 1970.
    pub begin: i64,
    /// Length of an interval in nanoseconds.
    pub interval: i64,
    /// Outermost requests in progress at some moment of the interval; for merged intervals, the
    /// sum.
    pub requests: Vec<u64>,
    /// Bytes read by outermost requests.
    pub read: Vec<u64>,
    /// Bytes written by outermost requests.
    pub written: Vec<u64>,
    /// Operations of each layer that has any, including child requests of another layer.
    pub layers: Vec<LayerCourse>,
    /// Outermost requests by duration: for each interval the number of requests of each [`step`]
    /// that has any.
    pub durations: Vec<Vec<(u8, u64)>>,
}

/// Operations of a layer, by interval.
#[derive(Clone, Debug, Serialize)]
pub struct LayerCourse {
    /// Name of the layer; `other` for one of a later version.
    pub layer: &'static str,
    /// Numbers by interval, then by kind.
    pub operations: Vec<Operations>,
}

impl Timeline {
    /// Adds an event. `outermost` is true for an outermost request. Regions and notes of programs
    /// are no requests.
    pub fn add(&mut self, event: &Event, outermost: bool) {
        if event.layer == Some(Layer::App) {
            return;
        }
        if outermost {
            let (moved_read, moved_written) = match event.class() {
                OpClass::Read => (1, 0),
                OpClass::Write => (0, 1),
                OpClass::Copy => (1, 1),
                OpClass::Sync | OpClass::Meta => (0, 0),
            };
            self.cells.spread(event.begin, event.end, event.moved(), |cell, part| {
                cell.requests += 1;
                cell.read = cell.read.saturating_add(moved_read * part);
                cell.written = cell.written.saturating_add(moved_written * part);
            });
        }
        let cell = self.cells.at(event.end);
        let layer = event.layer.map_or(0, |layer| layer as usize);
        cell.operations[layer][kind(event.class())] += 1;
        if outermost {
            cell.durations[step(event.duration())] += 1;
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(self) -> Course {
        let cells = || self.cells.iter();
        let layers = (0..LAYERS).map(|slot| LayerCourse {
            layer: Layer::from_number(slot as u8).map_or("other", Layer::name),
            operations: cells().map(|cell| cell.operations[slot]).collect(),
        });
        let steps = |cell: &Cell| {
            let all = (0u8..).zip(cell.durations);
            all.filter(|(_, count)| *count > 0).collect()
        };
        Course {
            begin: self.cells.begin(),
            interval: self.cells.width(),
            requests: cells().map(|cell| cell.requests).collect(),
            read: cells().map(|cell| cell.read).collect(),
            written: cells().map(|cell| cell.written).collect(),
            layers: layers.filter(|layer| layer.operations.iter().any(|o| *o != [0; 4])).collect(),
            durations: cells().map(steps).collect(),
        }
    }
}

impl Course {
    /// Returns the throughput of the intervals, with the first begin and the last end of requests.
    #[must_use]
    pub fn bursts(&self, begin: i64, end: i64) -> Bursts {
        let step = |number: usize| self.begin.saturating_add((number as i64).saturating_mul(self.interval));
        let cells = self.read.iter().zip(&self.written).zip(&self.requests).enumerate();
        let series = cells.map(|(number, ((read, written), requests))| Interval {
            begin: step(number),
            read: *read,
            written: *written,
            requests: *requests,
        });
        let series = series.filter(|interval| interval.requests > 0).collect();
        Bursts::of(self.interval.unsigned_abs(), (begin, end), series)
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    fn event(begin: i64, end: i64, op: (&str, &str), moved: i64) -> Event {
        let info = miot_proto::op::by_name(op.0, op.1);
        Event {
            begin,
            end,
            node: 0,
            process: 1,
            pid: 1,
            tid: 1,
            stream: 1,
            op: 0,
            layer: Layer::from_name(op.0),
            info,
            file: Some(1),
            file2: None,
            handle: Some(1),
            offset: Some(0),
            length: Some(moved),
            arg: None,
            result: moved,
            flags: 0,
            request: 1,
            enclosing: None,
            cpu_time: None,
            caller: None,
            mpi_rank: None,
            etypes: None,
            type_extent: None,
        }
    }

    #[test]
    fn figures_are_in_their_interval() {
        let (mut timeline, second) = (Timeline::default(), 1_000_000_000);
        // Creates intervals of one second.
        timeline.add(&event(0, 10, ("posix", "open"), 3), true);
        timeline.add(&event(999 * second, 999 * second + 1, ("posix", "stat"), 5), false);
        timeline.add(&event(second, 2 * second, ("app", "note"), 5), true);
        timeline.add(&event(2 * second, 4 * second, ("posix", "write"), 101), true);
        timeline.add(&event(2 * second, 3 * second, ("posix", "read"), 7), false);
        timeline.add(&event(5 * second, 5 * second + 4096, ("posix", "copy_file_range"), 11), true);
        let course = timeline.finish();
        assert_eq!((course.interval, course.begin, course.read.len()), (second, 0, 1000));
        assert_eq!(course.requests[..7], [1, 0, 1, 1, 0, 1, 0]);
        assert_eq!(course.written[..7], [0, 0, 50, 51, 0, 11, 0]);
        assert_eq!(course.read[..7], [0, 0, 0, 0, 0, 11, 0]);
        assert_eq!(course.layers.len(), 1, "without notes");
        let posix = course.layers.iter().find(|layer| layer.layer == "posix").expect("posix");
        assert_eq!(
            posix.operations[..6],
            [[0, 0, 0, 1], [0; 4], [0; 4], [1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
        );
        assert_eq!(course.durations[5], [(24, 1)]);
        let bursts = course.bursts(0, 6 * second);
        assert_eq!((bursts.intervals, bursts.total.bytes, bursts.total.peak), (6, 123, 51.0));
    }

    #[test]
    fn steps_are_half_powers_of_two() {
        for (nanoseconds, expected) in
            [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (5, 4), (6, 5), (7, 5), (8, 6)]
        {
            assert_eq!(step(nanoseconds), expected, "{nanoseconds}");
        }
        assert_eq!(step(u64::MAX), STEPS - 1);
        for number in 3..STEPS {
            let begin = step_begin(number);
            assert_eq!((step(begin), step(begin - 1)), (number, number - 1));
        }
    }
}
