//! `miot stat DIR --by checkpoint`: checkpoints and their files.

use super::regions::TextTable;
use crate::source::{Progress, Source};
use crate::summary::bytes;
use miot_trace_events::Format;
use miot_trace_events::text::{duration, printable};
use miot_trace_results::regions::{self, CheckpointRow};
use std::process::ExitCode;

pub(super) fn run(source: &Source, format: Format) -> anyhow::Result<ExitCode> {
    let (reader, progress) = (source.open()?, Progress::default());
    let found = regions::checkpoints(&source.input(&reader, &progress))?;
    let text = TextTable {
        header: [
            "checkpoint",
            "written",
            "files",
            "time",
            "blocked",
            "tasks",
            "writers",
            "at once",
            "bandwidth",
        ],
        cells,
        if_empty: "no regions named `checkpoint`: mark them with miot.region(…), or run `python -m miot instrument torch PROGRAM` under miot run",
    };
    text.print(&reader, &found, &found.rows, found.left_out, format)
}

/// Returns the cells of a row of the text table.
pub(crate) fn cells(row: &CheckpointRow) -> [String; 9] {
    let time = |time: u64| duration(i64::try_from(time).unwrap_or(i64::MAX));
    let of_all = |text: String| if row.file.is_none() { text } else { String::new() };
    let name = match &row.file {
        None => row.checkpoint.to_string(),
        Some(file) => format!("  {}", printable(file)),
    };
    [
        name,
        bytes(row.bytes_written),
        of_all(row.files.to_string()),
        time(row.time),
        row.blocked.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)),
        row.tasks.map_or_else(String::new, |tasks| tasks.to_string()),
        row.writers.to_string(),
        row.writers_at_once.to_string(),
        row.bandwidth.map_or_else(|| "-".into(), |rate| format!("{}/s", bytes(rate as u64))),
    ]
}
