//! `miot estimate`: commands, times, errors and selection, derived by hand.

use crate::{miot, place};
use miot_tests::built::built;
use miot_tests::mpi::{compile, traced};
use miot_tests::trace::PrintedEvent;
use miot_tests::traced as hooked;
use miot_trace_analysis::model::estimate::Estimate;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Two processes with requests of 1 MiB: three phases that write 4 MiB, and one that reads 12 MiB
/// back.
const MODEL: &str = r#"
format = 1
layer = "mpi-io"
processes = 2
[[phase]]
numbers = "1-3"
file = "data"
sharing = "shared"
processes = "0-1"
weight = 4194304
measured = { seconds = 0.1, bytes_per_second = 125829120.0, share = 0.5, bytes_moved = 12582912 }
[[phase.operation]]
direction = "write"
size = 1048576
repetitions = 2
mode = "sequential"
pointer = "explicit"
displacement = [{ count = 2, stride = 1048576 }]
offset = { start = 0, loops = [{ count = 2, stride = 6291456 }] }
offset_per_phase = { start = 2097152 }
[[phase]]
numbers = "4"
file = "data"
sharing = "unique"
processes = "0-1"
weight = 12582912
measured = { seconds = 0.05, bytes_per_second = 251658240.0, share = 0.25, bytes_moved = 12582912 }
[[phase.operation]]
direction = "read"
size = 1048576
repetitions = 6
mode = "sequential"
pointer = "explicit"
displacement = [{ count = 6, stride = 1048576 }]
offset = { start = 0 }
"#;

fn files(name: &str, bandwidths: &str) -> [PathBuf; 2] {
    let place = place(name);
    let files = [place.join("model.toml"), place.join("reached.csv")];
    std::fs::write(&files[0], MODEL).unwrap();
    std::fs::write(&files[1], bandwidths).unwrap();
    files
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn commands_reproduce_the_phases() {
    let [model, _] = files("commands", "");
    let said = miot(&["estimate", text(&model), "--target", "/mnt/x"]).success().stdout;
    assert!(
        said.contains("mpiexec -n 2 ior -a MPIIO -w -k -s 1 -b 2097152 -t 1048576 -o /mnt/x\n"),
        "{said}"
    );
    assert!(
        said.contains("mpiexec -n 2 ior -a MPIIO -r -k -s 1 -b 6291456 -t 1048576 -F -o /mnt/x\n"),
        "{said}"
    );
}

#[test]
fn times_errors_and_selection_are_exact() {
    let reached = "configuration,phase,operation,mib_per_second\nslow,1,,60\nslow,4,,120\nfast,2,1,100\nfast,2,1,140\nfast,4,,300\n";
    let [model, reached] = files("times", reached);
    let measured = format!("fast={}", text(&model));
    let words = [
        "estimate",
        text(&model),
        "--bandwidth",
        text(&reached),
        "--measured",
        &measured,
        "--format",
        "json",
    ];
    let said: Value = serde_json::from_str(&miot(&words).success().stdout).unwrap();
    assert_eq!(said["choice"], "fast");
    let rows: Vec<Estimate> = serde_json::from_value(said["estimates"].clone()).unwrap();
    // 12 MiB in each family. slow: 12/60, 12/120. fast: 12/120 (the mean of two runs), 12/300.
    let seconds: Vec<f64> = rows.iter().map(|row| (row.seconds * 1e6).round() / 1e6).collect();
    assert_eq!(seconds, [0.2, 0.1, 0.3, 0.1, 0.04, 0.14]);
    // Measured: 12 MiB in 0.1 s and in 0.05 s, so 120 and 240 MiB/s.
    let errors: Vec<Option<f64>> =
        rows.iter().map(|row| row.error_relative.map(|e| (e * 10.0).round() / 10.0)).collect();
    assert_eq!(errors, [None, None, None, Some(0.0), Some(25.0), Some(7.1)]);
    let table = miot(&words[..6]).success().stdout;
    assert!(table.contains("least time: fast"), "{table}");
}

/// Two directories of this machine: each phase is measured in both, and no file remains.
#[test]
fn phases_are_measured_in_given_directories() {
    let [model, _] = files("run", "");
    let place = model.parent().unwrap().join("here");
    std::fs::create_dir(&place).unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let runs = [format!("disk={}", text(&place)), format!("memory={}", text(memory.path()))];
    let words = [
        "estimate",
        text(&model),
        "--run",
        &runs[0],
        "--run",
        &runs[1],
        "--repetitions",
        "2",
        "--format",
        "json",
    ];
    let said: Value = serde_json::from_str(&miot(&words).success().stdout).unwrap();
    let rows: Vec<Estimate> = serde_json::from_value(said["estimates"].clone()).unwrap();
    let names: Vec<_> =
        rows.iter().map(|row| (row.configuration.as_str(), row.phases.as_str(), row.bytes >> 20)).collect();
    let expected = ["disk", "memory"].map(|name| [(name, "1-3", 12), (name, "4", 12), (name, "all", 24)]);
    assert_eq!(names, expected.concat());
    for rows in rows.chunks(3) {
        assert!((rows[2].seconds - rows[0].seconds - rows[1].seconds).abs() < 1e-9, "{rows:?}");
        let by_hand = |row: &Estimate| row.bytes as f64 / row.bytes_per_second;
        assert!(rows.iter().all(|row| row.seconds > 0.0 && (row.seconds / by_hand(row) - 1.0).abs() < 1e-9));
    }
    let best = if rows[2].seconds < rows[5].seconds { "disk" } else { "memory" };
    assert_eq!(said["choice"], best);
    for directory in [place.as_path(), memory.path()] {
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{}", directory.display());
    }
    let nowhere = format!("x={}", text(&place.join("nowhere")));
    let said = miot(&["estimate", text(&model), "--run", &nowhere]);
    assert!(said.code() == 1 && said.stderr.contains("nowhere"), "{}", said.stderr);
}

/// Three phases write one file without gaps, and so do three repetitions of their measurement.
#[test]
fn phases_of_a_family_are_measured_in_one_file() {
    let [model, _] = files("one-file", "");
    let place = model.parent().unwrap();
    let trace = place.join("trace");
    let run = format!("here={}", text(place));
    let estimate = [text(&built().miot), "estimate", text(&model), "--run", &run, "--repetitions", "3"];
    let _ = hooked::traced(place, &trace, &estimate).success();
    let of_shared = |row: &&PrintedEvent| {
        row.op == "pwrite" && row.path.as_ref().is_some_and(|path| path.ends_with("/file"))
    };
    let all = hooked::events(&trace);
    let mut written: Vec<_> = all.iter().filter(of_shared).map(|row| (row.offset, row.length)).collect();
    written.sort_unstable();
    let expected: Vec<_> = (0..12).map(|nth| (Some(nth << 20), Some(1 << 20))).collect();
    assert_eq!(written, expected);
}

/// From a program to its time on another file system: BT-IO is traced and modelled, and its phases
/// are measured under MPI, with collective calls whose pieces interleave with those of other ranks,
/// as in the program. The duration depends on the machine.
#[test]
fn application_is_traced_modelled_and_estimated() {
    let place = place("estimated");
    let program = compile(&place, "btio", "btio.c", &["-lm"]);
    let trace = place.join("trace");
    let words = ["full".into(), place.join("data").into_os_string(), "12".into(), "4".into()];
    let words: Vec<OsString> = [program.into_os_string()].into_iter().chain(words).collect();
    let _ = traced(&trace, 4, &["--communication"], &words).success();
    let model = trace.with_extension("toml");
    let _ = miot(&["model", "save", text(&trace), "-o", text(&model)]).success();
    let here = place.join("here");
    std::fs::create_dir(&here).unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut words: Vec<String> = ["estimate", text(&model), "--mpi", "mpiexec.mpich", "--repetitions", "2"]
        .into_iter()
        .chain(["--format", "json"])
        .map(str::to_owned)
        .collect();
    for (name, directory) in [("disk", here.as_path()), ("memory", memory.path())] {
        words.extend(["--run".to_owned(), format!("{name}={}", text(directory))]);
    }
    words.extend(["--measured".to_owned(), format!("disk={}", text(&trace))]);
    let said: Value = serde_json::from_str(&miot(&words).success().stdout).unwrap();
    let rows: Vec<Estimate> = serde_json::from_value(said["estimates"].clone()).unwrap();
    let dump = 40 * 12 * 12 * 12;
    let expected = ["disk", "memory"]
        .map(|name| [(name, "1-4", 4 * dump), (name, "5", 4 * dump), (name, "all", 8 * dump)]);
    let names: Vec<_> =
        rows.iter().map(|row| (row.configuration.as_str(), row.phases.as_str(), row.bytes)).collect();
    assert_eq!(names, expected.concat());
    for row in &rows {
        assert!(row.seconds > 0.0, "{row:?}");
        let is_measured = row.configuration == "disk";
        assert_eq!(row.error_relative.is_some(), is_measured, "{row:?}");
        if let (Some(error), Some(measured)) = (row.error_relative, row.measured_seconds) {
            // Equation 3 for bandwidths is equivalent to this form for times: |1/CH - 1/MD| /
            // (1/MD).
            assert!((error - 100.0 * (measured / row.seconds - 1.0).abs()).abs() < 1e-6, "{row:?}");
        }
    }
    for directory in [here.as_path(), memory.path()] {
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{}", directory.display());
    }
    let run = format!("x={}", text(&here));
    let nobody = miot(&["estimate", text(&model), "--mpi", "no-such-launcher", "--run", &run]);
    assert!(nobody.code() == 1 && nobody.stderr.contains("no-such-launcher"), "{}", nobody.stderr);
}

#[test]
fn missing_bandwidths_are_reported() {
    let header = "configuration,phase,operation,mib_per_second\n";
    for (name, bandwidths, expected) in [
        ("none", header.to_owned(), "has no bandwidths"),
        ("partial", format!("{header}a,1,,60\n"), "configuration a: no bandwidth was measured for phases 4"),
        ("zero", format!("{header}a,1,,0\n"), "must be above 0"),
        ("columns", "a,b\n1,2\n".to_owned(), "expected CSV with the columns"),
    ] {
        let [model, reached] = files(&format!("missing-{name}"), &bandwidths);
        let said = miot(&["estimate", text(&model), "--bandwidth", text(&reached)]);
        assert_eq!(said.code(), 1, "{name}");
        assert!(said.stderr.contains(expected), "{name}: {}", said.stderr);
    }
    let [model, _] = files("missing-all", "");
    let said = miot(&["estimate", text(&model), "--measured", "a=b"]);
    assert!(said.stderr.contains("add --bandwidth FILE"), "{}", said.stderr);
}
