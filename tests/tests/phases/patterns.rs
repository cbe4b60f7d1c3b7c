//! Other patterns with known phases, see `phases.c`.

use crate::{phases, ran};
use miot_trace_analysis::model::{Direction, Mode, Model, Phase, Sharing, Ticks};
use std::collections::BTreeSet;
use std::path::Path;

const RANKS: u64 = 3;
const STEPS: u64 = 4;
const COUNT: u64 = 5;
const SIZE: u64 = 1000;

fn traced(mode: &str, options: &[&str]) -> Model {
    let name = format!("{mode}-{}", options.len());
    let trace = ran(&name, options, RANKS as u32, mode, [STEPS, COUNT, SIZE].map(|number| number as u32));
    let model = phases(&trace, &[]);
    assert_eq!((model.processes, &model.uncertain), (RANKS, &Vec::new()), "{mode}");
    let moved = |phase: &Phase| phase.measured.unwrap().bytes_moved == phase.weight * phase.count();
    assert!(model.phases.iter().all(moved), "{mode}");
    model
}

fn communicating(mode: &str) -> Model {
    let model = traced(mode, &["--communication"]);
    assert_eq!(model.ticks, Ticks::Communication);
    model
}

fn file(phase: &Phase) -> &str {
    Path::new(&phase.file).file_name().unwrap().to_str().unwrap()
}

/// Numbers and files of the families.
fn families(model: &Model) -> Vec<(String, &str)> {
    model.phases.iter().map(|phase| (phase.numbers.to_string(), file(phase))).collect()
}

/// Offsets of a process in a phase.
fn offsets(phase: &Phase, process: u64, nth: u64) -> Vec<i64> {
    phase.operations[0].requests(process, nth).filter_map(|step| step.offset).collect()
}

/// Offsets of the part of a rank, step by step, from a byte on.
fn part(rank: u64, step: u64, from: u64) -> Vec<i64> {
    let begin = from + rank * STEPS * COUNT * SIZE + step * COUNT * SIZE;
    (0..COUNT).map(|i| (begin + i * SIZE) as i64).collect()
}

/// Only communication separates the phases: the offsets continue across it.
#[test]
fn communication_alone_separates_phases() {
    for mode in ["barriers", "messages"] {
        let model = communicating(mode);
        assert_eq!(families(&model), [("1-4".into(), "data")], "{mode}");
        let phase = &model.phases[0];
        assert_eq!((phase.weight, phase.operations[0].mode), (RANKS * COUNT * SIZE, Mode::Sequential));
        for rank in 0..RANKS {
            for step in 0..STEPS {
                assert_eq!(
                    offsets(phase, rank, step),
                    part(rank, step, 0),
                    "{mode}, rank {rank}, step {step}"
                );
            }
        }
    }
}

/// Unrecorded communication does not separate phases, and the output states it.
#[test]
fn without_communication_a_pattern_is_one_phase() {
    let cases: [(&str, &[&str]); 2] = [("nothing", &["--communication"]), ("barriers", &[])];
    for (mode, options) in cases {
        let model = traced(mode, options);
        assert_eq!((families(&model), model.ticks), (vec![("1".into(), "data")], Ticks::Requests), "{mode}");
        let phase = &model.phases[0];
        assert_eq!(phase.operations[0].repetitions, STEPS * COUNT);
        assert_eq!(phase.weight, RANKS * STEPS * COUNT * SIZE);
    }
}

#[test]
fn checkpoints_are_a_family_with_one_file_each() {
    for options in [&["--communication"][..], &[]] {
        let model = traced("checkpoint", options);
        assert_eq!(families(&model), [("1-4".into(), "data.*")]);
        let phase = &model.phases[0];
        assert!(phase.file_per_phase && phase.sharing == Sharing::Shared);
        assert_eq!(phase.operations[0].offset.formula("p"), Some((COUNT * SIZE).to_string() + "*p"));
        assert!(phase.operations[0].offset_per_phase.is_zero());
        assert_eq!(phase.weight, RANKS * COUNT * SIZE);
    }
}

#[test]
fn ranks_in_turn_are_strided() {
    let trace = ran("strided", &["--communication"], RANKS as u32, "strided", [1, COUNT as u32, SIZE as u32]);
    let model = phases(&trace, &[]);
    assert_eq!(families(&model), [("1".into(), "data")]);
    let (phase, operation) = (&model.phases[0], &model.phases[0].operations[0]);
    assert_eq!((operation.mode, phase.sharing), (Mode::Strided, Sharing::Shared));
    assert_eq!(operation.offset.formula("p"), Some(format!("{SIZE}*p")));
    for rank in 0..RANKS {
        let expected: Vec<i64> = (0..COUNT).map(|i| ((i * RANKS + rank) * SIZE) as i64).collect();
        assert_eq!(offsets(phase, rank, 0), expected);
    }
}

#[test]
fn file_per_rank_is_unique() {
    let model = communicating("own");
    assert_eq!(families(&model), [("1".into(), "data.*"), ("2".into(), "data.*")]);
    for (phase, direction) in model.phases.iter().zip([Direction::Write, Direction::Read]) {
        assert_eq!((phase.sharing, phase.processes.to_string()), (Sharing::Unique, "0-2".into()));
        assert_eq!((phase.weight, phase.operations[0].direction), (RANKS * COUNT * SIZE, direction));
        assert_eq!(offsets(phase, 2, 0), (0..COUNT).map(|i| (i * SIZE) as i64).collect::<Vec<_>>());
    }
}

/// A phase belongs to one file (JCST 2013): simultaneous requests to two files are separate
/// parallel phases.
#[test]
fn two_files_at_once_are_two_families() {
    let model = communicating("two");
    assert_eq!(families(&model), [("1-7:2".into(), "data"), ("2-8:2".into(), "data.other")]);
    for (phase, mode) in model.phases.iter().zip([Mode::Sequential, Mode::Strided]) {
        assert_eq!((phase.weight, phase.operations[0].mode), (RANKS * COUNT * SIZE, mode));
    }
    for rank in 0..RANKS {
        for step in 0..STEPS {
            assert_eq!(offsets(&model.phases[0], rank, step), part(rank, step, 0));
            let turn = |i: u64| (((step * COUNT + i) * RANKS + rank) * SIZE) as i64;
            assert_eq!(offsets(&model.phases[1], rank, step), (0..COUNT).map(turn).collect::<Vec<_>>());
        }
    }
}

#[test]
fn alternating_reads_and_writes_are_one_phase() {
    let model = communicating("update");
    assert_eq!(families(&model), [("1-4".into(), "data")]);
    let directions: Vec<Direction> = model.phases[0].operations.iter().map(|op| op.direction).collect();
    assert_eq!(directions, [Direction::Read, Direction::Write]);
    assert_eq!(model.phases[0].weight, 2 * RANKS * COUNT * SIZE);
}

#[test]
fn random_access_creates_no_false_phases() {
    for count in [30, 2000] {
        for options in [&["--communication"][..], &[]] {
            let name = format!("random-{count}-{}", options.len());
            let trace = ran(&name, options, RANKS as u32, "random", [1, count, 64]);
            let model = phases(&trace, &["--all"]);
            assert_eq!(families(&model), [("1".into(), "data")], "{count} requests");
            let operation = &model.phases[0].operations[0];
            assert_eq!((operation.mode, operation.repetitions), (Mode::Random, u64::from(count)));
            assert_eq!(model.phases[0].weight, RANKS * u64::from(count) * 64);
        }
    }
}

/// The preceding barriers determine the phase that a rank takes part in, not the number of its
/// earlier phases.
#[test]
fn resting_rank_is_absent_from_the_phase() {
    let said = |model: &Model| -> Vec<(String, String)> {
        model.phases.iter().map(|phase| (phase.numbers.to_string(), phase.processes.to_string())).collect()
    };
    let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(numbers, ranks)| ((*numbers).to_owned(), (*ranks).to_owned())).collect()
    };
    let late = communicating("late");
    assert_eq!(said(&late), pairs(&[("1", "1-2"), ("2-4", "0-2")]));
    for rank in 0..RANKS {
        assert_eq!(offsets(&late.phases[1], rank, 2), part(rank, 3, 0));
    }
    assert_eq!(said(&communicating("rewrite")), pairs(&[("1", "0-2"), ("2", "1-2"), ("3-4", "0-2")]));
}

#[test]
fn requests_of_one_rank_are_a_separate_phase() {
    let model = communicating("header");
    let said = model
        .phases
        .iter()
        .map(|phase| (phase.operations[0].size, phase.count(), phase.processes.to_string()))
        .collect::<BTreeSet<_>>();
    // The order of the two is a race between the ranks.
    let expected = [(64, STEPS, "0".to_owned()), (SIZE, STEPS, "0-2".to_owned())];
    assert_eq!(said, expected.into());
    let data = model.phases.iter().find(|phase| phase.operations[0].size == SIZE).unwrap();
    for rank in 0..RANKS {
        assert_eq!(offsets(data, rank, 3), part(rank, 3, 64));
    }
}
