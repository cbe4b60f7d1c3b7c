//! Repetition of phases at other positions or in other files: steps of a computation that write
//! several variables each, checkpoints with separate files.

use super::local::{Key, Pattern, Run, Shape, Tally, When};
use super::merge::{Family, template};
use crate::model::{Numbers, Set};
use std::collections::HashMap;

/// Maximum number of phases of a step that become separate families, each with its phase of every
/// step.
const MOST_PHASES: u64 = 64;

/// Maximum number of families on the same files that are searched for a predecessor.
const LOOKED_AT: usize = 16;

/// Returns the units of a process as runs of repeating units, regardless of units in between.
pub(super) fn found(runs: Vec<Run>) -> Vec<Run> {
    transposed(chained(runs))
}

/// Maximum number of preceding units that are searched for a predecessor.
const LOOKED_BACK: usize = 64;

/// Splits runs of one unit, or of two consecutive ones, and combines their units into runs of at
/// least three evenly spaced units: in a program that writes several variables in each step, the
/// first of each step form a run, the second of each step, and so on.
fn chained(runs: Vec<Run>) -> Vec<Run> {
    let (mut all, mut kinds): (Vec<Run>, HashMap<RunSignature, Vec<Run>>) = (Vec::new(), HashMap::new());
    for run in runs {
        if run.count > 2 || run.times.len() as u64 != run.count {
            all.push(run);
            continue;
        }
        let of_kind = kinds.entry(kind(&run)).or_default();
        of_kind.extend((0..run.count).map(|nth| across(&[&run], nth)));
    }
    all.extend(kinds.into_values().flat_map(chains));
    sort(&mut all);
    all
}

/// Properties that units of one run share.
type RunSignature = Vec<(Key, Shape, u64)>;

fn kind(run: &Run) -> RunSignature {
    let of = |it: &Pattern| (it.key, it.shape.clone(), it.tally.requests / run.count.max(1));
    run.patterns.iter().map(of).collect()
}

/// Returns the begin of a pattern, if it determines where the pattern continues.
fn start(pattern: &Pattern) -> i64 {
    match pattern.shape {
        Shape::Loops(_) | Shape::Scattered(..) => pattern.start,
        Shape::Irregular { .. } | Shape::Unknown => 0,
    }
}

fn sort(runs: &mut [Run]) {
    runs.sort_by_key(|run| run.patterns[0].tally.when.order);
}

/// Combines units of one kind.
fn chains(mut units: Vec<Run>) -> Vec<Run> {
    sort(&mut units);
    let starts: Vec<Vec<i64>> = units.iter().map(|unit| unit.patterns.iter().map(start).collect()).collect();
    // Position of a unit as far from the later of two units as that is from the earlier.
    let next = |earlier: usize, later: usize| -> Option<Vec<i64>> {
        let pairs = starts[earlier].iter().zip(&starts[later]);
        pairs.map(|(a, b)| b.checked_sub(*a)?.checked_add(*b)).collect()
    };
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut expected: HashMap<Vec<i64>, usize> = HashMap::new();
    let mut alone: Vec<usize> = Vec::new();
    for at in 0..units.len() {
        if let Some(chain) = expected.remove(&starts[at]) {
            let before = chains[chain].last().copied();
            chains[chain].push(at);
            expected.extend(before.and_then(|before| next(before, at)).map(|next| (next, chain)));
            continue;
        }
        let recent = &alone[alone.len().saturating_sub(LOOKED_BACK)..];
        let mut pairs = recent.iter().enumerate().rev().filter_map(|(nth, later)| {
            // The previous unit is as far behind the later one as this one is ahead.
            let before = next(at, *later)?;
            recent[..nth].iter().rev().find(|it| starts[**it] == before).map(|earlier| (*earlier, *later))
        });
        match pairs.next() {
            Some((earlier, later)) => {
                alone.retain(|it| ![earlier, later].contains(it));
                expected.extend(next(later, at).map(|next| (next, chains.len())));
                chains.push(vec![earlier, later, at]);
            }
            None => alone.push(at),
        }
    }
    // Two units form a run if no unit of the kind lies between them.
    chains.extend(
        alone.chunk_by(|one, other| one + 1 == *other).flat_map(|row| row.chunks(2)).map(<[usize]>::to_vec),
    );
    chains.iter().map(|chain| across(&chain.iter().map(|at| &units[*at]).collect::<Vec<_>>(), 0)).collect()
}

/// Converts runs at equal distances to runs across them. A step that writes several variables of
/// the same kind is a run; if there are more steps than variables, each variable becomes a run.
fn transposed(runs: Vec<Run>) -> Vec<Run> {
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
    sort(&mut all);
    all
}

/// Returns true if two runs have the same distance as the first two, and are otherwise equal.
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

/// Returns one unit of each of these runs.
fn across(steps: &[&Run], nth: u64) -> Run {
    let first = steps[0];
    let at = i64::try_from(nth).unwrap_or(i64::MAX);
    let when = |step: &Run| step.times.get(nth as usize).copied().unwrap_or_default();
    let tally = |of: usize| {
        let share = |step: &&Run| {
            let Tally { requests, asked, moved, time, sizes, .. } = step.patterns[of].tally;
            // The last one gets the remainder.
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
    let distance = |(pattern, other): (&Pattern, &Pattern)| start(other).saturating_sub(start(pattern));
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

/// Merges phases that access one file after the other in the same way into one family.
pub(super) fn joined(families: Vec<Family>) -> Vec<Family> {
    let mut families = split(families);
    families.sort_by_key(|family| family.times.first().map_or(i64::MAX, |when| when.begin));
    let mut of_files: HashMap<(String, Set), Vec<usize>> = HashMap::new();
    let mut joined: Vec<Family> = Vec::new();
    for family in families {
        let of_same = of_files.entry(files(&family)).or_default();
        let before = of_same.iter().rev().take(LOOKED_AT).find(|at| is_next(&joined[**at], &family));
        if let Some(before) = before.map(|at| &mut joined[*at]) {
            before.phase.file = common_name(&before.phase.file, &family.phase.file);
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

/// Returns the common name of two names that differ only in digits, with `*` for the different
/// ones.
pub(super) fn common_name(one: &str, other: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '*';
    let parts = |name: &str| -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut was_number = None;
        for c in name.chars() {
            match parts.last_mut() {
                Some(last) if was_number == Some(is_number(c)) => last.push(c),
                _ => parts.push(c.to_string()),
            }
            was_number = Some(is_number(c));
        }
        parts
    };
    let (one, other) = (parts(one), parts(other));
    let both = one.iter().zip(&other);
    both.map(|(a, b)| if a == b { a.as_str() } else { "*" }).collect()
}

/// Returns the files of a family without their numbers, and the processes that use them.
fn files(family: &Family) -> (String, Set) {
    (template(&family.phase.file), family.phase.processes.clone())
}

/// Splits families of several phases on one file: every phase becomes a family, so that phases of
/// other files may join it.
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

/// Returns one phase of a family.
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
    // Processes need not wait for each other, but files that are in use at the same time are not a
    // series.
    let half = before.times.last().map(|when| when.begin.midpoint(when.end));
    let begins = family.times.iter().map(|when| when.begin).min();
    family.count == 1
        && (before.count == 1 || before.phase.file_per_phase)
        && before.path != family.path
        && is_alike(before, family)
        && half <= begins
}

#[cfg(test)]
mod tests {
    use super::super::access::{Access, Direction, Pointer};
    use super::super::local::{Key, Local, Request, Run};
    use super::super::pieces::RequestLayout;
    use super::{common_name, found};

    /// Returns the runs of requests of 10 bytes at these offsets, with communication after each.
    fn runs(offsets: impl IntoIterator<Item = i64>) -> Vec<Run> {
        let (mut local, mut capacity) = (Local::default(), usize::MAX);
        for (nth, offset) in offsets.into_iter().enumerate() {
            let access = Access {
                direction: Direction::Write,
                pointer: Pointer::Explicit,
                is_collective: true,
                is_blocking: true,
            };
            let request = Request {
                key: Key { file: 1, access, size: Some(10), etype: 1, layout: RequestLayout::Contiguous },
                offset: Some(offset),
                moved: 10,
                asked: 10,
                begin: nth as i64,
                end: nth as i64 + 1,
                tick: nth as u64,
                epoch: nth as u64,
            };
            local.add(&request, &mut capacity);
            local.close_all(&mut capacity);
        }
        found(local.runs)
    }

    /// Returns the units of each run, its begin, the distance of its units, and their times.
    fn brief(runs: &[Run]) -> Vec<(u64, i64, i64, Vec<u64>)> {
        let of = |run: &Run| {
            let times = run.times.iter().map(|when| when.epoch).collect();
            (run.count, run.patterns[0].start, run.strides[0], times)
        };
        runs.iter().map(of).collect()
    }

    #[test]
    fn each_variable_of_many_steps_is_a_run() {
        let steps = |places: &'static [i64], count: i64| {
            (0..count).flat_map(move |step| places.iter().map(move |it| it + 1000 * step))
        };
        for places in [&[0, 70][..], &[0, 70, 510], &[5, 713, 127, 291, 338]] {
            let variables = places.len() as u64;
            let expected: Vec<_> = (0..variables)
                .map(|nth| {
                    (7, places[nth as usize], 1000, (0..7).map(|step| step * variables + nth).collect())
                })
                .collect();
            let found = runs(steps(places, 7));
            assert_eq!(brief(&found), expected, "{places:?}");
            assert!(found.iter().all(|run| run.patterns[0].tally.moved == 70), "{found:?}");
        }
        // Evenly apart: a step is a run, unless there are more steps than variables.
        let expected: Vec<_> = (0..4)
            .map(|nth| (9, 10 * nth, 1000, (0..9).map(|step| step * 4 + nth as u64).collect()))
            .collect();
        assert_eq!(brief(&runs(steps(&[0, 10, 20, 30], 9))), expected);
        assert_eq!(runs(steps(&[0, 10, 20, 30], 2)).len(), 2);
    }

    #[test]
    fn equal_digits_stay() {
        for (one, other, expected) in [
            ("/run7/data.1", "/run7/data.2", "/run7/data.*"),
            ("/run7/data.*", "/run7/data.12", "/run7/data.*"),
            ("/a/1.2", "/a/1.3", "/a/1.*"),
            ("/a", "/a", "/a"),
        ] {
            assert_eq!(common_name(one, other), expected);
        }
    }

    #[test]
    fn unevenly_spaced_units_stay_unchanged() {
        assert_eq!(brief(&runs([0, 10, 500])), [(2, 0, 10, vec![0, 1]), (1, 500, 0, vec![2])]);
        let all = runs((0..200).map(|i| i * i * i));
        assert_eq!(all.iter().map(|run| run.count).sum::<u64>(), 200);
    }
}
