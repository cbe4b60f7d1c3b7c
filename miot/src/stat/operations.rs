//! `miot stat DIR --by operation`: counts, bytes and durations of operations.

use super::by::{Options, ROWS};
use crate::source::Source;
use crate::summary::bytes;
use anyhow::Context as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, BooleanArray, RecordBatch};
use miot_trace_analysis::Summary;
use miot_trace_analysis::characterize::Settings;
use miot_trace_analysis::summary::{COLUMNS, OperationRow};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, table};
use serde::Serialize;
use std::io::{Write as _, stdout};
use std::process::ExitCode;

pub(super) fn run(source: &Source, options: &Options, format: Format) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!options.has_view(), "--view does not apply to operations: remove it");
    let layers: Vec<&str> = options.layers()?.into_iter().map(miot_proto::op::Layer::name).collect();
    let reader = source.open()?;
    let names = reader.files()?;
    let settings = options.settings(&reader, &names)?;
    let mut summary = Summary::new();
    for batch in source.scan(&reader, COLUMNS)? {
        summary.add(&chosen(batch?, &settings)?);
    }
    let mut rows = summary.finish(&names, &[], 0).operations;
    rows.retain(|row| layers.is_empty() || layers.contains(&row.layer.as_str()));
    sort(&mut rows, options.sort().unwrap_or("time"))?;
    let all = rows.len();
    rows.truncate(options.top().unwrap_or(if format == Format::Text { ROWS } else { usize::MAX }));
    let mut out = stdout().lock();
    match format {
        Format::Text => {
            let header =
                ["operation", "layer", "count", "failed", "bytes", "time", "mean", "p50", "p99", "max"];
            table(&mut out, header.map(str::to_owned), rows.iter().map(cells).collect())?;
            if all > rows.len() {
                writeln!(out, "… and {} more: --top N", all - rows.len())?;
            }
        }
        Format::Json => {
            #[derive(Serialize)]
            struct Table<'a> {
                by: &'static str,
                rows: &'a [OperationRow],
            }
            serde_json::to_writer_pretty(&mut out, &Table { by: "operation", rows: &rows })?;
            writeln!(out)?;
        }
        Format::Csv => records(&mut out, Format::Csv, true, &rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows of the selected processes and files.
fn chosen(batch: RecordBatch, settings: &Settings) -> anyhow::Result<RecordBatch> {
    let mut batch = batch;
    for (column, wanted) in [("process", &settings.processes), ("file", &settings.files)] {
        let Some(wanted) = wanted else { continue };
        let ids = miot_trace_store::schema::column::<UInt64Type>(&batch, column);
        let ids = ids.with_context(|| format!("the events have no column {column}"))?;
        let is_wanted = (0..ids.len()).map(|row| Some(ids.is_valid(row) && wanted.contains(&ids.value(row))));
        let mask: BooleanArray = is_wanted.collect();
        batch = arrow_select::filter::filter_record_batch(&batch, &mask)?;
    }
    Ok(batch)
}

/// Sorts rows by a figure, largest first. Rows with equal figures stay in order of time.
fn sort(rows: &mut [OperationRow], figure: &str) -> anyhow::Result<()> {
    let key: fn(&OperationRow) -> f64 = match figure {
        "count" => |row| row.count as f64,
        "failed" => |row| row.failed as f64,
        "bytes" => |row| row.bytes as f64,
        "time" => |row| row.time as f64,
        "mean" => |row| row.mean,
        "p50" => |row| row.p50 as f64,
        "p99" => |row| row.p99 as f64,
        "max" => |row| row.max as f64,
        _ => anyhow::bail!(
            "--sort {figure}: operations have count, failed, bytes, time, mean, p50, p99 and max"
        ),
    };
    rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
    Ok(())
}

fn cells(row: &OperationRow) -> [String; 10] {
    let time = |nanoseconds: u64| duration(i64::try_from(nanoseconds).unwrap_or(i64::MAX));
    [
        row.op.clone(),
        row.layer.clone(),
        row.count.to_string(),
        row.failed.to_string(),
        if row.bytes == 0 { "-".to_owned() } else { bytes(row.bytes) },
        time(row.time),
        time(row.mean as u64),
        time(row.p50),
        time(row.p99),
        time(row.max),
    ]
}
