//! Bytes that are moved repeatedly, and excessive syncs.

use super::super::Rule;
use super::{RuleInput, RuleMatch, amount, bytes, count, part, percent, share, time};

/// Minimum number of bytes. Fewer fit in a cache.
const BYTES: u64 = 1 << 20;
/// Share of the bytes that were moved before. MIOT's choice.
const AGAIN: f64 = 0.25;
/// Share of the bytes that other members had read. MIOT's choice: most.
const BY_OTHERS: f64 = 0.5;
/// Minimum number of these requests, which take milliseconds each. Fewer have no noticeable cost.
const REQUESTS: u64 = 100;
/// Requests that make data durable, for each write. MIOT's choice: every second.
const SYNCS: f64 = 0.5;

pub(super) fn redundant_reads(case: &RuleInput<'_>) -> Option<RuleMatch> {
    moved_again(
        Rule::RedundantReads,
        case.facts.reread,
        case.facts.bytes_read,
        ("read", "that the same process had read before, unchanged"),
        AGAIN,
        "Keep what is needed again in memory, or read in the order in which it is used.",
        "Miller 1990, 5.2 (data read many times)",
    )
}

pub(super) fn read_by_all(case: &RuleInput<'_>) -> Option<RuleMatch> {
    if case.program.members < 2 {
        return None;
    }
    moved_again(
        Rule::ReadByAll,
        case.facts.read_by_others,
        case.facts.bytes_read,
        ("read", "that another member of the program had read before, unchanged"),
        BY_OTHERS,
        "Let one rank read it and broadcast it (MPI_Bcast), or use collective reads.",
        "Carns et al. 2011, V-E (a shared file that all processes read)",
    )
}

pub(super) fn overwrites(case: &RuleInput<'_>) -> Option<RuleMatch> {
    moved_again(
        Rule::Overwrites,
        case.facts.overwritten,
        case.facts.bytes_written,
        ("written", "over bytes that the program itself had written"),
        AGAIN,
        "Write a record when it is final; keep what changes in memory, or in node-local storage.",
        "Carns et al. 2011, IV-B (99.3 % of files are not overwritten); Miller 1990, 6 (write-behind)",
    )
}

fn moved_again(
    rule: Rule,
    again: u64,
    all: u64,
    names: (&str, &str),
    least: f64,
    advice: &'static str,
    source: &'static str,
) -> Option<RuleMatch> {
    let of_all = part(again, all);
    if again < BYTES || of_all < least {
        return None;
    }
    let (done, which) = names;
    Some(RuleMatch {
        rule,
        what: format!("{} of {} {done} are bytes {which}", amount(again), amount(all))
            .replace("bytes over", "over"),
        because: format!(
            "at least {} of it, and at least {}; without MPI-IO, whose views say which bytes",
            percent(least),
            amount(BYTES)
        ),
        advice,
        source,
        figures: vec![bytes("again", again), bytes("all", all), share("share", of_all)],
        members: Vec::new(),
    })
}

pub(super) fn sync_per_write(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let facts = case.facts;
    let each = part(facts.syncs, facts.write_requests);
    if facts.syncs < REQUESTS || each < SYNCS {
        return None;
    }
    Some(RuleMatch {
        rule: Rule::SyncPerWrite,
        what: format!(
            "{} requests to make data durable for {} writes, {} of the I/O time",
            facts.syncs,
            facts.write_requests,
            percent(part(facts.sync_time, facts.io_time()))
        ),
        because: format!("at least {REQUESTS} of fsync and its like, and at least {SYNCS} for each write"),
        advice: "Make data durable once, when a checkpoint or a transaction is complete, or write several records first.",
        source: "Darshan's FSYNCS and FDSYNCS, counted as time of writing",
        figures: vec![
            count("syncs", facts.syncs),
            count("writes", facts.write_requests),
            share("each", each),
            time("time", facts.sync_time),
        ],
        members: Vec::new(),
    })
}
