//! Distribution of I/O over the ranks of a program.

use super::super::Rule;
use super::sizes::SMALL;
use super::{RuleInput, RuleMatch, amount, bytes, count, part, percent, share, time};
use crate::patterns::ONE_MEMBER;

/// Minimum number of bytes. One rank can move fewer for all ranks without a noticeable cost.
const BYTES: u64 = 1 << 20;
/// Minimum number of ranks for a comparison of the slowest with the median.
const RANKS: usize = 4;
/// Time of the slowest rank relative to the median. MIOT's choice: a run that waits for this rank
/// could do its I/O in half the time.
const SLOWER: f64 = 2.0;
/// Minimum excess time, as a share of the time between the program's first and last request. MIOT's
/// choice.
const OF_RUN: f64 = 0.05;
/// Minimum excess time: 100 ms, which a process may lose to others on its node.
const LONGER: u64 = 100_000_000;
/// Minimum number of requests. Fewer have no noticeable cost: a second at a millisecond each.
const REQUESTS: u64 = 1000;
/// Share of the MPI-IO requests. MIOT's choice: most.
const MOST: f64 = 0.5;

pub(super) fn one_rank(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let members = case.program.members;
    let all = case.facts.bytes_read.saturating_add(case.facts.bytes_written);
    let (rank, of) =
        case.facts.members.iter().max_by_key(|(rank, of)| (of.bytes, std::cmp::Reverse(**rank)))?;
    let of_all = part(of.bytes, all);
    if !case.program.ranks || members < 2 || all < BYTES || of_all < ONE_MEMBER {
        return None;
    }
    Some(RuleMatch {
        rule: Rule::OneRank,
        what: format!("rank {rank} of {members} moved {} of {}", percent(of_all), amount(all)),
        because: format!(
            "at least {} of at least {} by one rank of several",
            percent(ONE_MEMBER),
            amount(BYTES)
        ),
        advice: "Let all ranks do their part with collective MPI-IO (or a library above it): one rank has the bandwidth of \
                 one node, and the others wait. If the I/O is a small part of the run time, leave it.",
        source: "Carns et al. 2011, V-B, V-E, V-H",
        figures: vec![
            bytes("bytes", all),
            bytes("of_rank", of.bytes),
            share("share", of_all),
            count("ranks", members),
        ],
        members: vec![*rank],
    })
}

pub(super) fn straggler(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let mut times: Vec<(u64, u64)> = case.facts.members.iter().map(|(rank, of)| (of.time, *rank)).collect();
    times.sort_unstable();
    let (slowest, rank) = *times.last()?;
    let median = times[times.len() / 2].0;
    let run = case.facts.span.map_or(0, |span| span.end.abs_diff(span.begin));
    let longer = slowest - median;
    let is_slow = slowest as f64 >= SLOWER * median as f64;
    // If most ranks are idle, another rule matches.
    if !case.program.ranks || times.len() < RANKS || median == 0 || !is_slow {
        return None;
    }
    if longer < LONGER || part(longer, run) < OF_RUN {
        return None;
    }
    let moved = |rank: u64| case.facts.members.get(&rank).map_or(0, |of| of.bytes);
    let (own, of_median) = (moved(rank), moved(times[times.len() / 2].1));
    Some(RuleMatch {
        rule: Rule::Straggler,
        what: format!(
            "rank {rank} spends {:.3} s in I/O, the median rank {:.3} s; they moved {} and {}",
            slowest as f64 / 1e9,
            median as f64 / 1e9,
            amount(own),
            amount(of_median)
        ),
        because: format!(
            "the slowest of at least {RANKS} ranks takes at least {SLOWER} times as long as the median, and that is at \
             least {} of the run and 100 ms longer",
            percent(OF_RUN)
        ),
        advice: "If it moved more than the others, divide the data evenly; if not, look at its node, at the servers that \
                 hold its files, and at who else used them then.",
        source: "Carns et al. 2011, VIII (I/O imbalance); Darshan's slowest rank",
        figures: vec![
            time("slowest", slowest),
            time("median", median),
            time("run", run),
            bytes("of_slowest", own),
            bytes("of_median", of_median),
        ],
        members: vec![rank],
    })
}

pub(super) fn independent_shared_io(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let shared = case.files.iter().filter(|(_, facts)| facts.is_shared);
    let requests = shared.map(|(_, facts)| facts.case(Rule::IndependentSharedIo)).sum::<u64>();
    let of_all = part(requests, case.facts.mpi_requests);
    if requests < REQUESTS || of_all < MOST {
        return None;
    }
    Some(RuleMatch {
        rule: Rule::IndependentSharedIo,
        what: format!(
            "{requests} of {} MPI-IO requests move at most {} of a shared file each, and are not collective",
            case.facts.mpi_requests,
            amount(SMALL)
        ),
        because: format!(
            "at least {REQUESTS} such requests, and at least {} of all MPI-IO requests",
            percent(MOST)
        ),
        advice: "Use the collective calls (MPI_File_write_at_all, with a file view): aggregators then make few large, \
                 aligned requests of them.",
        source: "Carns et al. 2011, V-I, V-J, VI (collective calls: 41 times faster)",
        figures: vec![
            count("requests", requests),
            count("mpi_requests", case.facts.mpi_requests),
            share("share", of_all),
        ],
        members: Vec::new(),
    })
}
