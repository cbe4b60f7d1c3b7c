//! The tables of the page. Each cell with a number has the exact one in `data-value`, by which the page sorts.

use super::model::{Clock, Group, Model};
use super::svg::Text;
use crate::numbers::{bytes, time};
use crate::output::duration;
use std::fmt::{Display, Write as _};

/// A table in the making.
struct Table {
    html: String,
}

impl Table {
    /// `columns`: of numbers; `=` before a name: of text.
    fn new(name: &str, caption: &str, columns: &[&str]) -> Table {
        let mut html = format!(
            "<div class=\"scroll\"><table id=\"{name}\"><caption>{}</caption><thead><tr>",
            Text(caption)
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
        let _ = write!(self.html, "<tr data-key=\"{}\">", Text(&key.to_string()));
        self
    }

    /// The exact value, and how people read it.
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
        self.number(value, &time(value))
    }

    fn text(&mut self, text: &str) -> &mut Table {
        let _ = write!(self.html, "<td class=\"text\"><bdi>{}</bdi></td>", Text(text));
        self
    }

    /// What may be long: its end is what tells it from others.
    fn path(&mut self, text: &str) -> &mut Table {
        let text = if text.is_empty() { "(unknown)" } else { text };
        let text = Text(text);
        let _ = write!(self.html, "<td class=\"text path\" title=\"{text}\"><bdi>{text}</bdi></td>");
        self
    }

    fn end(&mut self) {
        self.html += "</tr>";
    }

    fn finish(mut self, rest: Option<String>) -> String {
        self.html += "</tbody></table></div>";
        if let Some(rest) = rest {
            let _ = write!(self.html, "<p class=\"rest\">{}</p>", Text(&rest));
        }
        self.html
    }
}

/// Digits in groups of three.
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
            Some(value) => (value, duration(value)),
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

/// Nothing if no process has a job.
pub(super) fn jobs(model: &Model) -> Option<String> {
    let columns = ["=Job", "=Users", "Processes", "Requests", "Read", "Written", "Time"];
    let mut table = Table::new("jobs-table", "Jobs, by the time of their requests", &columns);
    for row in &model.jobs {
        let users: Vec<_> = row.users.iter().map(String::as_str).collect();
        table.row(&row.name).text(&row.name).text(&users.join(", "));
        group(&mut table, row);
        table.end();
    }
    (!model.jobs.is_empty()).then(|| table.finish(None))
}

fn group(table: &mut Table, row: &Group) {
    table
        .count(row.processes)
        .count(row.requests)
        .bytes(row.bytes_read)
        .bytes(row.bytes_written)
        .time(row.time);
}

/// What is missing; nothing if nothing is.
pub(super) fn losses(model: &Model) -> Option<String> {
    let mut table = Table::new("losses-table", "What is missing, by place", &["=Place", "Times", "Events"]);
    for row in &model.summary.losses {
        table.row(&row.place).text(&row.place).count(row.times).count(row.count).end();
    }
    (!model.summary.losses.is_empty()).then(|| table.finish(None))
}
