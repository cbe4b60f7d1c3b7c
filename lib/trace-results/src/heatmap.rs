//! Heat map of a trace.

use crate::{Error, Input};
use miot_trace_analysis::heatmap::{Heatmap, HeatmapFigure, HeatmapRows, HeatmapTotals};
use miot_trace_events::events::FILE_COLUMNS;
use miot_trace_store::Table;

/// Maximum number of cells: 128 MiB.
const MOST_CELLS: usize = 1 << 24;

/// What a heat map shows.
#[derive(Clone, Debug)]
pub struct HeatmapOptions {
    /// `rank`, `node`, `file` or `process`.
    pub by: String,
    /// `read_bytes`, `write_bytes`, `bytes`, `requests` or `time`.
    pub what: String,
    /// Number of intervals.
    pub bins: usize,
    /// Maximum number of rows, those with the largest totals; the others are summed in one more.
    pub most: usize,
}

impl HeatmapOptions {
    fn rows(&self) -> Result<HeatmapRows, Error> {
        Ok(match self.by.as_str() {
            "rank" => HeatmapRows::Rank,
            "node" => HeatmapRows::Node,
            "file" => HeatmapRows::File,
            "process" => HeatmapRows::Process,
            other => {
                return Err(Error::Option(format!(
                    "by {other}: no such rows; there are rank, node, file and process"
                )));
            }
        })
    }

    fn figure(&self) -> Result<HeatmapFigure, Error> {
        Ok(match self.what.as_str() {
            "read_bytes" => HeatmapFigure::ReadBytes,
            "write_bytes" => HeatmapFigure::WriteBytes,
            "bytes" => HeatmapFigure::Bytes,
            "requests" => HeatmapFigure::Requests,
            "time" => HeatmapFigure::Time,
            other => {
                return Err(Error::Option(format!(
                    "what {other}: no such figure; there are read_bytes, write_bytes, bytes, requests and time"
                )));
            }
        })
    }
}

/// Returns the heat map of a trace.
///
/// # Errors
/// [`Error::Option`], [`Error::Trace`], [`Error::Interrupted`].
pub fn heatmap(input: &Input<'_>, options: &HeatmapOptions) -> Result<Heatmap, Error> {
    let (rows, figure) = (options.rows()?, options.figure()?);
    let cells = options.most.saturating_add(1).saturating_mul(options.bins);
    if options.bins == 0 || options.most == 0 || cells > MOST_CELLS {
        return Err(Error::Option(format!(
            "a heat map of {} intervals and {} rows: expected at least one of each, and at most {MOST_CELLS} cells",
            options.bins, options.most
        )));
    }
    let files = input.reader.files()?;
    let processes = input.reader.table(Table::Processes)?;
    let mut totals = HeatmapTotals::new(rows, figure, &processes, &files);
    input.each(FILE_COLUMNS, |batch| totals.add(batch))?;
    let mut cells = totals.finish(options.bins, options.most);
    input.each(FILE_COLUMNS, |batch| cells.add(batch))?;
    Ok(cells.finish())
}
