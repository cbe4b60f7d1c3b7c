//! `miot devices`: what disks and mounted network file systems did.

use crate::output::{Format, duration, printable, records, table, time};
use anyhow::Context as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use clap::Args;
use miot_proto::units::format_bytes;
use miot_trace_store::{Reader, Table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print what the block devices and mounted network file systems of the nodes did, by the counters of their kernels
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot devices /var/lib/miot/trace                       totals of each device
  miot devices miot-trace --device 'sda' --intervals     one line for each interval
  miot devices miot-trace --format csv --intervals > devices.csv

Columns: util: share of the time in which a request was under way; await: mean time of a request, waiting included; queue: mean number \
of requests under way; peak: bytes per second of the busiest interval; idle: share of the intervals with less than 5 % of that. \
docs/devices.md has the formulas.")]
pub(crate) struct Arguments {
    /// The trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only this node
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    node: Vec<String>,
    /// Only this device, or what is mounted there
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    device: Vec<String>,
    /// Each interval by itself
    #[arg(long)]
    intervals: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Counters, of one interval or added up. See `devices` in docs/trace.md.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    interval: i64,
    reads: Option<u64>,
    writes: Option<u64>,
    others: Option<u64>,
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
    read_time: Option<u64>,
    write_time: Option<u64>,
    other_time: Option<u64>,
    busy: Option<u64>,
    queue_time: Option<u64>,
    in_flight: Option<u64>,
    retransmits: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    node: String,
    kind: String,
    device: String,
    mount: Option<String>,
}

/// A device over all its intervals.
#[derive(Clone, Debug, Default)]
struct Total {
    sums: Sums,
    /// Bytes per second of each interval.
    rates: Vec<f64>,
    highest: f64,
}

/// What is printed of a device, or of one of its intervals.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    node: String,
    kind: String,
    device: String,
    mount: Option<String>,
    /// Nanoseconds.
    interval: i64,
    reads: Option<u64>,
    writes: Option<u64>,
    others: Option<u64>,
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
    /// Bytes per second.
    rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<f64>,
    utilization: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_utilization: Option<f64>,
    /// Nanoseconds.
    r_await: Option<f64>,
    w_await: Option<f64>,
    #[serde(rename = "await")]
    response: Option<f64>,
    service_time: Option<f64>,
    queue: Option<f64>,
    in_flight: Option<u64>,
    retransmits: Option<u64>,
}

/// Of the busiest interval: an interval with less counts as idle (Carns et al., section IV).
const IDLE: f64 = 0.05;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let reader = Reader::open(&arguments.dir)?;
    let mut out = BufWriter::new(stdout().lock());
    let mut totals: BTreeMap<Name, Total> = BTreeMap::new();
    let mut rows = Vec::new();
    let parts: Vec<u64> = reader.parts().map(|(part, _)| part).collect();
    for part in parts {
        for batch in reader.batches_of(part, Table::Devices)? {
            see(&batch?, arguments, |at, name, sums| {
                if arguments.intervals {
                    rows.push(sums.row(&name, Some(time(at))));
                } else {
                    totals.entry(name).or_default().add(&sums);
                }
            })?;
        }
    }
    if !arguments.intervals {
        rows = totals.into_iter().map(|(name, total)| total.row(&name)).collect();
    }
    match arguments.format {
        Format::Text if rows.is_empty() => {
            writeln!(out, "no samples of devices: is `devices_every` of the log-clients 0?")?;
        }
        Format::Text => text(&mut out, &rows, arguments.intervals)?,
        format => records(&mut out, format, true, rows)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Shows all rows of a batch that are wanted.
fn see(
    batch: &RecordBatch,
    arguments: &Arguments,
    mut each: impl FnMut(i64, Name, Sums),
) -> anyhow::Result<()> {
    let text = |name: &str| {
        let column = batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>());
        column.with_context(|| format!("the table devices has no column {name}"))
    };
    let (nodes, kinds, devices, mounts) = (text("node")?, text("kind")?, text("device")?, text("mount")?);
    let times = batch.column_by_name("time").and_then(|c| c.as_primitive_opt::<TimestampNanosecondType>());
    let intervals = batch.column_by_name("interval").and_then(|c| c.as_primitive_opt::<Int64Type>());
    let (Some(times), Some(intervals)) = (times, intervals) else {
        anyhow::bail!("the table devices has no columns time and interval")
    };
    let counter = |name: &str, row: usize| {
        let column = batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<UInt64Type>())?;
        column.is_valid(row).then(|| column.value(row))
    };
    let wanted = |list: &[String], values: &[Option<&str>]| {
        list.is_empty() || values.iter().flatten().any(|value| list.iter().any(|w| w == value))
    };
    for row in 0..batch.num_rows() {
        let mount = mounts.is_valid(row).then(|| mounts.value(row));
        if !wanted(&arguments.node, &[Some(nodes.value(row))])
            || !wanted(&arguments.device, &[Some(devices.value(row)), mount])
        {
            continue;
        }
        let name = Name {
            node: nodes.value(row).to_owned(),
            kind: kinds.value(row).to_owned(),
            device: devices.value(row).to_owned(),
            mount: mount.map(str::to_owned),
        };
        let get = |name| counter(name, row);
        let sums = Sums {
            interval: intervals.value(row),
            reads: get("reads"),
            writes: get("writes"),
            others: get("others"),
            read_bytes: get("read_bytes"),
            write_bytes: get("write_bytes"),
            read_time: get("read_time"),
            write_time: get("write_time"),
            other_time: get("other_time"),
            busy: get("busy"),
            queue_time: get("queue_time"),
            in_flight: get("in_flight"),
            retransmits: get("retransmits"),
        };
        each(times.value(row), name, sums);
    }
    Ok(())
}

/// The quotient, if both are known and it means something.
fn per(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    let whole = whole.filter(|whole| *whole > 0)?;
    Some(part? as f64 / whole as f64)
}

fn plus(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        _ => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
    }
}

impl Sums {
    fn rate(&self) -> Option<f64> {
        let bytes = plus(self.read_bytes, self.write_bytes)?;
        (self.interval > 0).then(|| bytes as f64 / (self.interval as f64 / 1e9))
    }

    fn utilization(&self) -> Option<f64> {
        per(self.busy, u64::try_from(self.interval).ok())
    }

    /// The ratios of `iostat -x`; see the module `devices` of the log-client.
    fn row(&self, name: &Name, time: Option<String>) -> Row {
        let Name { node, kind, device, mount } = name.clone();
        let moves = plus(self.reads, self.writes);
        let times = plus(plus(self.read_time, self.write_time), self.other_time);
        Row {
            time,
            node,
            kind,
            device,
            mount,
            interval: self.interval,
            reads: self.reads,
            writes: self.writes,
            others: self.others,
            read_bytes: self.read_bytes,
            write_bytes: self.write_bytes,
            rate: self.rate(),
            peak: None,
            idle: None,
            utilization: self.utilization(),
            peak_utilization: None,
            r_await: per(self.read_time, self.reads),
            w_await: per(self.write_time, self.writes),
            response: per(times, plus(moves, self.others)),
            service_time: per(self.busy, moves),
            queue: per(self.queue_time, u64::try_from(self.interval).ok()),
            in_flight: self.in_flight,
            retransmits: self.retransmits,
        }
    }
}

impl Total {
    fn add(&mut self, more: &Sums) {
        let sums = &mut self.sums;
        sums.interval = sums.interval.saturating_add(more.interval);
        for (sum, more) in [
            (&mut sums.reads, more.reads),
            (&mut sums.writes, more.writes),
            (&mut sums.others, more.others),
            (&mut sums.read_bytes, more.read_bytes),
            (&mut sums.write_bytes, more.write_bytes),
            (&mut sums.read_time, more.read_time),
            (&mut sums.write_time, more.write_time),
            (&mut sums.other_time, more.other_time),
            (&mut sums.busy, more.busy),
            (&mut sums.queue_time, more.queue_time),
            (&mut sums.retransmits, more.retransmits),
        ] {
            *sum = plus(*sum, more);
        }
        sums.in_flight = sums.in_flight.max(more.in_flight);
        self.rates.extend(more.rate());
        self.highest = self.highest.max(more.utilization().unwrap_or(0.0));
    }

    fn row(&self, name: &Name) -> Row {
        let peak = self.rates.iter().copied().fold(0.0, f64::max);
        let idle = self.rates.iter().filter(|rate| **rate < IDLE * peak || peak == 0.0).count();
        let some = !self.rates.is_empty();
        Row {
            peak: some.then_some(peak),
            idle: some.then(|| idle as f64 / self.rates.len() as f64),
            peak_utilization: self.sums.busy.map(|_| self.highest),
            ..self.sums.row(name, None)
        }
    }
}

fn text(out: &mut impl Write, rows: &[Row], intervals: bool) -> std::io::Result<()> {
    let bytes = |value: Option<u64>| value.map_or("-".into(), format_bytes);
    let rate = |value: Option<f64>| value.map_or("-".into(), |v| format!("{}/s", format_bytes(v as u64)));
    let count = |value: Option<u64>| value.map_or("-".into(), |v| v.to_string());
    let share = |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.1}%", v * 100.0));
    let span = |value: Option<f64>| value.map_or("-".into(), |v| duration(v as i64));
    let first = if intervals { "time" } else { "idle" };
    let header = [
        "node",
        "kind",
        "device",
        "mount",
        first,
        "reads",
        "writes",
        "read",
        "written",
        "rate",
        "peak",
        "util",
        "r_await",
        "w_await",
        "queue",
        "in flight",
    ];
    let lines = rows.iter().map(|row| {
        [
            row.node.clone(),
            row.kind.clone(),
            printable(&row.device).into_owned(),
            row.mount.as_deref().map_or("-".into(), |mount| printable(mount).into_owned()),
            if intervals { row.time.clone().unwrap_or_default() } else { share(row.idle) },
            count(row.reads),
            count(row.writes),
            bytes(row.read_bytes),
            bytes(row.write_bytes),
            rate(row.rate),
            rate(row.peak),
            share(row.utilization),
            span(row.r_await),
            span(row.w_await),
            row.queue.map_or("-".into(), |queue| format!("{queue:.2}")),
            count(row.in_flight),
        ]
    });
    table(out, header.map(str::to_owned), lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `iostat -x` prints for these differences over ten seconds: %util 20.0, r_await 2.00 ms, w_await 4.00 ms,
    /// aqu-sz 0.50, 1.5 kB/s.
    #[test]
    fn ratios_are_those_of_iostat() {
        let sums = Sums {
            interval: 10_000_000_000,
            reads: Some(100),
            writes: Some(50),
            others: None,
            read_bytes: Some(10_240),
            write_bytes: Some(5_120),
            read_time: Some(200_000_000),
            write_time: Some(200_000_000),
            busy: Some(2_000_000_000),
            queue_time: Some(5_000_000_000),
            ..Sums::default()
        };
        let name = Name { node: "n".into(), kind: "block".into(), device: "sda".into(), mount: None };
        let row = sums.row(&name, None);
        assert_eq!((row.utilization, row.queue, row.rate), (Some(0.2), Some(0.5), Some(1536.0)));
        assert_eq!((row.r_await, row.w_await), (Some(2e6), Some(4e6)));
        assert_eq!(row.response.map(f64::round), Some(2_666_667.0));
        assert_eq!(row.service_time.map(f64::round), Some(13_333_333.0));
        let mut total = Total::default();
        total.add(&sums);
        total.add(&Sums {
            interval: 10_000_000_000,
            reads: Some(0),
            read_bytes: Some(0),
            busy: Some(0),
            ..Sums::default()
        });
        let row = total.row(&name);
        assert_eq!((row.utilization, row.peak_utilization, row.idle), (Some(0.1), Some(0.2), Some(0.5)));
        assert_eq!((row.peak, row.rate), (Some(1536.0), Some(768.0)));
        let none = Sums::default().row(&name, None);
        assert_eq!((none.utilization, none.r_await, none.rate), (None, None, None));
    }
}
