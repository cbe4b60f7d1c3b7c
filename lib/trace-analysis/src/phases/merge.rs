//! Merges the runs of all processes into families of phases.
//!
//! Runs of different processes belong together if they use the same file, or separate files whose
//! names differ only in digits, if they are similar, and if the same number of collective calls of
//! all processes preceded them. They are consumed in step: the phases that all of them have become
//! one family, and the additional phases of some of them become another.

use super::access::Access;
use super::local::{Pattern, Run, When};
use super::operation::{MemberPattern, loops, operation};
use super::pieces::Views;
use super::{Error, Phases, series};
use crate::model::{FORMAT, Measured, Model, Operation, Phase, Set, Sharing, Ticks};
use miot_proto::op::Layer;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Relative difference of sizes and counts up to which patterns are similar.
const TOLERANCE: f64 = 0.2;

/// Maximum number of runs of a process that are searched for a similar one.
const LOOKED_AT: usize = 16;

/// Runs of a participating process.
struct RankRuns {
    rank: u64,
    runs: Vec<Run>,
    is_uncertain: bool,
}

/// A run of a process, some of whose units may already belong to phases.
struct Cursor {
    member: usize,
    run: usize,
    used: u64,
}

/// A family of phases before numbering.
#[derive(Clone)]
pub(super) struct Family {
    pub(super) phase: Phase,
    /// Times of the phases; fewer than `count` if the trace has very many.
    pub(super) times: Vec<When>,
    pub(super) count: u64,
    pub(super) request_seconds: f64,
    /// File of the first process; in a series of files, the last file.
    pub(super) path: String,
}

/// Properties that runs of one family share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RunSignature {
    name: String,
    is_shared: bool,
    operations: Vec<(Access, u8)>,
}

pub(super) fn finish(mut phases: Phases<'_>, layer: Layer) -> Result<Model, Error> {
    let mut reasons = Vec::new();
    let there = present(&phases, layer);
    let local = |process: &super::Process| process.layers.get(&(layer as u8)).is_some_and(|it| it.has_ticks);
    let has_ticks = phases.processes.values().any(local);
    let (members, application) = members(&mut phases, layer, &mut reasons)?;
    let np = phases.world.max(phases.largest).max(members.iter().map(|m| m.rank + 1).max().unwrap_or(0));
    let missing: Set = if phases.has_ranks {
        (0..np).filter(|rank| !there.contains(rank)).collect()
    } else {
        reasons.push("no process has an MPI rank: they are numbered as they started".to_owned());
        Set::default()
    };
    if !missing.is_empty() {
        reasons.push(format!("of {np} ranks, {missing} left no events"));
    }
    let ticks = match (phases.has_communication, has_ticks) {
        (true, _) => Ticks::Communication,
        (false, true) => Ticks::Collective,
        (false, false) => Ticks::Requests,
    };
    let families = series::joined(families(&members, &phases));
    let span = phases.end.saturating_sub(phases.begin).max(1) as f64 / 1e9;
    let phases = number(families, span, ticks);
    Ok(Model {
        format: FORMAT,
        application,
        layer: layer.name().to_owned(),
        processes: np,
        ticks,
        phases: phases
            .into_iter()
            .map(|phase| Phase { uncertain: phase.uncertain || !missing.is_empty(), ..phase })
            .collect(),
        uncertain: reasons,
        measured_seconds: Some(span),
    })
}

/// Returns the ranks with events. If phases consist of MPI-IO, only ranks with MPI-IO count,
/// because all ranks open the files that they share.
fn present(phases: &Phases<'_>, layer: Layer) -> HashSet<u64> {
    let is_there = |id: &u64| {
        layer != Layer::MpiIo || phases.processes.get(id).is_some_and(|process| process.has_mpi_io)
    };
    let ranks = phases.known.iter().filter(|(id, _)| is_there(id)).filter_map(|(_, known)| known.rank);
    ranks.map(u64::from).collect()
}

/// Returns the processes with requests on the layer, by rank, and the command line of the first.
fn members(
    phases: &mut Phases<'_>,
    layer: Layer,
    reasons: &mut Vec<String>,
) -> Result<(Vec<RankRuns>, String), Error> {
    let mut found: Vec<(u64, super::Process)> = std::mem::take(&mut phases.processes).into_iter().collect();
    let known = |id: u64| phases.known.get(&id).cloned().unwrap_or_default();
    found.sort_by_cached_key(|(id, process)| {
        let it = known(*id);
        (it.rank, it.node, it.started, process.pid, *id)
    });
    let is_lossy = |id: u64| phases.lossy.contains(&Some(id)) || phases.lossy.contains(&None);
    let mut members: Vec<(RankRuns, u32)> = Vec::new();
    let (mut lossy, mut interrupted, mut unfinished, mut without_room) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut application = String::new();
    for (id, mut process) in found {
        let rank = known(id).rank.map_or(members.len() as u64, u64::from);
        // A process may have lost all its requests on this layer.
        if is_lossy(id) {
            lossy.push(rank);
        }
        let local = process.layers.remove(&(layer as u8)).filter(|local| !local.runs.is_empty());
        if process.is_interrupted {
            interrupted.push(rank);
        }
        let has_ended = process.open_files == 0;
        if !has_ended {
            unfinished.push(rank);
        }
        let Some(local) = local else { continue };
        without_room += local.rest.map_or(0, |rest| rest.requests);
        if application.is_empty() {
            application = known(id).cmdline;
        }
        let is_uncertain = is_lossy(id) || process.is_interrupted || !has_ended || local.rest.is_some();
        match members.last_mut() {
            // Several programs in the same process, one after the other, as with `exec`.
            Some((last, pid)) if last.rank == rank && *pid == process.pid => {
                last.runs.extend(local.runs);
                last.is_uncertain |= is_uncertain;
            }
            Some((last, pid)) if last.rank == rank => {
                let rank = u32::try_from(rank).unwrap_or(u32::MAX);
                return Err(Error::SameRank { rank, pids: vec![*pid, process.pid] });
            }
            _ => members.push((RankRuns { rank, runs: local.runs, is_uncertain }, process.pid)),
        }
    }
    let list = |ranks: &mut Vec<u64>| {
        ranks.sort_unstable();
        ranks.dedup();
        ranks.iter().copied().collect::<Set>()
    };
    if phases.lossy.contains(&None) {
        reasons.push(
            "events are missing: requests were left out by a filter, or lost by unknown processes".into(),
        );
    } else if !lossy.is_empty() {
        reasons.push(format!("events of processes {} were lost", list(&mut lossy)));
    }
    if !interrupted.is_empty() {
        reasons.push(format!("processes {} died in a request", list(&mut interrupted)));
    }
    if !unfinished.is_empty() {
        reasons.push(format!("processes {} ended with MPI files open", list(&mut unfinished)));
    }
    if without_room > 0 {
        reasons.push(format!(
            "{without_room} requests have so many different patterns that they are not in any phase"
        ));
    }
    let mut members: Vec<RankRuns> = members.into_iter().map(|(member, _)| member).collect();
    for member in &mut members {
        member.runs = series::found(std::mem::take(&mut member.runs));
    }
    Ok((members, application))
}

/// Returns the path with `*` for digits, which may differ between processes or checkpoints.
pub(super) fn template(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '0'..='9' if out.ends_with('*') => {}
            '0'..='9' => out.push('*'),
            c => out.push(c),
        }
    }
    out
}

fn families(members: &[RankRuns], phases: &Phases<'_>) -> Vec<Family> {
    let path = |file: u64| phases.files.get(file).map_or_else(|| format!("file {file}"), str::to_owned);
    let mut families = Vec::new();
    for (kind, mut cursors) in runs_by_signature(members, &path) {
        loop {
            cursors.retain(|of_member| !of_member.is_empty());
            let heads = cursors.iter().enumerate().map(|(i, of_member)| (i, &of_member[0]));
            let Some((seed, _)) = heads.min_by_key(|(_, head)| begin(members, head)) else { break };
            let (chosen, count) = parallel_runs(members, &cursors, seed, &phases.views);
            let parts: Vec<&Cursor> = chosen.iter().map(|(i, at)| &cursors[*i][*at]).collect();
            let mut family = family(members, &parts, count, phases);
            if !kind.is_shared {
                family.phase.sharing = Sharing::Unique;
            }
            family.path = path(members[parts[0].member].runs[parts[0].run].patterns[0].key.file);
            let names: HashSet<String> =
                parts.iter().map(|c| path(members[c.member].runs[c.run].patterns[0].key.file)).collect();
            family.phase.file =
                names.into_iter().reduce(|one, other| series::common_name(&one, &other)).unwrap_or_default();
            families.push(family);
            for (i, at) in chosen {
                cursors[i][at].used += count;
                if unused(members, &cursors[i][at]) == 0 {
                    cursors[i].remove(at);
                }
            }
        }
    }
    families
}

/// Groups the runs of all processes by file and operations, each group by process. A file of one
/// process belongs to the group of its name without numbers.
fn runs_by_signature(
    members: &[RankRuns],
    path: &dyn Fn(u64) -> String,
) -> BTreeMap<RunSignature, Vec<Vec<Cursor>>> {
    let mut users: HashMap<String, (usize, bool)> = HashMap::new();
    for (number, member) in members.iter().enumerate() {
        for file in member.runs.iter().map(|run| run.patterns[0].key.file).collect::<HashSet<_>>() {
            users
                .entry(path(file))
                .and_modify(|(first, is_shared)| *is_shared |= *first != number)
                .or_insert((number, false));
        }
    }
    let mut kinds: BTreeMap<RunSignature, Vec<Vec<Cursor>>> = BTreeMap::new();
    for (number, member) in members.iter().enumerate() {
        for (at, run) in member.runs.iter().enumerate() {
            let name = path(run.patterns[0].key.file);
            let is_shared = users.get(&name).is_some_and(|(_, is_shared)| *is_shared);
            let name = if is_shared { name } else { template(&name) };
            let operations =
                run.patterns.iter().map(|pattern| (pattern.key.access, pattern.key.layout.kind())).collect();
            let cursors = kinds.entry(RunSignature { name, is_shared, operations }).or_default();
            if cursors.last().is_none_or(|last| last[0].member != number) {
                cursors.push(Vec::new());
            }
            if let Some(last) = cursors.last_mut() {
                last.push(Cursor { member: number, run: at, used: 0 });
            }
        }
    }
    kinds
}

/// Chooses the runs that form a family with the first run of process `seed`: at most one run of
/// each process, similar and between the same collective calls. Returns their places, and how many
/// units they have in common.
fn parallel_runs(
    members: &[RankRuns],
    cursors: &[Vec<Cursor>],
    seed: usize,
    views: &Views,
) -> (Vec<(usize, usize)>, u64) {
    let seed = (cursors[seed][0].member, cursors[seed][0].run, cursors[seed][0].used);
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    // Next times of similar runs that have not been reached yet.
    let mut others: Vec<u64> = Vec::new();
    for (i, of_member) in cursors.iter().enumerate() {
        if of_member[0].member == seed.0 {
            chosen.push((i, 0));
            continue;
        }
        let similar = |c: &&Cursor| is_similar(members, seed, c, views);
        let candidates = || of_member.iter().take(LOOKED_AT).enumerate().filter(|(_, c)| similar(c));
        let now = epoch(members, seed, 0);
        let of = |c: &Cursor| epoch(members, (c.member, c.run, c.used), 0);
        match candidates().find(|(_, c)| now.is_none() || of(c).is_none_or(|it| Some(it) == now)) {
            Some((at, _)) => chosen.push((i, at)),
            None => others.extend(candidates().filter_map(|(_, c)| of(c)).filter(|it| Some(*it) > now)),
        }
    }
    let count = chosen.iter().map(|(i, at)| unused(members, &cursors[*i][*at])).min().unwrap_or(1);
    let in_step = |nth: u64| {
        let Some(now) = epoch(members, seed, nth) else { return true };
        let of = |(i, at): &(usize, usize)| {
            let cursor = &cursors[*i][*at];
            epoch(members, (cursor.member, cursor.run, cursor.used), nth)
        };
        chosen.iter().all(|it| of(it).is_none_or(|it| it == now)) && others.iter().all(|it| *it > now)
    };
    let count = (1..count).find(|nth| !in_step(*nth)).unwrap_or(count);
    (chosen, count)
}

/// Returns the number of units of a run that are in no family yet.
fn unused(members: &[RankRuns], cursor: &Cursor) -> u64 {
    members[cursor.member].runs[cursor.run].count - cursor.used
}

/// Returns the time of the next unit of a run, if it is known.
fn when(members: &[RankRuns], member: usize, run: usize, used: u64) -> Option<When> {
    members[member].runs[run].times.get(usize::try_from(used).ok()?).copied()
}

fn begin(members: &[RankRuns], cursor: &Cursor) -> i64 {
    when(members, cursor.member, cursor.run, cursor.used)
        .map_or(members[cursor.member].runs[cursor.run].patterns[0].tally.when.begin, |when| when.begin)
}

/// Returns the number of collective calls of all processes before the unit `nth` after the first
/// unused one of a run; `None` if the times are incomplete.
fn epoch(members: &[RankRuns], (member, run, used): (usize, usize, u64), nth: u64) -> Option<u64> {
    when(members, member, run, used + nth).map(|when| when.epoch)
}

fn near(one: u64, other: u64) -> bool {
    one.abs_diff(other) as f64 <= TOLERANCE * one.max(other) as f64
}

/// Returns true if the units of two runs may belong to the same phase.
fn is_similar(
    members: &[RankRuns],
    (member, run, _): (usize, usize, u64),
    cursor: &Cursor,
    views: &Views,
) -> bool {
    let (one, other) = (&members[member].runs[run], &members[cursor.member].runs[cursor.run]);
    let has_pieces = |it: &Pattern| views.pieces(it.key.layout).is_some();
    let is_same_layout =
        |a: &Pattern, b: &Pattern| a.key.layout == b.key.layout || (has_pieces(a) && has_pieces(b));
    let similar = |a: &Pattern, b: &Pattern| {
        let size = |pattern: &Pattern| pattern.tally.asked / pattern.tally.requests.max(1);
        let is_same_size = a.key.size == b.key.size;
        a.key.etype == b.key.etype
            && is_same_layout(a, b)
            && near(size(a), size(b))
            && near(a.tally.requests / one.count.max(1), b.tally.requests / other.count.max(1))
            && match (loops(a), loops(b)) {
                // The positions at which loops restart may depend on the process.
                (Some(x), Some(y)) => match (x.first(), y.first()) {
                    (Some(x), Some(y)) => !is_same_size || x.stride == y.stride,
                    (x, y) => x.is_none() && y.is_none(),
                },
                _ => a.shape == b.shape,
            }
    };
    one.patterns.len() == other.patterns.len()
        && one.patterns.iter().zip(&other.patterns).all(|(a, b)| similar(a, b))
}

fn family(members: &[RankRuns], parts: &[&Cursor], count: u64, phases: &Phases<'_>) -> Family {
    let run = |cursor: &Cursor| &members[cursor.member].runs[cursor.run];
    let first = run(parts[0]);
    let operations: Vec<Operation> = (0..first.patterns.len())
        .map(|nth| {
            let rows: Vec<MemberPattern<'_>> = parts
                .iter()
                .map(|cursor| {
                    let run = run(cursor);
                    let used = i64::try_from(cursor.used).unwrap_or(i64::MAX);
                    let (pattern, stride) = (&run.patterns[nth], run.strides[nth]);
                    MemberPattern {
                        pattern,
                        repetitions: pattern.tally.requests / run.count.max(1),
                        start: pattern.start.saturating_add(stride.saturating_mul(used)),
                        stride,
                        pieces: phases.views.pieces(pattern.key.layout),
                    }
                })
                .collect();
            operation(&rows)
        })
        .collect();
    let share = |cursor: &Cursor, of_run: u64| of_run as f64 / run(cursor).count as f64;
    let patterns = || parts.iter().flat_map(|cursor| run(cursor).patterns.iter().map(move |p| (cursor, p)));
    let weight = patterns().map(|(c, pattern)| pattern.tally.asked / run(c).count.max(1));
    let weight = weight.fold(0, u64::saturating_add);
    let moved: f64 = patterns().map(|(c, pattern)| share(c, pattern.tally.moved) * count as f64).sum();
    let time: f64 = patterns().map(|(c, pattern)| share(c, pattern.tally.time) * count as f64).sum();
    let mut times: Vec<When> = Vec::new();
    for nth in 0..count {
        let of_all: Option<Vec<When>> =
            parts.iter().map(|c| when(members, c.member, c.run, c.used + nth)).collect();
        let Some(when) = of_all.and_then(|all| all.into_iter().reduce(When::and)) else { break };
        times.push(when);
    }
    if times.is_empty() {
        times.extend(patterns().map(|(_, pattern)| pattern.tally.when).reduce(When::and));
    }
    let request_seconds = time / 1e9 / parts.len() as f64;
    let mut processes: Vec<u64> = parts.iter().map(|cursor| members[cursor.member].rank).collect();
    processes.sort_unstable();
    Family {
        count,
        times,
        request_seconds,
        path: String::new(),
        phase: Phase {
            numbers: Set::default(),
            file: String::new(),
            sharing: Sharing::Shared,
            file_per_phase: false,
            processes: processes.into_iter().collect(),
            weight,
            uncertain: parts.iter().any(|cursor| members[cursor.member].is_uncertain),
            operations,
            measured: Some(Measured { bytes_moved: moved.round() as u64, ..Measured::default() }),
        },
    }
}

/// Numbers the phases in the order in which they began, and computes their durations.
fn number(mut families: Vec<Family>, span: f64, ticks: Ticks) -> Vec<Phase> {
    /// Begin of a group of phases: time, family, and number of phases that begin there.
    struct Begin(i64, i64, usize, u64);
    let mut begins = Vec::new();
    for (at, family) in families.iter().enumerate() {
        let known = family.times.len() as u64;
        for (nth, when) in family.times.iter().enumerate() {
            let rest = if nth as u64 + 1 == known { family.count - known } else { 0 };
            begins.push(Begin(when.begin, when.end, at, 1 + rest));
        }
    }
    begins.sort_by_key(|Begin(begin, end, at, _)| (*begin, *end, *at));
    let mut numbers: Vec<Vec<u64>> = vec![Vec::new(); families.len()];
    let mut pauses = vec![0f64; families.len()];
    let (mut next, mut ended) = (1, begins.first().map_or(0, |begin| begin.0));
    for Begin(begin, end, at, count) in begins {
        numbers[at].extend(next..next + count);
        next += count;
        pauses[at] += begin.saturating_sub(ended).max(0) as f64 / 1e9;
        ended = ended.max(end);
    }
    let seconds = |when: &When| when.end.saturating_sub(when.begin).max(0) as f64 / 1e9;
    for ((family, numbers), pause) in families.iter_mut().zip(numbers).zip(pauses) {
        let known = family.times.len() as f64;
        let all: f64 = family.times.iter().map(seconds).sum::<f64>() * family.count as f64 / known.max(1.0);
        let ticks = |when: &When| if ticks == Ticks::Requests { when.order } else { when.ticks };
        let moved = family.phase.measured.map_or(0, |measured| measured.bytes_moved);
        family.phase.numbers = numbers.into_iter().collect();
        family.phase.measured = Some(Measured {
            seconds: all,
            request_seconds: family.request_seconds,
            pause_seconds: pause / known.max(1.0),
            bytes_per_second: if all > 0.0 { moved as f64 / all } else { 0.0 },
            share: (all / span).min(1.0),
            bytes_moved: moved,
            ticks: (
                family.times.iter().map(|when| ticks(when).0).min().unwrap_or(0),
                family.times.iter().map(|when| ticks(when).1).max().unwrap_or(0),
            ),
        });
    }
    families.into_iter().map(|family| family.phase).collect()
}
