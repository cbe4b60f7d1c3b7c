//! Real Darshan logs with DXT records from pydarshan. The imported trace has the totals of
//! Darshan's own counters.

use super::import;
use miot_tests::built::root;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn darshan(what: &str, log: &str) -> String {
    let python = root().join("target/test-darshan/bin/python");
    assert!(python.exists(), "tests/setup.sh makes {}", python.display());
    run(Command::new(python).arg(root().join("tests/programs/darshan_dxt.py")).args([what, log]))
        .success()
        .stdout
}

fn totals(log: &str, processes: usize, nodes: &[&str]) {
    let place = fresh(&format!("import-{log}"));
    let (text, trace) = (place.join("dxt.txt"), place.join("trace"));
    fs::write(&text, darshan("text", log)).unwrap();
    let told = import(&trace, &[&text]).success().stdout;
    assert!(!told.contains("could not be parsed") && !told.contains("another number"), "{told}");
    assert_good(&trace);
    let rows = events(&trace);
    let counters: Value = serde_json::from_str(&darshan("counters", log)).unwrap();
    for (module, expected) in counters.as_object().unwrap() {
        let (layer, read, write) = match module.as_str() {
            "POSIX" => ("posix", "pread", "pwrite"),
            _ => ("mpi-io", "read_at", "write_at"),
        };
        let of = |op: &str| {
            let rows = rows.iter().filter(|row| row.layer == layer && row.op == op);
            rows.fold([0, 0], |[count, bytes], row| [count + 1, bytes + row.result])
        };
        assert_eq!(serde_json::json!([of(read), of(write)].concat()), *expected, "{log}: {module}");
    }
    let mut ranks: Vec<_> = rows.iter().map(|row| (row.pid, row.node.as_str())).collect();
    ranks.sort_unstable();
    ranks.dedup();
    assert_eq!(ranks.len(), processes);
    assert!(ranks.iter().all(|(_, node)| nodes.contains(node)), "{ranks:?}");
    assert!(
        rows.iter().all(|row| row.offset.is_some() && row.length == Some(row.result) && row.path.is_some())
    );
}

#[test]
fn log_of_a_java_program_has_darshans_totals() {
    totals("dxt.darshan", 1, &["bdw-0003"]);
}

#[test]
fn log_of_ior_with_hdf5_has_darshans_totals() {
    totals("ior_hdf5_example.darshan", 4, &["nid00097"]);
}
