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

/// Blocks of one length in nested loops, innermost first: how often, and how far from one to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) first: Block,
    pub(crate) loops: Vec<(u64, i64)>,
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

/// Blocks in the order of the type's bytes, neighbours joined, and what is evenly apart made loops: a part of a matrix is
/// one term, however many rows it has.
#[derive(Debug)]
struct Blocks {
    terms: Vec<Term>,
    /// The last one, which may go on.
    block: Option<Block>,
    most: usize,
    /// Steps left: a type may have more empty parts than bytes.
    steps: usize,
}

impl Blocks {
    /// Steps that flattening may take.
    const STEPS: usize = 1 << 18;

    fn new(most: usize) -> Blocks {
        Blocks { terms: Vec::new(), block: None, most, steps: Blocks::STEPS }
    }

    /// False: too many steps.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// False: enough.
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
                over.is_none_or(|over| self.end(over))
            }
        }
    }

    /// Takes in a block that does not go on. False: enough.
    fn end(&mut self, block: Block) -> bool {
        self.terms.push(Term { first: block, loops: Vec::new() });
        while self.join() {}
        if self.terms.len() > self.most {
            self.terms.truncate(self.most);
            return false;
        }
        true
    }

    /// Joins the last two terms if they are part of a loop.
    fn join(&mut self) -> bool {
        let [.., before, last] = self.terms.as_mut_slice() else { return false };
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
        self.terms.pop();
        true
    }
}

impl Layout {
    pub(crate) fn new(kind: Kind, extent: i64) -> Layout {
        let mut layout = Layout { kind, extent, dense: None };
        let mut found = Blocks::new(0);
        let whole = layout.flatten(0, &mut found);
        layout.dense = found.block.filter(|only| whole && i64::try_from(only.bytes) == Ok(extent));
        layout
    }

    /// From one element to the next, bytes.
    pub(crate) fn extent(&self) -> i64 {
        self.extent
    }

    /// At most so many terms, and whether they are all.
    pub(crate) fn terms(&self, most: usize) -> (Vec<Term>, bool) {
        let mut found = Blocks::new(most);
        let whole = self.flatten(0, &mut found);
        let last = found.block.take();
        let whole = last.is_none_or(|last| found.end(last)) && whole;
        (found.terms, whole)
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
    use super::{Block, Dimension, Kind, Layout, Term, dealt};
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
            let (terms, whole) = layout.terms(usize::MAX);
            prop_assert!(whole);
            let found: Vec<i64> = terms
                .iter()
                .flat_map(blocks)
                .flat_map(|block| (0..block.bytes as i64).map(move |byte| block.offset + byte))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn rows_of_a_part_of_an_array_are_one_term() {
        let dimension = |size, start, count| Dimension { size, runs: vec![(start, count)] };
        let dimensions = vec![dimension(100, 10, 30), dimension(200, 50, 40), dimension(64, 16, 8)];
        let (terms, whole) = Layout::new(Kind::Array { dimensions, of: bytes(8, 8) }, 0).terms(1024);
        let first = Block { offset: 8 * (16 + 64 * (50 + 200 * 10)), bytes: 64 };
        assert!(whole);
        assert_eq!(terms, [Term { first, loops: vec![(40, 64 * 8), (30, 200 * 64 * 8)] }]);
    }

    #[test]
    fn a_type_of_more_parts_than_wanted_is_cut() {
        let indexed = |count: i64| Kind::Blocks((0..count).map(|i| (i * i * 8, 1, bytes(4, 4))).collect());
        let (terms, whole) = Layout::new(indexed(100), i64::MAX).terms(3);
        assert!(terms.len() == 3 && !whole, "{terms:?}");
        let vector = Kind::Strided { count: 1 << 40, length: 1, stride: 8, of: bytes(4, 4) };
        assert!(!Layout::new(vector, i64::MAX).terms(3).1);
        let nothing = Kind::Strided { count: 1 << 40, length: 0, stride: 8, of: bytes(4, 4) };
        assert!(!Layout::new(nothing, 0).terms(3).1);
    }

    /// The blocks that a term stands for.
    fn blocks(term: &Term) -> Vec<Block> {
        term.loops.iter().fold(vec![term.first], |inner, (count, stride)| {
            let moved = |turn: u64| {
                let distance = turn as i64 * stride;
                inner.iter().map(move |block| Block { offset: block.offset + distance, ..*block })
            };
            (0..*count).flat_map(moved).collect()
        })
    }
}
