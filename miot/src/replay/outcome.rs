//! Result of a replay.

use super::target::Prepared;
use crate::numbers::{bytes, time};
use miot_trace_analysis::Missing;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::table;
use miot_workload::replay::{Fidelity, LatenessQuantiles, Pace};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Maximum number of differences shown in the table.
const SHOWN: usize = 20;

#[derive(Serialize)]
pub(super) struct ReplayOutcome {
    pub(super) elapsed_seconds: f64,
    pub(super) recorded_seconds: f64,
    pub(super) processes: usize,
    pub(super) threads: usize,
    #[serde(flatten)]
    pub(super) fidelity: Fidelity,
    /// Lateness of request starts.
    pub(super) late_nanoseconds: Option<LatenessQuantiles>,
    pub(super) made: Prepared,
    pub(super) not_replayed: BTreeMap<String, u64>,
    pub(super) made_otherwise: BTreeMap<String, u64>,
    /// Events missing in the trace.
    pub(super) missing: Missing,
}

/// CSV row of the outcome: only single numbers.
#[derive(Serialize)]
struct OutcomeRow {
    elapsed_seconds: f64,
    recorded_seconds: f64,
    processes: usize,
    threads: usize,
    requests: u64,
    bytes: u64,
    recorded_bytes: u64,
    time: u64,
    recorded_time: u64,
    failed_only_in_trace: u64,
    failed_only_here: u64,
    other_result: u64,
    late_p50: Option<u64>,
    late_p99: Option<u64>,
    late_max: Option<u64>,
    made_bytes: u64,
    not_replayed: u64,
    made_otherwise: u64,
    lost: u64,
    filtered: u64,
}

impl OutcomeRow {
    fn of(outcome: &ReplayOutcome) -> OutcomeRow {
        let (fidelity, late) = (&outcome.fidelity, outcome.late_nanoseconds);
        OutcomeRow {
            elapsed_seconds: outcome.elapsed_seconds,
            recorded_seconds: outcome.recorded_seconds,
            processes: outcome.processes,
            threads: outcome.threads,
            requests: fidelity.requests,
            bytes: fidelity.bytes,
            recorded_bytes: fidelity.recorded_bytes,
            time: fidelity.time,
            recorded_time: fidelity.recorded_time,
            failed_only_in_trace: fidelity.failed_only_in_trace,
            failed_only_here: fidelity.failed_only_here,
            other_result: fidelity.other_result,
            late_p50: late.map(|late| late.p50),
            late_p99: late.map(|late| late.p99),
            late_max: late.map(|late| late.max),
            made_bytes: outcome.made.bytes,
            not_replayed: outcome.not_replayed.values().sum(),
            made_otherwise: outcome.made_otherwise.values().sum(),
            lost: outcome.missing.lost,
            filtered: outcome.missing.filtered,
        }
    }
}

impl ReplayOutcome {
    pub(super) fn write(&self, out: &mut impl Write, format: Format, pace: Pace) -> anyhow::Result<()> {
        match format {
            Format::Text => self.print(out, pace),
            Format::Json => Ok(records(out, format, true, [self])?),
            Format::Csv => Ok(records(out, format, true, [OutcomeRow::of(self)])?),
        }
    }

    fn print(&self, out: &mut impl Write, pace: Pace) -> anyhow::Result<()> {
        let fidelity = &self.fidelity;
        let (here, there) = (self.elapsed_seconds, self.recorded_seconds);
        let percent = |here: f64, there: f64| match there {
            0.0 => "-".to_owned(),
            there => format!("{:+.1} %", (here / there - 1.0) * 100.0),
        };
        let header = ["", "trace", "replay", "difference"].map(str::to_owned);
        let row = |what: &str, recorded: String, replayed: String, difference: String| {
            [what.to_owned(), recorded, replayed, difference]
        };
        let seconds = |value: f64| format!("{value:.3} s");
        let moved = |value: u64| bytes(value as f64);
        let rows = vec![
            row("elapsed", seconds(there), seconds(here), percent(here, there)),
            row(
                "time in requests",
                time(fidelity.recorded_time),
                time(fidelity.time),
                percent(fidelity.time as f64, fidelity.recorded_time as f64),
            ),
            row(
                "bytes moved",
                moved(fidelity.recorded_bytes),
                moved(fidelity.bytes),
                percent(fidelity.bytes as f64, fidelity.recorded_bytes as f64),
            ),
        ];
        table(out, header, rows)?;
        let Prepared { files, directories, bytes: made } = self.made;
        writeln!(
            out,
            "\n{} requests of {} threads in {} processes; made before: {files} files with {}, {directories} directories",
            fidelity.requests,
            self.threads,
            self.processes,
            moved(made)
        )?;
        match self.late_nanoseconds {
            Some(late) => writeln!(
                out,
                "requests began late by {} in the median, {} (90 %), {} (99 %), {} (99.9 %), {} at most",
                time(late.p50),
                time(late.p90),
                time(late.p99),
                time(late.p999),
                time(late.max)
            )?,
            None if pace == Pace::Fast => writeln!(out, "requests began at once")?,
            None => {}
        }
        self.print_differences(out)?;
        let counted = |what: &BTreeMap<String, u64>| {
            what.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join("; ")
        };
        if !self.made_otherwise.is_empty() {
            writeln!(out, "made by another call: {}", counted(&self.made_otherwise))?;
        }
        if !self.not_replayed.is_empty() {
            writeln!(out, "not replayed: {}", counted(&self.not_replayed))?;
        }
        let Missing { lost, filtered } = self.missing;
        if lost > 0 {
            writeln!(
                out,
                "UNCERTAIN: {lost} events are missing in the trace, and in the replay; `miot stat` shows where they were lost"
            )?;
        }
        if filtered > 0 {
            writeln!(
                out,
                "UNCERTAIN: {filtered} requests were left out of the trace by its filter, and are left out here too"
            )?;
        }
        Ok(())
    }

    fn print_differences(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let fidelity = &self.fidelity;
        if fidelity.exchanged > 0 {
            writeln!(
                out,
                "{} pairs of concurrent equal requests completed in the opposite order",
                fidelity.exchanged
            )?;
        }
        if fidelity.differ() == 0 {
            writeln!(out, "results: all as in the trace")?;
            return Ok(());
        }
        writeln!(
            out,
            "results: {} failed here and not in the trace, {} failed in the trace and not here, {} differ otherwise",
            fidelity.failed_only_here, fidelity.failed_only_in_trace, fidelity.other_result
        )?;
        let result =
            |value: i64| miot_proto::errno::name(-value).map_or_else(|| value.to_string(), str::to_owned);
        let header = ["  process", "operation", "path", "trace", "replay"].map(str::to_owned);
        let rows = fidelity.differences.iter().take(SHOWN).map(|one| {
            [
                format!("  {}", one.pid),
                one.operation.clone(),
                one.path.clone(),
                result(one.recorded),
                result(one.replayed),
            ]
        });
        table(out, header, rows.collect())?;
        let more = fidelity.differ().saturating_sub(SHOWN.min(fidelity.differences.len()) as u64);
        if more > 0 {
            writeln!(out, "  and {more} more")?;
        }
        Ok(())
    }
}
