//! Columns of a table: selection by width, content, and order of rows.

use crate::numbers::{bytes, count, time};
use clap::ValueEnum;
use miot_activity::{ActivityGroup, ActivityRow, ActivitySnapshot};
use miot_trace_events::text::printable;
use std::cmp::Ordering;

/// Kind of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// The whole cluster, over time
    #[default]
    Cluster,
    /// A row per node
    Nodes,
    /// A row per job of the batch system
    Jobs,
    /// A row per process
    Processes,
    /// A row per file
    Files,
    /// A row per operation
    Operations,
    /// Requests in progress, of a log-server
    #[value(name = "in-flight")]
    Requests,
}

impl View {
    pub(crate) const ALL: [View; 7] = [
        View::Cluster,
        View::Nodes,
        View::Jobs,
        View::Processes,
        View::Files,
        View::Operations,
        View::Requests,
    ];

    pub(crate) fn name(self) -> &'static str {
        ["cluster", "nodes", "jobs", "processes", "files", "operations", "in flight"][self as usize]
    }

    /// Returns the rows of this view. The view of the cluster has the rows of the operations.
    pub(crate) fn group(self, snapshot: &ActivitySnapshot) -> &ActivityGroup {
        match self {
            View::Nodes => &snapshot.nodes,
            View::Jobs => &snapshot.jobs,
            View::Processes => &snapshot.processes,
            View::Files => &snapshot.files,
            View::Cluster | View::Operations | View::Requests => &snapshot.operations,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Node,
    Pid,
    Job,
    Requests,
    Failed,
    Read,
    Written,
    Time,
    P50,
    P99,
    Max,
    Lost,
    Name,
}

use Column::{Failed, Job, Lost, Max, Name, Node, P50, P99, Pid, Read, Requests, Time, Written};

/// Columns from left to right. The name is last and takes the remaining width.
const ORDER: [Column; 13] =
    [Node, Pid, Job, Requests, Failed, Read, Written, Time, P50, P99, Max, Lost, Name];
/// Least width of the name; further columns are shown only beyond it.
const NAME_WIDTH: usize = 19;

impl Column {
    pub(crate) fn title(self, view: View, is_rate: bool) -> &'static str {
        match self {
            Node => "NODE",
            Pid => "PID",
            Job => "JOB",
            Requests if is_rate => "OPS/S",
            Requests => "OPS",
            Failed if is_rate => "FAIL/S",
            Failed => "FAILED",
            Read if is_rate => "READ/S",
            Read => "READ",
            Written if is_rate => "WRITE/S",
            Written => "WRITTEN",
            Time if is_rate => "IN I/O",
            Time => "TIME",
            P50 => "P50",
            P99 => "P99",
            Max => "MAX",
            Lost => "LOST",
            Name => match view {
                View::Nodes => "NODE",
                View::Jobs => "JOB",
                View::Processes => "COMMAND",
                View::Files => "FILE",
                View::Cluster | View::Operations | View::Requests => "OPERATION",
            },
        }
    }

    /// Returns the width in characters, without the space after it.
    pub(crate) fn width(self) -> usize {
        match self {
            Node => 10,
            Pid | Requests | Failed | Time | P50 | P99 | Max => 7,
            Job | Read | Written => 8,
            Lost => 6,
            Name => 0,
        }
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Node | Job | Name)
    }

    /// Returns the text of a cell: a rate if `seconds` is given, else a sum.
    pub(crate) fn text(self, row: &ActivityRow, seconds: Option<f64>) -> String {
        let per = |value: u64| value as f64 / seconds.unwrap_or(1.0);
        let dash = |value: u64, text: String| if value == 0 { "-".to_owned() } else { text };
        match self {
            Node => printable(row.node.as_deref().unwrap_or("-")).into_owned(),
            Pid => row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            Job => printable(row.job.as_deref().unwrap_or("-")).into_owned(),
            Requests if row.missed > 0 => format!("~{}", count(per(row.requests))),
            Requests => count(per(row.requests)),
            Failed => dash(row.failed, count(per(row.failed))),
            Read => dash(row.bytes_read, bytes(per(row.bytes_read))),
            Written => dash(row.bytes_written, bytes(per(row.bytes_written))),
            // 100 % per thread at most.
            Time if seconds.is_some() => format!("{:.0}%", per(row.time) / 1e7),
            Time => time(row.time),
            P50 => dash(row.requests, time(row.p50)),
            P99 => dash(row.requests, time(row.p99)),
            Max => dash(row.requests, time(row.max)),
            Lost => dash(row.lost, count(row.lost as f64)),
            Name if row.name.is_empty() => "-".to_owned(),
            // For a program the name, not the path.
            Name if row.pid.is_some() => {
                let program = row.name.find(' ').unwrap_or(row.name.len());
                printable(&row.name[row.name[..program].rfind('/').map_or(0, |at| at + 1)..]).into_owned()
            }
            Name => printable(&row.name).into_owned(),
        }
    }

    /// Compares rows by this column: numbers largest first, texts alphabetically.
    pub(crate) fn compare(self, a: &ActivityRow, b: &ActivityRow) -> Ordering {
        let number = |row: &ActivityRow| match self {
            Pid => row.pid.map_or(0, u64::from),
            Requests => row.requests,
            Failed => row.failed,
            Read => row.bytes_read,
            Written => row.bytes_written,
            Time => row.time,
            P50 => row.p50,
            P99 => row.p99,
            Max => row.max,
            Lost => row.lost,
            Node | Job | Name => 0,
        };
        let order = match self {
            Node => a.node.cmp(&b.node),
            Job => a.job.cmp(&b.job),
            Name => a.name.cmp(&b.name),
            _ => number(b).cmp(&number(a)),
        };
        order.then_with(|| b.requests.cmp(&a.requests)).then_with(|| a.name.cmp(&b.name))
    }
}

/// Returns the columns that a view shows within `width` characters.
pub(crate) fn columns(view: View, width: usize) -> Vec<Column> {
    let wanted: &[Column] = match view {
        View::Processes => &[Requests, Read, Written, P99, Pid, Node, Max, Job, P50, Lost, Failed, Time],
        View::Files => &[Requests, Read, Written, P99, Max, Node, P50, Failed, Time],
        View::Cluster | View::Operations | View::Requests => {
            &[Requests, Read, Written, P50, P99, Max, Failed, Time]
        }
        View::Nodes | View::Jobs => &[Requests, Read, Written, P50, P99, Max, Lost, Failed, Time],
    };
    let mut room = width.saturating_sub(NAME_WIDTH);
    let mut chosen = vec![Name];
    for column in wanted {
        let Some(left) = room.checked_sub(column.width() + 1) else { break };
        chosen.push(*column);
        room = left;
    }
    ORDER.into_iter().filter(|column| chosen.contains(column)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_characters_show_the_main_columns() {
        for view in View::ALL {
            let shown = columns(view, 80);
            assert!([Name, Requests, Read, Written, P99, Max].iter().all(|c| shown.contains(c)), "{view:?}");
            let taken: usize = shown.iter().map(|c| c.width() + 1).sum();
            assert!(taken + NAME_WIDTH <= 81, "{view:?}: {taken}");
        }
        assert_eq!(columns(View::Files, 10), [Name]);
        assert_eq!(columns(View::Processes, 300), ORDER);
    }

    #[test]
    fn process_is_shown_by_program_name() {
        for (command, shown) in [("/bin/a /etc/b", "a /etc/b"), ("./x", "x"), ("y", "y"), ("", "-")] {
            let row = ActivityRow { name: command.into(), pid: Some(1), ..ActivityRow::default() };
            assert_eq!(Name.text(&row, None), shown);
        }
    }

    #[test]
    fn rows_sort_by_any_column() {
        let row = |name: &str, requests, max| ActivityRow {
            name: name.into(),
            requests,
            max,
            ..ActivityRow::default()
        };
        let mut rows = [row("b", 1, 30), row("a", 5, 10), row("c", 5, 20)];
        let mut by = |column: Column| {
            rows.sort_by(|a, b| column.compare(a, b));
            rows.iter().map(|row| row.name.clone()).collect::<String>()
        };
        assert_eq!([by(Requests), by(Max), by(Name), by(Lost)], ["acb", "bca", "abc", "acb"]);
    }
}
