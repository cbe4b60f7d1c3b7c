//! Activity of the log-servers or traces of a set, as one.

use super::ROWS;
use super::live::{HISTORY, Live};
use super::update::{Order, SourceState, Update, UpdateError};
use crate::remote::Tls;
use crate::sets::MemberStatus;
use crate::{sets, unread};
use miot_activity::{Activity, ActivityHistory, ActivitySnapshot, ActivityWindow};
use miot_proto::activity::{ActivityGroup, ActivityRow};
use miot_proto::status::ClusterStatus;
use miot_trace_store::Table;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Interval at which updates of the log-servers are polled.
const POLL: Duration = Duration::from_millis(50);
/// Time without an answer after which a log-server is shown as away.
const PATIENCE: Duration = Duration::from_secs(3);

/// One log-server of a set, polled by a thread.
struct Polled {
    address: String,
    orders: Sender<Order>,
    updates: Receiver<Result<Update, UpdateError>>,
    /// The latest answer; `None` until the first one in the present window.
    latest: Option<Result<Update, UpdateError>>,
    /// Time of the latest answer, of the start, or of the latest order.
    since: Instant,
}

impl Polled {
    /// Polls a log-server until its `Polled` is dropped.
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        member: &MemberStatus,
        tls: &Tls,
        how: (ActivityWindow, Duration),
    ) -> Polled {
        let (orders, ordered) = channel();
        let (updated, updates) = sync_channel(1);
        let live = Live::new(&member.address, tls);
        scope.spawn(move || live.run(&ordered, &updated, how));
        let missing = member.missing.clone().map(|reason| Err(UpdateError { reason, is_over: false }));
        Polled { address: member.address.clone(), orders, updates, latest: missing, since: Instant::now() }
    }

    /// Passes on an order of the user.
    fn order(&mut self, order: Order) {
        // The thread ends only when this `Polled` does.
        let _ = self.orders.send(order);
        if matches!(order, Order::Window(_)) {
            (self.latest, self.since) = (None, Instant::now());
        }
    }

    /// Takes the answer that has arrived, if it is one for this window. Returns false if there is
    /// none.
    fn receive(&mut self, window: ActivityWindow) -> bool {
        match self.updates.try_recv() {
            Ok(Ok(update)) if update.window != window => false,
            Ok(update) => {
                (self.latest, self.since) = (Some(update), Instant::now());
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the latest answer, or why there is none; `None` if it can still come.
    fn state(&self, patience: Duration) -> Option<Result<&Update, String>> {
        let is_late = self.since.elapsed() > patience;
        match &self.latest {
            Some(Err(error)) => Some(Err(format!("{}: {}", self.address, error.reason))),
            _ if is_late => Some(Err(format!("{}: no answer", self.address))),
            latest => latest.as_ref().and_then(|latest| latest.as_ref().ok()).map(Ok),
        }
    }
}

/// Polls the log-servers of a set until a receiver is dropped. Each has a thread, so that one that
/// does not answer delays no other.
pub(super) fn run(
    members: &[MemberStatus],
    tls: &Tls,
    orders: &Receiver<Order>,
    updates: &SyncSender<Result<Update, UpdateError>>,
    (mut window, interval): (ActivityWindow, Duration),
) {
    let patience = PATIENCE.max(2 * interval);
    thread::scope(|scope| {
        let start = |member| Polled::start(scope, member, tls, (window, interval));
        let mut members: Vec<Polled> = members.iter().map(start).collect();
        let mut shown = Instant::now();
        loop {
            match orders.recv_timeout(POLL) {
                Ok(order) => {
                    if let Order::Window(wanted) = order {
                        window = wanted;
                    }
                    members.iter_mut().for_each(|member| member.order(order));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let arrived = members.iter_mut().map(|member| member.receive(window)).filter(|is| *is).count();
            if arrived == 0 && shown.elapsed() < interval {
                continue;
            }
            let states: Option<Vec<_>> = members.iter().map(|member| member.state(patience)).collect();
            let Some(states) = states else { continue };
            shown = Instant::now();
            // A slow screen skips this update and gets the next one.
            if let Err(TrySendError::Disconnected(_)) = updates.try_send(merge(states)) {
                return;
            }
        }
    });
}

/// Returns the sum of the latest updates; an error if no log-server answers.
fn merge(members: Vec<Result<&Update, String>>) -> Result<Update, UpdateError> {
    let mut sum: Option<Update> = None;
    let mut away = Vec::new();
    for member in members {
        match (member, &mut sum) {
            (Ok(update), None) => sum = Some(update.clone()),
            (Ok(update), Some(sum)) => add_update(sum, update.clone()),
            (Err(reason), _) => away.push(reason),
        }
    }
    match sum {
        Some(mut sum) => {
            sort(&mut sum.snapshot);
            Ok(Update { away, ..sum })
        }
        None => Err(UpdateError { reason: away.join("; "), is_over: false }),
    }
}

fn add_update(sum: &mut Update, more: Update) {
    add(&mut sum.snapshot, more.snapshot);
    add_history(&mut sum.history, &more.history);
    if let (SourceState::Live(sum), SourceState::Live(more)) = (&mut sum.state, more.state) {
        add_status(sum, *more);
    }
}

/// Adds a history second by second. The sum ends where the later one ends.
fn add_history(sum: &mut ActivityHistory, more: &ActivityHistory) {
    let end = |history: &ActivityHistory| history.begin + history.requests.len() as i64;
    let begin = end(sum).max(end(more)) - i64::from(HISTORY);
    let add = |one: &[u64], two: &[u64]| {
        let mut values = vec![0; HISTORY as usize];
        for (from, series) in [(sum.begin, one), (more.begin, two)] {
            for (second, value) in (from..).zip(series) {
                if let Some(sum) = usize::try_from(second - begin).ok().and_then(|at| values.get_mut(at)) {
                    *sum += value;
                }
            }
        }
        values
    };
    *sum = ActivityHistory {
        begin,
        step: 1,
        requests: add(&sum.requests, &more.requests),
        bytes_read: add(&sum.bytes_read, &more.bytes_read),
        bytes_written: add(&sum.bytes_written, &more.bytes_written),
        ..ActivityHistory::default()
    };
}

/// Adds what the screen shows of the status. A node that has moved is with both log-servers: it
/// counts where it is connected.
fn add_status(sum: &mut ClusterStatus, more: ClusterStatus) {
    sum.server.merge_lag_ns = sum.server.merge_lag_ns.max(more.server.merge_lag_ns);
    match (&mut sum.server.upload, more.server.upload) {
        (Some(sum), Some(more)) => sum.parts += more.parts,
        (sum @ None, more) => *sum = more,
        (Some(_), None) => {}
    }
    for node in more.nodes {
        match sum.nodes.iter_mut().find(|known| known.node == node.node) {
            Some(known) if node.connected => *known = node,
            Some(_) => {}
            None => sum.nodes.push(node),
        }
    }
}

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
    sort(&mut merged);
    Ok(merged)
}

fn sort(merged: &mut ActivitySnapshot) {
    for group in [&mut merged.nodes, &mut merged.processes, &mut merged.files] {
        group.rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
    }
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
    // Processes and files of two log-servers are different ones, except for those that moved.
    for (group, more) in [(&mut merged.processes, other.processes), (&mut merged.files, other.files)] {
        (group.count, group.others) = (group.count + more.count, group.others + more.others);
        group.rows.extend(more.rows);
    }
    add_by_name(&mut merged.nodes, other.nodes);
    add_by_name(&mut merged.jobs, other.jobs);
    add_by_name(&mut merged.operations, other.operations);
    merged.losses.extend(other.losses);
}

fn add_by_name(group: &mut ActivityGroup, more: ActivityGroup) {
    let mut rows: BTreeMap<String, ActivityRow> =
        group.rows.drain(..).map(|row| (row.name.clone(), row)).collect();
    let mut of_both = 0;
    for row in more.rows {
        let name = row.name.clone();
        of_both += u64::from(rows.contains_key(&name));
        add_row(rows.entry(name.clone()).or_insert(ActivityRow { name, ..ActivityRow::default() }), &row);
    }
    group.rows = rows.into_values().collect();
    group.rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
    group.rows.truncate(ROWS);
    (group.count, group.others) = (group.count + more.count - of_both, group.others + more.others);
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
