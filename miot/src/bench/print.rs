//! Results of `miot bench`.

use crate::numbers::bytes;
use miot_trace_events::Format;
use miot_trace_events::text::table;
use miot_workload::coordinator::{NEGLIGIBLE_BARRIER_SHARE, Outcome};
use serde::Serialize;
use std::io::Write;

/// Prints outcomes: JSON and CSV as each outcome arrives, text as one table at the end.
pub(super) struct Printer {
    format: Format,
    rows: Vec<[String; 11]>,
    /// Runs whose B is not negligible.
    waited: Vec<String>,
    /// Runs whose mean is less precise than requested.
    imprecise: Vec<String>,
    header_due: bool,
}

/// CSV row of a repetition.
#[derive(Serialize)]
struct RepetitionRow<'a> {
    name: &'a str,
    pattern: &'a str,
    processes: u64,
    repetition: usize,
    read_bytes: u64,
    written_bytes: u64,
    calls: u64,
    start_seconds: f64,
    access_seconds: f64,
    barrier_seconds: f64,
    aggregate_seconds: f64,
    mib_per_second: f64,
}

impl Printer {
    pub(super) fn new(format: Format) -> Printer {
        Printer { format, rows: Vec::new(), waited: Vec::new(), imprecise: Vec::new(), header_due: true }
    }

    pub(super) fn print(&mut self, out: &mut impl Write, outcome: &Outcome) -> anyhow::Result<()> {
        match self.format {
            Format::Text => self.add(outcome),
            Format::Json => {
                serde_json::to_writer(&mut *out, outcome)?;
                writeln!(out)?;
            }
            Format::Csv => {
                let mut lines = csv::WriterBuilder::new().has_headers(self.header_due).from_writer(&mut *out);
                for (number, one) in outcome.repetitions.iter().enumerate() {
                    lines.serialize(RepetitionRow {
                        name: &outcome.run.name,
                        pattern: outcome.run.pattern.name(),
                        processes: outcome.processes,
                        repetition: number + 1,
                        read_bytes: one.read,
                        written_bytes: one.written,
                        calls: one.calls,
                        start_seconds: one.times.start,
                        access_seconds: one.times.accesses,
                        barrier_seconds: one.times.barrier,
                        aggregate_seconds: one.times.aggregate,
                        mib_per_second: one.bandwidth,
                    })?;
                }
                lines.flush()?;
                self.header_due = false;
            }
        }
        Ok(())
    }

    fn add(&mut self, outcome: &Outcome) {
        let times = |of: fn(&miot_workload::times::Times) -> f64| {
            let sum: f64 = outcome.repetitions.iter().map(|one| of(&one.times)).sum();
            seconds(sum / outcome.repetitions.len() as f64)
        };
        let one = &outcome.repetitions[0];
        let bandwidth = outcome.bandwidth;
        let share = bandwidth.half_width.map(|half| 100.0 * half / bandwidth.mean);
        self.rows.push([
            outcome.run.name.clone(),
            outcome.processes.to_string(),
            bytes(one.read as f64),
            bytes(one.written as f64),
            outcome.repetitions.len().to_string(),
            times(|times| times.start),
            times(|times| times.accesses),
            times(|times| times.barrier),
            format!("{:.1}", bandwidth.mean),
            share.map_or_else(|| "-".to_owned(), |share| format!("±{share:.1} %")),
            format!("{:.1}..{:.1}", bandwidth.least, bandwidth.most),
        ]);
        let name = &outcome.run.name;
        if outcome.barrier_share > NEGLIGIBLE_BARRIER_SHARE {
            self.waited.push(format!("{name} ({:.1} %)", 100.0 * outcome.barrier_share));
        }
        if !outcome.is_precise {
            self.imprecise.push(name.clone());
        }
    }

    pub(super) fn finish(self, out: &mut impl Write) -> anyhow::Result<()> {
        if self.format != Format::Text {
            return Ok(());
        }
        let header =
            ["run", "processes", "read", "written", "times", "S", "T", "B", "MiB/s", "95 %", "from..to"];
        table(out, header.map(str::to_owned), self.rows)?;
        let notes = [
            (
                "B is not negligible, some processes finished well before others; more data helps (--enlarge)",
                self.waited,
            ),
            (
                "the mean is less precise than requested; more data, more repetitions or a quieter machine help",
                self.imprecise,
            ),
        ];
        for (note, runs) in notes.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            writeln!(out, "note: {note}: {}", runs.join(", "))?;
        }
        Ok(())
    }
}

fn seconds(seconds: f64) -> String {
    miot_trace_events::text::duration((seconds * 1e9) as i64)
}
