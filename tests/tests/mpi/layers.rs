//! ROMIO's implementation of requests: data sieving and two-phase collective writes appear as
//! amplification.

use crate::place;
use miot_tests::built::built;
use miot_tests::mpi::{compile, traced};
use miot_tests::process::run;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Bytes that all ranks write.
const BYTES: u64 = 4 * 64 * 128;

/// Row of `miot stat --by layer` for the POSIX layer within MPI-IO.
fn below(trace: &Path) -> (Value, u64) {
    let stat =
        Command::new(&built().miot).args(["stat", "--by", "layer", "--format", "json"]).arg(trace).output();
    let text = String::from_utf8(stat.unwrap().stdout).unwrap();
    let rows: Vec<Value> = match serde_json::from_str(&text) {
        Ok(Value::Array(rows)) => rows,
        _ => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    let find = |layer: &str, above: Option<&str>| {
        rows.iter().find(|row| row["layer"] == layer && row["above"].as_str() == above).cloned()
    };
    let asked = find("mpi-io", None).unwrap()["write_moved"].as_u64().unwrap();
    (find("posix", Some("mpi-io")).unwrap_or_else(|| panic!("{text}")), asked)
}

fn pattern(mode: &str) -> (Value, usize) {
    let place = place(mode);
    let program = compile(&place, "patterns", "patterns.c", &[]);
    let (trace, file) = (place.join("trace"), place.join("data"));
    let words = [program.as_os_str(), mode.as_ref(), file.as_os_str()];
    let _ = traced(&trace, 4, &[], &words).success();
    let (row, asked) = below(&trace);
    assert_eq!(asked, BYTES, "{mode}");
    let data = std::fs::read(&file).unwrap();
    assert!(data.chunks(128).enumerate().all(|(i, block)| block == [b'a' + (i % 4) as u8; 128]), "{mode}");
    let cat = run(Command::new(&built().miot)
        .args(["cat", "--op", "pwrite,write", "--path"])
        .arg(&file)
        .arg(&trace));
    (row, cat.success().stdout.lines().filter(|line| line.contains(" posix ")).count())
}

#[test]
fn sieving_and_two_phase_writes_show_as_amplification() {
    let (direct, calls) = pattern("direct");
    assert_eq!(
        (direct["write_moved"].as_u64(), direct["read_moved"].as_u64()),
        (Some(BYTES), Some(0)),
        "{direct}"
    );
    assert_eq!(calls, 4 * 64, "a write for each row of each rank");

    let (sieved, calls) = pattern("sieved");
    let amplification = sieved["write_amplification"].as_f64().unwrap();
    assert!(amplification > 3.0, "each rank writes what lies between its rows as well: {sieved}");
    assert!(sieved["read_moved"].as_u64() > Some(BYTES) && calls < 4 * 64, "having read it: {sieved}");

    let (collective, calls) = pattern("collective");
    assert_eq!(collective["write_moved"].as_u64(), Some(BYTES), "each byte once: {collective}");
    assert!(calls <= 4, "by one process, in few requests: {calls}");
}
