//! Requests recorded by `miot run` agree one to one with those recorded by `strace -f` in the same
//! run, for real programs. docs/hooks/posix.md lists the differences by design.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::compare::{Unsteady, compare};
use miot_tests::process::run;
use miot_tests::scenario::{ScenarioDirs, scenario, steady_name};
use miot_tests::{strace, trace};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Runs the scenario under both and compares. At least `least` requests must agree.
fn agree(name: &str, least: usize) {
    let scenario = scenario(name);
    let place = ScenarioDirs::new(&format!("truth-{name}"));

    place.prepare(scenario);
    let before = place.contents();
    let output = place.evidence.join("strace.out");
    let mut wrapper = words(&["strace"]);
    wrapper.extend(words(strace::FLAGS));
    wrapper.extend(["-o".into(), output.clone().into(), "--".into()]);
    let alone = place.run(scenario, &wrapper).success();
    let text = fs::read_to_string(output).unwrap();
    let size_at_start =
        |path: &[u8]| before.get(Path::new(OsStr::from_bytes(path))).map_or(0, |m| m.len() as i64);
    let witness = strace::witness(&text, place.work.as_os_str().as_bytes(), &size_at_start).unwrap();

    place.restore(scenario, &before);
    let trace = place.evidence.join("trace");
    let wrapper = [built().miot.clone().into(), "run".into(), "-o".into(), trace.clone().into(), "--".into()];
    let traced = place.run(scenario, &wrapper).success();
    assert_eq!(traced.stdout, alone.stdout, "the program's own output");
    let cat = run(Command::new(&built().miot).args(["cat", "--format", "json"]).arg(&trace)).success();
    fs::write(place.evidence.join("trace.json"), &cat.stdout).unwrap();
    let rows = trace::rows(&cat.stdout).unwrap();

    let verdict = compare(
        &witness,
        &rows,
        Unsteady {
            rename: &steady_name,
            files: scenario.now_and_then,
            descriptors: scenario.races,
            inline_characters: scenario.inline_characters,
        },
    );
    println!("{name}: {} agree, by design: {:?}", verdict.agreed, verdict.by_design);
    assert!(verdict.wrong.is_empty(), "{name}\n{}", verdict.wrong.join("\n"));
    assert!(
        verdict.agreed >= least,
        "{name}: only {} requests agree: was the program hooked?",
        verdict.agreed
    );
}

macro_rules! programs {
    ($($test:ident $name:literal $least:literal;)*) => {
        $(#[test] fn $test() { agree($name, $least); })*
    };
}

programs! {
    dd "dd" 125;
    dd_append "dd-append" 104;
    tar_create "tar-create" 200;
    tar_extract "tar-extract" 200;
    cp "cp" 200;
    sqlite3 "sqlite3" 400;
    git_clone "git-clone" 800;
    python3 "python3" 1200;
    shell "shell" 120;
    fio_processes "fio-processes" 500;
    fio_threads "fio-threads" 500;
    fio_sequential "fio-sequential" 250;
}
