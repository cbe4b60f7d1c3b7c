//! Sizes and alignment of requests.

use super::super::facts::Sizes;
use super::super::{Rule, Unit};
use super::{Figure, RuleInput, RuleMatch, amount, bytes, count, part, percent, share, time};

/// Maximum size of a small request: the writes of 64 KiB of the Climate project "are not efficient"
/// (Carns et al., V-D).
pub(in super::super) const SMALL: u64 = 64 << 10;
/// Minimum number of requests. Fewer have no noticeable cost: a second at a millisecond each.
const REQUESTS: u64 = 1000;
/// Share of the requests. MIOT's choice: most.
const MOST: f64 = 0.5;
/// Share of the time of all requests in that direction, so that a log beside large data is not a
/// finding. MIOT's choice.
const TIME: f64 = 0.1;

pub(super) fn small_reads(case: &RuleInput<'_>) -> Option<RuleMatch> {
    small(Rule::SmallReads, "reads", &case.facts.reads)
}

pub(super) fn small_writes(case: &RuleInput<'_>) -> Option<RuleMatch> {
    small(Rule::SmallWrites, "writes", &case.facts.writes)
}

fn small(rule: Rule, name: &str, sizes: &Sizes) -> Option<RuleMatch> {
    let (of_requests, of_time) = (part(sizes.small, sizes.requests), part(sizes.small_time, sizes.time));
    if sizes.small < REQUESTS || of_requests < MOST || of_time < TIME {
        return None;
    }
    let mean = sizes.small_bytes as f64 / sizes.small as f64;
    Some(RuleMatch {
        rule,
        what: format!(
            "{} of {} {name} moved at most {}, {} on average, in {} of the time of all {name}",
            sizes.small,
            sizes.requests,
            amount(SMALL),
            amount(mean as u64),
            percent(of_time)
        ),
        because: format!(
            "at least {REQUESTS} {name} of at most {}, which are at least {} of all and take at least {} of their time; \
             without those that the C library buffers and collective ones",
            amount(SMALL),
            percent(MOST),
            percent(TIME)
        ),
        advice: "Move more bytes in a request: collect records in a buffer of some MiB, use stdio with a large buffer \
                 (setvbuf), or collective MPI-IO.",
        source: "Carns et al. 2011, V-D, V-E, V-F, V-J",
        figures: vec![
            count("small", sizes.small),
            count("requests", sizes.requests),
            share("share", of_requests),
            bytes("bytes", sizes.small_bytes),
            time("time", sizes.small_time),
            Figure { name: "mean", value: mean, unit: Unit::Bytes },
        ],
        members: Vec::new(),
    })
}

pub(super) fn misaligned(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let (all, misaligned) = (case.facts.blocks, case.facts.misaligned);
    let of_all = part(misaligned, all);
    if misaligned < REQUESTS || of_all < MOST {
        return None;
    }
    let block = amount(case.facts.block);
    Some(RuleMatch {
        rule: Rule::Misaligned,
        what: format!("{misaligned} of {all} requests of at least a block of {block} begin within a block"),
        because: format!(
            "at least {REQUESTS} such requests, which are at least {} of all that large",
            percent(MOST)
        ),
        advice: "Let records begin at multiples of the file system's block size, and pad headers to it: a request that \
                 begins within a block is read, changed and written back, or takes a lock that a neighbour needs.",
        source: "Carns et al. 2011, table V (aligned), V-H; Darshan's FILE_NOT_ALIGNED",
        figures: vec![
            count("misaligned", misaligned),
            count("requests", all),
            share("share", of_all),
            bytes("block", case.facts.block),
        ],
        members: Vec::new(),
    })
}
