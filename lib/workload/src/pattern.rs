//! Access patterns: which bytes of a file each process accesses, and in which order. These are the
//! spatial patterns of pio-bench (Shorter).
//!
//! Where the available texts on pio-bench do not define a pattern, it follows a benchmark that has
//! it: IOR (segmented), mpi-tile-io (tiled), FLASH-IO (flash). A stride is the distance from the
//! start of one extent to the start of the next. Offsets and lengths are bytes.

use crate::rng::{PositionRng, permuted};
use serde::{Deserialize, Serialize};
pub use viewed::{LoopLevel, RequestPart};
use viewed::{check_lists, iteration, span, viewed_bytes, viewed_extents};

mod viewed;

mod bytes {
    pub(super) use miot_proto::units::bytes::{deserialize, serialize};
}

/// Consecutive bytes of a file, accessed with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub length: u64,
}

/// A spatial pattern. The ranks `r` of `n` processes count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pattern", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Every process accesses the whole file, `count` extents of `block` bytes: extent `i` at
    /// `i·block`.
    Sequential {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Number of extents.
        count: u64,
    },
    /// Each process has its own segment: extent `i` at `(r·count + i)·block`.
    Segmented {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Extents of each process.
        count: u64,
    },
    /// The file is divided into strips, and each process has one extent in every strip: extent `i`
    /// at `i·stride + r·block`.
    Strided {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Extents of each process.
        count: u64,
        /// Bytes of a strip. Default: `n·block`.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        stride: Option<u64>,
    },
    /// Strips within strips, as parts of the rows of a matrix: extent `(i, j)` at
    /// `i·stride + j·inner_stride + r·block`, in order of `i`, then `j`.
    NestedStrided {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Extents of each process within a strip.
        inner_count: u64,
        /// Bytes from one to the next. Default: `n·block`.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        inner_stride: Option<u64>,
        /// Number of strips.
        count: u64,
        /// Bytes of a strip. Default: `inner_count·inner_stride`.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_bytes")]
        stride: Option<u64>,
    },
    /// The processes access extents of random length in rounds, like the frames of a film: the
    /// extents of round 0 by rank, then those of round 1, without gaps.
    RandomStrided {
        /// Minimum bytes of an extent.
        #[serde(with = "bytes")]
        least: u64,
        /// Maximum bytes of an extent.
        #[serde(with = "bytes")]
        most: u64,
        /// Number of rounds.
        count: u64,
        /// Seed of the lengths: the same seed gives the same pattern.
        #[serde(default)]
        seed: u64,
    },
    /// A matrix in row order, of which each process has one tile, with one extent for each row of
    /// it. The number of tiles must be that of processes.
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
        /// Elements of a row that a tile shares with the next tile to the right.
        #[serde(default)]
        overlap_across: u64,
        /// Rows that a tile shares with the next tile below.
        #[serde(default)]
        overlap_down: u64,
    },
    /// The vertices of a mesh. Each process has the same number of them, anywhere in the file, in
    /// order of offset. Adjacent vertices are one extent.
    Unstructured {
        /// Vertices of each process.
        vertices: u64,
        /// Bytes of a vertex.
        #[serde(with = "bytes")]
        record: u64,
        /// Seed of the distribution of vertices.
        #[serde(default)]
        seed: u64,
    },
    /// The checkpoint of FLASH: `variables` one after the other, each with `blocks` of every
    /// process, by rank.
    Flash {
        /// Number of variables.
        variables: u64,
        /// Blocks of each process.
        blocks: u64,
        /// Bytes of a variable in a block.
        #[serde(with = "bytes")]
        block: u64,
    },
    /// The pattern of models: each process runs nested loops, from each of its own starts.
    Looped {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Nested loops, innermost first; none: one extent.
        #[serde(default)]
        loops: Vec<LoopLevel>,
        /// Offsets at which each rank begins the loops, in order.
        starts: Vec<Vec<u64>>,
    },
    /// The pattern of models for requests through a view: each process makes requests in nested
    /// loops, from its own starts, and each request has the same parts. In a measurement `together`
    /// is the number of extents of a request.
    Viewed {
        /// Nested loops, innermost first; none: one request at each start.
        #[serde(default)]
        requests: Vec<LoopLevel>,
        /// Offsets at which each rank begins the loops, in order.
        starts: Vec<Vec<u64>>,
        /// Parts of one request.
        parts: Vec<RequestPart>,
    },
    /// Rank 0 accesses all `count·n` extents, the other ranks none.
    RankZero {
        /// Bytes of an extent.
        #[serde(with = "bytes")]
        block: u64,
        /// Extents per process.
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

/// Why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A number is 0 that must be at least 1.
    #[error("`{0}` is 0: it must be at least 1")]
    Zero(&'static str),
    /// A number is less than another one.
    #[error("`{small}` is {found}, less than the {least} of {what}: extents would overlap")]
    TooSmall {
        /// Name of the number.
        small: &'static str,
        /// Its value.
        found: u64,
        /// Its minimum.
        least: u64,
        /// What has the minimum.
        what: &'static str,
    },
    /// The number of tiles is not that of processes.
    #[error("{across} × {down} tiles need {} processes, found {found}", across * down)]
    Tiles {
        /// Tiles in a row.
        across: u64,
        /// Rows of tiles.
        down: u64,
        /// Number of processes.
        found: u64,
    },
    /// The file would be longer than 2⁶³ − 1 bytes.
    #[error("the file would be longer than 8 EiB: use smaller blocks, counts or strides")]
    TooLong,
    /// The number of lists is not that of processes.
    #[error("`starts` has lists for {found} processes, but there are {processes}")]
    Starts {
        /// Number of lists.
        found: usize,
        /// Number of processes.
        processes: u64,
    },
    /// More vertices than fit in memory.
    #[error("all processes have {0} vertices: at most {MAX_VERTICES} are possible")]
    TooManyVertices(u64),
}

/// Maximum number of vertices. Every process holds their permutation in memory: 8 bytes for each.
const MAX_VERTICES: u64 = 1 << 24;

/// Returns the product, or an error if it is more than the maximum length of a file.
fn product(factors: &[u64]) -> Result<u64, PatternError> {
    let product = factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor));
    product.filter(|product| i64::try_from(*product).is_ok()).ok_or(PatternError::TooLong)
}

/// Returns the sum, or an error if it is more than the maximum length of a file.
fn sum(terms: &[u64]) -> Result<u64, PatternError> {
    let sum = terms.iter().try_fold(0u64, |sum, term| sum.checked_add(*term));
    sum.filter(|sum| i64::try_from(*sum).is_ok()).ok_or(PatternError::TooLong)
}

fn at_least_one(numbers: &[(&'static str, u64)]) -> Result<(), PatternError> {
    match numbers.iter().find(|(_, number)| *number == 0) {
        Some((name, _)) => Err(PatternError::Zero(name)),
        None => Ok(()),
    }
}

fn at_least(small: &'static str, found: u64, least: u64, what: &'static str) -> Result<(), PatternError> {
    if found < least { Err(PatternError::TooSmall { small, found, least, what }) } else { Ok(()) }
}

/// Returns the extents of a rank of an unstructured pattern. Adjacent vertices are one extent.
fn unstructured_extents(vertices: u64, record: u64, seed: u64, rank: u64, processes: u64) -> Vec<Extent> {
    let mut own = permuted(processes * vertices, seed);
    own = own.split_off((rank * vertices) as usize);
    own.truncate(vertices as usize);
    own.sort_unstable();
    let mut extents: Vec<Extent> = Vec::new();
    for vertex in own {
        match extents.last_mut() {
            Some(last) if last.offset + last.length == vertex * record => last.length += record,
            _ => extents.push(Extent { offset: vertex * record, length: record }),
        }
    }
    extents
}

impl Pattern {
    /// Returns the name of the pattern in configuration files.
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

    /// Returns the pattern with `factor` times as many extents; of a matrix, rows. The patterns of
    /// models do not change.
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
            Pattern::Looped { .. } | Pattern::Viewed { .. } => return more,
        };
        *number = number.saturating_mul(factor);
        more
    }

    /// Returns true if several processes access the same bytes.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        match self {
            Pattern::Sequential { .. } => true,
            Pattern::Tiled { overlap_across, overlap_down, .. } => overlap_across + overlap_down > 0,
            _ => false,
        }
    }

    /// Returns the size of the file that `processes` access: the end of the last extent.
    ///
    /// # Errors
    /// [`PatternError`] if the pattern is invalid with so many processes.
    pub fn file_bytes(&self, processes: u64) -> Result<u64, PatternError> {
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
                Ok(self.random_ends(processes, count).last().unwrap_or(0))
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
                    return Err(PatternError::Tiles { across, down, found: processes });
                }
                let row = sum(&[product(&[across, width - overlap_across])?, overlap_across])?;
                let rows = sum(&[product(&[down, height - overlap_down])?, overlap_down])?;
                product(&[row, rows, element])
            }
            Pattern::Unstructured { vertices, record, .. } => {
                at_least_one(&[("vertices", vertices), ("record", record)])?;
                let all = product(&[processes, vertices])?;
                if all > MAX_VERTICES {
                    return Err(PatternError::TooManyVertices(all));
                }
                product(&[all, record])
            }
            Pattern::Flash { variables, blocks, block } => {
                at_least_one(&[("variables", variables), ("blocks", blocks), ("block", block)])?;
                product(&[variables, processes, blocks, block])
            }
            Pattern::Looped { block, ref loops, ref starts } => {
                at_least_one(&[("block", block)])?;
                check_lists(starts, processes)?;
                sum(&[starts.iter().flatten().copied().max().unwrap_or(0), span(loops)?, block])
            }
            Pattern::Viewed { ref requests, ref starts, ref parts } => {
                viewed_bytes(requests, starts, parts, processes)
            }
        }
    }

    /// Returns the ends of the extents of a random-strided pattern, by round, then by rank.
    fn random_ends(&self, processes: u64, rounds: u64) -> impl Iterator<Item = u64> + use<> {
        let (least, most, seed) = match *self {
            Pattern::RandomStrided { least, most, seed, .. } => (least, most, seed),
            _ => (0, 0, 0),
        };
        let lengths = PositionRng::new(seed);
        (0..rounds * processes).scan(0, move |end, number| {
            *end += lengths.between(number, least, most);
            Some(*end)
        })
    }

    /// Returns the extents of a process, in order.
    ///
    /// # Errors
    /// [`PatternError`] if the pattern is invalid with so many processes.
    pub fn extents(
        &self,
        rank: u64,
        processes: u64,
    ) -> Result<Box<dyn Iterator<Item = Extent> + Send>, PatternError> {
        self.file_bytes(processes)?;
        let at = |offset, length| Extent { offset, length };
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
                let extents =
                    self.random_ends(processes, count).enumerate().filter_map(move |(number, end)| {
                        let extent = at(begin, end - begin);
                        begin = end;
                        (number as u64 % processes == rank).then_some(extent)
                    });
                Box::new(extents)
            }
            Pattern::Tiled { across, width, height, element, overlap_across, overlap_down, .. } => {
                let row = (across * (width - overlap_across) + overlap_across) * element;
                let left = (rank % across) * (width - overlap_across) * element;
                let top = (rank / across) * (height - overlap_down);
                Box::new((top..top + height).map(move |line| at(line * row + left, width * element)))
            }
            Pattern::Unstructured { vertices, record, seed } => {
                Box::new(unstructured_extents(vertices, record, seed, rank, processes).into_iter())
            }
            Pattern::Flash { variables, blocks, block } => {
                let own = blocks * block;
                Box::new((0..variables).map(move |v| at((v * processes + rank) * own, own)))
            }
            Pattern::Looped { block, ref loops, ref starts } => {
                let (loops, own) = (loops.clone(), starts[rank as usize].clone());
                let all = loops.iter().map(|level| level.count).product();
                let places = own.into_iter().flat_map(move |start| (0..all).map(move |i| (start, i)));
                Box::new(places.map(move |(start, i)| at(start + iteration(&loops, i), block)))
            }
            Pattern::Viewed { ref requests, ref starts, ref parts } => {
                Box::new(viewed_extents(requests, starts, parts, rank))
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
    use super::{Extent, LoopLevel, Pattern, PatternError, RequestPart};
    use proptest::prelude::*;

    fn extents(pattern: &Pattern, rank: u64, processes: u64) -> Vec<(u64, u64)> {
        let extents = pattern.extents(rank, processes).unwrap();
        extents.map(|Extent { offset, length }| (offset, length)).collect()
    }

    #[test]
    fn patterns_match_hand_computed_extents() {
        let strided = Pattern::Strided { block: 10, count: 3, stride: None };
        assert_eq!(extents(&strided, 1, 2), [(10, 10), (30, 10), (50, 10)]);
        let strided = Pattern::Strided { block: 10, count: 2, stride: Some(100) };
        assert_eq!(extents(&strided, 1, 2), [(10, 10), (110, 10)]);
        assert_eq!(strided.file_bytes(2), Ok(120));
        let segmented = Pattern::Segmented { block: 10, count: 2 };
        assert_eq!(extents(&segmented, 2, 3), [(40, 10), (50, 10)]);
        let nested = Pattern::NestedStrided {
            block: 4,
            inner_count: 2,
            inner_stride: None,
            count: 2,
            stride: Some(100),
        };
        assert_eq!(extents(&nested, 1, 3), [(4, 4), (16, 4), (104, 4), (116, 4)]);
        let flash = Pattern::Flash { variables: 2, blocks: 3, block: 10 };
        assert_eq!(extents(&flash, 1, 2), [(30, 30), (90, 30)]);
        let zero = Pattern::RankZero { block: 5, count: 1 };
        assert_eq!((extents(&zero, 0, 3), extents(&zero, 1, 3)), (vec![(0, 5), (5, 5), (10, 5)], vec![]));
    }

    /// 2 × 2 tiles of 256 × 256 elements of 16 bytes that overlap by 16: the file of mpi-tile-io.
    #[test]
    fn tiles_match_mpi_tile_io() {
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
        let third = extents(&tiled, 2, 4);
        assert_eq!(
            (third.len(), third[0], third[255]),
            (256, (240 * 496 * 16, 4096), (495 * 496 * 16, 4096))
        );
        assert!(matches!(tiled.file_bytes(3), Err(PatternError::Tiles { found: 3, .. })));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let cases = [
            (Pattern::Segmented { block: 0, count: 1 }, "`block` is 0"),
            (Pattern::Strided { block: 10, count: 2, stride: Some(19) }, "`stride` is 19, less than the 20"),
            (Pattern::Segmented { block: 1 << 40, count: 1 << 40 }, "8 EiB"),
            (Pattern::RandomStrided { least: 5, most: 4, count: 1, seed: 0 }, "`most` is 4"),
            (Pattern::Unstructured { vertices: 1 << 30, record: 1, seed: 0 }, "vertices"),
        ];
        for (pattern, expected) in cases {
            let error = pattern.extents(0, 2).err().unwrap().to_string();
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
    fn loops_begin_at_the_starts_of_each_process() {
        let levels = [(2, 10), (2, 100)].map(|(count, stride)| LoopLevel { count, stride });
        let looped =
            Pattern::Looped { block: 5, loops: levels.to_vec(), starts: vec![vec![0], vec![7, 1000]] };
        let offsets: Vec<u64> = looped.extents(1, 2).unwrap().map(|extent| extent.offset).collect();
        assert_eq!(offsets, [7, 17, 107, 117, 1000, 1010, 1100, 1110]);
        assert_eq!(looped.file_bytes(2), Ok(1115));
        assert_eq!(looped.file_bytes(3), Err(PatternError::Starts { found: 2, processes: 3 }));
    }

    /// Two processes, each with a column of two blocks of a matrix, and a shorter last row.
    #[test]
    fn requests_through_a_view_have_parts_in_order() {
        let part = |block, count: u64, starts: [u64; 2]| {
            let loops = if count > 1 { vec![LoopLevel { count, stride: 20 }] } else { Vec::new() };
            RequestPart { block, loops, starts: starts.map(|start| vec![start]).to_vec() }
        };
        let viewed = Pattern::Viewed {
            requests: vec![LoopLevel { count: 2, stride: 100 }],
            starts: vec![vec![0], vec![1000]],
            parts: vec![part(5, 1, [40, 50]), part(10, 2, [0, 10])],
        };
        assert_eq!(extents(&viewed, 0, 2), [(0, 10), (20, 10), (40, 5), (100, 10), (120, 10), (140, 5)]);
        assert_eq!(extents(&viewed, 1, 2)[..2], [(1010, 10), (1030, 10)]);
        assert_eq!(viewed.file_bytes(2), Ok(1155));
        assert_eq!(viewed.file_bytes(3), Err(PatternError::Starts { found: 2, processes: 3 }));
        // The rank with consecutive bytes has as many extents as the other.
        let uneven = Pattern::Viewed {
            requests: Vec::new(),
            starts: vec![vec![0], vec![0]],
            parts: vec![
                RequestPart { block: 10, loops: Vec::new(), starts: vec![vec![0, 40], Vec::new()] },
                RequestPart { block: 20, loops: Vec::new(), starts: vec![Vec::new(), vec![10]] },
            ],
        };
        assert_eq!(extents(&uneven, 0, 2), [(0, 10), (40, 10)]);
        assert_eq!(extents(&uneven, 1, 2), [(10, 10), (20, 10)]);
        assert_eq!(uneven.file_bytes(2), Ok(50));
        let text = toml::to_string(&viewed).unwrap();
        assert_eq!(toml::from_str::<Pattern>(&text).unwrap(), viewed, "{text}");
    }

    proptest! {
        #[test]
        fn all_processes_access_every_byte_once(pattern in any_pattern(), processes in 1..9u64) {
            let mut all: Vec<Extent> =
                (0..processes).flat_map(|rank| pattern.extents(rank, processes).unwrap()).collect();
            all.sort_unstable();
            let mut end = 0;
            for extent in all {
                prop_assert_eq!(extent.offset, end);
                prop_assert!(extent.length > 0);
                end += extent.length;
            }
            prop_assert_eq!(pattern.file_bytes(processes), Ok(end));
        }
    }
}
