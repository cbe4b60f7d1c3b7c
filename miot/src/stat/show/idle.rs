//! Times without I/O.

use super::{AnalysisContext, percent};
use crate::numbers;
use miot_trace_analysis::idle::{Definition, Idle, PERCENT_OF_PEAK, Periods};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{table, time};
use miot_trace_results::show;
use serde::Serialize;
use std::io::Write;

pub(super) fn view(asked: &AnalysisContext<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let idle = show::idle(&asked.input(), asked.interval())?;
    match asked.format() {
        Format::Text => {
            asked.report_missing(out)?;
            idle.definitions.iter().try_for_each(|periods| text(periods, out))?;
            Ok(())
        }
        Format::Json => asked.json(out, &idle),
        Format::Csv => Ok(records(out, Format::Csv, true, rows(&idle))?),
    }
}

/// CSV row of an idle period. Times are nanoseconds.
#[derive(Serialize)]
struct IdleRow {
    definition: Definition,
    at_least: u64,
    periods: u64,
    time: u64,
    share: f64,
}

fn rows(idle: &Idle) -> impl Iterator<Item = IdleRow> {
    idle.definitions.iter().flat_map(|periods| {
        periods.at_least.iter().map(|row| IdleRow {
            definition: periods.definition,
            at_least: row.length,
            periods: row.count,
            time: row.time,
            share: row.share,
        })
    })
}

fn text(periods: &Periods, out: &mut impl Write) -> std::io::Result<()> {
    let step = numbers::time(periods.shortest);
    match (periods.definition, periods.threshold) {
        (Definition::BelowPeak, threshold) => {
            let rate = numbers::bytes(threshold.unwrap_or_default());
            writeln!(
                out,
                "Idle: consecutive intervals of {step} below {PERCENT_OF_PEAK} % of the peak, {rate}/s"
            )?;
        }
        (Definition::NoRequestInInterval, _) => {
            writeln!(out, "Idle: consecutive intervals of {step} without any request under way")?;
        }
        (Definition::NoRequest, _) => {
            writeln!(out, "Idle: no request under way for at least {step}")?;
        }
    }
    let share = periods.idle as f64 / periods.total.max(1) as f64;
    let (idle, total) = (numbers::time(periods.idle), numbers::time(periods.total));
    write!(out, "{} periods, {idle} of {total} ({})", periods.count, percent(share))?;
    if let Some(longest) = periods.longest {
        write!(out, "; the longest {} from {}", numbers::time(longest.length), time(longest.begin))?;
    }
    writeln!(out)?;
    let rows = periods.at_least.iter().map(|row| {
        [numbers::time(row.length), row.count.to_string(), numbers::time(row.time), percent(row.share)]
    });
    if periods.count > 0 {
        table(out, ["at least", "periods", "time", "share of all time"].map(str::to_owned), rows.collect())?;
    }
    writeln!(out)
}
