//! Byte layout of a datatype: the tree of its constructors, and its flattening into blocks.

use std::rc::Rc;

/// Consecutive bytes of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Distance from the type's origin, in bytes.
    pub(crate) offset: i64,
    pub(crate) bytes: u64,
}

/// Blocks of equal length in nested loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopNest {
    pub(crate) first: Block,
    /// Iterations and stride in bytes of each loop, innermost first.
    pub(crate) loops: Vec<(u64, i64)>,
}

/// Consecutive elements of an array dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the first element.
    pub(crate) start: i64,
    pub(crate) count: i64,
}

/// One dimension of an array: its size in elements, and the elements that belong to the type.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    pub(crate) size: i64,
    pub(crate) runs: Vec<Run>,
}

/// Consecutive elements at a byte offset.
#[derive(Clone, Debug)]
pub(crate) struct PlacedBlock {
    /// Distance from the type's origin, in bytes.
    pub(crate) offset: i64,
    /// Number of elements.
    pub(crate) count: i64,
    pub(crate) element: Rc<Layout>,
}

/// Arrangement of the elements of a type.
#[derive(Clone, Debug)]
pub(crate) enum LayoutKind {
    /// Number of consecutive bytes.
    Bytes(u64),
    /// `count` blocks of `length` elements; the stride is in bytes.
    Strided { count: i64, length: i64, stride: i64, element: Rc<Layout> },
    /// Blocks of different lengths and element types.
    Blocks(Vec<PlacedBlock>),
    /// A part of an array, with its dimensions from the slowest to the fastest.
    Array { dimensions: Vec<Dimension>, element: Rc<Layout> },
}

/// Layout of one datatype.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    kind: LayoutKind,
    /// Distance from one element of this type to the next, in bytes.
    extent: i64,
    /// Set if the type is one block that fills its extent: repetitions of it form one block.
    dense: Option<Block>,
}

/// Collects blocks in the order of the type's bytes. It joins adjacent blocks and folds evenly
/// spaced blocks into loops, so that a part of a matrix is one nest regardless of its rows.
#[derive(Debug)]
struct BlockCollector {
    nests: Vec<LoopNest>,
    /// The last block, to which the next one may be joined.
    block: Option<Block>,
    max_nests: usize,
    /// Limits the work: a type may have more empty parts than bytes.
    steps_left: usize,
}

impl BlockCollector {
    /// Maximum number of steps of one flattening.
    const MAX_STEPS: usize = 1 << 18;

    fn new(max_nests: usize) -> BlockCollector {
        BlockCollector { nests: Vec::new(), block: None, max_nests, steps_left: BlockCollector::MAX_STEPS }
    }

    /// Counts a step. Returns false if none is left.
    fn step(&mut self) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        self.steps_left > 0
    }

    /// Adds a block. Returns false if there are more nests than wanted.
    fn push(&mut self, offset: i64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        match &mut self.block {
            Some(last) if last.offset.wrapping_add_unsigned(last.bytes) == offset => {
                last.bytes += bytes;
                true
            }
            block => {
                let over = block.replace(Block { offset, bytes });
                over.is_none_or(|over| self.finish_block(over))
            }
        }
    }

    /// Adds a block that is complete. Returns false if there are more nests than wanted.
    fn finish_block(&mut self, block: Block) -> bool {
        self.nests.push(LoopNest { first: block, loops: Vec::new() });
        while self.fold_last_two() {}
        if self.nests.len() > self.max_nests {
            self.nests.truncate(self.max_nests);
            return false;
        }
        true
    }

    /// Folds the last two nests into one if they are iterations of a loop. Returns whether it did.
    fn fold_last_two(&mut self) -> bool {
        let [.., before, last] = self.nests.as_mut_slice() else { return false };
        let depth = last.loops.len();
        if before.first.bytes != last.first.bytes || before.loops.get(..depth) != Some(last.loops.as_slice())
        {
            return false;
        }
        let distance = last.first.offset.wrapping_sub(before.first.offset);
        match before.loops.get(depth..) {
            Some([]) if distance > 0 => before.loops.push((2, distance)),
            Some([(count, stride)]) if stride.checked_mul(*count as i64) == Some(distance) => {
                before.loops[depth].0 += 1;
            }
            _ => return false,
        }
        self.nests.pop();
        true
    }
}

impl Layout {
    pub(crate) fn new(kind: LayoutKind, extent: i64) -> Layout {
        let mut layout = Layout { kind, extent, dense: None };
        let mut blocks = BlockCollector::new(0);
        let is_complete = layout.flatten(0, &mut blocks);
        layout.dense = blocks.block.filter(|only| is_complete && i64::try_from(only.bytes) == Ok(extent));
        layout
    }

    /// Distance from one element to the next, in bytes.
    pub(crate) fn extent(&self) -> i64 {
        self.extent
    }

    /// Returns at most `max_nests` loop nests, and whether they are the whole type.
    pub(crate) fn loop_nests(&self, max_nests: usize) -> (Vec<LoopNest>, bool) {
        let mut blocks = BlockCollector::new(max_nests);
        let is_complete = self.flatten(0, &mut blocks);
        let last = blocks.block.take();
        let is_complete = last.is_none_or(|last| blocks.finish_block(last)) && is_complete;
        (blocks.nests, is_complete)
    }

    /// Adds the blocks of one element at byte offset `at`. Returns false if a limit was reached.
    fn flatten(&self, at: i64, into: &mut BlockCollector) -> bool {
        match &self.kind {
            LayoutKind::Bytes(bytes) => into.push(at, *bytes),
            LayoutKind::Strided { count, length, stride, element } => (0..*count)
                .all(|i| element.flatten_repeated(at.wrapping_add(i.wrapping_mul(*stride)), *length, into)),
            LayoutKind::Blocks(blocks) => blocks.iter().all(|PlacedBlock { offset, count, element }| {
                element.flatten_repeated(at.wrapping_add(*offset), *count, into)
            }),
            LayoutKind::Array { dimensions, element } => element.flatten_array(dimensions, at, into),
        }
    }

    /// Adds `count` elements that are one extent apart.
    fn flatten_repeated(&self, at: i64, count: i64, into: &mut BlockCollector) -> bool {
        if !into.step() {
            return false;
        }
        if let Some(block) = self.dense {
            return into.push(at.wrapping_add(block.offset), block.bytes.wrapping_mul(count.max(0) as u64));
        }
        (0..count).all(|i| self.flatten(at.wrapping_add(i.wrapping_mul(self.extent)), into))
    }

    /// Adds the part of an array of this type that `dimensions` select.
    fn flatten_array(&self, dimensions: &[Dimension], at: i64, into: &mut BlockCollector) -> bool {
        let Some((slowest, faster)) = dimensions.split_first() else {
            return self.flatten_repeated(at, 1, into);
        };
        let stride = faster.iter().fold(self.extent, |stride, d| stride.wrapping_mul(d.size));
        slowest.runs.iter().all(|Run { start, count }| {
            let at = |i: i64| at.wrapping_add((start + i).wrapping_mul(stride));
            if faster.is_empty() {
                self.flatten_repeated(at(0), *count, into)
            } else {
                (0..*count).all(|i| into.step() && self.flatten_array(faster, at(i), into))
            }
        })
    }
}

/// Returns the elements of one dimension that a process holds in a block-cyclic distribution with
/// blocks of `block` elements (MPI 3.1 section 4.1.4).
pub(crate) fn block_cyclic_runs(size: i64, block: i64, processes: i64, process: i64) -> Vec<Run> {
    let (block, processes) = (block.max(1), processes.max(1));
    let first = process.saturating_mul(block);
    let starts =
        std::iter::successors(Some(first), |start| start.checked_add(block.saturating_mul(processes)));
    // Limits the memory for one dimension.
    const MAX_RUNS: usize = 1 << 16;
    starts
        .take_while(|start| *start < size)
        .take(MAX_RUNS)
        .map(|start| Run { start, count: block.min(size - start) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Block, Dimension, Layout, LayoutKind, LoopNest, PlacedBlock, Run, block_cyclic_runs};
    use proptest::prelude::*;
    use std::rc::Rc;

    fn bytes(size: u64, extent: i64) -> Rc<Layout> {
        Rc::new(Layout::new(LayoutKind::Bytes(size), extent))
    }

    /// Reference: lists the bytes of a type one by one, following the definitions of the standard.
    fn list_bytes(layout: &Layout, at: i64, into: &mut Vec<i64>) {
        match &layout.kind {
            LayoutKind::Bytes(bytes) => into.extend((0..*bytes as i64).map(|byte| at + byte)),
            LayoutKind::Strided { count, length, stride, element } => {
                for (i, j) in (0..*count).flat_map(|i| (0..*length).map(move |j| (i, j))) {
                    list_bytes(element, at + i * stride + j * element.extent, into);
                }
            }
            LayoutKind::Blocks(blocks) => {
                for PlacedBlock { offset, count, element } in blocks {
                    (0..*count).for_each(|i| list_bytes(element, at + offset + i * element.extent, into));
                }
            }
            LayoutKind::Array { dimensions, element } => {
                let all: i64 = dimensions.iter().map(|d| d.size).product();
                for number in 0..all {
                    let mut rest = number;
                    let inside = dimensions.iter().rev().all(|d| {
                        let index = rest % d.size;
                        rest /= d.size;
                        d.runs.iter().any(|run| (run.start..run.start + run.count).contains(&index))
                    });
                    if inside {
                        list_bytes(element, at + number * element.extent, into);
                    }
                }
            }
        }
    }

    fn layouts() -> impl Strategy<Value = Rc<Layout>> {
        let leaf = (1u64..5, 0i64..3).prop_map(|(size, gap)| bytes(size, size as i64 + gap));
        leaf.prop_recursive(3, 40, 3, |inner| {
            prop_oneof![
                (0i64..4, 0i64..4, 0i64..40, inner.clone(), 0i64..50).prop_map(
                    |(count, length, stride, element, extent)| Rc::new(Layout::new(
                        LayoutKind::Strided { count, length, stride, element },
                        extent
                    ))
                ),
                (prop::collection::vec((0i64..30, 0i64..3, inner.clone()), 0..4), 0i64..60).prop_map(
                    |(blocks, extent)| {
                        let placed = |(offset, count, element)| PlacedBlock { offset, count, element };
                        let blocks = blocks.into_iter().map(placed).collect();
                        Rc::new(Layout::new(LayoutKind::Blocks(blocks), extent))
                    }
                ),
                (prop::collection::vec((1i64..6, 1i64..3, 1i64..4, 0i64..4), 1..4), inner).prop_map(
                    |(dimensions, element)| {
                        let dimension = |(size, block, processes, process): (i64, i64, i64, i64)| Dimension {
                            size,
                            runs: block_cyclic_runs(size, block, processes, process % processes),
                        };
                        let dimensions: Vec<_> = dimensions.into_iter().map(dimension).collect();
                        let extent = dimensions.iter().map(|d| d.size).product::<i64>() * element.extent();
                        Rc::new(Layout::new(LayoutKind::Array { dimensions, element }, extent))
                    }
                ),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn loop_nests_cover_the_bytes_of_the_type(layout in layouts()) {
            let mut expected = Vec::new();
            list_bytes(&layout, 0, &mut expected);
            let (nests, is_complete) = layout.loop_nests(usize::MAX);
            prop_assert!(is_complete);
            let found: Vec<i64> = nests
                .iter()
                .flat_map(blocks)
                .flat_map(|block| (0..block.bytes as i64).map(move |byte| block.offset + byte))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn subarray_is_one_loop_nest() {
        let dimension = |size, start, count| Dimension { size, runs: vec![Run { start, count }] };
        let dimensions = vec![dimension(100, 10, 30), dimension(200, 50, 40), dimension(64, 16, 8)];
        let array = LayoutKind::Array { dimensions, element: bytes(8, 8) };
        let (nests, is_complete) = Layout::new(array, 0).loop_nests(1024);
        let first = Block { offset: 8 * (16 + 64 * (50 + 200 * 10)), bytes: 64 };
        assert!(is_complete);
        assert_eq!(nests, [LoopNest { first, loops: vec![(40, 64 * 8), (30, 200 * 64 * 8)] }]);
    }

    #[test]
    fn loop_nests_are_limited() {
        let placed = |i| PlacedBlock { offset: i * i * 8, count: 1, element: bytes(4, 4) };
        let indexed = |count: i64| LayoutKind::Blocks((0..count).map(placed).collect());
        let (nests, is_complete) = Layout::new(indexed(100), i64::MAX).loop_nests(3);
        assert!(nests.len() == 3 && !is_complete, "{nests:?}");
        let vector = LayoutKind::Strided { count: 1 << 40, length: 1, stride: 8, element: bytes(4, 4) };
        assert!(!Layout::new(vector, i64::MAX).loop_nests(3).1);
        let nothing = LayoutKind::Strided { count: 1 << 40, length: 0, stride: 8, element: bytes(4, 4) };
        assert!(!Layout::new(nothing, 0).loop_nests(3).1);
    }

    /// Unrolls a loop nest.
    fn blocks(nest: &LoopNest) -> Vec<Block> {
        nest.loops.iter().fold(vec![nest.first], |inner, (count, stride)| {
            let moved = |iteration: u64| {
                let distance = iteration as i64 * stride;
                inner.iter().map(move |block| Block { offset: block.offset + distance, ..*block })
            };
            (0..*count).flat_map(moved).collect()
        })
    }
}
