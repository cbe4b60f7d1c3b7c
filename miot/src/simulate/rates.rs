//! Bytes over time as a table: of programs and of disks.

use crate::numbers::{bytes, time};
use miot_simulator::Outcome;
use miot_simulator::rates::Point;
use miot_trace_events::text::table;
use std::io::Write;

/// One step of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateStep {
    /// Start of the step, nanoseconds since the start of the simulation.
    from: u64,
    /// Length of the step, nanoseconds.
    long: u64,
    sum: Point,
}

/// Divides the time into at most `most` steps of equal length.
pub(super) fn steps(outcome: &Outcome, most: u32) -> Vec<RateStep> {
    let rates = &outcome.rates;
    let together = rates.points.len().div_ceil(most as usize).max(1);
    let long = rates.interval.saturating_mul(together as u64);
    let chunks = rates.points.chunks(together).enumerate();
    chunks
        .map(|(nth, points)| RateStep {
            from: long.saturating_mul(nth as u64),
            long,
            sum: points.iter().sum(),
        })
        .collect()
}

/// Prints the steps as rates.
pub(super) fn write(steps: &[RateStep], out: &mut impl Write) -> std::io::Result<()> {
    let header = ["from", "read", "written", "disk read", "disk written"].map(str::to_owned);
    let rows = steps.iter().map(|step| {
        let rate = |sum: u64| format!("{}/s", bytes(sum as f64 / (step.long as f64 / 1e9)));
        let Point { read, written, disk_read, disk_written } = step.sum;
        [time(step.from), rate(read), rate(written), rate(disk_read), rate(disk_written)]
    });
    table(out, header, rows.collect())
}

/// Prints the steps as bytes, in CSV.
pub(super) fn csv(steps: &[RateStep], out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(["from", "nanoseconds", "read", "written", "disk_read", "disk_written"])?;
    for RateStep { from, long, sum } in steps {
        let row = [*from, *long, sum.read, sum.written, sum.disk_read, sum.disk_written];
        table.write_record(row.map(|value| value.to_string()))?;
    }
    table.flush()?;
    Ok(())
}
