//! Where the bytes of a datatype lie: its tree, flattened into blocks.

use std::rc::Rc;

/// Consecutive bytes of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// From the type's origin, bytes.
    pub(crate) offset: i64,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// Elements from `start` on, `count` of them.
pub(crate) type Run = (i64, i64);

/// One dimension of an array: its size, and which elements of it belong to the type.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    pub(crate) size: i64,
    pub(crate) runs: Vec<Run>,
}

/// How the elements of a type lie.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// So many consecutive bytes.
    Bytes(u64),
    /// `count` blocks of `length` elements, `stride` bytes apart.
    Strided { count: i64, length: i64, stride: i64, of: Rc<Layout> },
    /// Blocks: byte offset, elements, of what.
    Blocks(Vec<(i64, i64, Rc<Layout>)>),
    /// A part of an array, dimensions from the slowest to the fastest.
    Array { dimensions: Vec<Dimension>, of: Rc<Layout> },
}

/// A type.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    kind: Kind,
    extent: i64,
    /// One block that fills the extent: repeated, it is one block again.
    dense: Option<Block>,
}

/// Blocks in the order of the type's bytes, neighbours joined.
#[derive(Debug)]
struct Blocks {
    blocks: Vec<Block>,
    most: usize,
    /// Steps left: a type may have more empty parts than bytes.
    steps: usize,
}

impl Blocks {
    /// Steps that flattening may take.
    const STEPS: usize = 1 << 18;

    fn new(most: usize) -> Blocks {
        Blocks { blocks: Vec::new(), most, steps: Blocks::STEPS }
    }

    /// False: too many steps.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// False: enough.
    fn push(&mut self, offset: i64, bytes: u64) -> bool {
        let full = self.blocks.len() == self.most;
        match self.blocks.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.offset.wrapping_add_unsigned(last.bytes) == offset => last.bytes += bytes,
            _ if full => return false,
            _ => self.blocks.push(Block { offset, bytes }),
        }
        true
    }
}

impl Layout {
    pub(crate) fn new(kind: Kind, extent: i64) -> Layout {
        let mut layout = Layout { kind, extent, dense: None };
        let (blocks, whole) = layout.blocks(1);
        layout.dense =
            blocks.first().copied().filter(|only| whole && i64::try_from(only.bytes) == Ok(extent));
        layout
    }

    /// From one element to the next, bytes.
    pub(crate) fn extent(&self) -> i64 {
        self.extent
    }

    /// At most so many blocks, and whether they are all.
    pub(crate) fn blocks(&self, most: usize) -> (Vec<Block>, bool) {
        let mut found = Blocks::new(most);
        let whole = self.flatten(0, &mut found);
        (found.blocks, whole)
    }

    fn flatten(&self, at: i64, into: &mut Blocks) -> bool {
        match &self.kind {
            Kind::Bytes(bytes) => into.push(at, *bytes),
            Kind::Strided { count, length, stride, of } => {
                (0..*count).all(|i| of.repeat(at.wrapping_add(i.wrapping_mul(*stride)), *length, into))
            }
            Kind::Blocks(blocks) => {
                blocks.iter().all(|(offset, count, of)| of.repeat(at.wrapping_add(*offset), *count, into))
            }
            Kind::Array { dimensions, of } => of.array(dimensions, at, into),
        }
    }

    /// `count` elements, an extent apart.
    fn repeat(&self, at: i64, count: i64, into: &mut Blocks) -> bool {
        if !into.step() {
            return false;
        }
        if let Some(block) = self.dense {
            return into.push(at.wrapping_add(block.offset), block.bytes.wrapping_mul(count.max(0) as u64));
        }
        (0..count).all(|i| self.flatten(at.wrapping_add(i.wrapping_mul(self.extent)), into))
    }

    fn array(&self, dimensions: &[Dimension], at: i64, into: &mut Blocks) -> bool {
        let Some((slowest, faster)) = dimensions.split_first() else { return self.repeat(at, 1, into) };
        let stride = faster.iter().fold(self.extent, |stride, d| stride.wrapping_mul(d.size));
        slowest.runs.iter().all(|(start, count)| {
            let at = |i: i64| at.wrapping_add((start + i).wrapping_mul(stride));
            if faster.is_empty() {
                self.repeat(at(0), *count, into)
            } else {
                (0..*count).all(|i| into.step() && self.array(faster, at(i), into))
            }
        })
    }
}

/// The elements of one dimension that a process of a distributed array has, dealt out in blocks of `block` elements.
pub(crate) fn dealt(size: i64, block: i64, processes: i64, process: i64) -> Vec<Run> {
    let (block, processes) = (block.max(1), processes.max(1));
    let first = process.saturating_mul(block);
    let starts =
        std::iter::successors(Some(first), |start| start.checked_add(block.saturating_mul(processes)));
    // A dimension with more parts than anyone would look at.
    const MOST: usize = 1 << 16;
    starts
        .take_while(|start| *start < size)
        .take(MOST)
        .map(|start| (start, block.min(size - start)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Block, Dimension, Kind, Layout, dealt};
    use proptest::prelude::*;
    use std::rc::Rc;

    fn bytes(size: u64, extent: i64) -> Rc<Layout> {
        Rc::new(Layout::new(Kind::Bytes(size), extent))
    }

    /// Every byte of a type, one by one, by the words of the standard.
    fn each(layout: &Layout, at: i64, into: &mut Vec<i64>) {
        match &layout.kind {
            Kind::Bytes(bytes) => into.extend((0..*bytes as i64).map(|byte| at + byte)),
            Kind::Strided { count, length, stride, of } => {
                for (i, j) in (0..*count).flat_map(|i| (0..*length).map(move |j| (i, j))) {
                    each(of, at + i * stride + j * of.extent, into);
                }
            }
            Kind::Blocks(blocks) => {
                for (offset, count, of) in blocks {
                    (0..*count).for_each(|i| each(of, at + offset + i * of.extent, into));
                }
            }
            Kind::Array { dimensions, of } => {
                let all: i64 = dimensions.iter().map(|d| d.size).product();
                for element in 0..all {
                    let mut rest = element;
                    let inside = dimensions.iter().rev().all(|d| {
                        let index = rest % d.size;
                        rest /= d.size;
                        d.runs.iter().any(|(start, count)| (*start..start + count).contains(&index))
                    });
                    if inside {
                        each(of, at + element * of.extent, into);
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
                    |(count, length, stride, of, extent)| Rc::new(Layout::new(
                        Kind::Strided { count, length, stride, of },
                        extent
                    ))
                ),
                (prop::collection::vec((0i64..30, 0i64..3, inner.clone()), 0..4), 0i64..60)
                    .prop_map(|(blocks, extent)| Rc::new(Layout::new(Kind::Blocks(blocks), extent))),
                (prop::collection::vec((1i64..6, 1i64..3, 1i64..4, 0i64..4), 1..4), inner).prop_map(
                    |(dimensions, of)| {
                        let dimension = |(size, block, processes, process): (i64, i64, i64, i64)| Dimension {
                            size,
                            runs: dealt(size, block, processes, process % processes),
                        };
                        let dimensions: Vec<_> = dimensions.into_iter().map(dimension).collect();
                        let extent = dimensions.iter().map(|d| d.size).product::<i64>() * of.extent();
                        Rc::new(Layout::new(Kind::Array { dimensions, of }, extent))
                    }
                ),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn blocks_are_the_bytes_of_the_type(layout in layouts()) {
            let mut expected = Vec::new();
            each(&layout, 0, &mut expected);
            let (blocks, whole) = layout.blocks(usize::MAX);
            prop_assert!(whole);
            let found: Vec<i64> = blocks
                .iter()
                .flat_map(|block| (0..block.bytes as i64).map(|byte| block.offset + byte))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_type_of_more_parts_than_wanted_is_cut() {
        let vector = Kind::Strided { count: 1 << 40, length: 1, stride: 8, of: bytes(4, 4) };
        let (blocks, whole) = Layout::new(vector, i64::MAX).blocks(3);
        assert_eq!(blocks.last(), Some(&Block { offset: 16, bytes: 4 }));
        assert!(blocks.len() == 3 && !whole);
        let nothing = Kind::Strided { count: 1 << 40, length: 0, stride: 8, of: bytes(4, 4) };
        assert!(!Layout::new(nothing, 0).blocks(3).1);
    }
}
