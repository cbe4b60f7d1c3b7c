//! Requests that move no data.

use super::super::Rule;
use super::{RuleInput, RuleMatch, amount, bytes, count, part, percent, share, time};

/// Minimum number of metadata requests, or of files. Fewer have no noticeable cost: a second at a
/// millisecond each.
const REQUESTS: u64 = 1000;
/// Share of the I/O time. The programs of Carns et al. that did not scale spent 35 % to 99 % of it
/// in metadata requests (V-D, V-G), EarthScience more than half (V-A).
const TIME: f64 = 0.5;
/// Seeks for each read or write: "the application performed a seek for every read/write operation"
/// (V-D). Half of them is MIOT's choice.
const SEEKS: f64 = 0.5;
/// Minimum number of seeks, opens or stats. Fewer have no noticeable cost: starting an interpreter
/// makes some hundred.
const HABIT: u64 = 1000;
/// Share of the opens, or stats, that repeat an earlier one. MIOT's choice: most.
const REPEATED: f64 = 0.5;
/// Size below which a file is small: 86 % of the files of Intrepid were (Carns et al., IV-A).
const SMALL_FILE: u64 = 1 << 20;
/// Share of small files. MIOT's choice.
const SMALL_FILES: f64 = 0.9;

pub(super) fn storm(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let facts = case.facts;
    let (all, metadata) = (facts.io_time(), facts.metadata_time);
    let of_time = part(metadata, all);
    if facts.metadata_requests < REQUESTS || of_time < TIME {
        return None;
    }
    let span = facts.when(Rule::MetadataStorm).map_or(0, |span| span.end.abs_diff(span.begin));
    let rate = if span == 0 { 0.0 } else { facts.metadata_requests as f64 / (span as f64 / 1e9) };
    Some(RuleMatch {
        rule: Rule::MetadataStorm,
        what: format!(
            "{} metadata requests take {} of the I/O time of {:.3} s, beside {} that move data; {rate:.0} a second",
            facts.metadata_requests,
            percent(of_time),
            all as f64 / 1e9,
            facts.data_requests
        ),
        because: format!(
            "at least {REQUESTS} metadata requests, and at least {} of the I/O time in them",
            percent(TIME)
        ),
        advice: "Use fewer and larger files (one shared file, or a container such as HDF5 or NetCDF), keep files open, and \
                 let one process look a name up for all.",
        source: "Carns et al. 2011, V-A, V-D, V-G, VI",
        figures: vec![
            count("metadata_requests", facts.metadata_requests),
            count("data_requests", facts.data_requests),
            time("metadata_time", metadata),
            time("io_time", all),
            share("share", of_time),
        ],
        members: Vec::new(),
    })
}

pub(super) fn seeks(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let facts = case.facts;
    let each = part(facts.seeks, facts.data_requests);
    if facts.seeks < HABIT || facts.data_requests > 0 && each < SEEKS {
        return None;
    }
    Some(RuleMatch {
        rule: Rule::Seeks,
        what: format!("{} seeks for {} reads and writes", facts.seeks, facts.data_requests),
        because: format!("at least {HABIT} seeks, and at least {SEEKS} for each request that moves data"),
        advice: "Use pread and pwrite (MPI_File_read_at, write_at), which take the offset with them; where seeks are \
                 forwarded to an I/O node each costs a round trip.",
        source: "Carns et al. 2011, V-D",
        figures: vec![
            count("seeks", facts.seeks),
            count("data_requests", facts.data_requests),
            share("each", each),
        ],
        members: Vec::new(),
    })
}

pub(super) fn redundant_opens(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let (all, again) = (case.facts.opens, case.facts.redundant_opens);
    repeated(
        Rule::RedundantOpens,
        ("opened", "opens"),
        all,
        again,
        "Keep a file open while it is needed, and hand the handle on instead of the name.",
    )
}

pub(super) fn redundant_stats(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let (all, again) = (case.facts.stats, case.facts.redundant_stats);
    repeated(
        Rule::RedundantStats,
        ("asked about", "stats"),
        all,
        again,
        "Ask once and remember the answer; of an open file fstat costs less than stat; instead of asking whether a file is \
         there, open it.",
    )
}

fn repeated(
    rule: Rule,
    names: (&str, &str),
    all: u64,
    again: u64,
    advice: &'static str,
) -> Option<RuleMatch> {
    let of_all = part(again, all);
    if again < HABIT || of_all < REPEATED {
        return None;
    }
    let (done, name) = names;
    Some(RuleMatch {
        rule,
        what: format!("{again} of {all} {name} are of files that the same process had {done} before"),
        because: format!("at least {HABIT} such {name}, and at least {} of all", percent(REPEATED)),
        advice,
        source: "Carns et al. 2011, V-A, V-G (cost of metadata)",
        figures: vec![count("again", again), count("all", all), share("share", of_all)],
        members: Vec::new(),
    })
}

pub(super) fn many_small_files(case: &RuleInput<'_>) -> Option<RuleMatch> {
    let with_data = || case.files.iter().filter(|(_, facts)| facts.bytes > 0);
    let files = with_data().count() as u64;
    let small = || with_data().filter(|(_, facts)| facts.bytes < SMALL_FILE);
    let of_files = part(small().count() as u64, files);
    if files < REQUESTS || of_files < SMALL_FILES {
        return None;
    }
    let moved = small().map(|(_, facts)| facts.bytes).fold(0, u64::saturating_add);
    let mean = moved / (small().count() as u64).max(1);
    Some(RuleMatch {
        rule: Rule::ManySmallFiles,
        what: format!(
            "{} of {files} files have moved less than {}, {} on average",
            small().count(),
            amount(SMALL_FILE),
            amount(mean)
        ),
        because: format!(
            "at least {REQUESTS} files with data, of which at least {} moved less than {}",
            percent(SMALL_FILES),
            amount(SMALL_FILE)
        ),
        advice: "Put many records into one file (a container, an archive, a shared file): a file that small costs more in \
                 opening and closing it than in its data.",
        source: "Carns et al. 2011, IV-A, V-A (20 TiB in files of 109 KiB)",
        figures: vec![
            count("files", files),
            count("small", small().count() as u64),
            share("share", of_files),
            bytes("bytes", moved),
            bytes("mean", mean),
        ],
        members: Vec::new(),
    })
}
