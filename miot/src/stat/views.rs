//! Prints the figures of rows as text tables.

use crate::numbers::{bytes, count, time};
use clap::ValueEnum;
use miot_trace_analysis::characterize::{CounterRow, Quantiles, Value, fields};
use miot_trace_events::text::{printable, table};
use std::io::Write;

/// Maximum width of a name, columns. Longer names are cut at the start.
const NAME: usize = 48;

/// Selection of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum View {
    /// Rates and sizes, as in tables 1 and 2 of Miller 1990
    #[default]
    Miller,
    /// Darshan's counters, one per line, without those that are 0
    #[value(alias = "counters")]
    Darshan,
    /// Shares: run time in I/O, metadata, sequential, aligned, overwritten
    Usage,
    /// Quantiles of durations
    Latency,
    /// Aggregate performance of jobs, by all of Darshan's estimates, and for each node
    Performance,
    /// Files that all ranks of a job opened: fastest and slowest rank
    Ranks,
}

pub(super) fn write(
    out: &mut impl Write,
    view: View,
    rows: Vec<CounterRow>,
    origin: i64,
) -> std::io::Result<()> {
    match view {
        View::Miller => miller(out, &rows),
        View::Darshan => darshan(out, &rows, origin),
        View::Usage => usage(out, &rows),
        View::Latency => latency(out, &rows),
        View::Performance => performance(out, &rows),
        View::Ranks => ranks(out, &rows),
    }
}

/// Prints a table with a name and a layer in front of each row.
fn with_names<const N: usize, const ALL: usize>(
    out: &mut impl Write,
    header: [&str; N],
    rows: impl Iterator<Item = (String, [String; N])>,
) -> std::io::Result<()> {
    let line = |name: String, layer: String, cells: [String; N]| -> [String; ALL] {
        let mut all = [name, layer].into_iter().chain(cells);
        std::array::from_fn(|_| all.next().unwrap_or_default())
    };
    let header = line(String::new(), "layer".into(), header.map(str::to_owned));
    let rows = rows.map(|(name, cells)| {
        let (name, layer) = name.rsplit_once('\t').map_or((name.as_str(), ""), |both| both);
        line(name.to_owned(), layer.to_owned(), cells)
    });
    table(out, header, rows.collect())
}

/// Returns the name of a row, and its layer after a tab.
fn name(row: &CounterRow) -> String {
    let word = |name: &str| {
        let found = row.labels.iter().find(|(known, _)| *known == name);
        match found.map(|(_, value)| value) {
            Some(Value::Text(text)) => printable(text).into_owned(),
            Some(Value::Int(number)) => number.to_string(),
            _ => "-".to_owned(),
        }
    };
    let name = match row.labels.first() {
        None => "all".to_owned(),
        Some(("process", _)) => {
            let rank = word("rank");
            let rank = if rank == "-" { rank } else { format!("rank {rank}") };
            format!("{} {} {} {rank}", word("command"), word("pid"), word("node")).replace(" -", "")
        }
        Some(("user", Value::None)) => word("uid"),
        Some((first, _)) => word(first),
    };
    let length = name.chars().count();
    let name = if length > NAME {
        format!("…{}", name.chars().skip(length - NAME + 1).collect::<String>())
    } else {
        name
    };
    format!("{name}\t{}", row.layer)
}

fn or_dash<T>(value: Option<T>, print: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), print)
}

fn rate(value: Option<f64>) -> String {
    or_dash(value, |value| if value < 9.95 { format!("{value:.2}") } else { count(value) })
}

fn whole(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { count(number as f64) }
}

fn percent(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{:.1}%", 100.0 * value))
}

fn miller(out: &mut impl Write, rows: &[CounterRow]) -> std::io::Result<()> {
    let header = [
        "run time",
        "of",
        "data",
        "I/O",
        "I/Os",
        "average",
        "MiB/s",
        "I/Os/s",
        "read MiB/s",
        "write MiB/s",
        "reads/s",
        "writes/s",
        "r/w",
    ];
    with_names::<13, 15>(
        out,
        header,
        rows.iter().map(|row| {
            let (reads, writes) = (row.counters.reads(), row.counters.writes());
            let ios = reads.count + writes.count;
            let seconds = fields::seconds(row.running());
            let mib = |bytes: u64| rate(fields::ratio(bytes as f64 / f64::from(1 << 20), seconds));
            let per_second = |ios: u64| rate(fields::ratio(ios as f64, seconds));
            let cells = [
                time(row.running()),
                if row.cpu.is_some() { "cpu" } else { "wall" }.to_owned(),
                bytes(row.data_size as f64),
                bytes(row.counters.bytes() as f64),
                whole(ios),
                or_dash(fields::ratio(row.counters.bytes() as f64, ios as f64), bytes),
                mib(row.counters.bytes()),
                per_second(ios),
                mib(reads.bytes),
                mib(writes.bytes),
                per_second(reads.count),
                per_second(writes.count),
                rate(fields::ratio(reads.bytes as f64, writes.bytes as f64)),
            ];
            (name(row), cells)
        }),
    )
}

fn darshan(out: &mut impl Write, rows: &[CounterRow], origin: i64) -> std::io::Result<()> {
    for (number, row) in rows.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let fields = row.fields(origin).0;
        let from = fields.iter().position(|(name, _)| name == "opens").unwrap_or(0);
        let to = fields.iter().position(|(name, _)| name == "closes").unwrap_or(fields.len());
        let of_ranks = fields.iter().position(|(name, _)| name == "shared_by_ranks").unwrap_or(fields.len());
        let until = fields.iter().position(|(name, _)| name == "ranks").unwrap_or(fields.len());
        let name = name(row);
        let (name, layer) = name.split_once('\t').unwrap_or((&name, ""));
        writeln!(out, "{name}  {layer}")?;
        for (name, value) in fields[from..to].iter().chain(&fields[of_ranks..until]) {
            match value {
                Value::None | Value::Int(0) => {}
                Value::Float(value) if *value == 0.0 => {}
                Value::Int(value) => writeln!(out, "  {name:<26} {value}")?,
                Value::Float(value) => writeln!(out, "  {name:<26} {value:.9}")?,
                Value::Text(value) => writeln!(out, "  {name:<26} {}", printable(value))?,
            }
        }
    }
    Ok(())
}

fn usage(out: &mut impl Write, rows: &[CounterRow]) -> std::io::Result<()> {
    let header = [
        "I/O of run",
        "metadata of I/O",
        "opens/process",
        "files/process",
        "sequential reads",
        "writes",
        "consecutive reads",
        "writes",
        "file aligned",
        "memory aligned",
        "written again",
    ];
    with_names::<11, 13>(
        out,
        header,
        rows.iter().map(|row| {
            let (counters, data) = (&row.counters, row.counters.data());
            let (reads, writes) = (counters.reads(), counters.writes());
            let ios = (reads.count + writes.count) as f64;
            let processes = row.processes as f64;
            let cells = [
                percent(row.io_share()),
                percent(row.meta_share()),
                rate(fields::ratio(counters.meta.opens as f64, processes)),
                rate(fields::ratio(row.files_of_processes as f64, processes)),
                percent(reads.sequential_share()),
                percent(writes.sequential_share()),
                percent(reads.consecutive_share()),
                percent(writes.consecutive_share()),
                percent(fields::ratio(
                    ios - data.without_offset as f64 - data.file_not_aligned as f64,
                    ios - data.without_offset as f64,
                )),
                percent(row.memory_not_aligned().and_then(|not| fields::ratio(ios - not as f64, ios))),
                percent(fields::ratio(data.overwritten as f64, writes.bytes as f64)),
            ];
            (name(row), cells)
        }),
    )
}

fn latency(out: &mut impl Write, rows: &[CounterRow]) -> std::io::Result<()> {
    let header = ["requests", "count", "p50", "p90", "p99", "p99.9", "max"];
    let lines = rows.iter().flat_map(|row| {
        let kinds = [
            ("read", row.read_latency),
            ("write", row.write_latency),
            ("sync", row.sync_latency),
            ("metadata", row.meta_latency),
        ];
        let any = |(_, found): &(&str, Quantiles)| found.count > 0;
        kinds.into_iter().filter(any).map(move |(kind, found)| {
            let cells = [
                kind.to_owned(),
                found.count.to_string(),
                time(found.p50),
                time(found.p90),
                time(found.p99),
                time(found.p999),
                time(found.max),
            ];
            (name(row), cells)
        })
    });
    with_names::<7, 9>(out, header, lines)
}

fn performance(out: &mut impl Write, rows: &[CounterRow]) -> std::io::Result<()> {
    let header = [
        "ranks",
        "nodes",
        "I/O",
        "shared files",
        "slowest rank",
        "MiB/s by slowest",
        "by cumul",
        "by open",
        "by open to last I/O",
        "MiB/s/node",
    ];
    if rows.iter().all(|row| row.performance.is_none()) {
        return writeln!(
            out,
            "no row is the run of one parallel program: choose --by job, or --by step where a job has several"
        );
    }
    let lines = rows.iter().filter_map(|row| {
        let found = row.performance?;
        let cells = [
            found.ranks.to_string(),
            found.nodes.to_string(),
            bytes(found.bytes as f64),
            found.shared_files.to_string(),
            format!("{}: {}", found.slowest_rank, time(found.unique_time)),
            rate(found.by_slowest),
            rate(found.by_cumul),
            rate(found.by_open),
            rate(found.by_open_lastio),
            rate(found.per_node),
        ];
        Some((name(row), cells))
    });
    with_names::<10, 12>(out, header, lines)
}

fn ranks(out: &mut impl Write, rows: &[CounterRow]) -> std::io::Result<()> {
    let header = ["ranks", "fastest", "time", "I/O", "slowest", "time", "I/O", "variance s²", "variance B²"];
    if rows.iter().all(|row| row.shared.is_none()) {
        return writeln!(out, "no file was opened by all ranks of one job (with --by file)");
    }
    let lines = rows.iter().filter_map(|row| {
        let found = row.shared?;
        let cells = [
            found.ranks.to_string(),
            found.fastest.rank.to_string(),
            time(found.fastest.time),
            bytes(found.fastest.bytes as f64),
            found.slowest.rank.to_string(),
            time(found.slowest.time),
            bytes(found.slowest.bytes as f64),
            format!("{:.3e}", found.variance_time),
            format!("{:.3e}", found.variance_bytes),
        ];
        Some((name(row), cells))
    });
    with_names::<9, 11>(out, header, lines)
}
