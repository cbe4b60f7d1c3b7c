//! Periods of data rates.

use super::AnalysisContext;
use crate::numbers;
use miot_trace_analysis::cycles::{Cycles, Rhythm};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{table, time};
use miot_trace_results::show;
use serde::Serialize;
use std::io::Write;

pub(super) fn view(asked: &AnalysisContext<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let cycles = show::cycles(&asked.input())?;
    match asked.format() {
        Format::Text => {
            asked.report_missing(out)?;
            Ok(text(&cycles, asked.most(), out)?)
        }
        Format::Json => asked.json(out, &cycles),
        Format::Csv => Ok(records(out, Format::Csv, true, all(&cycles).flat_map(rows))?),
    }
}

fn all(cycles: &Cycles) -> impl Iterator<Item = &Rhythm> {
    cycles.all.iter().chain(&cycles.processes)
}

/// CSV row of a cycle, or of a process without cycles. Times are nanoseconds.
#[derive(Serialize)]
struct CycleRow {
    process: Option<u64>,
    pid: Option<u32>,
    begin: String,
    end: String,
    bytes: u64,
    sample: u64,
    period: Option<u64>,
    strength: Option<f64>,
    count: Option<u64>,
    bytes_per_cycle: Option<u64>,
}

fn rows(rhythm: &Rhythm) -> Vec<CycleRow> {
    let of = |cycle: Option<&miot_trace_analysis::cycles::Cycle>| CycleRow {
        process: rhythm.process,
        pid: rhythm.pid,
        begin: time(rhythm.begin),
        end: time(rhythm.end),
        bytes: rhythm.bytes,
        sample: rhythm.sample,
        period: cycle.map(|cycle| cycle.period),
        strength: cycle.map(|cycle| cycle.strength),
        count: cycle.map(|cycle| cycle.count),
        bytes_per_cycle: cycle.map(|cycle| cycle.bytes),
    };
    match &rhythm.cycles[..] {
        [] => vec![of(None)],
        cycles => cycles.iter().map(|cycle| of(Some(cycle))).collect(),
    }
}

fn text(cycles: &Cycles, most: usize, out: &mut impl Write) -> std::io::Result<()> {
    if cycles.all.is_none() {
        return writeln!(out, "no data moved");
    }
    let shown = cycles.all.iter().chain(cycles.processes.iter().take(most));
    let lines = shown.flat_map(|rhythm| {
        let who = rhythm.pid.map_or_else(|| "all".to_owned(), |pid| pid.to_string());
        let bytes = numbers::bytes(rhythm.bytes as f64);
        let span = numbers::time(rhythm.end.abs_diff(rhythm.begin));
        let line = |rest: [String; 4]| {
            let [period, strength, count, amount] = rest;
            [who.clone(), bytes.clone(), span.clone(), period, strength, count, amount]
        };
        if rhythm.cycles.is_empty() {
            return vec![line(["none", "-", "-", "-"].map(str::to_owned))];
        }
        let cells = rhythm.cycles.iter().map(|cycle| {
            line([
                numbers::time(cycle.period),
                format!("{:.2}", cycle.strength),
                cycle.count.to_string(),
                numbers::bytes(cycle.bytes as f64),
            ])
        });
        cells.collect()
    });
    let header = ["pid", "bytes", "within", "period", "strength", "times", "bytes each"].map(str::to_owned);
    table(out, header, lines.collect())?;
    let more = cycles.processes.len().saturating_sub(most) as u64;
    if more > 0 {
        writeln!(out, "… and {more} more processes: --top {}, or --format csv", cycles.processes.len())?;
    }
    if cycles.not_examined > 0 {
        writeln!(out, "{} processes that moved less were not examined", cycles.not_examined)?;
    }
    Ok(())
}
