//! What happened when: bytes and operations by interval of time, and how long requests took then.
//!
//! Bytes and durations are those of outermost requests ([`crate::Outermost`]), operations are given for each layer. A request counts
//! in the interval in which it completed; its bytes are divided evenly over the time that it took.

mod intervals;

pub use intervals::{Intervals, Join, MOST};

use crate::events::Event;
use miot_proto::op::{Class, Layer};
use serde::Serialize;

/// Kinds of operations that are told apart, in the order of [`Operations`].
pub const KINDS: [&str; 4] = ["read", "write", "sync", "meta"];
/// Numbers of requests by kind; a copy is a write.
pub type Operations = [u64; KINDS.len()];
/// A slot for each layer, and the first one for layers of later versions.
const LAYERS: usize = Layer::ALL.len() + 1;
/// Steps of durations: two to each power of two, up to 2⁴⁴ ns (about five hours).
pub const STEPS: usize = 2 * 44;

/// The step of a duration: `2k` from 2ᵏ ns on, `2k + 1` from 1.5 · 2ᵏ ns on.
#[must_use]
pub fn step(nanoseconds: u64) -> usize {
    let power = nanoseconds.max(1).ilog2();
    let half = if power == 0 { 0 } else { (nanoseconds >> (power - 1)) & 1 };
    (2 * power as usize + half as usize).min(STEPS - 1)
}

/// The shortest duration of a step, nanoseconds.
#[must_use]
pub fn step_begin(step: usize) -> u64 {
    let power = 1u64 << (step / 2);
    power + (step % 2) as u64 * (power / 2)
}

/// Which of [`KINDS`] an operation is.
#[must_use]
pub fn kind(class: Class) -> usize {
    match class {
        Class::Read => 0,
        Class::Write | Class::Copy => 1,
        Class::Sync => 2,
        Class::Meta => 3,
    }
}

#[derive(Clone, Debug)]
struct Cell {
    operations: [Operations; LAYERS],
    read: u64,
    written: u64,
    /// Outermost requests.
    durations: [u64; STEPS],
}

impl Default for Cell {
    fn default() -> Self {
        Cell { operations: Default::default(), read: 0, written: 0, durations: [0; STEPS] }
    }
}

impl Join for Cell {
    fn join(&mut self, other: Cell) {
        for (layer, others) in self.operations.iter_mut().zip(other.operations) {
            layer.iter_mut().zip(others).for_each(|(count, more)| *count += more);
        }
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self.durations.iter_mut().zip(other.durations).for_each(|(count, more)| *count += more);
    }
}

/// Puts the events of a trace into intervals. Memory is bounded.
#[derive(Debug, Default)]
pub struct Timeline {
    cells: Intervals<Cell>,
}

/// The result, by interval; all lists have the same length.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Begin of the first interval, nanoseconds since 1970.
    pub begin: i64,
    /// Nanoseconds of an interval.
    pub interval: i64,
    /// Bytes read by outermost requests.
    pub read: Vec<u64>,
    /// Bytes written by outermost requests.
    pub written: Vec<u64>,
    /// Operations of each layer that has any, also those within requests of another layer.
    pub layers: Vec<LayerCourse>,
    /// Outermost requests by duration: of each interval the number of each [`step`] that has any.
    pub durations: Vec<Vec<(u8, u64)>>,
}

/// Operations of a layer, by interval.
#[derive(Clone, Debug, Serialize)]
pub struct LayerCourse {
    /// Its name; `other`: one of a later version.
    pub layer: &'static str,
    /// By interval, then by kind.
    pub operations: Vec<Operations>,
}

impl Timeline {
    /// Takes in an event, and whether it is an outermost request.
    pub fn add(&mut self, event: &Event, outermost: bool) {
        if outermost {
            let (read, written) = (event.class() != Class::Write, event.class() != Class::Read);
            let spread = |cell: &mut Cell, part: u64| {
                cell.read = cell.read.saturating_add(if read { part } else { 0 });
                cell.written = cell.written.saturating_add(if written { part } else { 0 });
            };
            if event.moved() > 0 && matches!(event.class(), Class::Read | Class::Write | Class::Copy) {
                self.cells.spread(event.begin, event.end, event.moved(), spread);
            } else {
                self.cells.at(event.begin);
            }
        }
        let cell = self.cells.at(event.end);
        let layer = event.layer.map_or(0, |layer| layer as usize);
        cell.operations[layer][kind(event.class())] += 1;
        if outermost {
            cell.durations[step(event.duration())] += 1;
        }
    }

    /// What has happened.
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
            read: cells().map(|cell| cell.read).collect(),
            written: cells().map(|cell| cell.written).collect(),
            layers: layers.filter(|layer| layer.operations.iter().any(|o| *o != [0; 4])).collect(),
            durations: cells().map(steps).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
