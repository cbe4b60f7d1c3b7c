//! `miot stat DIR --by layer`: compares the requests of each layer with those of the layer above.

use crate::output::Out;
use crate::source::{Progress, Source};
use crate::summary::bytes;
use miot_trace_analysis::LayerRow;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, table};
use miot_trace_results::stat;
use std::io::Write as _;
use std::process::ExitCode;

pub(super) fn run(source: &Source, format: Format) -> anyhow::Result<ExitCode> {
    let (reader, progress) = (source.open()?, Progress::default());
    let rows = stat::layers(&source.input(&reader, &progress))?;
    let mut out = Out::new(format == Format::Json);
    let header =
        ["layer", "within", "calls", "per call", "to read", "read", "x", "to write", "written", "x", "time"];
    match format {
        Format::Text => table(&mut out, header.map(str::to_owned), rows.iter().map(cells).collect())?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &rows)?;
            writeln!(out)?;
        }
        Format::Csv => records(&mut out, Format::Csv, true, &rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(row: &LayerRow) -> [String; 11] {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let bytes = |count: u64| if count == 0 { "-".into() } else { bytes(count) };
    [
        row.layer.clone(),
        row.above.clone().unwrap_or_else(|| "-".into()),
        row.calls.to_string(),
        ratio(row.calls_per_call),
        bytes(row.read_asked),
        bytes(row.read_moved),
        ratio(row.read_amplification),
        bytes(row.write_asked),
        bytes(row.write_moved),
        ratio(row.write_amplification),
        duration(i64::try_from(row.time).unwrap_or(i64::MAX)),
    ]
}
