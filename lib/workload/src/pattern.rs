//! Which bytes of a file each process accesses, and in which order: the spatial patterns of pio-bench (Shorter).
//!
//! Where the texts on pio-bench that can be had do not define a pattern, that of the benchmark which stands in for it is
//! taken: IOR (segmented), mpi-tile-io (tiled), FLASH-IO (flash). A stride is the distance from the begin of one piece to the
//! begin of the next. Offsets and lengths are bytes.

use crate::scatter::{Scatter, permuted};
use serde::{Deserialize, Serialize};

mod bytes {
    pub(super) use miot_proto::units::bytes::{deserialize, serialize};
}

/// Consecutive bytes of a file, accessed with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// From the begin of the file.
    pub offset: u64,
    /// How many, at least 1.
    pub length: u64,
}

/// One of several nested loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// How often.
    pub count: u64,
    /// Bytes from one to the next.
    #[serde(with = "bytes")]
    pub stride: u64,
}

/// Pieces of one length of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Bytes of a piece.
    #[serde(with = "bytes")]
    pub block: u64,
    /// Innermost first; none: one piece from each start.
    #[serde(default)]
    pub loops: Vec<Level>,
    /// Where the loops begin, counted from the begin of the request, by rank.
    pub starts: Vec<Vec<u64>>,
}

impl Part {
    /// Begins of the pieces of a rank.
    fn begins(&self, rank: u64) -> impl Iterator<Item = u64> + '_ {
        let own = self.starts.get(rank as usize).map_or([].as_slice(), Vec::as_slice);
        own.iter().flat_map(|start| turns(&self.loops).map(move |distance| start + distance))
    }

    fn end(&self, rank: usize) -> Result<u64, Impossible> {
        match self.starts[rank].iter().max() {
            Some(last) => sum(&[*last, span(&self.loops)?, self.block]),
            None => Ok(0),
        }
    }
}

/// Pieces of a request, of the rank that has the most.
fn parts_of_request(parts: &[Part], ranks: usize) -> usize {
    let of = |rank: usize| parts.iter().map(|part| part.begins(rank as u64).count()).sum();
    (0..ranks).map(of).max().unwrap_or(0)
}

/// Divides the longest pieces until there are so many, so that all ranks have as many in a request.
fn divided(pieces: &mut Vec<Piece>, count: usize) {
    while pieces.len() < count {
        let longest = pieces.iter().enumerate().max_by_key(|(_, piece)| piece.length);
        let Some((at, Piece { offset, length })) = longest.map(|(at, piece)| (at, *piece)) else { return };
        if length < 2 {
            return;
        }
        let half = length / 2;
        pieces[at].length = half;
        pieces.insert(at + 1, Piece { offset: offset + half, length: length - half });
    }
}

/// From the first turn of nested loops to each.
fn turns(loops: &[Level]) -> impl Iterator<Item = u64> + '_ {
    let all = loops.iter().map(|level| level.count).product();
    (0..all).map(move |number| turn(loops, number))
}

/// From the first turn of nested loops to the one of this number.
fn turn(loops: &[Level], mut number: u64) -> u64 {
    let level = |level: &Level| {
        let digit = number % level.count;
        number /= level.count;
        digit * level.stride
    };
    loops.iter().map(level).sum()
}

/// From the first turn of nested loops to the last.
fn span(loops: &[Level]) -> Result<u64, Impossible> {
    loops.iter().try_fold(0, |all, level| {
        at_least_one(&[("count", level.count)])?;
        sum(&[all, product(&[level.count - 1, level.stride])?])
    })
}

/// Lists by rank are for these processes.
fn by_rank(lists: &[Vec<u64>], processes: u64) -> Result<(), Impossible> {
    let found = lists.len();
    if found as u64 == processes { Ok(()) } else { Err(Impossible::Starts { found, processes }) }
}

/// A spatial pattern. `n` processes have ranks `r` from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pattern", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Every process goes through the whole file, `count` pieces of `block`: piece `i` at `i·block`.
    Sequential {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Pieces.
        count: u64,
    },
    /// Each process has a segment of its own: piece `i` at `(r·count + i)·block`.
    Segmented {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Pieces of each process.
        count: u64,
    },
    /// The file is divided into strips, and each process has its place in every strip: piece `i` at `i·stride + r·block`.
    Strided {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Pieces of each process.
        count: u64,
        /// Bytes of a strip; `n·block` if it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        stride: Option<u64>,
    },
    /// Strided within strips that are strided themselves, as parts of rows of a matrix: piece `(i, j)` at
    /// `i·stride + j·inner_stride + r·block`, all `j` of an `i` first.
    NestedStrided {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Pieces within a strip.
        inner_count: u64,
        /// Bytes from one to the next; `n·block` if it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        inner_stride: Option<u64>,
        /// Strips.
        count: u64,
        /// Bytes of a strip; `inner_count·inner_stride` if it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        stride: Option<u64>,
    },
    /// The processes take turns, each time with another amount, as frames of a film: the pieces of turn 0 by rank, then
    /// those of turn 1, without gaps.
    RandomStrided {
        /// Fewest bytes of a piece.
        #[serde(with = "bytes")]
        least: u64,
        /// Most bytes of a piece.
        #[serde(with = "bytes")]
        most: u64,
        /// Turns.
        count: u64,
        /// Of the amounts: the same number gives the same pattern.
        #[serde(default)]
        seed: u64,
    },
    /// A matrix in row order, of which each process has a tile; one piece for each row of it. There are as many processes as tiles.
    Tiled {
        /// Tiles in a row of tiles.
        across: u64,
        /// Rows of tiles.
        down: u64,
        /// Elements in a row of a tile.
        width: u64,
        /// Rows of a tile.
        height: u64,
        /// Bytes of an element.
        #[serde(with = "bytes")]
        element: u64,
        /// Elements that a tile shares with the next one in its row.
        #[serde(default)]
        overlap_across: u64,
        /// Rows that a tile shares with the next one below.
        #[serde(default)]
        overlap_down: u64,
    },
    /// The vertices of a mesh, of which each process has as many as the others, anywhere in the file, in order of offset. Neighbours
    /// are one piece.
    Unstructured {
        /// Vertices of each process.
        vertices: u64,
        /// Bytes of a vertex.
        #[serde(with = "bytes")]
        record: u64,
        /// Of who has which.
        #[serde(default)]
        seed: u64,
    },
    /// The checkpoint of FLASH: `variables` one after the other, each with `blocks` of every process by rank.
    Flash {
        /// Variables.
        variables: u64,
        /// Blocks of each process.
        blocks: u64,
        /// Bytes of a variable in a block.
        #[serde(with = "bytes")]
        block: u64,
    },
    /// As models have it: each process goes through nested loops from a start of its own, which it may do again from other starts.
    Looped {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Innermost first; none: one piece.
        #[serde(default)]
        loops: Vec<Level>,
        /// Where each process begins the loops, in order, by rank.
        starts: Vec<Vec<u64>>,
    },
    /// As models have requests through a view: each process makes requests in nested loops, from starts of its own, and each request has
    /// the same parts. In a measurement `together` is the number of pieces of a request.
    Viewed {
        /// Innermost first; none: one request from each start.
        #[serde(default)]
        requests: Vec<Level>,
        /// Where each process begins the loops, in order, by rank.
        starts: Vec<Vec<u64>>,
        /// Of one request.
        parts: Vec<Part>,
    },
    /// The process of rank 0 accesses everything, `count·n` pieces, the others nothing.
    RankZero {
        /// Bytes of a piece.
        #[serde(with = "bytes")]
        block: u64,
        /// Pieces for each process.
        count: u64,
    },
}

pub(crate) mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::bytes::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        #[derive(Deserialize)]
        struct Bytes(#[serde(with = "super::bytes")] u64);
        Ok(Option::<Bytes>::deserialize(deserializer)?.map(|Bytes(bytes)| bytes))
    }
}

/// Why a pattern cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// A number is 0 that must not be.
    #[error("`{0}` is 0: at least 1 is needed")]
    Zero(&'static str),
    /// One number must be at least as large as another.
    #[error("`{small}` is {found}, less than the {least} of {what}: pieces would overlap")]
    TooSmall {
        /// What is too small.
        small: &'static str,
        /// Its value.
        found: u64,
        /// What it must at least be.
        least: u64,
        /// Where that comes from.
        what: &'static str,
    },
    /// Another number of processes is needed.
    #[error("{across} × {down} tiles need {} processes, there are {found}", across * down)]
    Tiles {
        /// Tiles in a row.
        across: u64,
        /// Rows of tiles.
        down: u64,
        /// Processes there are.
        found: u64,
    },
    /// The file would be longer than files can be.
    #[error("the file would be longer than 8 EiB: make blocks, counts or strides smaller")]
    TooLong,
    /// Loops begin somewhere for each process.
    #[error("`starts` has a list for {found} processes, there are {processes}")]
    Starts {
        /// Lists there are.
        found: usize,
        /// Processes there are.
        processes: u64,
    },
    /// More pieces than can be remembered.
    #[error("{0} vertices of all processes: at most {MOST_VERTICES} can be dealt out")]
    TooManyVertices(u64),
}

/// The permutation of vertices is made in memory by every process.
const MOST_VERTICES: u64 = 1 << 24;

/// What remains of a product that no file can be as long as.
fn product(factors: &[u64]) -> Result<u64, Impossible> {
    let product = factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor));
    product.filter(|product| i64::try_from(*product).is_ok()).ok_or(Impossible::TooLong)
}

fn sum(terms: &[u64]) -> Result<u64, Impossible> {
    let sum = terms.iter().try_fold(0u64, |sum, term| sum.checked_add(*term));
    sum.filter(|sum| i64::try_from(*sum).is_ok()).ok_or(Impossible::TooLong)
}

fn at_least_one(numbers: &[(&'static str, u64)]) -> Result<(), Impossible> {
    match numbers.iter().find(|(_, number)| *number == 0) {
        Some((name, _)) => Err(Impossible::Zero(name)),
        None => Ok(()),
    }
}

fn at_least(small: &'static str, found: u64, least: u64, what: &'static str) -> Result<(), Impossible> {
    if found < least { Err(Impossible::TooSmall { small, found, least, what }) } else { Ok(()) }
}

impl Pattern {
    /// Its name, as in configurations.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Pattern::Sequential { .. } => "sequential",
            Pattern::Segmented { .. } => "segmented",
            Pattern::Strided { .. } => "strided",
            Pattern::NestedStrided { .. } => "nested-strided",
            Pattern::RandomStrided { .. } => "random-strided",
            Pattern::Tiled { .. } => "tiled",
            Pattern::Unstructured { .. } => "unstructured",
            Pattern::Flash { .. } => "flash",
            Pattern::Looped { .. } => "looped",
            Pattern::Viewed { .. } => "viewed",
            Pattern::RankZero { .. } => "rank-zero",
        }
    }

    /// The same with so many times as many pieces; of a matrix, rows.
    #[must_use]
    pub fn times(&self, factor: u64) -> Pattern {
        let mut more = self.clone();
        let number = match &mut more {
            Pattern::Sequential { count, .. }
            | Pattern::Segmented { count, .. }
            | Pattern::Strided { count, .. }
            | Pattern::NestedStrided { count, .. }
            | Pattern::RandomStrided { count, .. }
            | Pattern::RankZero { count, .. } => count,
            Pattern::Tiled { height, .. } => height,
            Pattern::Unstructured { vertices, .. } => vertices,
            Pattern::Flash { variables, .. } => variables,
            // That of a model is what it is.
            Pattern::Looped { .. } | Pattern::Viewed { .. } => return more,
        };
        *number = number.saturating_mul(factor);
        more
    }

    /// True if several processes access the same bytes.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        match self {
            Pattern::Sequential { .. } => true,
            Pattern::Tiled { overlap_across, overlap_down, .. } => overlap_across + overlap_down > 0,
            _ => false,
        }
    }

    /// Bytes of the file that `processes` access: the end of the last piece.
    ///
    /// # Errors
    /// [`Impossible`], if the pattern cannot be with so many processes.
    pub fn file_bytes(&self, processes: u64) -> Result<u64, Impossible> {
        at_least_one(&[("processes", processes)])?;
        match *self {
            Pattern::Sequential { block, count } => {
                at_least_one(&[("block", block), ("count", count)])?;
                product(&[block, count])
            }
            Pattern::Segmented { block, count } | Pattern::RankZero { block, count } => {
                at_least_one(&[("block", block), ("count", count)])?;
                product(&[processes, block, count])
            }
            Pattern::Strided { block, count, stride } => {
                at_least_one(&[("block", block), ("count", count)])?;
                let strip = product(&[processes, block])?;
                let stride = stride.unwrap_or(strip);
                at_least("stride", stride, strip, "the blocks of all processes")?;
                sum(&[product(&[count - 1, stride])?, strip])
            }
            Pattern::NestedStrided { block, inner_count, inner_stride, count, stride } => {
                at_least_one(&[("block", block), ("inner_count", inner_count), ("count", count)])?;
                let strip = product(&[processes, block])?;
                let inner_stride = inner_stride.unwrap_or(strip);
                at_least("inner_stride", inner_stride, strip, "the blocks of all processes")?;
                let inner = sum(&[product(&[inner_count - 1, inner_stride])?, strip])?;
                let whole = product(&[inner_count, inner_stride])?;
                let stride = stride.unwrap_or(whole);
                at_least("stride", stride, inner, "the inner strips")?;
                sum(&[product(&[count - 1, stride])?, inner])
            }
            Pattern::RandomStrided { least, most, count, .. } => {
                at_least_one(&[("least", least), ("count", count)])?;
                at_least("most", most, least, "`least`")?;
                product(&[processes, most, count])?;
                Ok(self.ends(processes, count).last().unwrap_or(0))
            }
            Pattern::Tiled { across, down, width, height, element, overlap_across, overlap_down } => {
                at_least_one(&[
                    ("across", across),
                    ("down", down),
                    ("width", width),
                    ("height", height),
                    ("element", element),
                ])?;
                at_least("width", width, overlap_across.saturating_add(1), "the overlap and one element")?;
                at_least("height", height, overlap_down.saturating_add(1), "the overlap and one row")?;
                if across.checked_mul(down) != Some(processes) {
                    return Err(Impossible::Tiles { across, down, found: processes });
                }
                let row = sum(&[product(&[across, width - overlap_across])?, overlap_across])?;
                let rows = sum(&[product(&[down, height - overlap_down])?, overlap_down])?;
                product(&[row, rows, element])
            }
            Pattern::Unstructured { vertices, record, .. } => {
                at_least_one(&[("vertices", vertices), ("record", record)])?;
                let all = product(&[processes, vertices])?;
                if all > MOST_VERTICES {
                    return Err(Impossible::TooManyVertices(all));
                }
                product(&[all, record])
            }
            Pattern::Flash { variables, blocks, block } => {
                at_least_one(&[("variables", variables), ("blocks", blocks), ("block", block)])?;
                product(&[variables, processes, blocks, block])
            }
            Pattern::Looped { block, ref loops, ref starts } => {
                at_least_one(&[("block", block)])?;
                by_rank(starts, processes)?;
                sum(&[starts.iter().flatten().copied().max().unwrap_or(0), span(loops)?, block])
            }
            Pattern::Viewed { ref requests, ref starts, ref parts } => {
                by_rank(starts, processes)?;
                at_least_one(&[("parts", parts.len() as u64)])?;
                for part in parts {
                    at_least_one(&[("block", part.block)])?;
                    by_rank(&part.starts, processes)?;
                }
                let last = span(requests)?;
                let end = |(rank, own): (usize, &Vec<u64>)| -> Result<u64, Impossible> {
                    let ends = parts.iter().map(|part| part.end(rank));
                    let end = ends.collect::<Result<Vec<u64>, _>>()?.into_iter().max().unwrap_or(0);
                    sum(&[own.iter().copied().max().unwrap_or(0), last, end])
                };
                let ends = starts.iter().enumerate().map(end).collect::<Result<Vec<u64>, _>>()?;
                Ok(ends.into_iter().max().unwrap_or(0))
            }
        }
    }

    /// Where the pieces of each turn end, turn by turn and rank by rank.
    fn ends(&self, processes: u64, turns: u64) -> impl Iterator<Item = u64> + use<> {
        let (least, most, seed) = match *self {
            Pattern::RandomStrided { least, most, seed, .. } => (least, most, seed),
            _ => (0, 0, 0),
        };
        let amounts = Scatter::new(seed);
        (0..turns * processes).scan(0, move |end, number| {
            *end += amounts.between(number, least, most);
            Some(*end)
        })
    }

    /// The pieces of a process, in order.
    ///
    /// # Errors
    /// [`Impossible`], if the pattern cannot be with so many processes.
    pub fn pieces(
        &self,
        rank: u64,
        processes: u64,
    ) -> Result<Box<dyn Iterator<Item = Piece> + Send>, Impossible> {
        self.file_bytes(processes)?;
        let at = |offset, length| Piece { offset, length };
        Ok(match *self {
            Pattern::Sequential { block, count } => Box::new((0..count).map(move |i| at(i * block, block))),
            Pattern::Segmented { block, count } => {
                Box::new((0..count).map(move |i| at((rank * count + i) * block, block)))
            }
            Pattern::Strided { block, count, stride } => {
                let stride = stride.unwrap_or(processes * block);
                Box::new((0..count).map(move |i| at(i * stride + rank * block, block)))
            }
            Pattern::NestedStrided { block, inner_count, inner_stride, count, stride } => {
                let inner = inner_stride.unwrap_or(processes * block);
                let stride = stride.unwrap_or(inner_count * inner);
                let strips = (0..count).flat_map(move |i| (0..inner_count).map(move |j| (i, j)));
                Box::new(strips.map(move |(i, j)| at(i * stride + j * inner + rank * block, block)))
            }
            Pattern::RandomStrided { count, .. } => {
                let mut begin = 0;
                let pieces = self.ends(processes, count).enumerate().filter_map(move |(number, end)| {
                    let piece = at(begin, end - begin);
                    begin = end;
                    (number as u64 % processes == rank).then_some(piece)
                });
                Box::new(pieces)
            }
            Pattern::Tiled { across, width, height, element, overlap_across, overlap_down, .. } => {
                let row = (across * (width - overlap_across) + overlap_across) * element;
                let left = (rank % across) * (width - overlap_across) * element;
                let top = (rank / across) * (height - overlap_down);
                Box::new((top..top + height).map(move |line| at(line * row + left, width * element)))
            }
            Pattern::Unstructured { vertices, record, seed } => {
                let mut own = permuted(processes * vertices, seed);
                own = own.split_off((rank * vertices) as usize);
                own.truncate(vertices as usize);
                own.sort_unstable();
                let mut pieces: Vec<Piece> = Vec::new();
                for vertex in own {
                    match pieces.last_mut() {
                        Some(last) if last.offset + last.length == vertex * record => last.length += record,
                        _ => pieces.push(at(vertex * record, record)),
                    }
                }
                Box::new(pieces.into_iter())
            }
            Pattern::Flash { variables, blocks, block } => {
                let own = blocks * block;
                Box::new((0..variables).map(move |v| at((v * processes + rank) * own, own)))
            }
            Pattern::Looped { block, ref loops, ref starts } => {
                let (loops, own) = (loops.clone(), starts[rank as usize].clone());
                let all = loops.iter().map(|level| level.count).product();
                let places = own.into_iter().flat_map(move |start| (0..all).map(move |i| (start, i)));
                Box::new(places.map(move |(start, i)| at(start + turn(&loops, i), block)))
            }
            Pattern::Viewed { ref requests, ref starts, ref parts } => {
                let own = &starts[rank as usize];
                let begins: Vec<u64> = own
                    .iter()
                    .flat_map(|start| turns(requests).map(move |distance| start + distance))
                    .collect();
                // MPI wants the blocks of a file type in ascending order.
                let mut all: Vec<Piece> = parts
                    .iter()
                    .flat_map(|part| part.begins(rank).map(|begin| at(begin, part.block)))
                    .collect();
                all.sort_unstable();
                divided(&mut all, parts_of_request(parts, starts.len()));
                Box::new(begins.into_iter().flat_map(move |begin| {
                    let moved = move |piece: Piece| Piece { offset: begin + piece.offset, ..piece };
                    all.clone().into_iter().map(moved)
                }))
            }
            Pattern::RankZero { block, count } => {
                let count = if rank == 0 { count * processes } else { 0 };
                Box::new((0..count).map(move |i| at(i * block, block)))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Impossible, Level, Part, Pattern, Piece};
    use proptest::prelude::*;

    fn pieces(pattern: &Pattern, rank: u64, processes: u64) -> Vec<(u64, u64)> {
        let pieces = pattern.pieces(rank, processes).unwrap();
        pieces.map(|Piece { offset, length }| (offset, length)).collect()
    }

    #[test]
    fn patterns_by_hand() {
        let strided = Pattern::Strided { block: 10, count: 3, stride: None };
        assert_eq!(pieces(&strided, 1, 2), [(10, 10), (30, 10), (50, 10)]);
        let strided = Pattern::Strided { block: 10, count: 2, stride: Some(100) };
        assert_eq!(pieces(&strided, 1, 2), [(10, 10), (110, 10)]);
        assert_eq!(strided.file_bytes(2), Ok(120));
        let segmented = Pattern::Segmented { block: 10, count: 2 };
        assert_eq!(pieces(&segmented, 2, 3), [(40, 10), (50, 10)]);
        let nested = Pattern::NestedStrided {
            block: 4,
            inner_count: 2,
            inner_stride: None,
            count: 2,
            stride: Some(100),
        };
        assert_eq!(pieces(&nested, 1, 3), [(4, 4), (16, 4), (104, 4), (116, 4)]);
        let flash = Pattern::Flash { variables: 2, blocks: 3, block: 10 };
        assert_eq!(pieces(&flash, 1, 2), [(30, 30), (90, 30)]);
        let zero = Pattern::RankZero { block: 5, count: 1 };
        assert_eq!((pieces(&zero, 0, 3), pieces(&zero, 1, 3)), (vec![(0, 5), (5, 5), (10, 5)], vec![]));
    }

    /// 2 × 2 tiles of 256 × 256 elements of 16 bytes that overlap by 16: the file of mpi-tile-io.
    #[test]
    fn tiles_are_those_of_mpi_tile_io() {
        let tiled = Pattern::Tiled {
            across: 2,
            down: 2,
            width: 256,
            height: 256,
            element: 16,
            overlap_across: 16,
            overlap_down: 16,
        };
        assert_eq!(tiled.file_bytes(4), Ok(496 * 496 * 16));
        let third = pieces(&tiled, 2, 4);
        assert_eq!(
            (third.len(), third[0], third[255]),
            (256, (240 * 496 * 16, 4096), (495 * 496 * 16, 4096))
        );
        assert!(matches!(tiled.file_bytes(3), Err(Impossible::Tiles { found: 3, .. })));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let cases = [
            (Pattern::Segmented { block: 0, count: 1 }, "`block` is 0"),
            (Pattern::Strided { block: 10, count: 2, stride: Some(19) }, "`stride` is 19, less than the 20"),
            (Pattern::Segmented { block: 1 << 40, count: 1 << 40 }, "8 EiB"),
            (Pattern::RandomStrided { least: 5, most: 4, count: 1, seed: 0 }, "`most` is 4"),
            (Pattern::Unstructured { vertices: 1 << 30, record: 1, seed: 0 }, "vertices"),
        ];
        for (pattern, expected) in cases {
            let error = pattern.pieces(0, 2).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        let block = 1..100u64;
        let count = 1..20u64;
        prop_oneof![
            (block.clone(), count.clone()).prop_map(|(block, count)| Pattern::Segmented { block, count }),
            (block.clone(), count.clone()).prop_map(|(block, count)| Pattern::Strided {
                block,
                count,
                stride: None
            }),
            (block.clone(), count.clone(), count.clone()).prop_map(|(block, inner_count, count)| {
                Pattern::NestedStrided { block, inner_count, inner_stride: None, count, stride: None }
            }),
            (block.clone(), block.clone(), count.clone(), any::<u64>()).prop_map(|(a, b, count, seed)| {
                Pattern::RandomStrided { least: a.min(b), most: a.max(b), count, seed }
            }),
            (1..300u64, block.clone(), any::<u64>())
                .prop_map(|(vertices, record, seed)| Pattern::Unstructured { vertices, record, seed }),
            (count.clone(), count.clone(), block.clone())
                .prop_map(|(variables, blocks, block)| Pattern::Flash { variables, blocks, block }),
            (block, count).prop_map(|(block, count)| Pattern::RankZero { block, count }),
        ]
    }

    #[test]
    fn loops_begin_where_each_process_says() {
        let levels = [(2, 10), (2, 100)].map(|(count, stride)| Level { count, stride });
        let looped =
            Pattern::Looped { block: 5, loops: levels.to_vec(), starts: vec![vec![0], vec![7, 1000]] };
        let offsets: Vec<u64> = looped.pieces(1, 2).unwrap().map(|piece| piece.offset).collect();
        assert_eq!(offsets, [7, 17, 107, 117, 1000, 1010, 1100, 1110]);
        assert_eq!(looped.file_bytes(2), Ok(1115));
        assert_eq!(looped.file_bytes(3), Err(Impossible::Starts { found: 2, processes: 3 }));
    }

    /// Two processes with a column of two blocks of a matrix each; and a last row that is shorter.
    #[test]
    fn requests_through_a_view_have_their_parts_in_order() {
        let part = |block, count: u64, starts: [u64; 2]| {
            let loops = if count > 1 { vec![Level { count, stride: 20 }] } else { Vec::new() };
            Part { block, loops, starts: starts.map(|start| vec![start]).to_vec() }
        };
        let viewed = Pattern::Viewed {
            requests: vec![Level { count: 2, stride: 100 }],
            starts: vec![vec![0], vec![1000]],
            parts: vec![part(5, 1, [40, 50]), part(10, 2, [0, 10])],
        };
        assert_eq!(pieces(&viewed, 0, 2), [(0, 10), (20, 10), (40, 5), (100, 10), (120, 10), (140, 5)]);
        assert_eq!(pieces(&viewed, 1, 2)[..2], [(1010, 10), (1030, 10)]);
        assert_eq!(viewed.file_bytes(2), Ok(1155));
        assert_eq!(viewed.file_bytes(3), Err(Impossible::Starts { found: 2, processes: 3 }));
        // A rank that has its bytes in a row has them in as many pieces.
        let uneven = Pattern::Viewed {
            requests: Vec::new(),
            starts: vec![vec![0], vec![0]],
            parts: vec![
                Part { block: 10, loops: Vec::new(), starts: vec![vec![0, 40], Vec::new()] },
                Part { block: 20, loops: Vec::new(), starts: vec![Vec::new(), vec![10]] },
            ],
        };
        assert_eq!(pieces(&uneven, 0, 2), [(0, 10), (40, 10)]);
        assert_eq!(pieces(&uneven, 1, 2), [(10, 10), (20, 10)]);
        assert_eq!(uneven.file_bytes(2), Ok(50));
        let text = toml::to_string(&viewed).unwrap();
        assert_eq!(toml::from_str::<Pattern>(&text).unwrap(), viewed, "{text}");
    }

    proptest! {
        #[test]
        fn together_the_processes_access_every_byte_once(pattern in any_pattern(), processes in 1..9u64) {
            let mut all: Vec<Piece> =
                (0..processes).flat_map(|rank| pattern.pieces(rank, processes).unwrap()).collect();
            all.sort_unstable();
            let mut end = 0;
            for piece in all {
                prop_assert_eq!(piece.offset, end);
                prop_assert!(piece.length > 0);
                end += piece.length;
            }
            prop_assert_eq!(pattern.file_bytes(processes), Ok(end));
        }
    }
}
