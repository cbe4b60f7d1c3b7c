//! Models with known properties.

use super::{
    Direction, FORMAT, Loop, Mode, Model, Numbers, Operation, Phase, Pointer, Set, Sharing, Space, Ticks,
    compare,
};

/// Returns one phase in which processes write consecutive blocks, each in its own part of the file.
pub(crate) fn phase(number: u64, processes: u64, size: u64, repetitions: u64) -> Phase {
    let part = (size * repetitions) as i64;
    let function = |stride: i64| Numbers::of(&(0..processes as i64).map(|p| p * stride).collect::<Vec<_>>());
    Phase {
        numbers: Set::range(number, 1),
        file: "data".into(),
        sharing: Sharing::Shared,
        file_per_phase: false,
        processes: Set::range(0, processes),
        weight: processes * size * repetitions,
        uncertain: false,
        operations: vec![Operation {
            direction: Direction::Write,
            size,
            sizes: None,
            size_by_process: None,
            repetitions,
            repetitions_between: None,
            mode: Mode::Sequential,
            pointer: Pointer::Explicit,
            collective: false,
            nonblocking: false,
            etype: 1,
            piece: None,
            pieces: Vec::new(),
            unplaced: None,
            space: Space::File,
            displacement: if repetitions > 1 {
                vec![Loop { count: repetitions, stride: size as i64 }]
            } else {
                Vec::new()
            },
            restarts: Vec::new(),
            offset: function(part),
            offset_per_phase: Numbers::default(),
        }],
        measured: None,
    }
}

/// Returns table 2 of the paper: NAS BT-IO FULL with `np` processes, `dumps` dumps, and requests of
/// `rs` bytes.
pub(crate) fn bt_io(np: u64, dumps: u64, rs: u64) -> Model {
    let mut write = phase(1, np, rs, 1);
    write.numbers = Set::range(1, dumps);
    let distance = (np * rs) as i64;
    let op = &mut write.operations[0];
    (op.collective, op.etype, op.mode, op.space) = (true, 40, Mode::Nested, Space::Pieces);
    op.offset_per_phase = Numbers::constant(distance);
    let mut read = write.clone();
    read.numbers = Set::range(dumps + 1, 1);
    read.weight = np * dumps * rs;
    let op = &mut read.operations[0];
    (op.direction, op.repetitions) = (Direction::Read, dumps);
    op.displacement = vec![Loop { count: dumps, stride: distance }];
    op.offset_per_phase = Numbers::default();
    Model {
        format: FORMAT,
        application: "bt.D.36.mpi_io_full".into(),
        layer: "mpi-io".into(),
        processes: np,
        ticks: Ticks::Communication,
        uncertain: Vec::new(),
        measured_seconds: None,
        phases: vec![write, read],
    }
}

#[test]
fn offsets_are_those_of_the_papers_table() {
    let (np, rs) = (36, 72 << 20);
    let model = bt_io(np, 50, rs);
    model.check().unwrap();
    let [write, read] = [0, 1].map(|at| &model.phases[at].operations[0]);
    let offset = |op: &Operation, process, phase, nth| op.requests(process, phase).nth(nth).unwrap().offset;
    for process in [0, 1, 35] {
        for step in [0, 1, 49u64] {
            let expected = Some((rs * (process + np * step)) as i64);
            assert_eq!(offset(write, process, step, 0), expected, "rs (idP + np (ph - 1))");
            assert_eq!(offset(read, process, 0, step as usize), expected, "rs idP + rs np (iter - 1)");
        }
    }
    assert_eq!(write.offset.formula("idP").unwrap(), format!("{rs}*idP"));
}

#[test]
fn a_model_that_contradicts_itself_is_refused() {
    let good = bt_io(4, 3, 100);
    let wrong = |change: &dyn Fn(&mut Model)| {
        let mut model = good.clone();
        change(&mut model);
        model.check().unwrap_err().to_string()
    };
    assert!(
        wrong(&|m| m.phases[0].processes = "0-999999999999".parse().unwrap())
            .contains("process 999999999999")
    );
    assert!(wrong(&|m| m.format = 2).contains("format is 2"));
    assert!(wrong(&|m| m.processes = 2).contains("process 3, but the application has 2"));
    assert!(
        wrong(&|m| m.phases[0].weight += 1)
            .contains("phase 1-3: weight is 401, but processes x repetitions x size is 400")
    );
    assert!(wrong(&|m| m.phases[1].operations[0].repetitions = 2).contains("phase 4: "));
    assert!(wrong(&|m| m.phases[1].operations[0].size = 0).contains("size must be"));
    assert!(wrong(&|m| m.phases[1].operations.clear()).contains("operation is empty"));
}

#[test]
fn comparison_ignores_measurements() {
    let one = bt_io(4, 3, 100);
    let mut other = one.clone();
    other.phases[0].measured = Some(super::Measured { seconds: 1.0, ..Default::default() });
    other.phases[0].file = "elsewhere".into();
    assert_eq!(compare(&one, &other), []);
    other.phases[0].operations[0].collective = false;
    other.phases.pop();
    let found: Vec<String> = compare(&one, &other)
        .iter()
        .map(|d| format!("{} {} {} {}", d.place, d.field, d.one, d.other))
        .collect();
    assert_eq!(found, ["phases 1-3 collective true false", "phases 4 phases 1200 bytes -"]);
}

#[test]
fn random_requests_have_no_offsets() {
    let mut op = phase(1, 2, 10, 4).operations.remove(0);
    op.displacement = vec![Loop { count: 2, stride: 10 }];
    op.restarts = vec![Numbers::constant(0), Numbers::of(&[100, 300])];
    let offsets: Vec<_> = op.requests(1, 0).filter_map(|step| step.offset).collect();
    assert_eq!(offsets, [40, 50, 340, 350]);
    op.mode = Mode::Random;
    assert!(op.requests(0, 0).all(|step| step.offset.is_none()));
}
