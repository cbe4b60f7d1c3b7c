//! Reads the selected events of an export, with names.

use crate::filter::Matcher;
use crate::source::Source;
use arrow_array::{BooleanArray, RecordBatch};
use miot_trace_events::row;
use miot_trace_store::rows::Joiner;
use miot_trace_store::{Reader, Select};

/// Passes batches in the schema of `miot_trace_store::schema::rows`, with a progress bar on a
/// terminal.
pub(crate) fn rows(
    source: &Source,
    reader: &Reader,
    matcher: Matcher,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<RecordBatch>>> {
    let all = all_rows(source, reader, matcher)?;
    Ok(all.map(|rows| {
        let (rows, wanted) = rows?;
        if wanted.true_count() == rows.num_rows() {
            return Ok(rows);
        }
        Ok(arrow_select::filter::filter_record_batch(&rows, &wanted)?)
    }))
}

/// The same with all rows, and which of them are selected.
pub(crate) fn all_rows(
    source: &Source,
    reader: &Reader,
    matcher: Matcher,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(RecordBatch, BooleanArray)>>> {
    let joiner = reader.joiner()?;
    let scan = source.scan_selected(reader, Select::all())?;
    Ok(scan.map(move |batch| matched(&joiner, &batch?, &matcher)))
}

fn matched(
    joiner: &Joiner,
    events: &RecordBatch,
    matcher: &Matcher,
) -> anyhow::Result<(RecordBatch, BooleanArray)> {
    let rows = joiner.join(events)?;
    let columns = row::columns(&rows)?;
    let wanted = (0..rows.num_rows()).map(|i| Some(matcher.matches_row(&columns, i))).collect();
    Ok((rows, wanted))
}
