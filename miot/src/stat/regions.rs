//! `miot stat DIR --by region`: I/O during the regions of programs.

use crate::output::Out;
use crate::source::{Progress, Source};
use crate::summary::bytes;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, printable, table};
use miot_trace_results::regions::{self, RegionRow};
use miot_trace_results::show::AnalysisOutput;
use miot_trace_results::stat;
use miot_trace_store::Reader;
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;

pub(super) fn run(source: &Source, region: Option<&str>, format: Format) -> anyhow::Result<ExitCode> {
    let (reader, progress) = (source.open()?, Progress::default());
    let found = regions::table(&source.input(&reader, &progress), region)?;
    let text = TextTable {
        header: [
            "region",
            "layer",
            "count",
            "time",
            "requests",
            "read",
            "written",
            "I/O time",
            "hidden",
            "bandwidth",
        ],
        cells,
        if_empty: "no regions: mark them with miot.region(…) in Python, or run `python -m miot instrument torch PROGRAM` under miot run",
    };
    text.print(&reader, &found, &found.rows, found.left_out, format)
}

/// The text of a result about regions.
pub(super) struct TextTable<R, const N: usize> {
    pub(super) header: [&'static str; N],
    pub(super) cells: fn(&R) -> [String; N],
    pub(super) if_empty: &'static str,
}

impl<R: Serialize, const N: usize> TextTable<R, N> {
    /// Prints `result`, whose rows these are, in any format. `left_out`: number of regions that
    /// were not examined.
    pub(super) fn print(
        self,
        reader: &Reader,
        result: &impl Serialize,
        rows: &[R],
        left_out: u64,
        format: Format,
    ) -> anyhow::Result<ExitCode> {
        let (missing, unread) = (stat::missing(reader)?, reader.unread().all());
        let mut out = Out::new(format == Format::Json);
        match format {
            Format::Text => {
                table(&mut out, self.header.map(str::to_owned), rows.iter().map(self.cells).collect())?;
                if rows.is_empty() {
                    writeln!(out, "{}", self.if_empty)?;
                }
                if left_out > 0 {
                    writeln!(out, "{left_out} regions were not examined, because there are too many")?;
                }
                super::report_unread(&unread, &mut out)?;
                super::report_lost(missing, &mut out)?;
            }
            Format::Json => {
                serde_json::to_writer_pretty(&mut out, &AnalysisOutput { missing, unread, result })?;
                writeln!(out)?;
            }
            Format::Csv => records(&mut out, Format::Csv, true, rows)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn cells(row: &RegionRow) -> [String; 10] {
    let bytes = |count: u64| if count == 0 { "-".into() } else { bytes(count) };
    let time = |time: u64| duration(i64::try_from(time).unwrap_or(i64::MAX));
    let name = match &row.attributes {
        Some(attributes) => format!("{} {attributes}", row.region),
        None => row.region.clone(),
    };
    let (name, layer) = match row.layer {
        None => (printable(&name).to_string(), "all"),
        Some(layer) => (String::new(), layer),
    };
    let of_regions = |text: String| if row.layer.is_none() { text } else { String::new() };
    [
        name,
        layer.to_owned(),
        of_regions(row.count.to_string()),
        of_regions(time(row.time)),
        row.requests.to_string(),
        bytes(row.bytes_read),
        bytes(row.bytes_written),
        time(row.io_time),
        row.hidden.map_or_else(|| "-".into(), |hidden| format!("{:.0} %", hidden * 100.0)),
        row.bandwidth.map_or_else(|| "-".into(), |rate| format!("{}/s", bytes(rate as u64))),
    ]
}
