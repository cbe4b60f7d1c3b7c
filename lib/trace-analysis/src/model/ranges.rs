//! Byte ranges of the requests of a model.

use super::{Loop, Mode, Model, Numbers, Operation, Set, Space};
use crate::phases::nest::distance;
use crate::view::Range;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Pieces of one length of a request through a view. They are relative to the offset of the
/// request; in [`Space::Pieces`] to that of the first process, because their order in the file is
/// not that of the processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pieces {
    /// Size of each piece in bytes.
    pub bytes: u64,
    /// Distances from piece to piece: nested loops, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<Loop>,
    /// Begins of these loops, one after the other, by place of the process.
    pub begins: Vec<Numbers>,
    /// Places (from 0) of the processes that have these pieces, if others have different ones.
    /// Places in `begins` are those among these processes. Empty for all processes.
    #[serde(default, skip_serializing_if = "Set::is_empty")]
    pub places: Set,
}

impl Pieces {
    /// Returns the number of pieces.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.each().saturating_mul(self.begins.len() as u64)
    }

    /// Returns the bytes of all pieces.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.count().saturating_mul(self.bytes)
    }

    /// Returns the number of pieces before the loops restart.
    fn each(&self) -> u64 {
        self.loops.iter().fold(1, |all, it| all.saturating_mul(it.count))
    }

    /// Returns the place among the processes that have these pieces.
    fn among(&self, place: u64) -> Option<u64> {
        if self.places.is_empty() { Some(place) } else { self.places.place(place) }
    }

    /// Returns the begins of the loops for the process at a place; none if it has no such pieces.
    pub fn begins_of(&self, place: u64) -> impl Iterator<Item = i64> + '_ {
        let among = self.among(place);
        self.begins.iter().filter_map(move |begin| among.map(|among| begin.at(among)))
    }

    /// Returns the begins of the pieces, relative to their base.
    fn offsets(&self, place: u64) -> impl Iterator<Item = i64> + '_ {
        let all = self.begins_of(place);
        all.flat_map(|begin| (0..self.each()).map(move |at| (begin, at)))
            .map(|(begin, at)| begin.saturating_add(distance(&self.loops, at)))
    }
}

/// Phases whose requests have unknown positions in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Numbers of the phases.
    pub phases: String,
    /// Reason.
    pub reason: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "where the requests of phases {} lie in the file is not known: {}",
            self.phases, self.reason
        )
    }
}

impl std::error::Error for Unknown {}

impl Model {
    /// Returns the phases whose requests have unknown positions in the file. Requests generated
    /// from them would create a different file.
    #[must_use]
    pub fn unplaced(&self) -> Vec<Unknown> {
        let of = |phase: &super::Phase| {
            let reason = phase.operations.iter().find_map(Operation::unplaced)?;
            Some(Unknown { phases: phase.numbers.to_string(), reason })
        };
        self.phases.iter().filter_map(of).collect()
    }

    /// Checks that the positions of all requests are known.
    ///
    /// # Errors
    /// The first phases whose positions are unknown.
    pub fn placed(&self) -> Result<(), Unknown> {
        self.unplaced().into_iter().next().map_or(Ok(()), Err)
    }
}

impl Operation {
    fn unplaced(&self) -> Option<String> {
        match (self.unplaced, self.space) {
            (Some(why), _) => Some(why.to_string()),
            (None, Space::View) => Some("its offsets count what the view of a process shows".to_owned()),
            (None, Space::File | Space::Pieces) => None,
        }
    }

    /// Returns pieces and bytes of a request, for each group of processes with the same pieces.
    pub(super) fn shares(&self) -> BTreeMap<Set, (u64, u64)> {
        let mut shares = BTreeMap::new();
        for it in &self.pieces {
            let (count, bytes) = shares.entry(it.places.clone()).or_insert((0u64, 0u64));
            *count = count.saturating_add(it.count());
            *bytes = bytes.saturating_add(it.total());
        }
        shares
    }

    /// Returns the number of pieces of a request, of the process that has the most.
    #[must_use]
    pub fn most_pieces(&self) -> u64 {
        self.shares().into_values().map(|(count, _)| count).max().unwrap_or(1)
    }

    /// Returns the bytes of the file that one request accesses, in order; see
    /// [`request`](Self::request). `None` if its offset or the space of the offset is unknown.
    #[must_use]
    pub fn ranges(&self, place: u64, phase: u64, nth: u64) -> Option<Vec<Range>> {
        if self.unplaced().is_some() || matches!(self.mode, Mode::Random | Mode::Unknown) {
            return None;
        }
        let from = if self.space == Space::Pieces && !self.pieces.is_empty() { 0 } else { place };
        let step = self.request(from, phase, nth);
        let begin = step.offset?;
        if self.pieces.is_empty() {
            return Some(vec![Range { offset: u64::try_from(begin).ok()?, bytes: step.size }]);
        }
        let range = |(offset, bytes): (i64, u64)| {
            Some(Range { offset: u64::try_from(begin.checked_add(offset)?).ok()?, bytes })
        };
        let all = self.pieces.iter().flat_map(|it| it.offsets(place).map(|offset| (offset, it.bytes)));
        let mut ranges: Vec<Range> = all.map(range).collect::<Option<_>>()?;
        ranges.sort_unstable();
        Some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::Pieces;
    use crate::model::tests::{bt_io, phase};
    use crate::model::{Loop, Model, Numbers, Set, Space, Unplaced};
    use crate::view::Range;

    /// Returns a model of two processes whose requests have rows of 10 bytes in turn, twice.
    fn rows() -> Model {
        let mut model = bt_io(2, 3, 20);
        for phase in &mut model.phases {
            phase.operations[0].pieces = vec![Pieces {
                bytes: 10,
                loops: vec![Loop { count: 2, stride: 20 }],
                begins: vec![Numbers::of(&[0, 10])],
                places: Set::default(),
            }];
        }
        model
    }

    #[test]
    fn requests_through_a_view_are_pieces_of_the_file() {
        let model = rows();
        model.check().unwrap();
        let range = |offset| Range { offset, bytes: 10 };
        let (write, read) = (&model.phases[0].operations[0], &model.phases[1].operations[0]);
        assert_eq!(write.ranges(0, 0, 0), Some(vec![range(0), range(20)]));
        assert_eq!(write.ranges(1, 2, 0), Some(vec![range(90), range(110)]));
        assert_eq!(read.ranges(1, 0, 1), Some(vec![range(50), range(70)]));
        assert_eq!(Model::from_toml(&model.to_toml().unwrap()).unwrap(), model);
        // In the space of the file they are relative to the request of the process.
        let mut own = phase(1, 2, 20, 1).operations.remove(0);
        own.pieces = write.pieces.clone();
        own.pieces[0].begins = vec![Numbers::constant(0)];
        assert_eq!(own.ranges(1, 0, 0), Some(vec![range(20), range(40)]));
        assert_eq!(own.most_pieces(), 2);
        // The second process has contiguous bytes.
        let mut one = own.pieces[0].clone();
        (own.pieces[0].places, one.places) = (Set::range(0, 1), Set::range(1, 1));
        (one.bytes, one.loops) = (20, Vec::new());
        own.pieces.push(one);
        assert_eq!(own.ranges(0, 0, 0), Some(vec![range(0), range(20)]));
        assert_eq!(own.ranges(1, 0, 0), Some(vec![Range { offset: 20, bytes: 20 }]));
    }

    #[test]
    fn requests_of_unknown_position_are_unplaced() {
        let mut model = rows();
        model.placed().unwrap();
        model.phases[1].operations[0].unplaced = Some(Unplaced::Cut);
        let said = model.placed().unwrap_err().to_string();
        assert!(said.contains("phases 4 ") && said.contains("more irregular blocks"), "{said}");
        model.phases[0].operations[0].space = Space::View;
        assert!(model.placed().unwrap_err().to_string().contains("phases 1-3 "));
        assert_eq!(model.phases[0].operations[0].ranges(0, 0, 0), None);
    }

    #[test]
    fn pieces_have_the_bytes_of_the_request() {
        let mut model = rows();
        model.phases[0].operations[0].pieces[0].bytes = 11;
        assert!(model.check().unwrap_err().to_string().contains("22 bytes, size is 20"));
    }
}
