//! Describes an operation of a phase from the patterns of all its processes: sizes, displacements,
//! loops, pieces and mode.

use super::local::{Pattern, Shape};
use super::nest::{Loop, Nest};
use super::pieces::{Pieces, RequestLayout, Unplaced};
use crate::model::{self, Mode, Numbers, Operation, Set, Space};

/// Maximum number of listed restarts of a process's loops.
const MOST_RESTARTS: usize = 1 << 13;

/// Maximum number of pieces of one request of all processes that are searched for gaps.
const MOST_PIECES: u64 = 1 << 22;

/// Maximum number of groups of processes with different pieces in a phase.
const MOST_CLASSES: usize = 64;

/// A pattern of one process of a family.
pub(super) struct MemberPattern<'a> {
    pub(super) pattern: &'a Pattern,
    pub(super) repetitions: u64,
    pub(super) start: i64,
    pub(super) stride: i64,
    pub(super) pieces: Option<&'a Pieces>,
}

/// Returns the operation that the patterns of all processes are.
pub(super) fn operation(rows: &[MemberPattern<'_>]) -> Operation {
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
    let own: Option<Vec<i64>> =
        rows.iter().map(|row| row.pattern.key.size.and_then(|size| i64::try_from(size).ok())).collect();
    let counts = rows.iter().map(|row| row.repetitions);
    let (fewest, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let placed = place(rows);
    let (displacement, restarts) = common(&placed.laid);
    Operation {
        direction: access.direction,
        size: asked.div_ceil(requests.max(1)),
        sizes: (sizes.0 != sizes.1).then_some(sizes),
        size_by_process: own.filter(|_| sizes.0 != sizes.1).map(|own| Numbers::of(&own)),
        repetitions: requests.div_ceil(rows.len() as u64),
        repetitions_between: (fewest != most).then_some((fewest, most)),
        mode: mode(first),
        pointer: access.pointer,
        collective: access.is_collective,
        nonblocking: !access.is_blocking,
        etype: pattern.key.etype,
        piece: first.pieces.zip(pattern.key.size).map(|(pieces, size)| (size / pieces.count().max(1)).max(1)),
        pieces: placed.pieces,
        unplaced: placed.unplaced,
        space: placed.space,
        displacement,
        restarts,
        offset: Numbers::of(&placed.starts),
        offset_per_phase: Numbers::of(&placed.strides),
    }
}

/// Loops, and the distances at which they restart.
type LoopsWithRestarts = (Vec<Loop>, Vec<i64>);

/// Offsets of all processes in the same space.
struct Placed {
    space: Space,
    laid: Vec<LoopsWithRestarts>,
    starts: Vec<i64>,
    strides: Vec<i64>,
    pieces: Vec<model::Pieces>,
    unplaced: Option<Unplaced>,
}

fn laid(pattern: &Pattern) -> LoopsWithRestarts {
    match &pattern.shape {
        Shape::Loops(loops) => (loops.clone(), vec![0]),
        Shape::Scattered(loops, distances) => (loops.clone(), distances.clone()),
        Shape::Irregular { .. } | Shape::Unknown => (Vec::new(), vec![0]),
    }
}

fn place(rows: &[MemberPattern<'_>]) -> Placed {
    let mut placed = Placed {
        space: Space::File,
        laid: rows.iter().map(|row| laid(row.pattern)).collect(),
        starts: rows.iter().map(|row| row.start).collect(),
        strides: rows.iter().map(|row| row.stride).collect(),
        pieces: Vec::new(),
        unplaced: rows.iter().find_map(|row| match row.pattern.key.layout {
            RequestLayout::Unknown(why) => Some(why),
            RequestLayout::Contiguous | RequestLayout::Pieces(_) => None,
        }),
    };
    if placed.unplaced.is_some() {
        placed.space = Space::View;
        return placed;
    }
    let Some(pieces) = rows.iter().map(|row| row.pieces).collect::<Option<Vec<&Pieces>>>() else {
        return placed;
    };
    // Base of the pieces of each process: its own first byte, or that of all processes.
    let mut shifts = vec![0; rows.len()];
    if let Some(begin) = begin_without_gaps(rows, &pieces, &placed) {
        placed.space = Space::Pieces;
        shifts = placed.starts.iter().map(|start| start.saturating_sub(begin)).collect();
        let mut next = begin;
        for (start, row) in placed.starts.iter_mut().zip(rows) {
            *start = next;
            next = next.saturating_add(size(row));
        }
    }
    match shared(&pieces, &shifts) {
        Some(groups) => placed.pieces = groups,
        None => (placed.space, placed.unplaced) = (Space::View, Some(Unplaced::TooMany)),
    }
    placed
}

fn size(row: &MemberPattern<'_>) -> i64 {
    row.pattern.key.size.and_then(|size| i64::try_from(size).ok()).unwrap_or(0)
}

/// Returns the first byte, if the pieces of all processes together cover a part of the file without
/// gaps, and repeat at the same distance.
fn begin_without_gaps(rows: &[MemberPattern<'_>], pieces: &[&Pieces], placed: &Placed) -> Option<i64> {
    let is_common = placed.laid.iter().all(|laid| *laid == placed.laid[0])
        && placed.strides.iter().all(|stride| *stride == placed.strides[0]);
    let count = pieces.iter().map(|it| it.count()).fold(0, u64::saturating_add);
    if !is_common || count > MOST_PIECES || rows.len() < 2 {
        return None;
    }
    let all = pieces.iter().zip(&placed.starts);
    let mut ranges: Vec<(i64, u64)> = all
        .flat_map(|(it, start)| it.all().map(|(offset, bytes)| (start.saturating_add(offset), bytes)))
        .collect();
    ranges.sort_unstable();
    let begin = ranges.first()?.0;
    let mut end = begin;
    for (offset, bytes) in ranges {
        if offset != end {
            return None;
        }
        end = end.checked_add(i64::try_from(bytes).ok()?)?;
    }
    Some(begin)
}

/// Returns the pieces of a request of all processes, shifted from its offset by `shifts`; `None` if
/// there are too many.
fn shared(pieces: &[&Pieces], shifts: &[i64]) -> Option<Vec<model::Pieces>> {
    classes(pieces, shifts, Pieces::is_like).or_else(|| {
        let by_shape: Vec<Pieces> = pieces.iter().map(|it| it.by_shape()).collect();
        classes(&by_shape.iter().collect::<Vec<_>>(), shifts, Pieces::has_shapes_of)
    })
}

/// Returns the pieces by groups of processes that have the same kind of pieces.
fn classes(
    pieces: &[&Pieces],
    shifts: &[i64],
    is_same: impl Fn(&Pieces, &Pieces) -> bool,
) -> Option<Vec<model::Pieces>> {
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for (place, it) in pieces.iter().enumerate() {
        match classes.iter().position(|class| is_same(pieces[class[0]], it)) {
            Some(class) => classes[class].push(place),
            None if classes.len() == MOST_CLASSES => return None,
            None => classes.push(vec![place]),
        }
    }
    let is_one = classes.len() == 1;
    let mut all = Vec::new();
    for class in classes {
        let of = |all: &[i64]| class.iter().map(|at| all[*at]).collect::<Vec<_>>();
        let places: Set = class.iter().map(|at| *at as u64).filter(|_| !is_one).collect();
        let own: Vec<&Pieces> = class.iter().map(|at| pieces[*at]).collect();
        let groups = groups(&own, &of(shifts))?.into_iter();
        all.extend(groups.map(|group| model::Pieces { places: places.clone(), ..group }));
    }
    Some(all)
}

/// Returns the pieces of processes with the same number of pieces of each length.
fn groups(pieces: &[&Pieces], shifts: &[i64]) -> Option<Vec<model::Pieces>> {
    let of_group = |nth: usize| -> Option<model::Pieces> {
        let first = pieces[0].groups.get(nth)?;
        let shape = &first.nests.first()?.loops;
        let nests = || pieces.iter().filter_map(|it| it.groups.get(nth)).flat_map(|group| &group.nests);
        let is_common = |depth: usize| nests().all(|nest| nest.loops.get(depth) == shape.get(depth));
        let depth = (0..shape.len()).take_while(|depth| is_common(*depth)).count();
        let begins = |(it, shift): (&&Pieces, &i64)| -> Option<Vec<i64>> {
            let outer = |nest: &Nest| Nest { start: nest.start, loops: nest.loops[depth..].to_vec() };
            let outer: Vec<Nest> = it.groups.get(nth)?.nests.iter().map(outer).collect();
            let count = outer.iter().map(Nest::len).fold(0, u64::saturating_add);
            if count > MOST_RESTARTS as u64 {
                return None;
            }
            let all = outer.iter().flat_map(|nest| (0..nest.len()).map(|at| nest.at(at)));
            Some(all.map(|begin| begin.saturating_add(*shift)).collect())
        };
        let begins: Vec<Vec<i64>> = pieces.iter().zip(shifts).map(begins).collect::<Option<_>>()?;
        let count = begins[0].len();
        if begins.iter().any(|all| all.len() != count) {
            return None;
        }
        let of_all = |at: usize| Numbers::of(&begins.iter().map(|all| all[at]).collect::<Vec<_>>());
        Some(model::Pieces {
            bytes: first.bytes,
            loops: shape[..depth].to_vec(),
            begins: (0..count).map(of_all).collect(),
            places: Set::default(),
        })
    };
    (0..pieces[0].groups.len()).map(of_group).collect()
}

/// Returns the inner loops that all processes share, and the positions at which each process
/// restarts them, if it does.
fn common(laid: &[LoopsWithRestarts]) -> (Vec<Loop>, Vec<Numbers>) {
    let (first, _) = &laid[0];
    let shared = |depth: usize| laid.iter().all(|(loops, _)| loops.get(depth) == first.get(depth));
    let depth = (0..first.len()).take_while(|depth| shared(*depth)).count();
    if laid.iter().all(|(loops, distances)| loops.len() == depth && distances.len() == 1) {
        return (first.clone(), Vec::new());
    }
    let begins = |(loops, distances): &LoopsWithRestarts| -> Vec<i64> {
        let outer = Nest { start: 0, loops: loops[depth..].to_vec() };
        let each = outer.len().min(MOST_RESTARTS as u64 + 1);
        let all = distances.iter().flat_map(|it| (0..each).map(|n| outer.at(n).saturating_add(*it)));
        all.take(MOST_RESTARTS + 1).collect()
    };
    let begins: Vec<Vec<i64>> = laid.iter().map(begins).collect();
    let count = begins[0].len();
    if count > MOST_RESTARTS || begins.iter().any(|all| all.len() != count) {
        // The loops of the first process represent all.
        return (first.clone(), Vec::new());
    }
    let of_all = |nth: usize| Numbers::of(&begins.iter().map(|all| all[nth]).collect::<Vec<_>>());
    (first[..depth].to_vec(), (0..count).map(of_all).collect())
}

/// Returns the layout of the requests of a process in the file.
fn mode(row: &MemberPattern<'_>) -> Mode {
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
    let pieces = match (row.pattern.key.layout, row.pieces) {
        (RequestLayout::Contiguous, _) => return local,
        (_, Some(pieces)) => pieces,
        (_, None) => return Mode::Nested,
    };
    // One distance from piece to piece, also from the last piece of a request to the first of the
    // next.
    let [group] = pieces.groups.as_slice() else { return Mode::Nested };
    let [nest] = group.nests.as_slice() else { return Mode::Nested };
    let [one] = nest.loops.as_slice() else { return Mode::Nested };
    let next = i64::try_from(one.count).ok().and_then(|count| count.checked_mul(one.stride));
    match &row.pattern.shape {
        Shape::Loops(loops) if loops.is_empty() => Mode::Strided,
        Shape::Loops(loops) if loops.len() == 1 && Some(loops[0].stride) == next => Mode::Strided,
        _ => Mode::Nested,
    }
}

pub(super) fn loops(pattern: &Pattern) -> Option<&[Loop]> {
    match &pattern.shape {
        Shape::Loops(loops) | Shape::Scattered(loops, _) => Some(loops),
        Shape::Irregular { .. } | Shape::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::nest::{Loop, Nest};
    use super::super::pieces::{Group, Pieces};
    use super::shared;

    /// Rows of a part of an array. In the second process the last row of each half continues in the
    /// following row and has another length.
    #[test]
    fn many_rows_are_few_shapes() {
        let rows = |start, loops: &[(u64, i64)]| Nest {
            start,
            loops: loops.iter().map(|&(count, stride)| Loop { count, stride }).collect(),
        };
        let whole = Group { bytes: 10, nests: vec![rows(0, &[(200, 100), (100, 100_000)])] };
        let most = Group {
            bytes: 10,
            nests: vec![rows(0, &[(200, 100), (99, 100_000)]), rows(9_900_000, &[(199, 100)])],
        };
        let last = Group { bytes: 20, nests: vec![rows(9_919_900, &[])] };
        let pieces = [Pieces { groups: vec![whole] }, Pieces { groups: vec![most, last] }];
        let found = shared(&[&pieces[0], &pieces[1]], &[0, 7]).unwrap();
        let said: Vec<_> =
            found.iter().map(|it| (it.places.to_string(), it.bytes, it.count(), it.begins.len())).collect();
        let of = |places: &str, bytes, count| (places.to_owned(), bytes, count, 1);
        let expected = [of("0", 10, 20_000), of("1", 10, 19_800), of("1", 10, 199), of("1", 20, 1)];
        assert_eq!(said, expected);
        assert_eq!(found[3].begins_of(1).collect::<Vec<_>>(), [9_919_907]);
        assert_eq!(found[3].begins_of(0).count(), 0);
    }
}
