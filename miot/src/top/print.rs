//! Prints one snapshot.

use super::columns::{Column, View, columns};
use super::update::window_name;
use crate::numbers::{bytes, count, time};
use miot_activity::{ActivityRow, ActivitySnapshot, ActivityWindow};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::time as moment;
use serde::Serialize;
use std::io::Write;

/// Width of a printed line, characters.
const WIDTH: usize = 120;

/// JSON or CSV row.
#[derive(Serialize)]
struct Record<'a> {
    view: &'a str,
    name: &'a str,
    id: Option<u64>,
    node: Option<&'a str>,
    pid: Option<u32>,
    uid: Option<u32>,
    job: Option<&'a str>,
    seconds: f64,
    requests: u64,
    failed: u64,
    bytes_read: u64,
    bytes_written: u64,
    time: u64,
    p50: u64,
    p99: u64,
    max: u64,
    lost: u64,
    missed: u64,
}

/// Prints a view of a snapshot. JSON contains all views in one object.
pub(crate) fn snapshot(
    snapshot: &ActivitySnapshot,
    window: ActivityWindow,
    view: View,
    format: Format,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            serde_json::to_writer(&mut *out, snapshot)?;
            writeln!(out)?;
        }
        Format::Csv => {
            let rows = rows(snapshot, view).iter();
            records(out, format, true, rows.map(|row| record(row, view, snapshot.seconds)))?;
        }
        Format::Text => text(snapshot, window, view, out)?,
    }
    Ok(())
}

/// Returns the rows of the view. The view of the cluster has a single row.
fn rows(snapshot: &ActivitySnapshot, view: View) -> &[ActivityRow] {
    match view {
        View::Cluster => std::slice::from_ref(&snapshot.cluster),
        _ => &view.group(snapshot).rows,
    }
}

fn record<'a>(row: &'a ActivityRow, view: View, seconds: f64) -> Record<'a> {
    Record {
        view: view.name(),
        name: &row.name,
        id: row.id,
        node: row.node.as_deref(),
        pid: row.pid,
        uid: row.uid,
        job: row.job.as_deref(),
        seconds,
        requests: row.requests,
        failed: row.failed,
        bytes_read: row.bytes_read,
        bytes_written: row.bytes_written,
        time: row.time,
        p50: row.p50,
        p99: row.p99,
        max: row.max,
        lost: row.lost,
        missed: row.missed,
    }
}

fn text(
    snapshot: &ActivitySnapshot,
    window: ActivityWindow,
    view: View,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let rates = (window != ActivityWindow::Whole).then_some(snapshot.seconds);
    for line in summary(snapshot, window) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "until {}", moment(snapshot.end))?;
    let columns = columns(view, WIDTH);
    writeln!(out, "\n{}", line(&columns, |column| column.title(view, rates.is_some()).to_owned()))?;
    for row in &view.group(snapshot).rows {
        writeln!(out, "{}", line(&columns, |column| column.text(row, rates)))?;
    }
    Ok(())
}

fn line(columns: &[Column], text: impl Fn(Column) -> String) -> String {
    let cells = columns.iter().map(|column| {
        let (text, width) = (text(*column), column.width());
        if column.is_text() { format!("{text:<width$}") } else { format!("{text:>width$}") }
    });
    cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

/// Describes the activity of the cluster in two lines.
pub(crate) fn summary(snapshot: &ActivitySnapshot, window: ActivityWindow) -> [String; 2] {
    let cluster = &snapshot.cluster;
    let (per, unit) = if window == ActivityWindow::Whole { (1.0, "") } else { (snapshot.seconds, "/s") };
    let lost: u64 = snapshot.losses.iter().map(|loss| loss.count).sum();
    let mut known = format!("{} events, {lost} lost", snapshot.events);
    if snapshot.filtered > 0 {
        known += &format!(", {} left out", snapshot.filtered);
    }
    if snapshot.skipped > 0 {
        known += &format!(", {} not counted here", snapshot.skipped);
    }
    [
        format!(
            "{}: {} ops{unit}, {} failed, {}{unit} read, {}{unit} written",
            window_name(window),
            count(cluster.requests as f64 / per),
            count(cluster.failed as f64 / per),
            bytes(cluster.bytes_read as f64 / per),
            bytes(cluster.bytes_written as f64 / per),
        ),
        format!("p50 {}, p99 {}, max {}; {known}", time(cluster.p50), time(cluster.p99), time(cluster.max)),
    ]
}
