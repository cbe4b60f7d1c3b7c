//! Regions of programs and the I/O during them.

use crate::{Error, Input};
use miot_trace_analysis::Programs;
use miot_trace_analysis::findings::Finding;
use miot_trace_analysis::regions::{COLUMNS, judge};
pub use miot_trace_analysis::regions::{
    CheckpointRow, NamedSpans, RegionKind, RegionRow, RegionSpans, RegionTable,
};
use miot_trace_events::events::{FEWEST_COLUMNS, FILE_COLUMNS};
use miot_trace_store::{Reader, Table};
use serde::Serialize;

/// Returns one row for each name of regions and layer, and all layers together. Regions with the
/// name `region` get a row for each value of their attributes instead, and are the only ones.
///
/// # Errors
/// [`Error::Option`] if there are no regions with that name, [`Error::Trace`],
/// [`Error::Interrupted`].
pub fn table(input: &Input<'_>, region: Option<&str>) -> Result<RegionTable, Error> {
    let paths = input.reader.files()?;
    let mut spans = RegionSpans::new(region.map(str::to_owned));
    input.each(COLUMNS, |batch| spans.add(batch, &paths))?;
    let mut table = during(input, spans)?;
    if let Some(region) = region {
        let mut names: Vec<String> = table.rows.iter().map(|row| row.region.clone()).collect();
        table.rows.retain(|row| row.region == region);
        if table.rows.is_empty() {
            names.sort_unstable();
            names.dedup();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::Option(format!("--region {region}: no such region; there are {names}")));
        }
    }
    Ok(table)
}

/// Reads the I/O during the regions of a first pass.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn during(input: &Input<'_>, spans: RegionSpans) -> Result<RegionTable, Error> {
    if spans.is_empty() {
        return Ok(RegionTable::default());
    }
    // Only checkpoints need the files.
    let columns = if spans.has_checkpoints() { FILE_COLUMNS } else { FEWEST_COLUMNS };
    let mut regions = spans.finish(&input.reader.table(Table::Processes)?);
    input.each(columns, |batch| regions.add(batch))?;
    Ok(regions.finish(&input.reader.files()?))
}

/// Checkpoints of a trace.
#[derive(Debug, Serialize)]
pub struct CheckpointTable {
    /// Number of regions that were not examined, because there are too many.
    pub left_out: u64,
    /// Checkpoints in order, each followed by its files, largest first.
    pub rows: Vec<CheckpointRow>,
}

/// Returns the checkpoints.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn checkpoints(input: &Input<'_>) -> Result<CheckpointTable, Error> {
    let RegionTable { left_out, checkpoints: rows, .. } = table(input, None)?;
    Ok(CheckpointTable { left_out, rows })
}

/// Returns the findings of regions.
///
/// # Errors
/// [`Error::Trace`].
pub fn findings(reader: &Reader, regions: &RegionTable) -> Result<Vec<Finding>, Error> {
    if regions.loops.is_empty() {
        return Ok(Vec::new());
    }
    Ok(judge(&regions.loops, &mut Programs::of(&reader.table(Table::Processes)?)))
}
