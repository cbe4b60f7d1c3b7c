//! Accesses of a file over time and offset: a grid that shows sequential, strided and random
//! access.
//!
//! Each outermost request that moved bytes marks all cells that its time and its bytes touch;
//! requests in the same cell are one mark. Thus no request is omitted, and memory is bounded: the
//! cells grow with the file and with the time.

use crate::place::Place;
use miot_proto::op::OpClass;
use miot_trace_events::Event;
use serde::Serialize;

/// Number of cells of a grid by time.
pub const COLUMNS: usize = 256;
/// Number of cells of a grid by offset.
pub const ROWS: usize = 128;
/// Bit of a cell: bytes were read.
pub const READ: u8 = 1;
/// Bit of a cell: bytes were written.
pub const WRITTEN: u8 = 2;

/// One axis of a grid.
#[derive(Clone, Copy, Debug)]
struct Axis {
    fields: i64,
    /// Binary logarithm of the width of a cell.
    power: u32,
    /// Number of the first cell, in units of the width.
    first: i64,
    lowest: i64,
    highest: i64,
}

impl Axis {
    fn new(fields: usize, value: i64) -> Axis {
        Axis { fields: fields as i64, power: 0, first: value, lowest: value, highest: value }
    }

    /// Returns the axis extended to these values.
    fn with(mut self, from: i64, to: i64) -> Axis {
        let (below, above) = (from < self.lowest, to > self.highest);
        (self.lowest, self.highest) = (self.lowest.min(from), self.highest.max(to));
        let span = |axis: &Axis| (axis.highest >> axis.power).abs_diff(axis.lowest >> axis.power);
        while span(&self) >= self.fields as u64 {
            self.power += 1;
            self.first = self.lowest >> self.power;
        }
        // Keep the free cells on the side where they were needed last.
        if below && (self.lowest >> self.power) < self.first {
            let first = (self.highest >> self.power).saturating_sub(self.fields - 1);
            self.first = first.max(i64::MIN >> self.power);
        } else if above && (self.highest >> self.power).saturating_sub(self.first) >= self.fields {
            self.first = self.lowest >> self.power;
        }
        self
    }

    fn field(&self, value: i64) -> usize {
        ((value >> self.power) - self.first) as usize
    }
}

/// The accesses to one file.
#[derive(Clone, Debug)]
pub struct Grid {
    time: Axis,
    offset: Axis,
    /// Cells by column, then by row.
    fields: Vec<u8>,
    requests: u64,
}

impl Grid {
    /// Marks the accesses of an event; nothing if it moved no bytes, or if their position is
    /// unknown.
    pub fn add(grid: &mut Option<Grid>, event: &Event, place: &Place) {
        let mark = match event.class() {
            OpClass::Read => READ,
            OpClass::Write | OpClass::Copy => WRITTEN,
            OpClass::Sync | OpClass::Meta => return,
        };
        let before = grid.as_ref().map_or(0, |grid| grid.requests);
        for piece in place.pieces(event.offset, event.moved()).filter(|piece| piece.bytes > 0) {
            let Ok(offset) = i64::try_from(piece.offset) else { continue };
            let last = offset.saturating_add(i64::try_from(piece.bytes - 1).unwrap_or(i64::MAX));
            let grid = grid.get_or_insert_with(|| Grid {
                time: Axis::new(COLUMNS, event.begin),
                offset: Axis::new(ROWS, offset),
                fields: vec![0; COLUMNS * ROWS],
                requests: 0,
            });
            grid.mark(event.begin, event.end, offset, last, mark);
        }
        if let Some(grid) = grid {
            // A request in pieces counts once.
            grid.requests = grid.requests.min(before + 1);
        }
    }

    fn mark(&mut self, begin: i64, end: i64, offset: i64, last: i64, mark: u8) {
        let (time, rows) = (self.time.with(begin, end), self.offset.with(offset, last));
        if (time.power, time.first, rows.power, rows.first)
            != (self.time.power, self.time.first, self.offset.power, self.offset.first)
        {
            self.rearrange(time, rows);
        }
        (self.time, self.offset) = (time, rows);
        self.requests += 1;
        for column in time.field(begin)..=time.field(end) {
            let column = &mut self.fields[column * ROWS..(column + 1) * ROWS];
            column[rows.field(offset)..=rows.field(last)].iter_mut().for_each(|field| *field |= mark);
        }
    }

    fn rearrange(&mut self, time: Axis, rows: Axis) {
        let mut fields = vec![0; COLUMNS * ROWS];
        for (index, field) in self.fields.iter().enumerate().filter(|(_, field)| **field > 0) {
            let place = |old: &Axis, new: &Axis, index: usize| {
                (((old.first + index as i64) >> (new.power - old.power)) - new.first) as usize
            };
            let column = place(&self.time, &time, index / ROWS);
            fields[column * ROWS + place(&self.offset, &rows, index % ROWS)] |= field;
        }
        self.fields = fields;
    }

    /// Returns the marks for a plot.
    #[must_use]
    pub fn finish(&self) -> Accesses {
        let marks = self.fields.iter().enumerate().filter(|(_, field)| **field > 0);
        Accesses {
            requests: self.requests,
            begin: self.time.lowest,
            end: self.time.highest,
            lowest: self.offset.lowest,
            highest: self.offset.highest,
            first_column: self.time.first << self.time.power,
            first_row: self.offset.first << self.offset.power,
            column: 1 << self.time.power,
            row: 1 << self.offset.power,
            marks: marks.map(|(i, field)| ((i / ROWS) as u16, (i % ROWS) as u16, *field)).collect(),
        }
    }
}

/// Accesses of a file by time and offset.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Accesses {
    /// Number of requests.
    pub requests: u64,
    /// Begin of the first request, nanoseconds since 1970.
    pub begin: i64,
    /// End of the last request.
    pub end: i64,
    /// Lowest accessed byte.
    pub lowest: i64,
    /// Highest accessed byte.
    pub highest: i64,
    /// Begin of column 0, nanoseconds since 1970.
    pub first_column: i64,
    /// First byte of row 0.
    pub first_row: i64,
    /// Width of a column in nanoseconds.
    pub column: i64,
    /// Height of a row in bytes.
    pub row: i64,
    /// Column, row, and bits of [`READ`] and [`WRITTEN`].
    pub marks: Vec<(u16, u16, u8)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grid(requests: &[(i64, i64, i64, i64, u8)]) -> Accesses {
        let mut grid: Option<Grid> = None;
        for &(begin, end, offset, last, mark) in requests {
            let grid = grid.get_or_insert_with(|| Grid {
                time: Axis::new(COLUMNS, begin),
                offset: Axis::new(ROWS, offset),
                fields: vec![0; COLUMNS * ROWS],
                requests: 0,
            });
            grid.mark(begin, end, offset, last, mark);
        }
        grid.map(|grid| grid.finish()).unwrap_or_default()
    }

    proptest! {
        #[test]
        fn marks_match_the_requests(
            requests in prop::collection::vec(
                (any::<i64>(), 0i64..1 << 40, 0i64..i64::MAX, 0i64..1 << 30, READ..=WRITTEN), 1..30),
            scale in prop::sample::select(vec![0u32, 20, 50]),
        ) {
            let requests: Vec<_> = requests.into_iter().map(|(begin, took, offset, bytes, mark)| {
                let (begin, took) = (begin >> scale, took >> scale);
                let (offset, bytes) = (offset >> scale, bytes >> scale);
                (begin, begin.saturating_add(took), offset, offset.saturating_add(bytes), mark)
            }).collect();
            let found = grid(&requests);
            prop_assert_eq!(found.requests, requests.len() as u64);
            let wide = |first: i64, step: i64, index: u16| {
                let begin = i128::from(first) + i128::from(step) * i128::from(index);
                begin..begin + i128::from(step)
            };
            let touches = |from: i64, to: i64, field: &std::ops::Range<i128>| {
                i128::from(from) < field.end && i128::from(to) >= field.start
            };
            for (column, row, marks) in &found.marks {
                let time = wide(found.first_column, found.column, *column);
                let bytes = wide(found.first_row, found.row, *row);
                let expected = requests.iter()
                    .filter(|(begin, end, offset, last, _)| touches(*begin, *end, &time) && touches(*offset, *last, &bytes))
                    .fold(0, |marks, request| marks | request.4);
                prop_assert_eq!(*marks, expected);
            }
            for (begin, _, offset, _, mark) in &requests {
                let column = (i128::from(*begin) - i128::from(found.first_column)) / i128::from(found.column);
                let row = (i128::from(*offset) - i128::from(found.first_row)) / i128::from(found.row);
                prop_assert!(found.marks.iter().any(|(c, r, m)| i128::from(*c) == column && i128::from(*r) == row && m & mark > 0));
            }
        }
    }
}
