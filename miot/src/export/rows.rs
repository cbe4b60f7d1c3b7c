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
    let joiner = reader.joiner()?;
    let scan = source.scan_selected(reader, Select::all())?;
    Ok(scan.map(move |batch| some(&joiner, &batch?, &matcher)))
}

fn some(joiner: &Joiner, events: &RecordBatch, matcher: &Matcher) -> anyhow::Result<RecordBatch> {
    let rows = joiner.join(events)?;
    let columns = row::columns(&rows)?;
    let wanted: BooleanArray = (0..rows.num_rows()).map(|i| Some(matcher.matches_row(&columns, i))).collect();
    if wanted.true_count() == rows.num_rows() {
        return Ok(rows);
    }
    Ok(arrow_select::filter::filter_record_batch(&rows, &wanted)?)
}
