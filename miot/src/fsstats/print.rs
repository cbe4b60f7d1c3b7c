//! Snapshots and growth as tables, and as CSV.

use crate::numbers::bytes;
use miot_fs_contents::growth::{Shift, TotalChange};
use miot_fs_contents::{Amount, Bin, Growth, Histogram, Snapshot, Unit};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{printable, table};
use serde::Serialize;
use std::io::Write;

/// Returns a histogram's heading, the name of its values, and whether these belong to files.
fn heading(name: &str) -> (&'static str, &'static str, bool) {
    match name {
        "size" => ("file size", "files", true),
        "capacity" => ("capacity used by a file", "files", true),
        "positive_overhead" => ("positive overhead: capacity beyond the size", "files", true),
        "negative_overhead" => ("negative overhead: size beyond the capacity", "files", true),
        "atime_age" => ("days since last access", "files", true),
        "mtime_age" => ("days since last modification", "files", true),
        "ctime_age" => ("days since last change of attributes", "files", true),
        "links" => ("hard links of a file", "files", true),
        "directory_entries" => ("entries of a directory", "directories", false),
        "directory_size" => ("size of a directory", "directories", false),
        "name_length" => ("length of a name", "names", false),
        _ => ("length of a symbolic link's target", "symlinks", false),
    }
}

fn bound(value: u64, unit: Unit) -> String {
    if unit == Unit::Bytes { bytes(value as f64) } else { value.to_string() }
}

/// Formats the bounds of a bin: `4.0 KiB - 8.0 KiB`.
fn range(from: u64, below: Option<u64>, unit: Unit) -> String {
    match below {
        Some(below) if below == from + 1 => bound(from, unit),
        Some(below) => format!("{} - {}", bound(from, unit), bound(below, unit)),
        None => format!("{} -", bound(from, unit)),
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", share * 100.0))
}

/// Prints a snapshot as text.
pub(crate) fn text(snapshot: &Snapshot, out: &mut impl Write) -> std::io::Result<()> {
    let (contents, totals) = (&snapshot.contents, &snapshot.totals);
    writeln!(
        out,
        "{}, {}",
        printable(&snapshot.directory),
        snapshot.as_of.strftime("%Y-%m-%d %H:%M:%S UTC")
    )?;
    let special = &contents.special;
    let others =
        special.block_devices + special.character_devices + special.fifos + special.sockets + special.unknown;
    writeln!(
        out,
        "{} files, {} directories, {} symbolic links, {others} others; {} further names of the same files",
        contents.files, contents.directories, contents.symlinks, contents.further_links
    )?;
    let mean = if contents.files > 0 { totals.size as f64 / contents.files as f64 } else { 0.0 };
    writeln!(
        out,
        "{} in files, {} on the disk; {} a file on average, {} at most; directories take {}",
        bytes(totals.size as f64),
        bytes(totals.capacity as f64),
        bytes(mean),
        bytes(contents.size.max() as f64),
        bytes(contents.directory_capacity as f64)
    )?;
    let seconds = snapshot.took_seconds;
    if seconds > 0.0 {
        writeln!(
            out,
            "walked {} names in {seconds:.2} s: {:.0} per second",
            contents.names,
            contents.names as f64 / seconds
        )?;
    }
    if contents.future > 0 {
        writeln!(out, "{} files have times in the future, which count as today", contents.future)?;
    }
    if snapshot.excluded > 0 {
        writeln!(out, "{} names left out by --exclude, with everything below them", snapshot.excluded)?;
    }
    if snapshot.mounts > 0 {
        let named: Vec<_> = snapshot.mounts_named.iter().map(|path| printable(path)).collect();
        let more = if (named.len() as u64) < snapshot.mounts { ", …" } else { "" };
        writeln!(out, "{} mount points left alone: {}{more}", snapshot.mounts, named.join(", "))?;
    }
    for row in &snapshot.errors {
        let examples: Vec<_> = row.examples.iter().map(|path| printable(path)).collect();
        let more = if (examples.len() as u64) < row.count { ", …" } else { "" };
        let examples = examples.join(", ");
        writeln!(out, "not counted: {} {} {}: {examples}{more}", row.count, row.step.name(), row.error)?;
    }
    for (name, unit, histogram) in contents.histograms() {
        if histogram.sum().count > 0 {
            writeln!(out)?;
            distribution(name, unit, histogram, out)?;
        }
    }
    Ok(())
}

fn distribution(name: &str, unit: Unit, histogram: &Histogram, out: &mut impl Write) -> std::io::Result<()> {
    let (heading, things, of_files) = heading(name);
    let sum = histogram.sum();
    let mut before = Amount::default();
    let mut rows = Vec::new();
    for Bin { from, below, amount } in histogram.bins().filter(|bin| bin.amount.count > 0) {
        before.add(&amount);
        rows.push([
            range(from, below, unit),
            amount.count.to_string(),
            percent(share(amount.count, sum.count)),
            percent(share(before.count, sum.count)),
            bytes(amount.size as f64),
            percent(share(amount.size, sum.size)),
            percent(share(before.size, sum.size)),
            bytes(amount.capacity as f64),
            percent(share(before.capacity, sum.capacity)),
        ]);
    }
    let header = [heading, things, "share", "cumul.", "size", "share", "cumul.", "capacity", "cumul."];
    if of_files {
        return table(out, header.map(str::to_owned), rows);
    }
    let short = |row: [String; 9]| {
        let [range, count, share, cumulative, ..] = row;
        [range, count, share, cumulative]
    };
    table(out, short(header.map(str::to_owned)), rows.into_iter().map(short).collect())
}

/// CSV row of a bin.
#[derive(Serialize)]
struct BinRow {
    histogram: &'static str,
    unit: Unit,
    from: u64,
    below: Option<u64>,
    count: u64,
    count_share: Option<f64>,
    count_cumulative: Option<f64>,
    total: u64,
    total_cumulative: Option<f64>,
    size: u64,
    size_share: Option<f64>,
    size_cumulative: Option<f64>,
    capacity: u64,
    capacity_share: Option<f64>,
    capacity_cumulative: Option<f64>,
}

/// Prints the distributions of a snapshot as CSV, one line per bin.
pub(crate) fn csv(snapshot: &Snapshot, out: &mut impl Write) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (histogram, unit, values) in snapshot.contents.histograms() {
        let sum = values.sum();
        let mut before = Amount::default();
        for Bin { from, below, amount } in values.bins() {
            before.add(&amount);
            rows.push(BinRow {
                histogram,
                unit,
                from,
                below,
                count: amount.count,
                count_share: share(amount.count, sum.count),
                count_cumulative: share(before.count, sum.count),
                total: amount.total,
                total_cumulative: share(before.total, sum.total),
                size: amount.size,
                size_share: share(amount.size, sum.size),
                size_cumulative: share(before.size, sum.size),
                capacity: amount.capacity,
                capacity_share: share(amount.capacity, sum.capacity),
                capacity_cumulative: share(before.capacity, sum.capacity),
            });
        }
    }
    Ok(records(out, Format::Csv, true, rows)?)
}

/// Prints the changes between two snapshots as text.
pub(crate) fn growth(
    [old, new]: [&Snapshot; 2],
    growth: &Growth,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let days = growth.seconds as f64 / 86_400.0;
    writeln!(
        out,
        "{} at {} and {} at {}, {days:.1} days",
        printable(&old.directory),
        old.as_of.strftime("%Y-%m-%d %H:%M"),
        printable(&new.directory),
        new.as_of.strftime("%Y-%m-%d %H:%M")
    )?;
    if old.directory != new.directory || old.cross != new.cross || old.exclude != new.exclude {
        writeln!(out, "the snapshots are of different directories, or were made with different options")?;
    }
    let header = ["", "old", "new", "growth", "", "per day"];
    let rows = growth.totals.iter().map(total).collect();
    table(out, header.map(str::to_owned), rows)?;
    for histogram in &growth.histograms {
        if histogram.bins.is_empty() {
            continue;
        }
        let (heading, things, of_files) = heading(histogram.name);
        writeln!(out)?;
        let points = |shift: &Shift| {
            let below = shift.below.map_or_else(|| "all".to_owned(), |b| bound(b, histogram.unit));
            format!("{:+.2} points below {below}", shift.difference * 100.0)
        };
        let by_count = histogram.shift_count.as_ref().map_or_else(|| "-".to_owned(), points);
        write!(out, "{heading}: shift {by_count} of {things}")?;
        if let Some(shift) = &histogram.shift_size {
            write!(out, ", {} of bytes", points(shift))?;
        }
        writeln!(out)?;
        let header = [heading, things, "then", "now", "size", "then", "now"].map(str::to_owned);
        let difference = |old: u64, new: u64| format!("{:+}", i128::from(new) - i128::from(old));
        let signed = |old: u64, new: u64| {
            let sign = if new < old { '-' } else { '+' };
            format!("{sign}{}", bytes(new.abs_diff(old) as f64))
        };
        let row = |bin: &miot_fs_contents::growth::BinChange| {
            [
                range(bin.from, bin.below, histogram.unit),
                difference(bin.old.count, bin.new.count),
                bin.old.count.to_string(),
                bin.new.count.to_string(),
                signed(bin.old.size, bin.new.size),
                bytes(bin.old.size as f64),
                bytes(bin.new.size as f64),
            ]
        };
        let rows: Vec<_> = histogram.bins.iter().map(row).collect();
        if of_files {
            table(out, header, rows)?;
        } else {
            let short = |row: [String; 7]| {
                let [range, difference, old, new, ..] = row;
                [range, difference, old, new]
            };
            table(out, short(header), rows.into_iter().map(short).collect())?;
        }
    }
    Ok(())
}

fn total(total: &TotalChange) -> [String; 6] {
    let shown = |value: f64| {
        let digits = if value.fract() == 0.0 { 0 } else { 1 };
        if total.unit == Unit::Bytes { bytes(value.abs()) } else { format!("{:.digits$}", value.abs()) }
    };
    let signed = |value: f64| format!("{}{}", if value < 0.0 { '-' } else { '+' }, shown(value));
    [
        total.name.to_owned(),
        shown(total.change.old as f64),
        shown(total.change.new as f64),
        signed(total.change.difference() as f64),
        total.growth.map_or_else(|| "-".to_owned(), |growth| format!("{:+.1}%", growth * 100.0)),
        total.per_day.map_or_else(|| "-".to_owned(), signed),
    ]
}

/// CSV row of a bin of both snapshots.
#[derive(Serialize)]
struct GrowthRow {
    histogram: &'static str,
    unit: Unit,
    from: u64,
    below: Option<u64>,
    old_count: u64,
    new_count: u64,
    old_size: u64,
    new_size: u64,
    old_capacity: u64,
    new_capacity: u64,
}

/// Prints the changes as CSV, one line per bin.
pub(crate) fn growth_csv(growth: &Growth, out: &mut impl Write) -> anyhow::Result<()> {
    let rows = growth.histograms.iter().flat_map(|histogram| {
        histogram.bins.iter().map(|bin| GrowthRow {
            histogram: histogram.name,
            unit: histogram.unit,
            from: bin.from,
            below: bin.below,
            old_count: bin.old.count,
            new_count: bin.new.count,
            old_size: bin.old.size,
            new_size: bin.new.size,
            old_capacity: bin.old.capacity,
            new_capacity: bin.new.capacity,
        })
    });
    Ok(records(out, Format::Csv, true, rows)?)
}
