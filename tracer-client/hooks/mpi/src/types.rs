//! Takes datatypes apart: what MPI says of how they were made becomes a [`Layout`].

use crate::abi::{Combiner, Handle};
use crate::layout::{Dimension, Kind, Layout, dealt};
use crate::mpi::Mpi;
use std::rc::Rc;

/// How deep types may lie in types.
const DEEPEST: usize = 64;

/// The layout of a datatype that MPI has just accepted; `None` if it cannot be told.
pub(crate) fn layout(mpi: &Mpi, datatype: Handle) -> Option<Layout> {
    part(mpi, datatype, DEEPEST)
}

fn part(mpi: &Mpi, datatype: Handle, depth: usize) -> Option<Layout> {
    let (counts, combiner) = mpi.envelope(datatype)?;
    let extent = mpi.extent(datatype)?;
    let combiner = mpi.abi.combiner(combiner)?;
    if is_predefined(combiner) {
        return Some(Layout::new(Kind::Bytes(mpi.size(datatype)?), extent));
    }
    let deeper = depth.checked_sub(1)?;
    let (integers, addresses, datatypes) = mpi.contents(datatype, counts)?;
    let parts: Vec<_> = datatypes.iter().map(|part| self::part(mpi, *part, deeper).map(Rc::new)).collect();
    for datatype in datatypes {
        let known = mpi.envelope(datatype).and_then(|(_, combiner)| mpi.abi.combiner(combiner));
        if known.is_some_and(|combiner| !is_predefined(combiner)) {
            mpi.free(datatype);
        }
    }
    let parts: Vec<Rc<Layout>> = parts.into_iter().collect::<Option<_>>()?;
    let integers: Vec<i64> = integers.into_iter().map(i64::from).collect();
    let addresses: Vec<i64> = addresses.into_iter().map(|address| address as i64).collect();
    let kind = kind(mpi, combiner, &integers, &addresses, &parts)?;
    Some(Layout::new(kind, extent))
}

/// Types without contents, which must not be freed.
fn is_predefined(combiner: Combiner) -> bool {
    matches!(combiner, Combiner::Named | Combiner::F90Real | Combiner::F90Complex | Combiner::F90Integer)
}

/// What the arguments of a constructor say, MPI 3.1 section 4.1.13.
fn kind(
    mpi: &Mpi,
    combiner: Combiner,
    integers: &[i64],
    addresses: &[i64],
    parts: &[Rc<Layout>],
) -> Option<Kind> {
    let int = |at: usize| integers.get(at).copied();
    let of = parts.first()?.clone();
    let extent = of.extent();
    let count = usize::try_from(int(0).unwrap_or(0)).ok()?;
    let list = |from: usize| integers.get(from..from + count);
    let blocks = |lengths: &mut dyn Iterator<Item = i64>, offsets: &mut dyn Iterator<Item = i64>| {
        Some(Kind::Blocks(
            lengths.zip(offsets).map(|(length, offset)| (offset, length, of.clone())).collect(),
        ))
    };
    let structure = |offsets: &[i64]| {
        let lengths = list(1)?;
        let rows = lengths.iter().zip(offsets).zip(parts);
        Some(Kind::Blocks(rows.map(|((length, offset), part)| (*offset, *length, part.clone())).collect()))
    };
    match combiner {
        Combiner::Named | Combiner::F90Real | Combiner::F90Complex | Combiner::F90Integer => None,
        Combiner::Dup | Combiner::Resized => Some(Kind::Blocks(vec![(0, 1, of)])),
        Combiner::Contiguous => Some(Kind::Blocks(vec![(0, int(0)?, of)])),
        Combiner::Vector => {
            Some(Kind::Strided { count: int(0)?, length: int(1)?, stride: int(2)?.wrapping_mul(extent), of })
        }
        Combiner::Hvector => {
            Some(Kind::Strided { count: int(0)?, length: int(1)?, stride: *addresses.first()?, of })
        }
        Combiner::HvectorInteger => {
            Some(Kind::Strided { count: int(0)?, length: int(1)?, stride: int(2)?, of })
        }
        Combiner::Indexed => blocks(
            &mut list(1)?.iter().copied(),
            &mut list(1 + count)?.iter().map(|offset| offset.wrapping_mul(extent)),
        ),
        Combiner::Hindexed => {
            blocks(&mut list(1)?.iter().copied(), &mut addresses.get(..count)?.iter().copied())
        }
        Combiner::HindexedInteger => {
            blocks(&mut list(1)?.iter().copied(), &mut list(1 + count)?.iter().copied())
        }
        Combiner::IndexedBlock => blocks(
            &mut std::iter::repeat(int(1)?),
            &mut list(2)?.iter().map(|offset| offset.wrapping_mul(extent)),
        ),
        Combiner::HindexedBlock => {
            blocks(&mut std::iter::repeat(int(1)?), &mut addresses.get(..count)?.iter().copied())
        }
        Combiner::Struct => structure(addresses.get(..count)?),
        Combiner::StructInteger => structure(list(1 + count)?),
        Combiner::Subarray => {
            let part = |which: usize, dimension: usize| int(1 + which * count + dimension);
            let dimensions = (0..count)
                .map(|d| Some(Dimension { size: part(0, d)?, runs: vec![(part(2, d)?, part(1, d)?)] }))
                .collect::<Option<Vec<_>>>()?;
            array(mpi, dimensions, int(1 + 3 * count)?, of)
        }
        Combiner::Darray => {
            let (mut processes, mut rank) = (int(0)?, int(1)?);
            let count = usize::try_from(int(2)?).ok()?;
            let part = |which: usize, dimension: usize| int(3 + which * count + dimension);
            let mut dimensions = Vec::with_capacity(count);
            for d in 0..count {
                let (size, kind, argument, across) =
                    (part(0, d)?, part(1, d)?, part(2, d)?, part(3, d)?.max(1));
                // Ranks lie in the grid of processes with the last dimension fastest, whatever the order of the array.
                processes /= across;
                let process = rank.checked_div(processes)?;
                rank %= processes;
                let default = argument == i64::from(mpi.abi.default_argument);
                let runs = if kind == i64::from(mpi.abi.distribute_none) {
                    vec![(0, size)]
                } else if kind == i64::from(mpi.abi.distribute_block) {
                    let even = size / across + i64::from(size % across != 0);
                    dealt(size, if default { even } else { argument }, across, process)
                } else {
                    dealt(size, if default { 1 } else { argument }, across, process)
                };
                dimensions.push(Dimension { size, runs });
            }
            array(mpi, dimensions, int(3 + 4 * count)?, of)
        }
    }
}

/// Dimensions as given, in the order that is given.
fn array(mpi: &Mpi, mut dimensions: Vec<Dimension>, order: i64, of: Rc<Layout>) -> Option<Kind> {
    if order == i64::from(mpi.abi.order_fortran) {
        dimensions.reverse();
    }
    Some(Kind::Array { dimensions, of })
}
