//! `miot devices`: activity of disks and mounted network file systems.

use crate::numbers;
use crate::output::Out;
use crate::unread;
use anyhow::Context as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use clap::Args;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, printable, table, time};
use miot_trace_store::Table;
use miot_trace_store::schema::column;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the activity of the nodes' block devices and mounted network file systems, from kernel
/// counters
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot devices /var/lib/miot/trace                       totals of each device
  miot devices miot-trace --device 'sda' --intervals     one row per interval
  miot devices miot-trace --format csv --intervals > devices.csv

Columns: util: share of the time with a request in progress; await: mean time of a request, including waiting; queue: mean number \
of requests in progress; peak: bytes per second of the busiest interval; idle: share of the intervals with less than 5 % of that. \
Formulas: docs/guide/devices.md.")]
pub(crate) struct Arguments {
    /// Trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only this node
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    node: Vec<String>,
    /// Only this device or mount
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    device: Vec<String>,
    /// Print one row per interval
    #[arg(long)]
    intervals: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Node, kind, device and mount.
type Name = (String, String, String, Option<String>);

/// A device in one interval or over all intervals: its counters (`devices` in
/// docs/reference/trace.md) and derived values.
#[derive(Clone, Debug, Default, Serialize)]
struct DeviceRow {
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
    #[serde(skip)]
    read_time: Option<u64>,
    #[serde(skip)]
    write_time: Option<u64>,
    #[serde(skip)]
    other_time: Option<u64>,
    #[serde(skip)]
    busy: Option<u64>,
    #[serde(skip)]
    queue_time: Option<u64>,
    /// Bytes per second.
    rate: Option<f64>,
    peak: Option<f64>,
    idle: Option<f64>,
    utilization: Option<f64>,
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

/// Sums of a device over all its intervals.
#[derive(Clone, Debug)]
struct Total {
    sums: DeviceRow,
    /// Bytes per second of each interval.
    rates: Vec<f64>,
    highest: Option<f64>,
}

/// Fraction of the busiest interval's rate below which an interval counts as idle (Carns et al.,
/// section IV).
const IDLE: f64 = 0.05;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let reader = unread::open(&arguments.dir)?;
    let mut out = BufWriter::new(Out::new(arguments.format == Format::Json));
    let mut totals: BTreeMap<Name, Total> = BTreeMap::new();
    let mut rows = Vec::new();
    let parts: Vec<u64> = reader.parts().map(|(part, _)| part).collect();
    for part in parts {
        for batch in reader.batches_of(part, Table::Devices)? {
            for row in samples(&batch?, arguments)? {
                if arguments.intervals {
                    rows.push(row);
                } else {
                    let total = totals.entry(row.name()).and_modify(|total| total.add(&row));
                    total.or_insert_with(|| Total::of(row));
                }
            }
        }
    }
    if !arguments.intervals {
        rows = totals.into_values().map(Total::row).collect();
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

/// Returns the rows of a batch that the options select.
fn samples(batch: &RecordBatch, arguments: &Arguments) -> anyhow::Result<Vec<DeviceRow>> {
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
        let column = column::<UInt64Type>(batch, name)?;
        column.is_valid(row).then(|| column.value(row))
    };
    let wanted = |list: &[String], values: &[Option<&str>]| {
        list.is_empty() || values.iter().flatten().any(|value| list.iter().any(|w| w == value))
    };
    let mut samples = Vec::new();
    for row in 0..batch.num_rows() {
        let mount = mounts.is_valid(row).then(|| mounts.value(row));
        if !wanted(&arguments.node, &[Some(nodes.value(row))])
            || !wanted(&arguments.device, &[Some(devices.value(row)), mount])
        {
            continue;
        }
        let get = |name| counter(name, row);
        let sample = DeviceRow {
            time: Some(time(times.value(row))),
            node: nodes.value(row).to_owned(),
            kind: kinds.value(row).to_owned(),
            device: devices.value(row).to_owned(),
            mount: mount.map(str::to_owned),
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
            ..DeviceRow::default()
        };
        samples.push(sample.with_ratios());
    }
    Ok(samples)
}

/// Returns the quotient, if both values are known and the divisor is not 0.
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

impl DeviceRow {
    fn name(&self) -> Name {
        (self.node.clone(), self.kind.clone(), self.device.clone(), self.mount.clone())
    }

    /// Computes the ratios of `iostat -x`; see the module `devices` of the log-client.
    fn with_ratios(self) -> DeviceRow {
        let interval = u64::try_from(self.interval).ok().filter(|interval| *interval > 0);
        let bytes = plus(self.read_bytes, self.write_bytes);
        let moves = plus(self.reads, self.writes);
        let times = plus(plus(self.read_time, self.write_time), self.other_time);
        DeviceRow {
            rate: bytes.zip(interval).map(|(bytes, ns)| bytes as f64 / (ns as f64 / 1e9)),
            utilization: per(self.busy, interval),
            r_await: per(self.read_time, self.reads),
            w_await: per(self.write_time, self.writes),
            response: per(times, plus(moves, self.others)),
            service_time: per(self.busy, moves),
            queue: per(self.queue_time, interval),
            ..self
        }
    }
}

impl Total {
    fn of(first: DeviceRow) -> Total {
        let (rates, highest) = (first.rate.into_iter().collect(), first.utilization);
        Total { sums: DeviceRow { time: None, ..first }, rates, highest }
    }

    fn add(&mut self, more: &DeviceRow) {
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
        self.rates.extend(more.rate);
        self.highest = more.utilization.into_iter().chain(self.highest).reduce(f64::max);
    }

    fn row(self) -> DeviceRow {
        let peak = self.rates.iter().copied().reduce(f64::max);
        let idle = peak.map(|peak| {
            let idle = self.rates.iter().filter(|rate| **rate < IDLE * peak || peak == 0.0).count();
            idle as f64 / self.rates.len() as f64
        });
        DeviceRow { peak, idle, peak_utilization: self.highest, ..self.sums.with_ratios() }
    }
}

fn text(out: &mut impl Write, rows: &[DeviceRow], intervals: bool) -> std::io::Result<()> {
    let bytes = |value: Option<u64>| value.map_or("-".into(), |v| numbers::bytes(v as f64));
    let rate = |value: Option<f64>| value.map_or("-".into(), |v| format!("{}/s", numbers::bytes(v)));
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

    /// `iostat -x` prints for these differences over ten seconds: %util 20.0, r_await 2.00 ms,
    /// w_await 4.00 ms, aqu-sz 0.50, 1.5 kB/s.
    #[test]
    fn ratios_are_those_of_iostat() {
        let sample = DeviceRow {
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
            ..DeviceRow::default()
        };
        let row = sample.with_ratios();
        assert_eq!((row.utilization, row.queue, row.rate), (Some(0.2), Some(0.5), Some(1536.0)));
        assert_eq!((row.r_await, row.w_await), (Some(2e6), Some(4e6)));
        assert_eq!(row.response.map(f64::round), Some(2_666_667.0));
        assert_eq!(row.service_time.map(f64::round), Some(13_333_333.0));
        let mut total = Total::of(row);
        let quiet = DeviceRow {
            interval: 10_000_000_000,
            reads: Some(0),
            read_bytes: Some(0),
            busy: Some(0),
            ..DeviceRow::default()
        };
        total.add(&quiet.with_ratios());
        let row = total.row();
        assert_eq!((row.utilization, row.peak_utilization, row.idle), (Some(0.1), Some(0.2), Some(0.5)));
        assert_eq!((row.peak, row.rate), (Some(1536.0), Some(768.0)));
        let none = DeviceRow::default().with_ratios();
        assert_eq!((none.utilization, none.r_await, none.rate), (None, None, None));
    }

    #[test]
    fn table_scales_bytes_and_csv_does_not() {
        let row = DeviceRow {
            interval: 10_000_000_000,
            read_bytes: Some(9_854_976),
            write_bytes: Some(1023),
            ..DeviceRow::default()
        };
        let rows = [Total::of(row.with_ratios()).row()];
        let mut out = Vec::new();
        text(&mut out, &rows, false).unwrap();
        let printed = String::from_utf8(std::mem::take(&mut out)).unwrap();
        for expected in ["9.4 MiB ", " 1023 B ", " 962 KiB/s "] {
            assert!(printed.contains(expected), "{printed}");
        }
        records(&mut out, Format::Csv, true, rows).unwrap();
        let printed = String::from_utf8(out).unwrap();
        assert!(printed.contains(",9854976,1023,"), "{printed}");
    }

    /// For a FUSE mount the kernel counts only waiting requests. CSV has the same columns for all
    /// devices.
    #[test]
    fn devices_without_counters_have_the_same_columns() {
        let block = DeviceRow { interval: 1, read_bytes: Some(1), busy: Some(1), ..DeviceRow::default() }
            .with_ratios();
        let fuse = DeviceRow { interval: 1, in_flight: Some(2), ..DeviceRow::default() }.with_ratios();
        let mut out = Vec::new();
        let rows = [block, fuse].map(|row| Total::of(row).row());
        records(&mut out, Format::Csv, true, rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [columns[0]; 3], "{text}");
    }
}
