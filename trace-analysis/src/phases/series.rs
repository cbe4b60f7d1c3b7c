//! What a program does again and again to another place, or to another file: steps of a computation that write several
//! variables each, checkpoints with files of their own.

use super::local::{Key, Pattern, Run, Tally, When};
use super::merge::{Family, template};
use crate::model::{Numbers, Set};
use std::collections::HashMap;

/// Phases of a step that become families of their own, each with its phase of every step.
const MOST_PHASES: u64 = 64;

/// Families on the same files that are looked at for one that goes on.
const LOOKED_AT: usize = 16;

/// Runs that are as far apart each time as runs across them: a step that writes so many variables of the same kind is a run of its own, so of
/// more steps than variables each variable is a run.
pub(super) fn transposed(runs: Vec<Run>) -> Vec<Run> {
    let mut kinds: HashMap<(Vec<Key>, Vec<i64>, u64), Vec<usize>> = HashMap::new();
    for (at, run) in runs.iter().enumerate() {
        let is_whole = run.times.len() as u64 == run.count;
        if is_whole && (2..=MOST_PHASES).contains(&run.count) {
            let keys = run.patterns.iter().map(|pattern| pattern.key).collect();
            kinds.entry((keys, run.strides.clone(), run.count)).or_default().push(at);
        }
    }
    let mut made = Vec::new();
    let mut is_used = vec![false; runs.len()];
    let mut kinds: Vec<Vec<usize>> = kinds.into_values().filter(|places| places.len() > 2).collect();
    kinds.sort_unstable();
    for places in kinds {
        let mut rest = places.as_slice();
        while let Some(first) = rest.first() {
            let steps = 1 + rest.windows(2).take_while(|two| follows(&runs, *first, rest[1], two)).count();
            let (these, others) = rest.split_at(steps);
            rest = others;
            if steps as u64 <= runs[*first].count {
                continue;
            }
            these.iter().for_each(|at| is_used[*at] = true);
            let of_steps: Vec<&Run> = these.iter().map(|at| &runs[*at]).collect();
            made.extend((0..runs[*first].count).map(|nth| across(&of_steps, nth)));
        }
    }
    let kept = runs.into_iter().zip(is_used).filter(|(_, is_used)| !is_used).map(|(run, _)| run);
    let mut all: Vec<Run> = kept.chain(made).collect();
    all.sort_by_key(|run| run.patterns[0].tally.when.order);
    all
}

/// True if two runs are as far apart as the first two, and the same otherwise.
fn follows(runs: &[Run], first: usize, second: usize, two: &[usize]) -> bool {
    let pairs = |one: usize, other: usize| runs[one].patterns.iter().zip(&runs[other].patterns);
    let distance = |(one, other): (&Pattern, &Pattern)| other.start.checked_sub(one.start);
    let is_same = |(one, other): (&Pattern, &Pattern)| {
        one.shape == other.shape && one.tally.requests == other.tally.requests
    };
    let (first, now): (Vec<_>, Vec<_>) =
        (pairs(first, second).map(distance).collect(), pairs(two[0], two[1]).map(distance).collect());
    first == now && now.iter().all(Option::is_some) && pairs(two[0], two[1]).all(is_same)
}

/// One unit of each of these runs.
fn across(steps: &[&Run], nth: u64) -> Run {
    let first = steps[0];
    let at = i64::try_from(nth).unwrap_or(i64::MAX);
    let when = |step: &Run| step.times.get(nth as usize).copied().unwrap_or_default();
    let tally = |of: usize| {
        let share = |step: &&Run| {
            let Tally { requests, asked, moved, time, sizes, .. } = step.patterns[of].tally;
            // What does not divide is the last one's.
            let part = |all: u64| {
                let each = all / step.count;
                if nth + 1 == step.count { all - each * (step.count - 1) } else { each }
            };
            let (requests, asked, moved, time) = (part(requests), part(asked), part(moved), part(time));
            Tally { requests, asked, moved, time, sizes, when: when(step) }
        };
        let all = steps.iter().map(share).reduce(|mut all, more| {
            super::nest::Sum::add(&mut all, &more);
            all
        });
        all.unwrap_or(first.patterns[of].tally)
    };
    let pattern = |(of, (pattern, stride)): (usize, (&Pattern, &i64))| Pattern {
        start: pattern.start.saturating_add(stride.saturating_mul(at)),
        tally: tally(of),
        ..pattern.clone()
    };
    let distance = |(pattern, other): (&Pattern, &Pattern)| other.start.saturating_sub(pattern.start);
    Run {
        patterns: first.patterns.iter().zip(&first.strides).enumerate().map(pattern).collect(),
        strides: match steps.get(1) {
            Some(second) => first.patterns.iter().zip(&second.patterns).map(distance).collect(),
            None => vec![0; first.patterns.len()],
        },
        count: steps.len() as u64,
        times: steps.iter().map(|step| when(step)).collect(),
    }
}

/// Makes one family of phases that do the same to one file after the other.
pub(super) fn joined(families: Vec<Family>) -> Vec<Family> {
    let mut families = split(families);
    families.sort_by_key(|family| family.times.first().map_or(i64::MAX, |when| when.begin));
    let mut of_files: HashMap<(String, Set), Vec<usize>> = HashMap::new();
    let mut joined: Vec<Family> = Vec::new();
    for family in families {
        let of_same = of_files.entry(files(&family)).or_default();
        let before = of_same.iter().rev().take(LOOKED_AT).find(|at| is_next(&joined[**at], &family));
        if let Some(before) = before.map(|at| &mut joined[*at]) {
            before.phase.file = template(&family.phase.file);
            before.phase.file_per_phase = true;
            before.path = family.path;
            before.count += family.count;
            before.times.extend(family.times);
            before.request_seconds += family.request_seconds;
            before.phase.uncertain |= family.phase.uncertain;
            if let (Some(sum), Some(more)) = (&mut before.phase.measured, family.phase.measured) {
                sum.bytes_moved = sum.bytes_moved.saturating_add(more.bytes_moved);
            }
            continue;
        }
        of_same.push(joined.len());
        joined.push(family);
    }
    joined
}

/// The files of a family without their numbers, and who uses them.
fn files(family: &Family) -> (String, Set) {
    (template(&family.phase.file), family.phase.processes.clone())
}

/// Families of several phases on a file each: every phase becomes a family, that those of other files may join it.
fn split(families: Vec<Family>) -> Vec<Family> {
    let mut alike: HashMap<(String, Set), Vec<usize>> = HashMap::new();
    for (at, family) in families.iter().enumerate() {
        let is_whole = family.times.len() as u64 == family.count;
        if is_whole && (2..=MOST_PHASES).contains(&family.count) {
            alike.entry(files(family)).or_default().push(at);
        }
    }
    let mut is_split = vec![false; families.len()];
    for places in alike.values() {
        for pair in places.windows(2) {
            let (one, other) = (&families[pair[0]], &families[pair[1]]);
            if one.count == other.count && one.path != other.path && is_alike(one, other) {
                (is_split[pair[0]], is_split[pair[1]]) = (true, true);
            }
        }
    }
    let each = |(family, is_split): (Family, bool)| {
        if is_split { (0..family.count).map(|nth| single(&family, nth)).collect() } else { vec![family] }
    };
    families.into_iter().zip(is_split).flat_map(each).collect()
}

/// One phase of a family.
fn single(family: &Family, nth: u64) -> Family {
    let mut one = family.clone();
    let processes = family.phase.processes.len();
    for operation in &mut one.phase.operations {
        let moved = |place| {
            let distance = operation.offset_per_phase.at(place);
            let distance = distance.saturating_mul(i64::try_from(nth).unwrap_or(i64::MAX));
            operation.offset.at(place).saturating_add(distance)
        };
        operation.offset = Numbers::of(&(0..processes).map(moved).collect::<Vec<_>>());
        operation.offset_per_phase = Numbers::default();
    }
    let whens: Vec<When> = family.times.get(nth as usize).copied().into_iter().collect();
    (one.times, one.count) = (whens, 1);
    one.request_seconds /= family.count as f64;
    if let Some(measured) = &mut one.phase.measured {
        let each = measured.bytes_moved / family.count;
        let is_last = nth + 1 == family.count;
        measured.bytes_moved = if is_last { measured.bytes_moved - each * nth } else { each };
    }
    one
}

fn is_alike(one: &Family, other: &Family) -> bool {
    one.phase.sharing == other.phase.sharing
        && one.phase.weight == other.phase.weight
        && one.phase.operations == other.phase.operations
}

fn is_next(before: &Family, family: &Family) -> bool {
    // Processes need not wait for each other; but files that are in use at once are no series.
    let half = before.times.last().map(|when| when.begin.midpoint(when.end));
    let begins = family.times.iter().map(|when| when.begin).min();
    family.count == 1
        && (before.count == 1 || before.phase.file_per_phase)
        && before.path != family.path
        && is_alike(before, family)
        && half <= begins
}
