//! Activity of the log-servers or traces of a set, as one snapshot.

use super::ROWS;
use super::live::Live;
use crate::remote::Tls;
use crate::{sets, unread};
use miot_activity::{Activity, ActivitySnapshot, ActivityWindow};
use miot_proto::activity::{ActivityGroup, ActivityRow};
use miot_trace_store::Table;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the current activity of all log-servers of a set. Those that are away are reported.
pub(super) fn of_servers(
    addresses: &[String],
    tls: &Tls,
    window: ActivityWindow,
) -> anyhow::Result<ActivitySnapshot> {
    let mut merged = ActivitySnapshot { begin: i64::MAX, end: i64::MIN, ..ActivitySnapshot::default() };
    for member in sets::examine(addresses, tls)?.iter().filter(|member| member.missing.is_none()) {
        add(&mut merged, Live::connect(&member.address, tls)?.ask(window)?.snapshot);
    }
    for group in [&mut merged.nodes, &mut merged.processes, &mut merged.files] {
        group.rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
    }
    Ok(merged)
}

/// Returns the activity of the traces of a set, since a time, nanoseconds since 1970.
pub(super) fn of_traces(set: &Path, since: Option<i64>) -> anyhow::Result<Activity> {
    let reader = unread::open(set)?;
    let mut activity = Activity::new();
    for batch in reader.batches(Table::Processes) {
        activity.add(Table::Processes, &batch?);
    }
    for batch in reader.rows()? {
        let batch = batch?;
        let from = since.map_or(0, |since| super::replay::before(&batch, since));
        activity.add_rows(&batch.slice(from, batch.num_rows() - from));
    }
    for batch in reader.batches(Table::Losses) {
        activity.add(Table::Losses, &batch?);
    }
    Ok(activity)
}

/// Adds the snapshot of another log-server.
fn add(merged: &mut ActivitySnapshot, other: ActivitySnapshot) {
    merged.begin = merged.begin.min(other.begin);
    merged.end = merged.end.max(other.end);
    merged.seconds = merged.seconds.max(other.seconds);
    merged.events = merged.events.saturating_add(other.events);
    merged.skipped = merged.skipped.saturating_add(other.skipped);
    merged.filtered = merged.filtered.saturating_add(other.filtered);
    add_row(&mut merged.cluster, &other.cluster);
    // Nodes, processes and files of two log-servers are different ones, except for those that
    // moved.
    for (group, more) in [
        (&mut merged.nodes, other.nodes),
        (&mut merged.processes, other.processes),
        (&mut merged.files, other.files),
    ] {
        (group.count, group.others) = (group.count + more.count, group.others + more.others);
        group.rows.extend(more.rows);
    }
    add_by_name(&mut merged.jobs, other.jobs);
    add_by_name(&mut merged.operations, other.operations);
    merged.losses.extend(other.losses);
}

fn add_by_name(group: &mut ActivityGroup, more: ActivityGroup) {
    let mut rows: BTreeMap<String, ActivityRow> =
        group.rows.drain(..).map(|row| (row.name.clone(), row)).collect();
    for row in more.rows {
        let name = row.name.clone();
        add_row(rows.entry(name.clone()).or_insert(ActivityRow { name, ..ActivityRow::default() }), &row);
    }
    group.rows = rows.into_values().collect();
    group.rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
    group.rows.truncate(ROWS);
    (group.count, group.others) = (group.count.max(more.count), group.others + more.others);
}

/// Adds the figures of a row. Of percentiles the greater one is an upper bound.
fn add_row(row: &mut ActivityRow, more: &ActivityRow) {
    row.requests += more.requests;
    row.failed += more.failed;
    row.bytes_read += more.bytes_read;
    row.bytes_written += more.bytes_written;
    row.time = row.time.saturating_add(more.time);
    row.lost = row.lost.saturating_add(more.lost);
    row.missed += more.missed;
    row.p50 = row.p50.max(more.p50);
    row.p99 = row.p99.max(more.p99);
    row.max = row.max.max(more.max);
}
