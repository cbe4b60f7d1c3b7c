//! The log-servers of a set as a reader finds them: identity, and clocks against each other.
//!
//! A reader measures the clocks when it connects. So log-servers need no addresses of each other
//! and no certificates for each other, and the reader knows the error of what it shows.

use crate::chain;
use crate::remote::{Tls, connect, receive, send};
use anyhow::ensure;
use miot_proto::wire::{MemberIdentity, Message, Role};
use miot_trace_events::text::duration;
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// Longest wait for a message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of time requests; the one with the shortest round trip counts.
const TIME_REQUESTS: usize = 8;
/// Difference of clocks above which there is a warning, nanoseconds.
const WARN_NS: i64 = 100_000_000;
/// Difference of clocks above which events are not merged: the order would be meaningless, and the
/// merge would wait as long.
const MAX_NS: i64 = 10_000_000_000;

/// A log-server of a set.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberStatus {
    pub(crate) address: String,
    pub(crate) cluster: Option<String>,
    pub(crate) partition: Option<u16>,
    /// Its clock against that of the first member that answers, nanoseconds.
    pub(crate) clock_offset_ns: Option<i64>,
    /// Maximum error of the offset, nanoseconds.
    pub(crate) clock_error_ns: Option<i64>,
    /// Why it is missing.
    pub(crate) missing: Option<String>,
}

/// Identity of a log-server, and the offset of its clock from the one of this machine.
struct Answer {
    member: Option<MemberIdentity>,
    offset: i64,
    round_trip: i64,
}

/// Asks all log-servers of a set. Those that do not answer are missing members; warnings are
/// printed.
///
/// # Errors
/// Two of them have one partition, different clusters, or clocks that differ by more than 10 s; or
/// none answers.
pub(crate) fn examine(addresses: &[String], tls: &Tls) -> anyhow::Result<Vec<MemberStatus>> {
    let mut answers: Vec<(&String, Answer)> = Vec::new();
    let mut members = Vec::new();
    let mut last = None;
    for address in addresses {
        let mut status = MemberStatus {
            address: address.clone(),
            cluster: None,
            partition: None,
            clock_offset_ns: None,
            clock_error_ns: None,
            missing: None,
        };
        match ask(address, tls) {
            Ok(answer) => {
                for (other, known) in &answers {
                    check(address, &answer, other, known)?;
                }
                let (offset, round_trip) = match answers.first() {
                    Some((_, first)) => (answer.offset - first.offset, answer.round_trip + first.round_trip),
                    None => (0, 0),
                };
                status.cluster = answer.member.as_ref().map(|member| member.cluster.clone());
                status.partition = answer.member.as_ref().map(|member| member.partition);
                (status.clock_offset_ns, status.clock_error_ns) = (Some(offset), Some(round_trip / 2));
                answers.push((address, answer));
            }
            Err(error) => {
                let reason = chain(&error);
                eprintln!("miot: {address} is away: {reason}; events of its nodes are missing");
                (status.missing, last) = (Some(reason), Some(error));
            }
        }
        members.push(status);
    }
    match last {
        Some(error) if answers.is_empty() => Err(error),
        _ => Ok(members),
    }
}

/// Checks that two log-servers can be in one set.
fn check(address: &str, answer: &Answer, other: &str, known: &Answer) -> anyhow::Result<()> {
    ensure!(address != other, "{address} is named twice");
    if let (Some(one), Some(two)) = (&answer.member, &known.member)
        && let Some(conflict) = one.conflict_with(two)
    {
        anyhow::bail!("{address} and {other} cannot be in one set: {conflict}");
    }
    let offset = (answer.offset - known.offset).saturating_abs();
    let error = (answer.round_trip + known.round_trip) / 2;
    let least = offset.saturating_sub(error);
    let (ahead, behind) = if answer.offset > known.offset { (address, other) } else { (other, address) };
    let text = format!(
        "the clock of {ahead} is {} ahead of that of {behind} (± {})",
        duration(offset),
        duration(error)
    );
    ensure!(
        least <= MAX_NS,
        "{text}: their events cannot be merged by time; set the wrong clock (chronyc makestep) and restart the \
         log-server"
    );
    if least > WARN_NS {
        eprintln!("miot: {text}: events of their nodes may be in the wrong order by as much");
    }
    Ok(())
}

/// Asks a log-server for its identity and its time.
fn ask(address: &str, tls: &Tls) -> anyhow::Result<Answer> {
    let mut stream = connect(address, tls, Role::Probe, Some(ANSWER_TIMEOUT))?;
    let mut member = None;
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..TIME_REQUESTS {
        let sent = now();
        send(&mut *stream, &Message::Ping { sent })?;
        loop {
            match receive(&mut *stream)? {
                Message::Member { member: identity } => member = Some(identity),
                Message::Pong { received, answered, .. } => {
                    let back = now();
                    let round_trip = (back - sent) - (answered - received);
                    let offset = (received - sent) / 2 + (answered - back) / 2;
                    let found = (round_trip, offset);
                    best = Some(best.map_or(found, |best| best.min(found)));
                    break;
                }
                _ => {}
            }
        }
    }
    let (round_trip, offset) = best.unwrap_or_default();
    Ok(Answer { member, offset, round_trip })
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
