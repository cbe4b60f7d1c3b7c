//! From the runs of all processes to families of phases.
//!
//! Runs of different processes on the same file, or each on a file of its own whose name differs in digits only, belong
//! together if they are similar and if as many collective calls of all processes came before them. They are taken in step: as
//! many phases as all of them have become one family, and what some have more becomes another.

use super::access::Access;
use super::local::{Pattern, Run, Shape, When};
use super::nest::{Loop, Nest};
use super::{Error, Phases, View};
use crate::model::{FORMAT, Measured, Mode, Model, Numbers, Operation, Phase, Set, Sharing, Space, Ticks};
use miot_proto::op::Layer;
use miot_trace_store::FileNames;
use std::collections::{BTreeMap, HashMap, HashSet};

/// By how much sizes and counts of similar patterns may differ.
const TOLERANCE: f64 = 0.2;

/// Places where the loops of a process begin again that are listed.
const MOST_RESTARTS: usize = 1 << 13;

/// Runs of a process that are looked at for one that is similar.
const LOOKED_AT: usize = 16;

/// A process that takes part.
struct Member {
    rank: u64,
    runs: Vec<Run>,
    is_uncertain: bool,
}

/// A run of a process of which some units may belong to phases already.
struct Cursor {
    member: usize,
    run: usize,
    used: u64,
}

/// Phases that are the same, before they have numbers.
struct Family {
    phase: Phase,
    /// When each phase was; fewer than there are if the trace has very many.
    times: Vec<When>,
    count: u64,
    request_seconds: f64,
}

/// What runs that may belong together have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    name: String,
    is_shared: bool,
    operations: Vec<(Access, bool)>,
}

pub(super) fn finish(mut phases: Phases, layer: Layer, files: &FileNames) -> Result<Model, Error> {
    let mut reasons = Vec::new();
    let there = present(&phases, layer);
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
    let has_communication = phases.has_communication;
    let mut families = families(&members, &phases, files);
    join(&mut families);
    let span = phases.end.saturating_sub(phases.begin).max(1) as f64 / 1e9;
    let phases = number(families, span, has_communication);
    Ok(Model {
        format: FORMAT,
        application,
        layer: layer.name().to_owned(),
        processes: np,
        ticks: if has_communication { Ticks::Communication } else { Ticks::Requests },
        phases: phases
            .into_iter()
            .map(|phase| Phase { uncertain: phase.uncertain || !missing.is_empty(), ..phase })
            .collect(),
        uncertain: reasons,
        measured_seconds: Some(span),
    })
}

/// Ranks that left events: of MPI-IO, where that is what phases are made of, since all ranks open the files that they share.
fn present(phases: &Phases, layer: Layer) -> HashSet<u64> {
    let is_there = |id: &u64| {
        layer != Layer::MpiIo || phases.processes.get(id).is_some_and(|process| process.has_mpi_io)
    };
    let ranks = phases.known.iter().filter(|(id, _)| is_there(id)).filter_map(|(_, known)| known.rank);
    ranks.map(u64::from).collect()
}

/// The processes with requests on the layer, by rank; and the command line of the first.
fn members(
    phases: &mut Phases,
    layer: Layer,
    reasons: &mut Vec<String>,
) -> Result<(Vec<Member>, String), Error> {
    let mut found: Vec<(u64, super::Process)> = std::mem::take(&mut phases.processes).into_iter().collect();
    let known = |id: u64| phases.known.get(&id).cloned().unwrap_or_default();
    found.sort_by_cached_key(|(id, process)| {
        let it = known(*id);
        (it.rank, it.node, it.started, process.pid, *id)
    });
    let is_lossy = |id: u64| phases.lossy.contains(&Some(id)) || phases.lossy.contains(&None);
    let mut members: Vec<(Member, u32)> = Vec::new();
    let (mut lossy, mut interrupted, mut unfinished, mut without_room) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut application = String::new();
    for (id, mut process) in found {
        let rank = known(id).rank.map_or(members.len() as u64, u64::from);
        // A process may have lost all that it did on this layer.
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
            // One program after the other in the same process: as `exec` does it.
            Some((last, pid)) if last.rank == rank && *pid == process.pid => {
                last.runs.extend(local.runs);
                last.is_uncertain |= is_uncertain;
            }
            Some((last, pid)) if last.rank == rank => {
                let rank = u32::try_from(rank).unwrap_or(u32::MAX);
                return Err(Error::SameRank { rank, pids: vec![*pid, process.pid] });
            }
            _ => members.push((Member { rank, runs: local.runs, is_uncertain }, process.pid)),
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
    Ok((members.into_iter().map(|(member, _)| member).collect(), application))
}

/// Digits that differ from process to process, or from checkpoint to checkpoint.
fn template(path: &str) -> String {
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

fn families(members: &[Member], phases: &Phases, files: &FileNames) -> Vec<Family> {
    let path = |file: u64| files.get(file).map_or_else(|| format!("file {file}"), str::to_owned);
    let mut users: HashMap<String, (usize, bool)> = HashMap::new();
    for (number, member) in members.iter().enumerate() {
        for file in member.runs.iter().map(|run| run.patterns[0].key.file).collect::<HashSet<_>>() {
            users
                .entry(path(file))
                .and_modify(|(first, is_shared)| *is_shared |= *first != number)
                .or_insert((number, false));
        }
    }
    let mut kinds: BTreeMap<Kind, Vec<Vec<Cursor>>> = BTreeMap::new();
    for (number, member) in members.iter().enumerate() {
        for (at, run) in member.runs.iter().enumerate() {
            let name = path(run.patterns[0].key.file);
            let is_shared = users.get(&name).is_some_and(|(_, is_shared)| *is_shared);
            let name = if is_shared { name } else { template(&name) };
            let operations =
                run.patterns.iter().map(|pattern| (pattern.key.access, pattern.key.view.is_some())).collect();
            let cursors = kinds.entry(Kind { name, is_shared, operations }).or_default();
            if cursors.last().is_none_or(|last| last[0].member != number) {
                cursors.push(Vec::new());
            }
            if let Some(last) = cursors.last_mut() {
                last.push(Cursor { member: number, run: at, used: 0 });
            }
        }
    }
    let mut families = Vec::new();
    for (kind, mut cursors) in kinds {
        loop {
            cursors.retain(|of_member| !of_member.is_empty());
            let heads = cursors.iter().enumerate().map(|(i, of_member)| (i, &of_member[0]));
            let Some((seed, _)) = heads.min_by_key(|(_, head)| begin(members, head)) else { break };
            let seed = (cursors[seed][0].member, cursors[seed][0].run, cursors[seed][0].used);
            let mut chosen: Vec<(usize, usize)> = Vec::new();
            // When those come in that are similar, but not there yet.
            let mut others: Vec<u64> = Vec::new();
            for (i, of_member) in cursors.iter().enumerate() {
                if of_member[0].member == seed.0 {
                    chosen.push((i, 0));
                    continue;
                }
                let similar = |c: &&Cursor| is_similar(members, seed, c, &phases.views);
                let candidates = || of_member.iter().take(LOOKED_AT).enumerate().filter(|(_, c)| similar(c));
                let now = epoch(members, seed, 0);
                let of = |c: &Cursor| epoch(members, (c.member, c.run, c.used), 0);
                match candidates().find(|(_, c)| now.is_none() || of(c).is_none_or(|it| Some(it) == now)) {
                    Some((at, _)) => chosen.push((i, at)),
                    None => {
                        others.extend(candidates().filter_map(|(_, c)| of(c)).filter(|it| Some(*it) > now))
                    }
                }
            }
            let left = |cursor: &Cursor| members[cursor.member].runs[cursor.run].count - cursor.used;
            let count = chosen.iter().map(|(i, at)| left(&cursors[*i][*at])).min().unwrap_or(1);
            let in_step = |nth: u64| {
                let Some(now) = epoch(members, seed, nth) else { return true };
                let of = |(i, at): &(usize, usize)| {
                    let cursor = &cursors[*i][*at];
                    epoch(members, (cursor.member, cursor.run, cursor.used), nth)
                };
                chosen.iter().all(|it| of(it).is_none_or(|it| it == now)) && others.iter().all(|it| *it > now)
            };
            let count = (1..count).find(|nth| !in_step(*nth)).unwrap_or(count);
            let parts: Vec<&Cursor> = chosen.iter().map(|(i, at)| &cursors[*i][*at]).collect();
            let mut family = family(members, &parts, count, phases, files);
            if !kind.is_shared {
                family.phase.sharing = Sharing::Unique;
            }
            let names: HashSet<String> =
                parts.iter().map(|c| path(members[c.member].runs[c.run].patterns[0].key.file)).collect();
            family.phase.file = match (names.len(), names.into_iter().next()) {
                (1, Some(name)) => name,
                _ => kind.name.clone(),
            };
            families.push(family);
            for (i, at) in chosen {
                cursors[i][at].used += count;
                if left(&cursors[i][at]) == 0 {
                    cursors[i].remove(at);
                }
            }
        }
    }
    families
}

/// When the next unit of a run was, as far as is known.
fn when(members: &[Member], member: usize, run: usize, used: u64) -> Option<When> {
    members[member].runs[run].times.get(usize::try_from(used).ok()?).copied()
}

fn begin(members: &[Member], cursor: &Cursor) -> i64 {
    when(members, cursor.member, cursor.run, cursor.used)
        .map_or(members[cursor.member].runs[cursor.run].patterns[0].tally.when.begin, |when| when.begin)
}

/// Collective calls of all processes before a unit of a run, from the first that is not used on; unknown without all times.
fn epoch(members: &[Member], (member, run, used): (usize, usize, u64), nth: u64) -> Option<u64> {
    when(members, member, run, used + nth).map(|when| when.epoch)
}

fn near(one: u64, other: u64) -> bool {
    one.abs_diff(other) as f64 <= TOLERANCE * one.max(other) as f64
}

/// True if the units of two runs may be of the same phase.
fn is_similar(
    members: &[Member],
    (member, run, _): (usize, usize, u64),
    cursor: &Cursor,
    views: &[View],
) -> bool {
    let (one, other) = (&members[member].runs[run], &members[cursor.member].runs[cursor.run]);
    let inner = |it: &Loop, pattern: &Pattern| {
        view(pattern, views).map_or(Some(it.stride), |view| stride_in_file(it.stride, view))
    };
    let similar = |a: &Pattern, b: &Pattern| {
        let size = |pattern: &Pattern| pattern.tally.asked / pattern.tally.requests.max(1);
        let is_same_size = a.key.size == b.key.size;
        a.key.etype == b.key.etype
            && near(size(a), size(b))
            && near(a.tally.requests / one.count.max(1), b.tally.requests / other.count.max(1))
            && match (loops(a), loops(b)) {
                // Where the loops begin again may depend on the process.
                (Some(x), Some(y)) => match (x.first(), y.first()) {
                    (Some(x), Some(y)) => !is_same_size || inner(x, a) == inner(y, b),
                    (x, y) => x.is_none() && y.is_none(),
                },
                _ => a.shape == b.shape,
            }
    };
    one.patterns.len() == other.patterns.len()
        && one.patterns.iter().zip(&other.patterns).all(|(a, b)| similar(a, b))
}

/// Distances in the data that a view shows as distances in the file, where each is of whole repetitions of the view.
fn stride_in_file(stride: i64, view: &View) -> Option<i64> {
    (stride % view.size == 0).then(|| (stride / view.size).saturating_mul(view.extent))
}

fn view<'a>(pattern: &Pattern, views: &'a [View]) -> Option<&'a View> {
    views.get(pattern.key.view? as usize)
}

fn loops(pattern: &Pattern) -> Option<&[Loop]> {
    match &pattern.shape {
        Shape::Loops(loops) | Shape::Scattered(loops, _) => Some(loops),
        Shape::Irregular { .. } | Shape::Unknown => None,
    }
}

fn family(members: &[Member], parts: &[&Cursor], count: u64, phases: &Phases, files: &FileNames) -> Family {
    let run = |cursor: &Cursor| &members[cursor.member].runs[cursor.run];
    let first = run(parts[0]);
    let operations: Vec<Operation> = (0..first.patterns.len())
        .map(|nth| {
            let rows: Vec<Row<'_>> = parts
                .iter()
                .map(|cursor| {
                    let run = run(cursor);
                    let used = i64::try_from(cursor.used).unwrap_or(i64::MAX);
                    let (pattern, stride) = (&run.patterns[nth], run.strides[nth]);
                    let file_stride = run.file_strides[nth];
                    let shift = |start: i64, stride: i64| start.saturating_add(stride.saturating_mul(used));
                    Row {
                        pattern,
                        repetitions: pattern.tally.requests / run.count.max(1),
                        start: shift(pattern.start, stride),
                        stride,
                        file_start: file_stride.map(|stride| shift(pattern.file_start, stride)),
                        file_stride,
                        view: view(pattern, &phases.views),
                    }
                })
                .collect();
            operation(&rows, files)
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

/// One pattern of one process of a family.
struct Row<'a> {
    pattern: &'a Pattern,
    repetitions: u64,
    start: i64,
    stride: i64,
    file_start: Option<i64>,
    file_stride: Option<i64>,
    view: Option<&'a View>,
}

fn operation(rows: &[Row<'_>], files: &FileNames) -> Operation {
    let first = &rows[0];
    let (pattern, access) = (first.pattern, first.pattern.key.access);
    let requests: u64 = rows.iter().map(|row| row.repetitions).sum();
    let asked: u64 = rows
        .iter()
        .map(|row| {
            row.repetitions.saturating_mul(row.pattern.tally.asked / row.pattern.tally.requests.max(1))
        })
        .fold(0, u64::saturating_add);
    let sizes = rows.iter().map(|row| row.pattern.tally.sizes);
    let sizes = sizes.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0));
    let counts = rows.iter().map(|row| row.repetitions);
    let (fewest, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let placed = place(rows);
    let (displacement, restarts) = common(&placed.laid);
    Operation {
        direction: access.direction,
        size: asked.div_ceil(requests.max(1)),
        sizes: (sizes.0 != sizes.1).then_some(sizes),
        repetitions: requests.div_ceil(rows.len() as u64),
        repetitions_between: (fewest != most).then_some((fewest, most)),
        mode: mode(first, files),
        pointer: access.pointer,
        collective: access.is_collective,
        nonblocking: !access.is_blocking,
        etype: pattern.key.etype,
        piece: piece(first, files),
        space: placed.space,
        displacement,
        restarts,
        offset: Numbers::of(&placed.starts),
        offset_per_phase: Numbers::of(&placed.strides),
    }
}

/// Loops, and the distances at which they begin again.
type Laid = (Vec<Loop>, Vec<i64>);

/// Offsets of all processes in the same space.
struct Placed {
    space: Space,
    laid: Vec<Laid>,
    starts: Vec<i64>,
    strides: Vec<i64>,
}

/// The loops of a pattern with each distance converted.
fn laid(pattern: &Pattern, convert: impl Fn(i64) -> Option<i64>) -> Option<Laid> {
    let (loops, distances) = match &pattern.shape {
        Shape::Loops(loops) => (loops.as_slice(), [0].as_slice()),
        Shape::Scattered(loops, distances) => (loops.as_slice(), distances.as_slice()),
        Shape::Irregular { .. } | Shape::Unknown => ([].as_slice(), [0].as_slice()),
    };
    let loops = loops.iter().map(|it| Some(Loop { stride: convert(it.stride)?, ..*it }));
    Some((loops.collect::<Option<_>>()?, distances.iter().map(|it| convert(*it)).collect::<Option<_>>()?))
}

fn place(rows: &[Row<'_>]) -> Placed {
    let as_they_are = |space: Space| Placed {
        space,
        laid: rows.iter().filter_map(|row| laid(row.pattern, Some)).collect(),
        starts: rows.iter().map(|row| row.start).collect(),
        strides: rows.iter().map(|row| row.stride).collect(),
    };
    let Some(views) = rows.iter().map(|row| row.view).collect::<Option<Vec<&View>>>() else {
        return as_they_are(Space::File);
    };
    let all = || rows.iter().zip(&views);
    let converted: Option<Vec<Laid>> =
        all().map(|(row, view)| laid(row.pattern, |stride| stride_in_file(stride, view))).collect();
    let strides: Option<Vec<i64>> = all().map(|(row, view)| stride_in_file(row.stride, view)).collect();
    let (Some(laid), Some(strides)) = (converted, strides) else { return as_they_are(Space::View) };
    let covered = views.iter().fold(0i64, |sum, view| sum.saturating_add(view.size));
    let is_common =
        views.iter().all(|v| (v.displacement, v.extent) == (views[0].displacement, views[0].extent));
    if is_common && covered == views[0].extent {
        let mut before = 0;
        let starts = all().map(|(row, view)| {
            let whole = row.start.div_euclid(view.size).saturating_mul(view.extent);
            let start = view.displacement.saturating_add(before).saturating_add(whole);
            before = i64::saturating_add(before, view.size);
            start.saturating_add(row.start.rem_euclid(view.size))
        });
        return Placed { space: Space::Pieces, laid, starts: starts.collect(), strides };
    }
    let starts: Option<Vec<i64>> = rows.iter().map(|row| row.file_start).collect();
    let in_file: Option<Vec<i64>> = rows.iter().map(|row| row.file_stride).collect();
    match (starts, in_file) {
        (Some(starts), Some(strides)) => Placed { space: Space::File, laid, starts, strides },
        _ => as_they_are(Space::View),
    }
}

/// The inner loops that all processes have, and where each begins them again, if they are not all there is.
fn common(laid: &[Laid]) -> (Vec<Loop>, Vec<Numbers>) {
    let (first, _) = &laid[0];
    let shared = |depth: usize| laid.iter().all(|(loops, _)| loops.get(depth) == first.get(depth));
    let depth = (0..first.len()).take_while(|depth| shared(*depth)).count();
    if laid.iter().all(|(loops, distances)| loops.len() == depth && distances.len() == 1) {
        return (first.clone(), Vec::new());
    }
    let begins = |(loops, distances): &Laid| -> Vec<i64> {
        let outer = Nest { start: 0, loops: loops[depth..].to_vec() };
        let each = outer.len().min(MOST_RESTARTS as u64 + 1);
        let all = distances.iter().flat_map(|it| (0..each).map(|n| outer.at(n).saturating_add(*it)));
        all.take(MOST_RESTARTS + 1).collect()
    };
    let begins: Vec<Vec<i64>> = laid.iter().map(begins).collect();
    let count = begins[0].len();
    if count > MOST_RESTARTS || begins.iter().any(|all| all.len() != count) {
        // Those of the first process stand for all.
        return (first.clone(), Vec::new());
    }
    let of_all = |nth: usize| Numbers::of(&begins.iter().map(|all| all[nth]).collect::<Vec<_>>());
    (first[..depth].to_vec(), (0..count).map(of_all).collect())
}

/// How the requests of a process lie in the file.
fn mode(row: &Row<'_>, files: &FileNames) -> Mode {
    let size = i64::try_from(row.pattern.key.size.unwrap_or(0)).unwrap_or(i64::MAX);
    let local = match &row.pattern.shape {
        Shape::Unknown => return Mode::Unknown,
        Shape::Irregular { is_sequential: false } => return Mode::Random,
        Shape::Irregular { is_sequential: true } => Mode::Sequential,
        Shape::Scattered(..) => return Mode::Nested,
        Shape::Loops(loops) => match loops.as_slice() {
            [] => Mode::Sequential,
            [one] if one.stride == size => Mode::Sequential,
            [_] => Mode::Strided,
            _ => Mode::Nested,
        },
    };
    let Some(view) = row.view else { return local };
    let offsets = blocks(view, files).map(|blocks| blocks.map(|(offset, _)| offset).collect::<Vec<_>>());
    let within = offsets.map_or_else(|| Some(Nest::default()), Nest::of);
    let is_one_stride = within.is_some_and(|nest| match nest.loops.as_slice() {
        [] => true,
        [one] => {
            i64::try_from(one.count).is_ok_and(|count| count.checked_mul(one.stride) == Some(view.extent))
        }
        _ => false,
    });
    if is_one_stride && local == Mode::Sequential { Mode::Strided } else { Mode::Nested }
}

/// Begins and bytes of the blocks of a view, as far as the trace has them.
fn blocks(view: &View, files: &FileNames) -> Option<impl Iterator<Item = (i64, u64)>> {
    let (_, map) = view.map.and_then(|map| files.get(map))?.split_once(' ')?;
    Some(map.split(',').filter_map(|block| {
        let (offset, bytes) = block.split_once(':')?;
        Some((offset.parse().ok()?, bytes.parse().ok()?))
    }))
}

/// The mean of the blocks of a view, if a request is several of them.
fn piece(row: &Row<'_>, files: &FileNames) -> Option<u64> {
    let mut lengths: Vec<u64> = blocks(row.view?, files)?.map(|(_, bytes)| bytes).collect();
    // Of a text that was too long for the record the last number may have lost its end.
    if lengths.len() > 1 {
        lengths.pop();
    }
    let mean = lengths.iter().copied().fold(0, u64::saturating_add).checked_div(lengths.len() as u64)?;
    (mean > 0 && mean < row.pattern.key.size?).then_some(mean)
}

/// Makes one family of phases that do the same to one file after the other.
fn join(families: &mut Vec<Family>) {
    families.sort_by_key(|family| family.times.first().map_or(i64::MAX, |when| when.begin));
    let mut last: HashMap<(String, Set), usize> = HashMap::new();
    let mut joined: Vec<Family> = Vec::new();
    for family in families.drain(..) {
        let name = (template(&family.phase.file), family.phase.processes.clone());
        if let Some(before) = last.get(&name).map(|at| &mut joined[*at])
            && is_next(before, &family)
        {
            before.phase.file = name.0;
            before.phase.file_per_phase = true;
            before.count += family.count;
            before.times.extend(family.times);
            before.request_seconds += family.request_seconds;
            before.phase.uncertain |= family.phase.uncertain;
            if let (Some(sum), Some(more)) = (&mut before.phase.measured, family.phase.measured) {
                sum.bytes_moved = sum.bytes_moved.saturating_add(more.bytes_moved);
            }
            continue;
        }
        last.insert(name, joined.len());
        joined.push(family);
    }
    *families = joined;
}

fn is_next(before: &Family, family: &Family) -> bool {
    // Processes need not wait for each other; but files that are in use at once are no series.
    let half = before.times.last().map(|when| when.begin.midpoint(when.end));
    let begins = family.times.iter().map(|when| when.begin).min();
    family.count == 1
        && (before.count == 1 || before.phase.file_per_phase)
        && before.phase.file != family.phase.file
        && before.phase.sharing == family.phase.sharing
        && before.phase.weight == family.phase.weight
        && before.phase.operations == family.phase.operations
        && half <= begins
}

/// Gives phases their numbers, in the order in which they began, and says how long they took.
fn number(mut families: Vec<Family>, span: f64, has_communication: bool) -> Vec<Phase> {
    /// A family, a moment, how many of its phases begin there.
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
        let ticks = |when: &When| if has_communication { when.ticks } else { when.order };
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
