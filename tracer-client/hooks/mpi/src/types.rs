//! Decodes MPI datatypes: the arguments of a type's constructor become a [`Layout`].

use crate::abi::{Combiner, Handle};
use crate::layout::{Dimension, Layout, LayoutKind, PlacedBlock, Run, block_cyclic_runs};
use crate::mpi::Mpi;
use std::rc::Rc;

/// Maximum nesting depth of datatypes.
const MAX_DEPTH: usize = 64;

/// Returns the layout of a datatype that MPI has just accepted; `None` if it cannot be decoded.
pub(crate) fn layout(mpi: &Mpi, datatype: Handle) -> Option<Layout> {
    decode(mpi, datatype, MAX_DEPTH)
}

fn decode(mpi: &Mpi, datatype: Handle, depth_left: usize) -> Option<Layout> {
    let envelope = mpi.envelope(datatype)?;
    let extent = mpi.extent(datatype)?;
    let combiner = mpi.abi.combiner(envelope.combiner)?;
    if is_predefined(combiner) {
        return Some(Layout::new(LayoutKind::Bytes(mpi.size(datatype)?), extent));
    }
    let depth_left = depth_left.checked_sub(1)?;
    let contents = mpi.contents(datatype, &envelope)?;
    let elements: Vec<_> =
        contents.datatypes.iter().map(|element| decode(mpi, *element, depth_left).map(Rc::new)).collect();
    for element in contents.datatypes {
        let combiner = mpi.envelope(element).and_then(|envelope| mpi.abi.combiner(envelope.combiner));
        if combiner.is_some_and(|combiner| !is_predefined(combiner)) {
            mpi.free(element);
        }
    }
    let elements: Vec<Rc<Layout>> = elements.into_iter().collect::<Option<_>>()?;
    let integers: Vec<i64> = contents.integers.into_iter().map(i64::from).collect();
    let addresses: Vec<i64> = contents.addresses.into_iter().map(|address| address as i64).collect();
    let constructor = Constructor {
        mpi,
        integers: &integers,
        addresses: &addresses,
        elements: &elements,
        element: elements.first()?,
    };
    Some(Layout::new(constructor.kind(combiner)?, extent))
}

/// Types without contents. They must not be freed.
fn is_predefined(combiner: Combiner) -> bool {
    matches!(combiner, Combiner::Named | Combiner::F90Real | Combiner::F90Complex | Combiner::F90Integer)
}

/// Arguments of a type constructor, in the order of MPI 3.1 section 4.1.13.
struct Constructor<'a> {
    mpi: &'a Mpi,
    integers: &'a [i64],
    /// Byte displacements and strides.
    addresses: &'a [i64],
    /// Element types: one for each member of a struct, otherwise one.
    elements: &'a [Rc<Layout>],
    /// The first of them.
    element: &'a Rc<Layout>,
}

impl Constructor<'_> {
    fn kind(&self, combiner: Combiner) -> Option<LayoutKind> {
        let count = usize::try_from(self.integer(0).unwrap_or(0)).ok()?;
        match combiner {
            Combiner::Named | Combiner::F90Real | Combiner::F90Complex | Combiner::F90Integer => None,
            Combiner::Dup | Combiner::Resized => Some(self.one_block(1)),
            Combiner::Contiguous => Some(self.one_block(self.integer(0)?)),
            Combiner::Vector => self.strided(self.in_elements(self.integer(2)?)),
            Combiner::Hvector => self.strided(*self.addresses.first()?),
            Combiner::HvectorInteger => self.strided(self.integer(2)?),
            Combiner::Indexed => {
                let displacements = self.list(1 + count, count)?.iter();
                self.blocks(self.lengths(count)?, displacements.map(|at| self.in_elements(*at)))
            }
            Combiner::Hindexed => {
                self.blocks(self.lengths(count)?, self.addresses.get(..count)?.iter().copied())
            }
            Combiner::HindexedInteger => {
                self.blocks(self.lengths(count)?, self.list(1 + count, count)?.iter().copied())
            }
            Combiner::IndexedBlock => {
                let displacements = self.list(2, count)?.iter();
                let lengths = std::iter::repeat(self.integer(1)?);
                self.blocks(lengths, displacements.map(|at| self.in_elements(*at)))
            }
            Combiner::HindexedBlock => {
                let lengths = std::iter::repeat(self.integer(1)?);
                self.blocks(lengths, self.addresses.get(..count)?.iter().copied())
            }
            Combiner::Struct => self.structure(count, self.addresses.get(..count)?),
            Combiner::StructInteger => self.structure(count, self.list(1 + count, count)?),
            Combiner::Subarray => self.subarray(count),
            Combiner::Darray => self.distributed_array(),
        }
    }

    fn integer(&self, at: usize) -> Option<i64> {
        self.integers.get(at).copied()
    }

    /// Returns an integer argument that counts other arguments.
    fn count(&self, at: usize) -> Option<usize> {
        usize::try_from(self.integer(at)?).ok()
    }

    fn list(&self, from: usize, count: usize) -> Option<&[i64]> {
        self.integers.get(from..from.checked_add(count)?)
    }

    /// Block lengths in elements: the integers after the count.
    fn lengths(&self, count: usize) -> Option<impl Iterator<Item = i64>> {
        Some(self.list(1, count)?.iter().copied())
    }

    /// Converts a displacement or stride from elements to bytes.
    fn in_elements(&self, displacement: i64) -> i64 {
        displacement.wrapping_mul(self.element.extent())
    }

    fn one_block(&self, count: i64) -> LayoutKind {
        LayoutKind::Blocks(vec![PlacedBlock { offset: 0, count, element: self.element.clone() }])
    }

    /// A vector: integers are the number of blocks and their length; `stride` is in bytes.
    fn strided(&self, stride: i64) -> Option<LayoutKind> {
        let (count, length) = (self.integer(0)?, self.integer(1)?);
        Some(LayoutKind::Strided { count, length, stride, element: self.element.clone() })
    }

    /// Blocks of the first element type; `offsets` are in bytes.
    fn blocks(
        &self,
        lengths: impl Iterator<Item = i64>,
        offsets: impl Iterator<Item = i64>,
    ) -> Option<LayoutKind> {
        let block = |(count, offset)| PlacedBlock { offset, count, element: self.element.clone() };
        Some(LayoutKind::Blocks(lengths.zip(offsets).map(block).collect()))
    }

    /// A struct: one element type for each block; `offsets` are in bytes.
    fn structure(&self, count: usize, offsets: &[i64]) -> Option<LayoutKind> {
        let members = self.lengths(count)?.zip(offsets).zip(self.elements);
        let block = |((count, offset), element): ((i64, &i64), &Rc<Layout>)| PlacedBlock {
            offset: *offset,
            count,
            element: element.clone(),
        };
        Some(LayoutKind::Blocks(members.map(block).collect()))
    }

    /// A subarray: integers are the number of dimensions, then sizes, subsizes and starts of all
    /// dimensions, then the order.
    fn subarray(&self, count: usize) -> Option<LayoutKind> {
        let argument = |which: usize, dimension: usize| self.integer(1 + which * count + dimension);
        let dimension = |d| {
            let (size, count, start) = (argument(0, d)?, argument(1, d)?, argument(2, d)?);
            Some(Dimension { size, runs: vec![Run { start, count }] })
        };
        let dimensions = (0..count).map(dimension).collect::<Option<Vec<_>>>()?;
        Some(self.array(dimensions, self.integer(1 + 3 * count)?))
    }

    /// A distributed array: integers are the number of processes, the rank and the number of
    /// dimensions, then sizes, distributions, distribution arguments and process grid of all
    /// dimensions, then the order.
    fn distributed_array(&self) -> Option<LayoutKind> {
        let (mut processes, mut rank) = (self.integer(0)?, self.integer(1)?);
        let count = self.count(2)?;
        let argument = |which: usize, dimension: usize| self.integer(3 + which * count + dimension);
        let mut dimensions = Vec::with_capacity(count);
        for d in 0..count {
            let size = argument(0, d)?;
            let grid = argument(3, d)?.max(1);
            // Ranks number the process grid with the last dimension fastest, whatever the order
            // of the array.
            processes /= grid;
            let process = rank.checked_div(processes)?;
            rank %= processes;
            let runs = self.distributed_runs(size, argument(1, d)?, argument(2, d)?, grid, process);
            dimensions.push(Dimension { size, runs });
        }
        Some(self.array(dimensions, self.integer(3 + 4 * count)?))
    }

    /// Elements of one dimension that one process holds. `distribution` and `block` are the
    /// `MPI_DISTRIBUTE_*` constants or the block length of the constructor.
    fn distributed_runs(
        &self,
        size: i64,
        distribution: i64,
        block: i64,
        processes: i64,
        process: i64,
    ) -> Vec<Run> {
        let abi = &self.mpi.abi;
        if distribution == i64::from(abi.distribute_none) {
            return vec![Run { start: 0, count: size }];
        }
        let is_default = block == i64::from(abi.default_argument);
        let block = match (is_default, distribution == i64::from(abi.distribute_block)) {
            (false, _) => block,
            (true, true) => size / processes + i64::from(size % processes != 0),
            (true, false) => 1,
        };
        block_cyclic_runs(size, block, processes, process)
    }

    /// An array with its dimensions in the order of the constructor; `order` is `MPI_ORDER_*`.
    fn array(&self, mut dimensions: Vec<Dimension>, order: i64) -> LayoutKind {
        if order == i64::from(self.mpi.abi.order_fortran) {
            dimensions.reverse();
        }
        LayoutKind::Array { dimensions, element: self.element.clone() }
    }
}
