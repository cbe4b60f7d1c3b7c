//! Figures of all ranks of a job together: shared files and aggregate performance.
//!
//! A rank is an MPI rank; processes without a rank are ignored if others of the job have one. If no
//! process has a rank, each process counts as one.

use super::Pair;
use super::counters::Span;
use std::collections::{BTreeMap, HashSet};

const MIB: f64 = (1 << 20) as f64;

/// A file that all ranks of a job used, reduced as in Darshan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shared {
    /// Number of ranks.
    pub ranks: u64,
    /// The rank with the least I/O time (`FASTEST_RANK`).
    pub fastest: Rank,
    /// The rank with the most I/O time (`SLOWEST_RANK`).
    pub slowest: Rank,
    /// Population variance of the times, seconds² (`F_VARIANCE_RANK_TIME`).
    pub variance_time: f64,
    /// Population variance of the bytes, bytes² (`F_VARIANCE_RANK_BYTES`).
    pub variance_bytes: f64,
}

/// I/O of a rank to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Number of the rank.
    pub rank: u64,
    /// Time in reads, writes and metadata, nanoseconds.
    pub time: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Aggregate performance of a job in a layer.
///
/// Darshan's estimates in MiB/s. All of them are `bytes / 2^20 / (unique + shared)`: `unique` is
/// the longest time of a rank in files that are not shared, and `shared` is a sum over the shared
/// files that differs between the estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Performance {
    /// Ranks of the job.
    pub ranks: u64,
    /// Nodes of the ranks.
    pub nodes: u64,
    /// Bytes read and written by the ranks.
    pub bytes: u64,
    /// Shared files.
    pub shared_files: u64,
    /// Time of the slowest rank in files that are not shared, nanoseconds.
    pub unique_time: u64,
    /// The rank with that time.
    pub slowest_rank: u64,
    /// `shared` sums the time of the slowest rank of each file (`agg_perf_by_slowest`).
    pub by_slowest: Option<f64>,
    /// `shared` sums the time of all ranks, divided by their number (`agg_perf_by_cumul`).
    pub by_cumul: Option<f64>,
    /// `shared` sums the time from first open to last close (`agg_perf_by_open`).
    pub by_open: Option<f64>,
    /// `shared` sums the time from first open to the end of the last read or write
    /// (`agg_perf_by_open_lastio`).
    pub by_open_lastio: Option<f64>,
    /// `by_open_lastio` for each node: MiB/s/CN of Carns et al. 2011, section II-D.
    pub per_node: Option<f64>,
}

/// The ranks of a job.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// All ranks.
    pub(super) all: HashSet<u64>,
    /// Nodes.
    pub(super) nodes: HashSet<u32>,
}

/// Sum of squared differences from the mean, merged by Chan's rule as in Darshan's
/// `darshan_variance_reduce`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Variance {
    n: f64,
    total: f64,
    squares: f64,
}

impl Variance {
    fn of(value: f64) -> Variance {
        Variance { n: 1.0, total: value, squares: 0.0 }
    }

    fn merge(self, y: Variance) -> Variance {
        let x = self;
        if x.n == 0.0 || y.n == 0.0 {
            return if x.n == 0.0 { y } else { x };
        }
        let n = x.n + y.n;
        let difference = (y.n / x.n) * x.total - y.total;
        Variance {
            n,
            total: x.total + y.total,
            squares: x.squares + y.squares + (x.n / (y.n * n)) * difference * difference,
        }
    }

    /// Returns the variance of the values, computed as a tree of merges of neighbors.
    pub(super) fn population(values: &[f64]) -> f64 {
        let mut level: Vec<Variance> = values.iter().copied().map(Variance::of).collect();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|two| two.iter().copied().fold(Variance::default(), Variance::merge))
                .collect();
        }
        level.first().map_or(0.0, |all| all.squares / all.n)
    }
}

/// Use of a file by ranks.
struct FileUse {
    by_rank: BTreeMap<u64, Rank>,
    open: Span,
    close: Span,
    last_io: i64,
}

fn used<'a>(pairs: impl Iterator<Item = (u64, &'a Pair)>) -> FileUse {
    let mut used = FileUse {
        by_rank: BTreeMap::new(),
        open: Span::default(),
        close: Span::default(),
        last_io: i64::MIN,
    };
    for (rank, pair) in pairs {
        let counters = &pair.counters;
        let entry = used.by_rank.entry(rank).or_insert(Rank { rank, time: 0, bytes: 0 });
        entry.time = entry.time.saturating_add(counters.time());
        entry.bytes = entry.bytes.saturating_add(counters.bytes());
        used.open.merge(counters.open);
        used.close.merge(counters.close);
        let ends = [counters.reads(), counters.writes()].map(|side| side.span.end);
        used.last_io = ends.into_iter().fold(used.last_io, i64::max);
    }
    used
}

/// Returns the reduction of a file that all ranks used; `None` if not all did, or if there is only
/// one rank.
pub(super) fn shared<'a>(
    ranks: &Ranks,
    pairs: impl Iterator<Item = (u64, &'a Pair)> + Clone,
) -> Option<Shared> {
    let opened: HashSet<u64> =
        pairs.clone().filter(|(_, pair)| pair.counters.is_opened()).map(|(rank, _)| rank).collect();
    if ranks.all.len() < 2 || opened.len() < ranks.all.len() {
        return None;
    }
    let used = used(pairs);
    let all: Vec<Rank> = used.by_rank.values().copied().collect();
    let times: Vec<f64> = all.iter().map(|rank| rank.time as f64 / 1e9).collect();
    let bytes: Vec<f64> = all.iter().map(|rank| rank.bytes as f64).collect();
    Some(Shared {
        ranks: ranks.all.len() as u64,
        fastest: *all.iter().min_by_key(|rank| rank.time)?,
        // The first of equal ranks.
        slowest: *all.iter().rev().max_by_key(|rank| rank.time)?,
        variance_time: Variance::population(&times),
        variance_bytes: Variance::population(&bytes),
    })
}

/// Returns the performance for the pairs of a job's ranks in one layer, each with its rank, ordered
/// by file.
pub(super) fn performance(ranks: &Ranks, pairs: &[(u64, &Pair)]) -> Performance {
    let mut unique: BTreeMap<u64, u64> = ranks.all.iter().map(|rank| (*rank, 0)).collect();
    let mut found = Performance {
        ranks: ranks.all.len() as u64,
        nodes: ranks.nodes.len() as u64,
        ..Performance::default()
    };
    let [mut by_slowest, mut by_cumul, mut by_open, mut by_open_lastio] = [0u64; 4];
    let from_to = |from: i64, to: i64| if from < to { to.abs_diff(from) } else { 0 };
    for file in pairs.chunk_by(|one, other| one.1.file == other.1.file) {
        let bytes = file.iter().fold(0u64, |sum, (_, pair)| sum.saturating_add(pair.counters.bytes()));
        found.bytes = found.bytes.saturating_add(bytes);
        let pairs = file.iter().copied();
        let is_file = file[0].1.file.is_some_and(|file| file != super::OTHERS);
        match shared(ranks, pairs.clone()).filter(|_| is_file) {
            Some(shared) => {
                let used = used(pairs);
                found.shared_files += 1;
                by_slowest = by_slowest.saturating_add(shared.slowest.time);
                let times = used.by_rank.values().fold(0u64, |sum, rank| sum.saturating_add(rank.time));
                by_cumul = by_cumul.saturating_add(times / shared.ranks);
                let of_open = from_to(used.open.begin, used.close.end);
                by_open = by_open.saturating_add(if used.close.is_empty() { 0 } else { of_open });
                by_open_lastio = by_open_lastio.saturating_add(from_to(used.open.begin, used.last_io));
            }
            None => {
                for (rank, pair) in pairs {
                    let time = unique.entry(rank).or_default();
                    *time = time.saturating_add(pair.counters.time());
                }
            }
        }
    }
    // The first of equal ranks.
    if let Some((rank, time)) = unique.into_iter().rev().max_by_key(|(_, time)| *time) {
        (found.slowest_rank, found.unique_time) = (rank, time);
    }
    let rate = |shared: u64| {
        let seconds = found.unique_time.saturating_add(shared) as f64 / 1e9;
        (seconds > 0.0).then(|| found.bytes as f64 / MIB / seconds)
    };
    let last = rate(by_open_lastio);
    Performance {
        by_slowest: rate(by_slowest),
        by_cumul: rate(by_cumul),
        by_open: rate(by_open),
        by_open_lastio: last,
        per_node: last.filter(|_| found.nodes > 0).map(|rate| rate / found.nodes as f64),
        ..found
    }
}
