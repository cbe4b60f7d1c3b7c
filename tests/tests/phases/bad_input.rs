//! Incomplete traces: the output states the known and the unknown.

use crate::{miot, phases, place, ran};
use miot_tests::losses::lose;
use miot_tests::mpi::{compile, traced};
use miot_tests::traced::traced as traced_alone;
use miot_trace_analysis::model::Model;
use std::ffi::OsString;
use std::path::Path;

fn has(model: &Model, words: &str) -> bool {
    model.uncertain.iter().any(|reason| reason.contains(words))
}

/// Returns the standard error of a command that must end with exit code 1 and without output.
fn refused(words: &[OsString]) -> String {
    let ended = miot(words);
    assert_eq!((ended.code(), ended.stdout.as_str()), (1, ""), "{}", ended.stderr);
    ended.stderr
}

fn phases_of(trace: &Path, options: &[&str]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["phases".into(), trace.into()];
    words.extend(options.iter().map(Into::into));
    words
}

#[test]
fn killed_rank_leaves_uncertain_phases() {
    let trace = ran("dies", &["--communication"], 3, "dies", [4, 5, 1000]);
    let model = phases(&trace, &["--all"]);
    let whole = &model.phases[0];
    assert_eq!((whole.numbers.to_string(), whole.processes.to_string()), ("1-3".into(), "0-2".into()));
    // The others may or may not have reached their last step before MPI ended them.
    assert!(model.phases.iter().all(|phase| phase.uncertain), "{model:?}");
    assert!(model.phases.iter().skip(1).all(|phase| phase.processes.place(2).is_none()), "{model:?}");
    assert!(
        has(&model, "2 ended with MPI files open") || has(&model, "0-2 ended with MPI files open"),
        "{model:?}"
    );
    let table = miot(&phases_of(&trace, &["--all"])).success().stdout;
    assert!(table.contains("\n1-3?") && table.contains("uncertain: "), "{table}");
}

#[test]
fn untraced_ranks_are_reported() {
    let place = place("missing");
    let program = compile(&place, "phases", "phases.c", &[]);
    let (trace, data) = (place.join("trace"), place.join("data"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let run = format!("{} barriers {} 3 5 1000", text(&program), text(&data));
    // Tracing is off for the shell of rank 2.
    let script = format!("[ $PMI_RANK = 2 ] && export LD_PRELOAD=; exec {run}");
    let _ = traced(&trace, 3, &["--communication"], &["sh", "-c", &script]).success();
    let model = phases(&trace, &[]);
    assert!(has(&model, "of 3 ranks, 2 left no events"), "{:?}", model.uncertain);
    assert_eq!(model.processes, 3);
    let [phase] = model.phases.as_slice() else { panic!("{model:?}") };
    assert!(phase.uncertain && phase.processes.to_string() == "0-1", "{phase:?}");
}

#[test]
fn filtered_requests_make_phases_uncertain() {
    let trace = ran("sampled", &["--communication", "--sample", "1/2"], 2, "barriers", [4, 20, 1000]);
    let model = phases(&trace, &["--all"]);
    assert!(has(&model, "left out by a filter"), "{:?}", model.uncertain);
    assert!(model.phases.iter().all(|phase| phase.uncertain));
}

/// The lost events may belong to any process, so all phases may be wrong. The model states it too.
#[test]
fn losses_make_phases_uncertain() {
    let trace = ran("lost", &["--communication"], 2, "barriers", [3, 5, 1000]);
    lose(&trace, &[("lane_full", 12)]);
    let model = phases(&trace, &["--all"]);
    assert!(has(&model, "lost"), "{:?}", model.uncertain);
    assert!(model.phases.iter().all(|phase| phase.uncertain));
    let words: [OsString; 3] = ["model".into(), "explain".into(), trace.into()];
    let said = miot(&words).success().stdout;
    assert!(said.contains("Uncertain: ") && said.contains("(uncertain)"), "{said}");
}

#[test]
fn without_mpi_processes_are_numbered_by_start() {
    let place = place("posix");
    let program = "import os, sys
children = []
for rank in range(3):
    if os.fork() == 0:
        file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
        for i in range(20):
            os.pwrite(file, bytes(4096), (i * 3 + rank) * 4096)
        os.close(file)
        os._exit(0)
    os.wait()
";
    let data = place.join("data");
    let words = ["python3".as_ref(), "-c".as_ref(), program.as_ref(), data.as_os_str()];
    let _ = traced_alone(&place, &place.join("trace"), &words).success();
    let model = phases(&place.join("trace"), &["--path", "**/data"]);
    assert!(has(&model, "no process has an MPI rank"), "{:?}", model.uncertain);
    let [phase] = model.phases.as_slice() else { panic!("{model:?}") };
    assert_eq!((phase.processes.to_string(), phase.weight), ("0-2".into(), 3 * 20 * 4096));
    assert_eq!(phase.operations[0].offset.formula("p"), Some("4096*p".into()));
    assert!(!phase.uncertain);
}

#[test]
fn one_process_has_phases() {
    let trace = ran("one", &["--communication"], 1, "barriers", [3, 5, 1000]);
    let model = phases(&trace, &["--all"]);
    assert_eq!((model.processes, model.phases[0].numbers.to_string()), (1, "1-3".into()));
    assert_eq!(model.phases[0].operations[0].offset_per_phase.formula("p"), Some("5000".into()));
}

#[test]
fn two_runs_in_a_trace_are_distinguished() {
    let place = place("twice");
    let program = compile(&place, "phases", "phases.c", &[]);
    let run =
        format!("mpiexec.mpich -n 2 {} barriers {} 2 5 100", program.display(), place.join("data").display());
    let trace = place.join("trace");
    let _ = traced_alone(&place, &trace, &["sh", "-c", &format!("{run} && {run}")]).success();
    let said = refused(&phases_of(&trace, &[]));
    assert!(said.contains("rank 0 occurs several times") && said.contains("--since"), "{said}");
}

#[test]
fn trace_without_data_has_no_phases() {
    let place = place("empty");
    let _ = traced_alone(&place, &place.join("trace"), &["true"]).success();
    let said = refused(&phases_of(&place.join("trace"), &[]));
    assert!(said.contains("moved data of a file"), "{said}");
    let said = refused(&phases_of(&place.join("trace"), &["--layer", "mpi"]));
    assert!(said.contains("no such layer"), "{said}");
    let said = refused(&phases_of(&place.join("nowhere"), &[]));
    assert!(said.contains("nowhere"), "{said}");
}
