//! Follows the traces or log-servers of a set, in one order.
//!
//! A thread follows each member. Rows wait until the final times of all members have passed them:
//! then no earlier row can follow, and they are merged. A member that is away no longer holds the
//! others back; when it is back, its rows since its last one follow.

use super::{LastRows, POLL};
use crate::chain;
use crate::filter::{Matcher, nanoseconds};
use crate::remote::{Tls, connect, receive, send};
use crate::{sets, unread};
use arrow_array::RecordBatch;
use arrow_array::types::TimestampNanosecondType;
use miot_proto::wire::{Message, Role};
use miot_trace_events::RowPrinter;
use miot_trace_store::schema::column;
use miot_trace_store::set::{SetState, merge_rows};
use miot_trace_store::{arrow_stream, final_time, follow};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Pause before the next attempt to reach a log-server.
const RETRY: Duration = Duration::from_secs(1);

/// What happened at a member.
enum Event {
    Rows(Vec<RecordBatch>),
    /// All rows before this time have come.
    Final(i64),
    /// Its rows of the past have come.
    Present,
    /// Why it is away.
    Away(String),
    Back,
    Failed(anyhow::Error),
}

/// Rows of a member that wait for the others.
#[derive(Default)]
struct Member {
    name: String,
    rows: Vec<RecordBatch>,
    /// Time up to which all its rows have come; `None` before the first one.
    final_time: Option<i64>,
    is_away: bool,
    is_present: bool,
}

/// Follows directories, after their last `lines` rows.
pub(super) fn directories(
    dirs: &[PathBuf],
    lines: usize,
    matcher: &Matcher,
    printer: &mut RowPrinter<'_>,
) -> anyhow::Result<ExitCode> {
    let state = SetState::examine(dirs)?;
    state.notes().iter().for_each(|note| eprintln!("miot: {note}"));
    let (events, received) = channel();
    let mut members = Vec::new();
    for (number, dir) in state.readable().into_iter().enumerate() {
        members.push(Member { name: dir.display().to_string(), ..Member::default() });
        let (dir, events) = (dir.to_owned(), events.clone());
        std::thread::spawn(move || {
            let send = |event| events.send((number, event)).is_ok();
            if let Err(error) = follow_directory(&dir, &send) {
                send(Event::Failed(error));
            }
        });
    }
    Merge { members, last: Some(LastRows::new(lines)) }.run(&received, matcher, printer)
}

/// Follows log-servers.
pub(super) fn servers(
    addresses: &[String],
    subscribe: &Message,
    tls: &Tls,
    matcher: &Matcher,
    printer: &mut RowPrinter<'_>,
) -> anyhow::Result<ExitCode> {
    let mut found = sets::examine(addresses, tls)?;
    // The order of partitions decides between rows of the same time.
    found.sort_by_key(|member| member.partition);
    let (events, received) = channel();
    let mut members = Vec::new();
    for (number, member) in found.into_iter().enumerate() {
        let is_away = member.missing.is_some();
        members.push(Member { name: member.address.clone(), is_away, is_present: true, ..Member::default() });
        let (tls, subscribe, events) = (tls.clone(), subscribe.clone(), events.clone());
        std::thread::spawn(move || {
            follow_server(&member.address, &tls, subscribe, is_away, (number, &events))
        });
    }
    Merge { members, last: None }.run(&received, matcher, printer)
}

fn follow_directory(dir: &Path, send: &dyn Fn(Event) -> bool) -> anyhow::Result<()> {
    let mut follower = unread::follow(dir, follow::FollowFrom::Start)?;
    let mut is_present = false;
    loop {
        let is_written = final_time::has_writer(dir)?;
        // Before the rows: those that are final then are among these.
        let known = if is_written { final_time::read(dir) } else { None };
        loop {
            let batches = follower.poll()?;
            if batches.is_empty() {
                break;
            }
            if !send(Event::Rows(batches)) {
                return Ok(());
            }
        }
        if !send(Event::Final(known.unwrap_or(i64::MAX))) {
            return Ok(());
        }
        if !std::mem::replace(&mut is_present, true) && !send(Event::Present) {
            return Ok(());
        }
        unread::report_unread();
        std::thread::sleep(POLL);
    }
}

/// Follows a log-server, also after it was away.
fn follow_server(
    address: &str,
    tls: &Tls,
    mut subscribe: Message,
    mut is_away: bool,
    (number, events): (usize, &Sender<(usize, Event)>),
) {
    loop {
        let mut latest = None;
        let followed = connect(address, tls, Role::Tail, None).and_then(|mut stream| {
            send(&mut *stream, &subscribe)?;
            if std::mem::take(&mut is_away) && events.send((number, Event::Back)).is_err() {
                return Ok(());
            }
            loop {
                let event = match receive(&mut *stream)? {
                    Message::Rows { arrow } => {
                        let batches = arrow_stream::read(&arrow)?;
                        latest = batches.iter().filter_map(last_time).max().max(latest);
                        Event::Rows(batches)
                    }
                    Message::Final { time } => Event::Final(time),
                    Message::SubscriptionEnd { reason } => {
                        anyhow::bail!("the log-server ended the stream: {reason}")
                    }
                    _ => continue,
                };
                if events.send((number, event)).is_err() {
                    return Ok(());
                }
            }
        });
        let Err(error) = followed else { return };
        if let (Message::Subscribe { since, .. }, Some(latest)) = (&mut subscribe, latest) {
            *since = Some(latest + 1);
        }
        if !std::mem::replace(&mut is_away, true)
            && events.send((number, Event::Away(chain(&error)))).is_err()
        {
            return;
        }
        std::thread::sleep(RETRY);
    }
}

fn last_time(batch: &RecordBatch) -> Option<i64> {
    column::<TimestampNanosecondType>(batch, "time")?.values().iter().max().copied()
}

struct Merge {
    members: Vec<Member>,
    /// Rows of the past, of which the last ones are printed first.
    last: Option<LastRows>,
}

impl Merge {
    fn run(
        mut self,
        received: &Receiver<(usize, Event)>,
        matcher: &Matcher,
        printer: &mut RowPrinter<'_>,
    ) -> anyhow::Result<ExitCode> {
        while let Ok((number, event)) = received.recv() {
            self.take(number, event)?;
            // Everything that waits is merged together.
            while let Ok((number, event)) = received.try_recv() {
                self.take(number, event)?;
            }
            let merged = merge_rows(self.take_final())?;
            if let Some(last) = &mut self.last {
                merged.into_iter().for_each(|batch| last.push(batch));
                if self.members.iter().all(|member| member.is_present)
                    && let Some(last) = self.last.take()
                {
                    last.print(matcher, printer)?;
                }
                continue;
            }
            for batch in &merged {
                printer.print(batch, u64::MAX, &matcher.rows())?;
            }
            if !merged.is_empty() {
                printer.flush()?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn take(&mut self, number: usize, event: Event) -> anyhow::Result<()> {
        let Some(member) = self.members.get_mut(number) else { return Ok(()) };
        match event {
            Event::Rows(batches) => member.rows.extend(batches),
            Event::Final(time) => member.final_time = member.final_time.max(Some(time)),
            Event::Present => member.is_present = true,
            Event::Away(reason) => {
                eprintln!("miot: {} is away: {reason}; events of its nodes are missing", member.name);
                member.is_away = true;
            }
            Event::Back => {
                eprintln!("miot: {} is back; its events since then follow", member.name);
                (member.is_away, member.final_time) = (false, None);
            }
            Event::Failed(error) => return Err(error.context(member.name.clone())),
        }
        Ok(())
    }

    /// Takes the rows before the least final time, by member.
    fn take_final(&mut self) -> Vec<Vec<RecordBatch>> {
        let present = self.members.iter().filter(|member| !member.is_away);
        let until = present.map(|member| member.final_time.unwrap_or(i64::MIN)).min().unwrap_or(i64::MAX);
        self.members.iter_mut().map(|member| member.take_before(until)).collect()
    }
}

impl Member {
    /// Takes the rows up to the first one at or after `until`.
    fn take_before(&mut self, until: i64) -> Vec<RecordBatch> {
        let mut taken = Vec::new();
        while let Some(first) = self.rows.first() {
            let end = match column::<TimestampNanosecondType>(first, "time") {
                Some(times) => times.values().iter().position(|time| *time >= until),
                None => None,
            };
            match end {
                None => taken.push(self.rows.remove(0)),
                Some(0) => break,
                Some(end) => {
                    let rest = first.slice(end, first.num_rows() - end);
                    taken.push(first.slice(0, end));
                    self.rows[0] = rest;
                    break;
                }
            }
        }
        taken
    }
}

/// The request of a subscriber.
pub(super) fn subscribe(filter: &crate::filter::Filter) -> Message {
    Message::Subscribe {
        layers: filter.layer.clone(),
        ops: filter.op.clone(),
        paths: filter.path.clone(),
        pids: filter.pid.clone(),
        nodes: filter.node.clone(),
        since: filter.since.map(nanoseconds),
    }
}
