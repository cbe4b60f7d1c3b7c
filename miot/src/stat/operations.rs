//! `miot stat DIR --by operation`: counts, bytes and durations of operations.

use super::by::{Options, ROWS};
use crate::source::{Progress, Source};
use crate::summary::bytes;
use miot_trace_analysis::summary::OperationRow;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, table};
use miot_trace_results::stat;
use serde::Serialize;
use std::io::{Write as _, stdout};
use std::process::ExitCode;

pub(super) fn run(source: &Source, options: &Options, format: Format) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!options.has_view(), "--view does not apply to operations: remove it");
    let (reader, progress) = (source.open()?, Progress::default());
    let input = source.input(&reader, &progress);
    let mut rows = stat::operations(&input, &options.selection(), options.sort())?;
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
