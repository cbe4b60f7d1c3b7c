//! Rows of `losses` for rows that damage removed from the trace.

use crate::error::Error;
use crate::schema::{self, DAMAGED, Table};
use arrow_array::{ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray, UInt64Array};
use std::sync::Arc;

/// One row of `losses`.
#[derive(Clone, Debug)]
pub(crate) struct LossRow {
    node: String,
    process: Option<u64>,
    stream: Option<u64>,
    pub(crate) place: &'static str,
    pub(crate) count: u64,
    range: Option<(u64, u64)>,
}

impl LossRow {
    /// A range of attempt numbers of a stream. `owner`: its process and node, if they are known.
    pub(crate) fn of_stream(stream: u64, owner: Option<(u64, &str)>, (first, last): (u64, u64)) -> LossRow {
        LossRow {
            node: owner.map_or("", |(_, node)| node).to_owned(),
            process: owner.map(|(process, _)| process),
            stream: Some(stream),
            place: DAMAGED,
            count: (last - first).saturating_add(1),
            range: Some((first, last)),
        }
    }

    /// A number of events of unknown streams; `None` if it is 0.
    pub(crate) fn unranged(place: &'static str, count: u64) -> Option<LossRow> {
        let loss = LossRow { node: String::new(), process: None, stream: None, place, count, range: None };
        (count > 0).then_some(loss)
    }
}

/// Returns the rows as a batch, with the time of this machine.
pub(crate) fn batch(rows: &[LossRow]) -> Result<RecordBatch, Error> {
    let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    let numbers = |value: fn(&LossRow) -> Option<u64>| -> ArrayRef {
        Arc::new(UInt64Array::from_iter(rows.iter().map(value)))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampNanosecondArray::from(vec![now; rows.len()]).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.node))),
        numbers(|row| row.process),
        numbers(|row| row.stream),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.place))),
        numbers(|row| Some(row.count)),
        numbers(|row| row.range.map(|(first, _)| first)),
        numbers(|row| row.range.map(|(_, last)| last)),
    ];
    schema::batch(Table::Losses, columns)
        .map_err(|e| Error::Encode { table: Table::Losses, reason: e.to_string() })
}
