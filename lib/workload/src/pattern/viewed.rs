//! Requests through the views of a model: parts of nested loops, at starting positions of each
//! rank.

use super::{Extent, PatternError, at_least_one, bytes, product, sum};
use serde::{Deserialize, Serialize};

/// One of several nested loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopLevel {
    /// Number of iterations.
    pub count: u64,
    /// Bytes from one iteration to the next.
    #[serde(with = "bytes")]
    pub stride: u64,
}

/// The extents of one length in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestPart {
    /// Bytes of an extent.
    #[serde(with = "bytes")]
    pub block: u64,
    /// Nested loops, innermost first; none: one extent at each start.
    #[serde(default)]
    pub loops: Vec<LoopLevel>,
    /// Offsets at which each rank begins the loops, relative to the start of the request.
    pub starts: Vec<Vec<u64>>,
}

impl RequestPart {
    /// Returns the starts of the extents of a rank.
    fn begins(&self, rank: u64) -> impl Iterator<Item = u64> + '_ {
        let own = self.starts.get(rank as usize).map_or([].as_slice(), Vec::as_slice);
        own.iter().flat_map(|start| iterations(&self.loops).map(move |distance| start + distance))
    }

    /// Returns the end of the last extent of a rank.
    fn end(&self, rank: usize) -> Result<u64, PatternError> {
        match self.starts[rank].iter().max() {
            Some(last) => sum(&[*last, span(&self.loops)?, self.block]),
            None => Ok(0),
        }
    }
}

/// Returns the most extents that a rank has in a request.
fn max_extents_of_request(parts: &[RequestPart], ranks: usize) -> usize {
    let of = |rank: usize| parts.iter().map(|part| part.begins(rank as u64).count()).sum();
    (0..ranks).map(of).max().unwrap_or(0)
}

/// Divides the longest extents until there are `count`, so that all ranks have the same number in a
/// request.
fn divide(extents: &mut Vec<Extent>, count: usize) {
    while extents.len() < count {
        let longest = extents.iter().enumerate().max_by_key(|(_, extent)| extent.length);
        let Some((at, Extent { offset, length })) = longest.map(|(at, extent)| (at, *extent)) else { return };
        if length < 2 {
            return;
        }
        let half = length / 2;
        extents[at].length = half;
        extents.insert(at + 1, Extent { offset: offset + half, length: length - half });
    }
}

/// Returns the distance from the first iteration of nested loops to each iteration, in order.
fn iterations(loops: &[LoopLevel]) -> impl Iterator<Item = u64> + '_ {
    let all = loops.iter().map(|level| level.count).product();
    (0..all).map(move |number| iteration(loops, number))
}

/// Returns the distance from the first iteration of nested loops to the iteration of this number.
pub(super) fn iteration(loops: &[LoopLevel], mut number: u64) -> u64 {
    let level = |level: &LoopLevel| {
        let digit = number % level.count;
        number /= level.count;
        digit * level.stride
    };
    loops.iter().map(level).sum()
}

/// Returns the distance from the first iteration of nested loops to the last.
pub(super) fn span(loops: &[LoopLevel]) -> Result<u64, PatternError> {
    loops.iter().try_fold(0, |all, level| {
        at_least_one(&[("count", level.count)])?;
        sum(&[all, product(&[level.count - 1, level.stride])?])
    })
}

/// Checks that there is a list for each process.
pub(super) fn check_lists(lists: &[Vec<u64>], processes: u64) -> Result<(), PatternError> {
    let found = lists.len();
    if found as u64 == processes { Ok(()) } else { Err(PatternError::Starts { found, processes }) }
}

/// Returns the size of the file of a viewed pattern.
pub(super) fn viewed_bytes(
    requests: &[LoopLevel],
    starts: &[Vec<u64>],
    parts: &[RequestPart],
    processes: u64,
) -> Result<u64, PatternError> {
    check_lists(starts, processes)?;
    at_least_one(&[("parts", parts.len() as u64)])?;
    for part in parts {
        at_least_one(&[("block", part.block)])?;
        check_lists(&part.starts, processes)?;
    }
    let last = span(requests)?;
    let end = |(rank, own): (usize, &Vec<u64>)| -> Result<u64, PatternError> {
        let ends = parts.iter().map(|part| part.end(rank));
        let end = ends.collect::<Result<Vec<u64>, _>>()?.into_iter().max().unwrap_or(0);
        sum(&[own.iter().copied().max().unwrap_or(0), last, end])
    };
    let ends = starts.iter().enumerate().map(end).collect::<Result<Vec<u64>, _>>()?;
    Ok(ends.into_iter().max().unwrap_or(0))
}

/// Returns the extents of a rank of a viewed pattern, request by request.
pub(super) fn viewed_extents(
    requests: &[LoopLevel],
    starts: &[Vec<u64>],
    parts: &[RequestPart],
    rank: u64,
) -> impl Iterator<Item = Extent> + Send + use<> {
    let begins: Vec<u64> = starts[rank as usize]
        .iter()
        .flat_map(|start| iterations(requests).map(move |distance| start + distance))
        .collect();
    // MPI requires the blocks of a file type in ascending order.
    let mut all: Vec<Extent> = parts
        .iter()
        .flat_map(|part| part.begins(rank).map(|offset| Extent { offset, length: part.block }))
        .collect();
    all.sort_unstable();
    divide(&mut all, max_extents_of_request(parts, starts.len()));
    begins.into_iter().flat_map(move |begin| {
        let moved = move |extent: Extent| Extent { offset: begin + extent.offset, ..extent };
        all.clone().into_iter().map(moved)
    })
}
