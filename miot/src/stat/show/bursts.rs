//! Throughput over time.

use super::{AnalysisContext, percent};
use crate::numbers;
use miot_trace_analysis::bursts::{Bursts, FRACTIONS, QUANTILES, Throughput};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{table, time};
use miot_trace_results::show;
use serde::Serialize;
use std::io::Write;

pub(super) fn view(asked: &AnalysisContext<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let bursts = show::bursts(&asked.input(), asked.interval())?;
    match asked.format() {
        Format::Text => {
            asked.report_missing(out)?;
            Ok(text(&bursts, out)?)
        }
        Format::Json => asked.json(out, &bursts),
        Format::Csv => Ok(records(out, Format::Csv, true, bursts.series.iter().map(row))?),
    }
}

/// CSV row of an interval.
#[derive(Serialize)]
struct BurstRow {
    time: String,
    read: u64,
    written: u64,
    requests: u64,
}

fn row(interval: &miot_trace_analysis::bursts::Interval) -> BurstRow {
    let miot_trace_analysis::bursts::Interval { begin, read, written, requests } = *interval;
    BurstRow { time: time(begin), read, written, requests }
}

fn text(bursts: &Bursts, out: &mut impl Write) -> std::io::Result<()> {
    if bursts.intervals == 0 {
        return writeln!(out, "no requests");
    }
    writeln!(
        out,
        "{} intervals of {}, {} of them with requests, {} with bytes moved; bytes spread evenly over each request",
        bursts.intervals,
        numbers::time(bursts.interval),
        bursts.series.len(),
        bursts.total.active,
    )?;
    if bursts.interval != bursts.asked {
        let asked = numbers::time(bursts.asked);
        writeln!(out, "intervals of {asked} would be too many: they were joined")?;
    }
    let columns = [&bursts.total, &bursts.read, &bursts.written];
    let line = |name: &str, value: &dyn Fn(&Throughput) -> String| {
        let [total, read, written] = columns.map(value);
        [name.to_owned(), total, read, written]
    };
    let rate = |rate: f64| format!("{}/s", numbers::bytes(rate));
    let mut lines = vec![
        line("bytes", &|of| numbers::bytes(of.bytes as f64)),
        line("mean", &|of| rate(of.mean)),
        line("peak", &|of| rate(of.peak)),
        line("peak at", &|of| of.peak_at.map_or_else(|| "-".into(), time)),
    ];
    for (i, share) in QUANTILES.iter().enumerate() {
        lines
            .push(line(&format!("{:.0} % of time at most", share * 100.0), &|of| rate(of.quantiles[i].rate)));
    }
    for (i, fraction) in FRACTIONS.iter().enumerate() {
        lines.push(line(&format!("time below {:.0} % of peak", fraction * 100.0), &|of| {
            // Fractions of zero bytes are undefined.
            if of.bytes == 0 { "-".into() } else { percent(of.below[i].share) }
        }));
    }
    writeln!(out)?;
    table(out, ["", "all", "read", "written"].map(str::to_owned), lines)
}
