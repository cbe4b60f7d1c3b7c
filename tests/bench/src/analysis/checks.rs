//! Whether an analysis has read the whole trace: its figures compared with those of the generator.

use super::synthetic::Written;
use anyhow::{Result, ensure};
use serde_json::Value;

/// Compares the JSON output of an analysis with what was written.
pub(super) type Check = fn(&Value, &Written) -> Result<()>;

/// Minimum number of small reads of a finding.
const SMALL_READS: u64 = 1000;

fn equal(what: &str, found: u64, written: u64) -> Result<()> {
    ensure!(found == written, "{what}: {found} found, {written} written");
    Ok(())
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the sum of fields over the rows of a list.
fn sum(list: &Value, fields: &[&str]) -> u64 {
    let rows = list.as_array().into_iter().flatten();
    rows.flat_map(|row| fields.iter().map(|field| number(row, &format!("/{field}")))).sum()
}

pub(super) fn summary(found: &Value, written: &Written) -> Result<()> {
    equal("events", number(found, "/totals/events"), written.events)?;
    let bytes = number(found, "/totals/bytes_read") + number(found, "/totals/bytes_written");
    equal("bytes", bytes, written.bytes)
}

pub(super) fn counters(found: &Value, written: &Written) -> Result<()> {
    let counted = ["ios", "opens", "closes", "seeks", "stats", "fsyncs", "other_metas", "failed"];
    equal("requests of all rows", sum(&found["rows"], &counted), written.events)
}

pub(super) fn layers(found: &Value, written: &Written) -> Result<()> {
    equal("calls", sum(found, &["calls"]), written.events)
}

pub(super) fn bursts(found: &Value, written: &Written) -> Result<()> {
    equal("bytes", number(found, "/total/bytes"), written.bytes)?;
    equal("time", number(found, "/end") - number(found, "/begin"), written.time())
}

pub(super) fn idle(found: &Value, written: &Written) -> Result<()> {
    equal("examined time", number(found, "/definitions/2/total"), written.time())
}

pub(super) fn cycles(found: &Value, written: &Written) -> Result<()> {
    equal("bytes", number(found, "/all/bytes"), written.bytes)
}

pub(super) fn patterns(found: &Value, written: &Written) -> Result<()> {
    equal("bytes of all programs", sum(&found["programs"], &["bytes"]), written.bytes)
}

pub(super) fn findings(found: &Value, written: &Written) -> Result<()> {
    let all = found["findings"].as_array().into_iter().flatten();
    let mut reads =
        all.filter(|finding| finding["rule"] == "small_reads" && finding["program"]["job"] == "4702");
    let reads =
        reads.next().map_or(0, |finding| finding["figures"][0]["value"].as_f64().unwrap_or(0.0) as u64);
    equal("small reads", reads, if written.random_reads < SMALL_READS { 0 } else { written.random_reads })
}

pub(super) fn report(found: &Value, written: &Written) -> Result<()> {
    summary(&found["summary"], written)?;
    let layers = found["course"]["layers"].as_array().into_iter().flatten();
    let operations = layers.flat_map(|layer| layer["operations"].as_array().into_iter().flatten());
    let operations = operations.flat_map(|interval| interval.as_array().into_iter().flatten());
    equal("operations over time", operations.filter_map(Value::as_u64).sum(), written.events)?;
    bursts(&found["bursts"], written)?;
    idle(&found["idle"], written)?;
    findings(&found["findings"], written)
}
