//! Tables of the page. Each numeric cell has its exact value in `data-value`, by which the page
//! sorts.

use super::model::{Clock, Model, ProcessGroup};
use super::words::span;
use crate::numbers::bytes;
use miot_plot::XmlText;
use miot_trace_analysis::characterize::Value;
use miot_trace_analysis::characterize::fields::Fields;
use miot_trace_analysis::idle::Definition;
use std::fmt::{Display, Write as _};

/// Builder of a table.
struct Table {
    html: String,
}

impl Table {
    /// Starts a table. `columns` contains names; `=` before a name marks a text column, the others
    /// are numeric.
    fn new(name: &str, caption: &str, columns: &[&str]) -> Table {
        let mut html = format!(
            "<div class=\"scroll\"><table id=\"{name}\"><caption>{}</caption><thead><tr>",
            XmlText(caption)
        );
        for column in columns {
            let (class, column) =
                column.strip_prefix('=').map_or(("", *column), |name| (" class=\"text\"", name));
            let _ = write!(html, "<th scope=\"col\"{class}>{column}</th>");
        }
        html += "</tr></thead><tbody>";
        Table { html }
    }

    fn row(&mut self, key: impl Display) -> &mut Table {
        let _ = write!(self.html, "<tr data-key=\"{}\">", XmlText(&key.to_string()));
        self
    }

    /// Adds a cell with an exact value and its formatted text.
    fn number(&mut self, value: impl Display, shown: &str) -> &mut Table {
        let _ = write!(self.html, "<td data-value=\"{value}\">{shown}</td>");
        self
    }

    fn count(&mut self, value: u64) -> &mut Table {
        let shown = if value == 0 { "–".to_owned() } else { grouped(value) };
        self.number(value, &shown)
    }

    fn bytes(&mut self, value: u64) -> &mut Table {
        let shown = if value == 0 { "–".to_owned() } else { bytes(value as f64) };
        self.number(value, &shown)
    }

    fn time(&mut self, value: u64) -> &mut Table {
        let shown = if value == 0 { "–".to_owned() } else { span(value) };
        self.number(value, &shown)
    }

    fn real(&mut self, value: Option<f64>, show: impl Fn(f64) -> String) -> &mut Table {
        match value {
            Some(value) => self.number(value, &show(value)),
            None => self.number(-1, "–"),
        }
    }

    fn seconds(&mut self, value: Option<f64>) -> &mut Table {
        self.real(
            value,
            |value| if value > 0.0 { span((value * 1e9).round() as u64) } else { "–".to_owned() },
        )
    }

    fn share(&mut self, value: Option<f64>) -> &mut Table {
        self.real(value, |value| format!("{:.0} %", 100.0 * value))
    }

    /// MiB/s.
    fn rate(&mut self, value: Option<f64>) -> &mut Table {
        self.real(value, |value| format!("{}/s", bytes(value * f64::from(1 << 20))))
    }

    fn text(&mut self, text: &str) -> &mut Table {
        let _ = write!(self.html, "<td class=\"text\"><bdi>{}</bdi></td>", XmlText(text));
        self
    }

    /// Adds a text that may be long; the page keeps its end visible, because paths differ there.
    fn path(&mut self, text: &str) -> &mut Table {
        let text = if text.is_empty() { "(unknown)" } else { text };
        let text = XmlText(text);
        let _ = write!(self.html, "<td class=\"text path\" title=\"{text}\"><bdi>{text}</bdi></td>");
        self
    }

    fn end(&mut self) {
        self.html += "</tr>";
    }

    fn finish(mut self, rest: Option<String>) -> String {
        self.html += "</tbody></table></div>";
        if let Some(rest) = rest {
            let _ = write!(self.html, "<p class=\"rest\">{}</p>", XmlText(&rest));
        }
        self.html
    }
}

/// Formats a number with digits in groups of three.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

fn rest(shown: usize, all: u64, what: &str) -> Option<String> {
    let more = all.saturating_sub(shown as u64);
    (more > 0).then(|| format!("and {} more {what}; --rows shows more of them", grouped(more)))
}

pub(super) fn operations(model: &Model) -> String {
    let columns =
        ["=Layer", "=Operation", "Calls", "Failed", "Bytes", "Time", "Mean", "p50", "p99", "Longest"];
    let mut table = Table::new("operations-table", "Operations, by time", &columns);
    for row in &model.summary.operations {
        table.row(format_args!("{} {}", row.layer, row.op)).text(&row.layer).text(&row.op);
        table.count(row.count).count(row.failed).bytes(row.bytes).time(row.time).time(row.mean as u64);
        table.time(row.p50).time(row.p99).time(row.max).end();
    }
    table.finish(None)
}

/// Returns the table of regions; `None` if there are none.
pub(super) fn regions(model: &Model) -> Option<String> {
    let regions = &model.regions;
    if regions.rows.is_empty() {
        return None;
    }
    let columns = [
        "=Region",
        "=Layer",
        "Count",
        "Time",
        "Requests",
        "Read",
        "Written",
        "I/O time",
        "Hidden",
        "Bandwidth",
    ];
    let caption = "I/O during regions, and the part of its time that is hidden behind computation";
    let mut table = Table::new("regions-table", caption, &columns);
    for row in &regions.rows {
        let layer = row.layer.unwrap_or("all");
        table.row(format_args!("{} {layer}", row.region)).text(&row.region).text(layer).count(row.count);
        table.time(row.time).count(row.requests).bytes(row.bytes_read).bytes(row.bytes_written);
        table.time(row.io_time).share(row.hidden);
        table.real(row.bandwidth, |rate| format!("{}/s", bytes(rate))).end();
    }
    let left = regions.left_out;
    Some(table.finish(
        (left > 0).then(|| format!("{} regions were not examined: there are too many", grouped(left))),
    ))
}

/// Returns the table of checkpoints and their largest files; `None` if there are none.
pub(super) fn checkpoints(model: &Model, rows: usize) -> Option<String> {
    let checkpoints = &model.regions.checkpoints;
    if checkpoints.is_empty() {
        return None;
    }
    let columns = [
        "Checkpoint",
        "Written",
        "Files",
        "Time",
        "Blocked",
        "Tasks",
        "Writers",
        "At once",
        "Bandwidth",
        "=File",
    ];
    let caption = "Checkpoints, each followed by its files, and the part of its time that stops main threads";
    let mut table = Table::new("checkpoints-table", caption, &columns);
    for row in checkpoints.iter().take(rows) {
        let file = row.file.as_deref();
        table.row(format_args!("{} {}", row.checkpoint, file.unwrap_or("all")));
        table.number(row.checkpoint, &grouped(row.checkpoint));
        table.bytes(row.bytes_written).count(row.files).time(row.time).share(row.blocked);
        table.real(row.tasks.map(|tasks| tasks as f64), |tasks| format!("{tasks}"));
        table.count(row.writers).count(row.writers_at_once);
        table.real(row.bandwidth, |rate| format!("{}/s", bytes(rate)));
        table.path(file.unwrap_or("all")).end();
    }
    let more = checkpoints.len().saturating_sub(rows) as u64;
    Some(table.finish(
        (more > 0).then(|| format!("and {} more rows: miot stat DIR --by checkpoint", grouped(more))),
    ))
}

pub(super) fn files(model: &Model) -> String {
    let columns = ["Requests", "Opens", "Reads", "Writes", "Read", "Written", "Time", "=File"];
    let mut table = Table::new("files-table", "Files, by the time of their requests", &columns);
    for row in &model.summary.files {
        table.row(row.file).count(row.requests).count(row.opens).count(row.reads).count(row.writes);
        table.bytes(row.bytes_read).bytes(row.bytes_written).time(row.time).path(&row.path).end();
    }
    table.finish(rest(model.summary.files.len(), model.summary.totals.files, "files"))
}

pub(super) fn processes(model: &Model) -> String {
    let columns = ["Rank", "=Node", "PID", "Requests", "Opens", "Read", "Written", "Time", "=Command"];
    let mut table =
        Table::new("processes-table", "Processes and ranks, by the time of their requests", &columns);
    for row in &model.summary.processes {
        let rank = row.rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string());
        table.row(row.process).number(row.rank.map_or(-1, i64::from), &rank).text(&row.node);
        table.number(row.pid, &row.pid.to_string()).count(row.requests).count(row.opens);
        table.bytes(row.bytes_read).bytes(row.bytes_written).time(row.time).path(&row.cmdline).end();
    }
    table.finish(rest(model.summary.processes.len(), model.summary.totals.processes, "processes"))
}

pub(super) fn nodes(model: &Model) -> String {
    let mut table = Table::new(
        "nodes-table",
        "Nodes",
        &["=Node", "Processes", "Requests", "Read", "Written", "Time", "Clock within", "Clock error"],
    );
    for row in &model.nodes {
        table.row(&row.name).text(&row.name);
        group(&mut table, row);
        let clock = model.clocks.iter().find(|clock| clock.node == row.name);
        let known = |value: Option<i64>| match value {
            Some(value) => (value, span(value.unsigned_abs())),
            None => (-1, "unknown".to_owned()),
        };
        for (value, shown) in [
            known(clock.and_then(|clock: &Clock| clock.uncertainty)),
            known(clock.and_then(|clock: &Clock| clock.estimated_error)),
        ] {
            table.number(value, &shown);
        }
        table.end();
    }
    table.finish(None)
}

/// Returns the table of jobs and runs of parallel programs; `None` if there are none.
pub(super) fn jobs(model: &Model) -> Option<String> {
    let columns = [
        "=Job",
        "=Layer",
        "Processes",
        "Files",
        "Read",
        "Written",
        "Wall",
        "In I/O",
        "Metadata of I/O",
        "Performance",
        "per node",
    ];
    let mut table = Table::new("jobs-table", "Jobs, and runs of parallel programs, by layer", &columns);
    let named = |row: &&Fields| {
        matches!(row.get("job"), Some(Value::Text(_)))
            || Figures(row).real("ranks").is_some_and(|ranks| ranks > 1.0)
    };
    let mut rows = model.jobs.iter().filter(named).peekable();
    rows.peek()?;
    for row in rows {
        let figure = Figures(row);
        let job = Some(figure.text("job")).filter(|job| !job.is_empty()).unwrap_or("(none)");
        table.row(format_args!("{job} {}", figure.text("layer"))).text(job);
        table.text(figure.text("layer")).count(figure.whole("processes"));
        table
            .count(figure.whole("files"))
            .bytes(figure.whole("bytes_read"))
            .bytes(figure.whole("bytes_written"));
        table.seconds(figure.real("wall_seconds")).share(figure.real("io_share_of_run"));
        table.share(figure.real("meta_share_of_io"));
        table.rate(figure.real("agg_perf_by_slowest")).rate(figure.real("mib_per_second_per_node")).end();
    }
    Some(table.finish(None))
}

/// Returns the table of Darshan's counters by file and layer.
pub(super) fn counted_files(model: &Model) -> String {
    let columns = [&["=File", "=Layer"][..], &COUNTERS].concat();
    let mut table = Table::new("counted-files-table", "Files by layer, by bytes moved", &columns);
    for row in model.files.iter().filter(|row| is_of_interest(row)) {
        let figure = Figures(row);
        let path = figure.text("path");
        table.row(format_args!("{} {path}", figure.text("layer"))).path(path).text(figure.text("layer"));
        counters(&mut table, &figure);
        table.end();
    }
    table.finish(None)
}

/// Columns that [`counters`] adds to a table.
const COUNTERS: [&str; 11] = [
    "Read",
    "Written",
    "Reads",
    "Writes",
    "Seq. reads",
    "Seq. writes",
    "Misaligned",
    "Switches",
    "Metadata",
    "Reading",
    "Writing",
];

/// Returns whether the row moved bytes or took time.
fn is_of_interest(row: &Fields) -> bool {
    let figure = Figures(row);
    figure.whole("bytes") > 0 || figure.real("f_meta_time").is_some_and(|seconds| seconds > 0.0)
}

/// Returns the table of Darshan's counters by process and layer.
pub(super) fn counted_ranks(model: &Model) -> String {
    let columns = [&["Rank", "=Node", "PID", "=Layer"][..], &COUNTERS].concat();
    let mut table =
        Table::new("counted-ranks-table", "Processes and ranks by layer, by bytes moved", &columns);
    for row in model.ranks.iter().filter(|row| is_of_interest(row)) {
        let figure = Figures(row);
        let rank = figure.real("rank");
        table.row(format_args!("{} {}", figure.whole("process"), figure.text("layer")));
        table.number(rank.unwrap_or(-1.0), &rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string()));
        table.text(figure.text("node")).number(figure.whole("pid"), &figure.whole("pid").to_string());
        table.text(figure.text("layer"));
        counters(&mut table, &figure);
        table.end();
    }
    table.finish(None)
}

fn counters(table: &mut Table, figure: &Figures<'_>) {
    table.bytes(figure.whole("bytes_read")).bytes(figure.whole("bytes_written"));
    table.count(figure.whole("reads")).count(figure.whole("writes"));
    table.share(figure.real("seq_reads_share")).share(figure.real("seq_writes_share"));
    table.count(figure.whole("file_not_aligned")).count(figure.whole("rw_switches"));
    table.seconds(figure.real("f_meta_time")).seconds(figure.real("f_read_time"));
    table.seconds(figure.real("f_write_time"));
}

/// A row of `miot stat`.
struct Figures<'a>(&'a Fields);

impl<'a> Figures<'a> {
    fn real(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.number()
    }

    fn whole(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some(Value::Int(value)) => *value,
            _ => 0,
        }
    }

    fn text(&self, name: &str) -> &'a str {
        match self.0.get(name) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }
}

/// Returns the table of idle periods, exact to the nanosecond; `None` if there are none.
pub(super) fn idle(model: &Model) -> Option<String> {
    let columns = ["At least", "Periods", "Time in them", "Share"];
    let periods = model.idle.definitions.iter().find(|p| p.definition == Definition::NoRequest)?;
    let mut table = Table::new("idle-table", "Periods without any request under way", &columns);
    for row in &periods.at_least {
        table.row(row.length).time(row.length).count(row.count).time(row.time).share(Some(row.share)).end();
    }
    (!periods.at_least.is_empty()).then(|| table.finish(None))
}

fn group(table: &mut Table, row: &ProcessGroup) {
    table
        .count(row.processes)
        .count(row.requests)
        .bytes(row.bytes_read)
        .bytes(row.bytes_written)
        .time(row.time);
}

/// Returns the table of losses; `None` if there are none.
pub(super) fn losses(model: &Model) -> Option<String> {
    let mut table = Table::new("losses-table", "What is missing, by place", &["=Place", "Times", "Events"]);
    for row in &model.summary.losses {
        table.row(&row.place).text(&row.place).count(row.times).count(row.count).end();
    }
    (!model.summary.losses.is_empty()).then(|| table.finish(None))
}
