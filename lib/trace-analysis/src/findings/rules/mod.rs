//! The rules. Each examines a program and returns a match, or `None`.

mod metadata;
mod repeated;
mod sharing;
mod sizes;

pub(super) use sizes::SMALL;

use super::facts::{FileFacts, ProgramFacts};
use super::{Figure, FileEvidence, Finding, NAMED, Rule, Unit};
use crate::programs::Program;
use miot_trace_store::FileNames;
use std::cmp::Reverse;

/// Input of a rule.
#[derive(Clone, Copy)]
struct RuleInput<'a> {
    program: &'a Program,
    facts: &'a ProgramFacts,
    files: &'a [(u64, FileFacts)],
}

/// Match of a rule.
struct RuleMatch {
    rule: Rule,
    what: String,
    because: String,
    advice: &'static str,
    source: &'static str,
    figures: Vec<Figure>,
    members: Vec<u64>,
}

/// Returns all findings of a program.
pub(super) fn judge(
    program: &Program,
    facts: &ProgramFacts,
    files: &[(u64, FileFacts)],
    paths: &FileNames,
) -> Vec<Finding> {
    let case = RuleInput { program, facts, files };
    let rules: [fn(&RuleInput<'_>) -> Option<RuleMatch>; 15] = [
        sizes::small_reads,
        sizes::small_writes,
        sizes::misaligned,
        metadata::storm,
        metadata::seeks,
        metadata::redundant_opens,
        metadata::redundant_stats,
        metadata::many_small_files,
        sharing::one_rank,
        sharing::straggler,
        sharing::independent_shared_io,
        repeated::redundant_reads,
        repeated::read_by_all,
        repeated::overwrites,
        repeated::sync_per_write,
    ];
    rules.into_iter().filter_map(|rule| rule(&case)).map(|found| finding(&case, found, paths)).collect()
}

fn finding(case: &RuleInput<'_>, found: RuleMatch, paths: &FileNames) -> Finding {
    let when = case.facts.when(found.rule);
    let mut files: Vec<(u64, u64)> = case
        .files
        .iter()
        .map(|(file, facts)| (*file, facts.case(found.rule)))
        .filter(|(_, count)| *count > 0)
        .collect();
    files.sort_unstable_by_key(|(file, count)| (Reverse(*count), *file));
    files.truncate(NAMED);
    let named = |(file, value): (u64, u64)| FileEvidence {
        file,
        path: paths.get(file).unwrap_or_default().to_owned(),
        value,
    };
    Finding {
        rule: found.rule,
        program: case.program.clone(),
        what: found.what,
        because: found.because,
        advice: found.advice.to_owned(),
        source: found.source.to_owned(),
        figures: found.figures,
        files: files.into_iter().map(named).collect(),
        members: found.members,
        begin: when.map(|span| span.begin),
        end: when.map(|span| span.end),
    }
}

fn count(name: &'static str, value: u64) -> Figure {
    Figure { name, value: value as f64, unit: Unit::Count }
}

fn bytes(name: &'static str, value: u64) -> Figure {
    Figure { name, value: value as f64, unit: Unit::Bytes }
}

fn time(name: &'static str, value: u64) -> Figure {
    Figure { name, value: value as f64, unit: Unit::Nanoseconds }
}

fn share(name: &'static str, value: f64) -> Figure {
    Figure { name, value, unit: Unit::Share }
}

/// Returns the fraction of a part; 0 if the whole is 0.
fn part(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats bytes with three digits and a unit.
fn amount(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}
