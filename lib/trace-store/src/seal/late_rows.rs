//! Moves late rows (see `miot_proto::event::flag::LATE`) to their place in the order of time.

use super::times;
use crate::error::Error;
use crate::live::LiveReader;
use crate::schema::{self, Table};
use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns true if the sealing thread shall end.
pub(super) fn is_stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Returns the rows that are earlier than a row before them, ordered by time; `None` if there are
/// none.
pub(super) fn late_rows(source: &Path, stop: &AtomicBool) -> Result<Option<RecordBatch>, Error> {
    let Some(mut reader) = LiveReader::open(Table::Events, source)? else { return Ok(None) };
    let failed = |e: ArrowError| Error::Encode { table: Table::Events, reason: e.to_string() };
    let (mut latest, mut found) = (i64::MIN, Vec::new());
    while let Some(batch) = reader.next_batch()? {
        if is_stopped(stop) {
            return Ok(None);
        }
        let rows = late_in(times(&batch), &mut latest);
        if !rows.is_empty() {
            found.push(
                arrow_select::take::take_record_batch(&batch, &UInt32Array::from(rows)).map_err(failed)?,
            );
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let all = concat_batches(&schema::of(Table::Events), &found).map_err(failed)?;
    let times = times(&all);
    let mut order: Vec<u32> = (0..times.len() as u32).collect();
    order.sort_by_key(|row| times[*row as usize]);
    arrow_select::take::take_record_batch(&all, &UInt32Array::from(order)).map(Some).map_err(failed)
}

/// Returns the rows that are earlier than the latest row before them.
fn late_in(times: &[i64], latest: &mut i64) -> Vec<u32> {
    let mut rows = Vec::new();
    for (row, time) in times.iter().enumerate() {
        if time < latest {
            rows.push(row as u32);
        } else {
            *latest = *time;
        }
    }
    rows
}

/// Merges late rows into the rows that are in order.
pub(super) struct LateRows {
    rows: RecordBatch,
    next: usize,
    latest: i64,
}

impl LateRows {
    pub(super) fn new(rows: RecordBatch) -> LateRows {
        LateRows { rows, next: 0, latest: i64::MIN }
    }

    /// Returns the rows of `batch` that are in order, merged with the late rows that belong before
    /// or among them. A late row follows other rows of the same time. Every late row is earlier
    /// than some row in order, so all are merged at the end.
    pub(super) fn merge(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let (in_order, late) = (times(batch), times(&self.rows));
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(in_order.len());
        for (row, time) in in_order.iter().enumerate() {
            if *time < self.latest {
                continue;
            }
            self.latest = *time;
            while self.next < late.len() && late[self.next] < *time {
                order.push((1, self.next));
                self.next += 1;
            }
            order.push((0, row));
        }
        if order.is_empty() {
            return Ok(None);
        }
        arrow_select::interleave::interleave_record_batch(&[batch, &self.rows], &order).map(Some)
    }
}
