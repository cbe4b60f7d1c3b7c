//! Local access patterns of one process in program order, and runs in which they repeat.
//!
//! Requests of the same kind (file, operation, size, elementary type, view) with no communication
//! between them are one pattern, whose offsets become nested loops ([`super::nest`]). Patterns that
//! alternate on a file are one unit. Units that repeat at equal distances are one run. Memory grows
//! with the number of different patterns, not with the number of requests.

use super::access::{Access, Pointer};
use super::nest::{Loop, MOST_SAME, Nest, Sequence, Sum, Term};
use super::pieces::RequestLayout;
use std::collections::HashMap;

/// Number of requests of other kinds after which a pattern ends, if its own requests came in bursts
/// of at least this length.
const BURST: u64 = 8;

/// Maximum number of request kinds on one file that differ only in size; with more, sizes count as
/// varying.
const MOST_SIZES: usize = 8;

/// Maximum number of open patterns of a process.
const MOST_OPEN: usize = 1024;

/// Maximum number of runs of a process; further ones are only summed up.
const MOST_RUNS: usize = 1 << 14;

/// Maximum number of regular pieces of one pattern that become separate patterns, each with at
/// least [`BURST`] requests.
const MOST_PIECES: usize = 4;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) file: u64,
    pub(crate) access: Access,
    /// Size of a request in bytes; `None` if it varies.
    pub(crate) size: Option<u64>,
    /// Size of an elementary type in bytes.
    pub(crate) etype: u64,
    /// Layout of the bytes of a request.
    pub(crate) layout: RequestLayout,
}

/// Time, in nanoseconds since 1970, and order of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) begin: i64,
    pub(crate) end: i64,
    /// Numbers of the first and of the last tick.
    pub(crate) ticks: (u64, u64),
    /// Positions of the first and of the last request among the process's requests.
    pub(crate) order: (u64, u64),
    /// Number of earlier collective calls of all processes.
    pub(crate) epoch: u64,
}

impl When {
    /// Returns the span from the earlier to the later.
    pub(crate) fn and(self, other: When) -> When {
        let span = |one: (u64, u64), other: (u64, u64)| (one.0.min(other.0), one.1.max(other.1));
        When {
            begin: self.begin.min(other.begin),
            end: self.end.max(other.end),
            ticks: span(self.ticks, other.ticks),
            order: span(self.order, other.order),
            epoch: self.epoch.min(other.epoch),
        }
    }
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Bytes requested and moved.
    pub(crate) asked: u64,
    pub(crate) moved: u64,
    /// Sum of durations, nanoseconds.
    pub(crate) time: u64,
    /// Smallest and largest request in bytes.
    pub(crate) sizes: (u64, u64),
    pub(crate) when: When,
}

impl Sum for Tally {
    fn add(&mut self, later: &Tally) {
        self.requests += later.requests;
        self.asked = self.asked.saturating_add(later.asked);
        self.moved = self.moved.saturating_add(later.moved);
        self.time = self.time.saturating_add(later.time);
        self.sizes = (self.sizes.0.min(later.sizes.0), self.sizes.1.max(later.sizes.1));
        self.when = self.when.and(later.when);
    }
}

/// Shape of the offsets of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// Nested loops, innermost first.
    Loops(Vec<Loop>),
    /// The same loops repeatedly, at these distances from the first.
    Scattered(Vec<Loop>, Vec<i64>),
    /// No regular shape was found.
    Irregular {
        /// True if nearly all requests began where the previous one ended.
        is_sequential: bool,
    },
    /// The trace has no offsets: a shared pointer.
    Unknown,
}

/// A local access pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    /// First offset.
    pub(crate) start: i64,
    pub(crate) tally: Tally,
}

/// Units that differ only in their offsets, at equal distances.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Patterns of the first unit; their tallies are those of all units.
    pub(crate) patterns: Vec<Pattern>,
    /// Distance from unit to unit, for each pattern; 0 in a run of one unit.
    pub(crate) strides: Vec<i64>,
    pub(crate) count: u64,
    /// Times of the first units; fewer than `count` in a trace with very many.
    pub(crate) times: Vec<When>,
}

/// A request that moves data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    /// Offset in the file, or if the position in the file is unknown, in the data that the view
    /// shows; `None` if both are unknown.
    pub(crate) offset: Option<i64>,
    pub(crate) moved: u64,
    pub(crate) asked: u64,
    pub(crate) begin: i64,
    pub(crate) end: i64,
    pub(crate) tick: u64,
    pub(crate) epoch: u64,
}

/// A pattern that may continue.
#[derive(Debug)]
struct OpenPattern {
    offsets: Sequence<Tally>,
    start: Option<i64>,
    /// End of the last request.
    next: i64,
    requests: u64,
    sequential: u64,
    bursts: u64,
    last: u64,
    /// Order at which it last had a multiple of [`BURST`] requests.
    mark: u64,
}

/// Requests of one process on one layer.
#[derive(Debug, Default)]
pub(crate) struct Local {
    open: HashMap<Key, OpenPattern>,
    /// Number of sizes of each kind, by its key without a size.
    sizes: HashMap<Key, usize>,
    order: u64,
    pub(crate) runs: Vec<Run>,
    /// Last run of each kind of unit.
    last: HashMap<Vec<Key>, usize>,
    /// Tick of the last request.
    tick: Option<u64>,
    /// True if some requests have other ticks than the preceding ones.
    pub(crate) has_ticks: bool,
    /// True if some requests have an offset, or are of a kind without offsets.
    pub(crate) has_offsets: bool,
    /// Sums over the requests beyond the limits.
    pub(crate) rest: Option<Tally>,
}

impl Local {
    /// Adds the next request. `capacity` is the number of times that may still be kept.
    pub(crate) fn add(&mut self, request: &Request, capacity: &mut usize) {
        self.has_ticks |= self.tick.replace(request.tick).is_some_and(|last| last != request.tick);
        self.has_offsets |= request.offset.is_some() || request.key.access.pointer != Pointer::Explicit;
        self.order += 1;
        let order = self.order;
        let tally = Tally {
            requests: 1,
            asked: request.asked,
            moved: request.moved,
            time: request.end.abs_diff(request.begin),
            sizes: (request.asked, request.asked),
            when: When {
                begin: request.begin,
                end: request.end,
                ticks: (request.tick, request.tick),
                order: (order, order),
                epoch: request.epoch,
            },
        };
        let key = self.key(request.key);
        let open = self.open.entry(key).or_insert_with(|| OpenPattern {
            offsets: Sequence::default(),
            start: request.offset,
            next: i64::MIN,
            requests: 0,
            sequential: 0,
            bursts: 0,
            last: 0,
            mark: order,
        });
        let offset = request.offset.unwrap_or_default();
        open.offsets.push(offset, tally);
        open.sequential += u64::from(offset == open.next);
        open.next = offset.saturating_add(i64::try_from(request.asked).unwrap_or(i64::MAX));
        open.requests += 1;
        open.bursts += u64::from(open.last + 1 != order);
        open.last = order;
        if key.size.is_none() && !open.offsets.is_irregular && open.requests > 1 {
            open.offsets.make_irregular();
        }
        if open.requests.is_multiple_of(BURST) {
            let since = std::mem::replace(&mut open.mark, order);
            self.close(capacity, |_, open| open.last < since && open.requests >= BURST * open.bursts);
        }
        if self.open.len() > MOST_OPEN {
            let since = order - MOST_OPEN as u64 / 2;
            self.close(capacity, |_, open| open.last < since);
        }
    }

    /// Returns the key of a request, without its size if sizes vary.
    fn key(&mut self, key: Key) -> Key {
        if self.open.contains_key(&key) {
            return key;
        }
        let varied = Key { size: None, ..key };
        let sizes = self.sizes.entry(varied).or_default();
        *sizes += 1;
        if *sizes <= MOST_SIZES {
            return key;
        }
        if *sizes == MOST_SIZES + 1 {
            let mut same: Vec<OpenPattern> = self
                .open
                .extract_if(|key, _| Key { size: None, ..*key } == varied)
                .map(|(_, open)| open)
                .collect();
            same.sort_by_key(|open| open.offsets.terms[0].sum.when.order);
            let folded = same.into_iter().reduce(|mut all, mut open| {
                all.offsets.make_irregular();
                open.offsets.make_irregular();
                all.offsets.terms[0].sum.add(&open.offsets.terms[0].sum);
                all.requests += open.requests;
                all.sequential += open.sequential;
                all.bursts += open.bursts;
                all.last = all.last.max(open.last);
                all
            });
            self.open.extend(folded.map(|open| (varied, open)));
        }
        varied
    }

    /// Ends the patterns for which `is_over` is true.
    fn close(&mut self, capacity: &mut usize, mut is_over: impl FnMut(&Key, &OpenPattern) -> bool) {
        let over: Vec<(Key, OpenPattern)> = self.open.extract_if(|key, open| is_over(key, open)).collect();
        if over.is_empty() {
            return;
        }
        if self.open.is_empty() {
            self.sizes.clear();
        } else {
            for (key, _) in &over {
                let varied = Key { size: None, ..*key };
                if key.size.is_none() {
                    self.sizes.remove(&varied);
                } else if let Some(sizes) = self.sizes.get_mut(&varied) {
                    *sizes = sizes.saturating_sub(1);
                }
            }
        }
        let mut patterns: Vec<Pattern> =
            over.into_iter().flat_map(|(key, open)| patterns(key, open)).collect();
        patterns.sort_by_key(|pattern| (pattern.key.file, pattern.tally.when.order));
        let mut units: Vec<Vec<Pattern>> = Vec::new();
        let mut end = 0;
        for pattern in patterns {
            let order = pattern.tally.when.order;
            match units.last_mut() {
                Some(unit) if unit[0].key.file == pattern.key.file && order.0 < end => {
                    end = end.max(order.1);
                    unit.push(pattern);
                }
                _ => {
                    end = order.1;
                    units.push(vec![pattern]);
                }
            }
        }
        units.sort_by_key(|unit| unit[0].tally.when.order);
        units.into_iter().for_each(|unit| self.unit(unit, capacity));
    }

    /// Ends all patterns.
    pub(crate) fn close_all(&mut self, capacity: &mut usize) {
        self.close(capacity, |_, _| true);
    }

    /// Ends the patterns of a file.
    pub(crate) fn close_file(&mut self, file: u64, capacity: &mut usize) {
        self.close(capacity, |key, _| key.file == file);
    }

    fn unit(&mut self, unit: Vec<Pattern>, capacity: &mut usize) {
        let whens = unit.iter().map(|pattern| pattern.tally.when);
        let when = whens.reduce(When::and).unwrap_or_default();
        let kept = *capacity > 0;
        let keys: Vec<Key> = unit.iter().map(|pattern| pattern.key).collect();
        if let Some(run) = self.last.get(&keys).map(|at| &mut self.runs[*at])
            && run.continues(&unit)
        {
            if kept && run.times.len() as u64 + 1 == run.count {
                *capacity -= 1;
                run.times.push(when);
            }
            return;
        }
        if self.runs.len() >= MOST_RUNS {
            for pattern in unit {
                match &mut self.rest {
                    Some(rest) => rest.add(&pattern.tally),
                    None => self.rest = Some(pattern.tally),
                }
            }
            return;
        }
        self.last.insert(keys, self.runs.len());
        *capacity = capacity.saturating_sub(1);
        self.runs.push(Run {
            strides: vec![0; unit.len()],
            patterns: unit,
            count: 1,
            times: if kept { vec![when] } else { Vec::new() },
        });
    }
}

impl Run {
    /// Adds a unit if it is the next of the run. Returns whether it was added.
    fn continues(&mut self, unit: &[Pattern]) -> bool {
        let distance = |now: i64, start: i64, stride: i64| {
            let before = i64::try_from(self.count - 1).ok()?.checked_mul(stride)?.checked_add(start)?;
            now.checked_sub(before)
        };
        let rows = || self.patterns.iter().zip(&self.strides).zip(unit);
        let strides: Option<Vec<i64>> = rows()
            .map(|((first, stride), now)| {
                let is_same = first.shape == now.shape
                    && first.tally.requests.checked_div(self.count) == Some(now.tally.requests)
                    && first.tally.requests.is_multiple_of(self.count);
                let found = if matches!(now.shape, Shape::Irregular { .. } | Shape::Unknown) {
                    Some(0)
                } else {
                    distance(now.start, first.start, *stride)
                };
                found.filter(|found| is_same && (self.count == 1 || found == stride))
            })
            .collect();
        let Some(strides) = strides else { return false };
        self.strides = strides;
        self.count += 1;
        self.patterns.iter_mut().zip(unit).for_each(|(first, now)| first.tally.add(&now.tally));
        true
    }
}

/// Returns the patterns of a finished sequence: one, unless it consists of few long pieces of
/// different shapes.
fn patterns(key: Key, open: OpenPattern) -> Vec<Pattern> {
    let OpenPattern { offsets, start: known, requests, sequential, .. } = open;
    let start = known.unwrap_or_default();
    let terms = offsets.terms;
    let pieces = terms.len();
    if known.is_some() && !offsets.is_irregular && pieces > 0 {
        let inner = inner(&terms);
        let is_split = (2..=MOST_PIECES).contains(&pieces) && terms.iter().all(|t| t.nest.len() >= BURST);
        if pieces == 1 || (is_split && inner == 0) {
            let pattern = |term: Term<Tally>| Pattern {
                key,
                start: term.nest.start,
                shape: Shape::Loops(term.nest.loops),
                tally: term.sum,
            };
            return terms.into_iter().map(pattern).collect();
        }
        if inner > 0 {
            let loops = terms[0].nest.loops[..inner].to_vec();
            let begins = terms.iter().flat_map(|term| {
                let outer = Nest { start: term.nest.start, loops: term.nest.loops[inner..].to_vec() };
                (0..outer.len()).map(move |place| outer.at(place).saturating_sub(start))
            });
            let begins: Vec<i64> = begins.take(MOST_SAME + 1).collect();
            if begins.len() <= MOST_SAME {
                let shape = Shape::Scattered(loops, begins);
                return vec![Pattern { key, shape, start, tally: total(terms) }];
            }
        }
    }
    let shape = match known {
        // Nine of ten: a program that skips a few bytes does not access the file at random.
        Some(_) => Shape::Irregular {
            is_sequential: requests > 1 && u128::from(sequential) * 10 >= u128::from(requests - 1) * 9,
        },
        None => Shape::Unknown,
    };
    vec![Pattern { key, shape, start, tally: total(terms) }]
}

/// Returns the number of inner loops that all terms share.
fn inner(terms: &[Term<Tally>]) -> usize {
    let first = &terms[0].nest.loops;
    let is_common = |depth: usize| terms.iter().all(|term| term.nest.loops.get(depth) == first.get(depth));
    (0..first.len()).take_while(|depth| is_common(*depth)).count()
}

fn total(terms: Vec<Term<Tally>>) -> Tally {
    let mut sums = terms.into_iter().map(|term| term.sum);
    let first = sums.next().unwrap_or(Tally {
        requests: 0,
        asked: 0,
        moved: 0,
        time: 0,
        sizes: (0, 0),
        when: When::default(),
    });
    sums.fold(first, |mut all, later| {
        all.add(&later);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::super::access::{Access, Direction, Pointer};
    use super::super::pieces::RequestLayout;
    use super::{Key, Local, MOST_RUNS, MOST_SIZES, Request, Run, Shape};

    fn request(direction: Direction, file: u64, size: u64, offset: i64) -> Request {
        let access =
            Access { direction, pointer: Pointer::Explicit, is_collective: false, is_blocking: true };
        Request {
            key: Key { file, access, size: Some(size), etype: 1, layout: RequestLayout::Contiguous },
            offset: Some(offset),
            moved: size,
            asked: size,
            begin: offset,
            end: offset.saturating_add(1),
            tick: 0,
            epoch: 0,
        }
    }

    fn write(file: u64, size: u64, offset: i64) -> Request {
        request(Direction::Write, file, size, offset)
    }

    fn read(file: u64, size: u64, offset: i64) -> Request {
        request(Direction::Read, file, size, offset)
    }

    /// Returns the runs of requests; `None` between them is communication.
    fn runs(requests: impl IntoIterator<Item = Option<Request>>) -> Vec<Run> {
        let (mut local, mut capacity) = (Local::default(), usize::MAX);
        for request in requests {
            match request {
                Some(request) => local.add(&request, &mut capacity),
                None => local.close_all(&mut capacity),
            }
        }
        local.close_all(&mut capacity);
        local.runs
    }

    /// Returns the units of each run, the patterns of a unit, and the total number of requests.
    fn brief(runs: &[Run]) -> Vec<(u64, usize, u64)> {
        let requests = |run: &Run| run.patterns.iter().map(|pattern| pattern.tally.requests).sum();
        runs.iter().map(|run| (run.count, run.patterns.len(), requests(run))).collect()
    }

    #[test]
    fn a_million_requests_are_one_run() {
        let requests = (0..1_000_000i64).flat_map(|i| {
            let it = Some(write(1, 10, i * 10));
            if i % 100 == 99 { vec![it, None] } else { vec![it] }
        });
        let runs = runs(requests);
        assert_eq!(brief(&runs), [(10_000, 1, 1_000_000)]);
        assert_eq!(runs[0].strides[0], 1000);
    }

    #[test]
    fn alternating_patterns_are_a_unit() {
        let alternating = (0..100).flat_map(|i| [Some(read(1, 10, i * 10)), Some(write(1, 10, i * 10))]);
        assert_eq!(brief(&runs(alternating)), [(1, 2, 200)]);
        let after =
            (0..40).map(|i| Some(write(1, 10, i * 10))).chain((0..40).map(|i| Some(read(1, 10, i * 10))));
        assert_eq!(brief(&runs(after)), [(1, 1, 40), (1, 1, 40)]);
        // Write, read, continue writing: the first pattern ends once the second is established.
        let again = (0..40)
            .map(|i| write(1, 10, i * 10))
            .chain((0..40).map(|i| read(1, 10, i * 10)))
            .chain((40..80).map(|i| write(1, 10, i * 10)));
        assert_eq!(brief(&runs(again.map(Some))), [(2, 1, 80), (1, 1, 40)]);
        // Occasional reads among writes belong to the same unit.
        let seldom = (0..1000).map(|i| if i % 50 == 7 { read(1, 10, i * 10) } else { write(1, 10, i * 10) });
        assert_eq!(brief(&runs(seldom.map(Some))), [(1, 2, 1000)]);
    }

    #[test]
    fn pieces_with_different_loops_are_separate_patterns() {
        let pieces = (0..50).map(|i| i * 10).chain((0..30).map(|i| 100_000 + i * 400));
        let runs = runs(pieces.map(|offset| Some(write(1, 10, offset))));
        assert_eq!(brief(&runs), [(1, 1, 50), (1, 1, 30)]);
        assert_eq!(runs[1].patterns[0].start, 100_000);
    }

    #[test]
    fn scattered_equal_loops_are_one_pattern() {
        let places = [0, 5000, 1000, 90_000, 7000];
        let offsets = places.iter().flat_map(|place| (0..6).map(move |i| place + i * 20));
        let runs = runs(offsets.map(|offset| Some(write(1, 10, offset))));
        assert_eq!(brief(&runs), [(1, 1, 30)]);
        let Shape::Scattered(loops, begins) = &runs[0].patterns[0].shape else { panic!("{runs:?}") };
        assert_eq!((loops.len(), begins.as_slice()), (1, [0, 5000, 1000, 90_000, 7000].as_slice()));
    }

    #[test]
    fn many_sizes_are_one_pattern_and_none_is_lost() {
        let sizes = (0..500i64).map(|i| Some(write(1, 1 + (i * 7919 % 97) as u64, i * 100)));
        let all = runs(sizes);
        let varied: Vec<&Run> = all.iter().filter(|run| run.patterns[0].key.size.is_none()).collect();
        assert_eq!(varied.len(), 1);
        assert_eq!(brief(&all).iter().map(|(.., requests)| requests).sum::<u64>(), 500);
        let few = (0..500i64).map(|i| Some(write(1, 1 + (i % MOST_SIZES as i64) as u64, i * 100)));
        assert_eq!(brief(&runs(few)), [(1, MOST_SIZES, 500)]);
    }

    #[test]
    fn nearly_sequential_is_not_random() {
        let mut offset = 0;
        let requests = (0..1000).map(|i| {
            offset += if i % 37 == 5 { 10 + i * i % 1000 } else { 10 };
            Some(write(1, 10, offset))
        });
        let runs = runs(requests);
        assert_eq!(runs[0].patterns[0].shape, Shape::Irregular { is_sequential: true });
        assert_eq!(brief(&runs), [(1, 1, 1000)]);
    }

    #[test]
    fn runs_are_bounded_and_the_rest_is_counted() {
        let (mut local, mut capacity) = (Local::default(), 10);
        for i in 0..MOST_RUNS as i64 + 100 {
            local.add(&write(1, 10, i * i), &mut capacity);
            local.close_all(&mut capacity);
        }
        let kept: u64 = local.runs.iter().map(|run| run.patterns[0].tally.requests).sum();
        assert!(local.runs.len() <= MOST_RUNS);
        assert_eq!(kept + local.rest.map_or(0, |rest| rest.requests), MOST_RUNS as u64 + 100);
        assert_eq!(local.runs.iter().map(|run| run.times.len()).sum::<usize>(), 10);
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let mut wild = write(1, u64::MAX, i64::MAX);
        wild.begin = i64::MIN;
        wild.end = i64::MAX;
        let runs = runs([wild, write(1, u64::MAX, i64::MIN), wild, write(1, u64::MAX, 0)].map(Some));
        assert_eq!(runs.iter().map(|run| run.patterns[0].tally.requests).sum::<u64>(), 4);
    }
}
