//! Prints results as tables.

use crate::numbers::{bytes, time};
use miot_simulator::{Outcome, Workload};
use miot_trace_events::text::table;
use miot_trace_results::simulate::SimulationRow;
use miot_trace_results::simulate::parameters::{Point, Vary, is_size, plain};
use serde_json::Value;
use std::io::Write;

pub(super) fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

/// Prints the results of one simulation.
pub(super) fn write(outcome: &Outcome, workload: &Workload, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{} requests of {} processes: {} elapsed, {} computing, {} overhead, {} idle, {} utilized",
        workload.requests(),
        outcome.processes.len(),
        time(outcome.elapsed),
        time(outcome.run()),
        time(outcome.overhead()),
        time(outcome.idle()),
        percent(outcome.utilisation())
    )?;
    if outcome.drained > outcome.elapsed {
        writeln!(out, "the last write was on disk {} later", time(outcome.drained - outcome.elapsed))?;
    }
    writeln!(out)?;
    write_processors(outcome, out)?;
    writeln!(out)?;
    write_processes(outcome, out)?;
    writeln!(out)?;
    write_cache(outcome, out)?;
    let disk = &outcome.disk;
    writeln!(
        out,
        "disks: {} reads ({}), {} writes ({}), busy {}, {} in queues, at most {} in one",
        disk.reads,
        bytes(disk.bytes_read as f64),
        disk.writes,
        bytes(disk.bytes_written as f64),
        time(disk.busy),
        time(disk.queued),
        disk.longest_queue
    )
}

fn write_processors(outcome: &Outcome, out: &mut impl Write) -> std::io::Result<()> {
    let header = ["processor", "computing", "overhead", "idle", "switches", "interrupts"].map(str::to_owned);
    let rows = outcome.processors.iter().enumerate().map(|(nth, processor)| {
        [
            nth.to_string(),
            time(processor.run),
            time(processor.overhead),
            time(processor.idle),
            processor.switches.to_string(),
            processor.interrupts.to_string(),
        ]
    });
    table(out, header, rows.collect())
}

fn write_processes(outcome: &Outcome, out: &mut impl Write) -> std::io::Result<()> {
    let header = [
        "process",
        "started",
        "ended",
        "computing",
        "overhead",
        "ready",
        "blocked",
        "reads",
        "read",
        "writes",
        "written",
        "waits",
        "for room",
    ];
    let rows = outcome.processes.iter().map(|process| {
        [
            process.name.clone(),
            time(process.started),
            time(process.ended),
            time(process.run),
            time(process.overhead),
            time(process.ready),
            time(process.blocked),
            process.reads.to_string(),
            bytes(process.bytes_read as f64),
            process.writes.to_string(),
            bytes(process.bytes_written as f64),
            process.waits.to_string(),
            process.room_waits.to_string(),
        ]
    });
    table(out, header.map(str::to_owned), rows.collect())
}

fn write_cache(outcome: &Outcome, out: &mut impl Write) -> std::io::Result<()> {
    let cache = &outcome.cache;
    if cache.read == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "cache: {} blocks read: {} hits in memory, {} in SSD, {} on their way, {} misses: {} found",
        cache.read,
        cache.memory_hits,
        cache.ssd_hits,
        cache.late_hits,
        cache.misses,
        percent(cache.hit_ratio().unwrap_or(0.0))
    )?;
    if cache.read_ahead > 0 {
        let used = cache.read_ahead_used as f64 / cache.read_ahead as f64;
        writeln!(out, "read-ahead: {} blocks, {} of them used", cache.read_ahead, percent(used))?;
    }
    Ok(())
}

/// Formats a value for a table.
pub(super) fn label(key: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(size) if is_size(key) => miot_proto::units::format_bytes(size),
        _ => plain(value),
    }
}

pub(super) fn labels(vary: &[Vary], point: &Point) -> Vec<String> {
    vary.iter().zip(&point.values).map(|(vary, value)| label(&vary.key, value)).collect()
}

/// Prints the table of several simulations.
pub(super) fn write_sweep(
    vary: &[Vary],
    points: &[Point],
    outcomes: &[Outcome],
    out: &mut impl Write,
) -> std::io::Result<()> {
    let names: Vec<_> = vary.iter().map(|vary| vary.key.as_str()).collect();
    let header =
        ["elapsed", "computing", "overhead", "idle", "utilized", "hits", "disk read", "disk written"];
    let mut lines = vec![[&[names.join(" ")], header.map(str::to_owned).as_slice()].concat()];
    for (point, outcome) in points.iter().zip(outcomes) {
        lines.push(vec![
            labels(vary, point).join(" "),
            time(outcome.elapsed),
            time(outcome.run()),
            time(outcome.overhead()),
            time(outcome.idle()),
            percent(outcome.utilisation()),
            outcome.cache.hit_ratio().map_or_else(|| "-".into(), percent),
            bytes(outcome.disk.bytes_read as f64),
            bytes(outcome.disk.bytes_written as f64),
        ]);
    }
    let fixed = lines.into_iter().map(|line| std::array::from_fn::<String, 9, _>(|nth| line[nth].clone()));
    let mut fixed = fixed.collect::<Vec<_>>();
    let first = fixed.remove(0);
    table(out, first, fixed)
}

/// Prints several simulations as CSV, with a column per parameter.
pub(super) fn csv(vary: &[Vary], rows: &[SimulationRow], out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = csv::Writer::from_writer(out);
    let fixed = [
        "elapsed",
        "computing",
        "overhead",
        "idle",
        "utilization",
        "hit_ratio",
        "disk_reads",
        "disk_bytes_read",
        "disk_writes",
        "disk_bytes_written",
    ];
    table.write_record(vary.iter().map(|vary| vary.key.as_str()).chain(fixed))?;
    for row in rows {
        let ratio = row.hit_ratio.map_or_else(String::new, |ratio| ratio.to_string());
        let fixed = [
            row.elapsed.to_string(),
            row.computing.to_string(),
            row.overhead.to_string(),
            row.idle.to_string(),
            row.utilization.to_string(),
            ratio,
            row.disk_reads.to_string(),
            row.disk_bytes_read.to_string(),
            row.disk_writes.to_string(),
            row.disk_bytes_written.to_string(),
        ];
        table.write_record(row.values.iter().map(plain).chain(fixed))?;
    }
    table.flush()?;
    Ok(())
}
