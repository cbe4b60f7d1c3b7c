//! The I/O of NAS BT-IO: phases, weights and offsets are those of the paper's table 2, derived from
//! the program.

use crate::{phases, place};
use miot_tests::mpi::Mpi;
use miot_trace_analysis::model::{Direction, Mode, Model, Pointer, Sharing, Space, Ticks};
use std::ffi::OsString;
use std::path::Path;

/// Cells along a side: a multiple of 2, 3 and 4.
const N: u64 = 12;
const CELL: u64 = 40;
const DUMPS: u64 = 4;
/// Bytes of a dump.
const WEIGHT: u64 = CELL * N * N * N;

/// Command line of the program for a variant.
pub(crate) fn command(mpi: Mpi, place: &Path, variant: &str) -> [OsString; 5] {
    let program = mpi.compile(place, "btio", "btio.c", &["-lm"]);
    let data = place.join("data");
    [program.into(), variant.into(), data.into(), N.to_string().into(), DUMPS.to_string().into()]
}

fn btio(mpi: Mpi, variant: &str, ranks: u32) -> Model {
    let place = place(&format!("btio-{mpi:?}-{variant}-{ranks}"));
    let trace = place.join("trace");
    let _ = mpi.traced(&trace, ranks, &["--communication"], &command(mpi, &place, variant)).success();
    phases(&trace, &[])
}

/// Checks for one write phase per dump, and one phase that reads all dumps.
fn check(model: &Model, np: u64) {
    let said: Vec<(String, u64, String)> = model
        .phases
        .iter()
        .map(|phase| (phase.numbers.to_string(), phase.weight, phase.processes.to_string()))
        .collect();
    let all = format!("0-{}", np - 1);
    let expected = [("1-4".to_owned(), WEIGHT, all.clone()), ("5".to_owned(), DUMPS * WEIGHT, all)];
    assert_eq!(said, expected);
    assert_eq!((model.processes, model.ticks, &model.uncertain), (np, Ticks::Communication, &Vec::new()));
    for (phase, direction) in model.phases.iter().zip([Direction::Write, Direction::Read]) {
        let [operation] = phase.operations.as_slice() else { panic!("{phase:?}") };
        assert_eq!(operation.direction, direction);
        assert_eq!((operation.mode, operation.pointer), (Mode::Nested, Pointer::Explicit));
        assert_eq!((phase.sharing, operation.nonblocking, phase.uncertain), (Sharing::Shared, false, false));
        assert_eq!(phase.measured.unwrap().bytes_moved, phase.weight * phase.count());
    }
}

fn full(mpi: Mpi, ranks: u32) {
    check_full(&btio(mpi, "full", ranks), u64::from(ranks));
}

/// FULL: collective, through a view with all blocks of a rank, in elements of 40 bytes.
pub(crate) fn check_full(model: &Model, np: u64) {
    let rs = WEIGHT / np;
    check(model, np);
    let [write, read] = [0, 1].map(|at| &model.phases[at].operations[0]);
    for operation in [write, read] {
        assert_eq!((operation.size, operation.etype, operation.collective), (rs, CELL, true));
        assert_eq!(operation.space, Space::Pieces);
        assert_eq!(operation.piece, Some(N / np.isqrt() * CELL), "a row of a block");
        assert_eq!(operation.offset.formula("idP"), Some(format!("{rs}*idP")));
    }
    assert_eq!((write.repetitions, read.repetitions), (1, DUMPS));
    // rs (idP + np (ph - 1)), and rs idP + rs np (iter - 1).
    assert_eq!(write.offset_per_phase.formula("idP"), Some((rs * np).to_string()));
    for process in 0..np {
        for step in 0..DUMPS {
            let expected = Some((rs * (process + np * step)) as i64);
            assert_eq!(write.requests(process, step).next().unwrap().offset, expected);
            assert_eq!(read.requests(process, 0).nth(step as usize).unwrap().offset, expected);
        }
    }
}

/// Offsets of the rows of a rank's blocks in a dump, as in `btio.c`.
fn rows(rank: u64, q: u64) -> Vec<i64> {
    let side = N / q;
    let mut rows = Vec::new();
    for c in 0..q {
        let (x, y) = ((rank % q + c) % q * side, (rank / q + q - c) % q * side);
        for z in c * side..(c + 1) * side {
            rows.extend((y..y + side).map(|y| (CELL * (x + N * (y + N * z))) as i64));
        }
    }
    rows
}

fn simple(mpi: Mpi, ranks: u32) {
    check_simple(&btio(mpi, "simple", ranks), u64::from(ranks));
}

/// SIMPLE: one request for each row of each block.
pub(crate) fn check_simple(model: &Model, np: u64) {
    let q = np.isqrt();
    let side = N / q;
    check(model, np);
    let [write, read] = [0, 1].map(|at| &model.phases[at].operations[0]);
    let rep = q * side * side;
    for (operation, dumps) in [(write, 1), (read, DUMPS)] {
        assert_eq!((operation.size, operation.repetitions), (CELL * side, rep * dumps));
        assert_eq!((operation.collective, operation.space, operation.etype), (false, Space::File, 8));
        assert_eq!(operation.piece, None);
        let (x, y) = (CELL * side, CELL * side * N);
        let expected = format!("{x}*(idP mod {q}) + {y}*(idP div {q})");
        assert_eq!(operation.offset.formula("idP"), Some(expected), "the first block of the diagonal");
    }
    let all = |dump: u64, rank: u64| rows(rank, q).into_iter().map(move |row| row + (dump * WEIGHT) as i64);
    for rank in 0..np {
        for dump in 0..DUMPS {
            let offsets: Vec<i64> = write.requests(rank, dump).filter_map(|step| step.offset).collect();
            assert_eq!(offsets, all(dump, rank).collect::<Vec<_>>(), "rank {rank}, dump {dump}");
        }
        let offsets: Vec<i64> = read.requests(rank, 0).filter_map(|step| step.offset).collect();
        assert_eq!(offsets, (0..DUMPS).flat_map(|dump| all(dump, rank)).collect::<Vec<_>>(), "rank {rank}");
    }
}

#[test]
fn full_variant_on_4_ranks() {
    full(Mpi::Mpich, 4);
}

#[test]
fn full_variant_on_9_ranks() {
    full(Mpi::Mpich, 9);
}

#[test]
fn full_variant_on_16_ranks() {
    full(Mpi::Mpich, 16);
}

#[test]
fn simple_variant_on_4_ranks() {
    simple(Mpi::Mpich, 4);
}

#[test]
fn simple_variant_on_9_ranks() {
    simple(Mpi::Mpich, 9);
}

#[test]
fn simple_variant_on_16_ranks() {
    simple(Mpi::Mpich, 16);
}

#[test]
fn both_variants_with_open_mpi() {
    full(Mpi::OpenMpi, 4);
    simple(Mpi::OpenMpi, 9);
}
