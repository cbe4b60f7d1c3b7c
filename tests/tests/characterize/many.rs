//! What producers choose has no limit that breaks a trace or mixes up its rows.

use miot_proto::op::by_name;
use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, traced};
use miot_trace_exchange::build::{Event, Process, TraceBuilder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// More than a number of 16 bits can count.
const PROCESSES: u64 = 70_000;

/// Each process has a job, a user, a program and a file of its own, and writes `number % 1000 + 1`
/// bytes.
#[test]
fn any_number_of_jobs_users_programs_and_files_is_distinguished() {
    let trace = fresh("characterize-many").join("trace");
    let mut build = TraceBuilder::create(&trace).unwrap();
    let write = by_name("posix", "write").unwrap().op;
    for number in 0..PROCESSES {
        let process = build.process(Process {
            node: format!("n{}", number % 100),
            pid: 1 + (number / 100) as u32,
            uid: number as u32,
            job: Some(format!("job{number}")),
            user: Some(format!("user{number}")),
            exe: format!("/bin/program{number}"),
            ..Process::default()
        });
        let thread = build.thread(process, 1, &format!("thread{number}"));
        let file = build.file(process, format!("/data/{number}").as_bytes()).unwrap();
        let begin = 1_767_225_600_000_000_000 + number as i64 * 1_000_000;
        let event = Event { file: Some(file), ..Event::new(thread, write, begin, begin + 1000) };
        build.event(&Event { result: (number % 1000) as i64 + 1, ..event }).unwrap();
    }
    let _ = build.finish(|_| ()).unwrap();
    assert_good(&trace);

    for (by, column, prefix) in [("job", "job", "job"), ("user", "user", "user"), ("file", "path", "/data/")]
    {
        let found = bytes_by(&trace, by, column, prefix);
        assert_eq!(found.len() as u64, PROCESSES, "by {by}");
        let wrong = found.iter().find(|(number, bytes)| **bytes != *number % 1000 + 1);
        assert_eq!(wrong, None, "by {by}");
    }
}

/// More paths than the log-client remembers.
#[test]
fn more_than_a_million_paths_of_a_program_are_counted() {
    const PATHS: u64 = (1 << 20) + 1000;
    let place = fresh("characterize-paths");
    let trace = place.join("trace");
    let script = format!("import os\nfor number in range({PATHS}): os.path.exists(f'/no/{{number}}')");
    let _ = traced(&place, &trace, &["/usr/bin/python3", "-E", "-c", &script]).success();
    let files = |trace: &Path| {
        let mut stat = Command::new(&built().miot);
        let stat = run(stat.arg("stat").arg(trace).args(["--files", "1", "--format", "json"])).success();
        let stat: Value = serde_json::from_str(&stat.stdout).unwrap();
        stat["totals"]["files"].as_u64().unwrap()
    };
    let other = place.join("other");
    let _ = traced(&place, &other, &["/usr/bin/python3", "-E", "-c", "import os"]).success();
    assert_eq!(files(&trace) - files(&other), PATHS);
}

/// Bytes written by the number after `prefix` in a column. In CSV, which has no names in each row.
fn bytes_by(trace: &Path, by: &str, column: &str, prefix: &str) -> BTreeMap<u64, u64> {
    let mut stat = Command::new(&built().miot);
    let table = run(stat.arg("stat").arg(trace).args(["--by", by, "--format", "csv"])).success().stdout;
    let (header, rows) = table.split_once('\n').unwrap();
    let at = |name| header.trim_end().split(',').position(|found| found == name).unwrap();
    let (name, bytes) = (at(column), at("bytes_written"));
    let numbers = rows.lines().map(|row| {
        let cells: Vec<&str> = row.trim_end().split(',').collect();
        let number = cells[name].strip_prefix(prefix).and_then(|number| number.parse().ok());
        (number.unwrap_or_else(|| panic!("{by}: {row}")), cells[bytes].parse().unwrap())
    });
    let numbers: Vec<_> = numbers.collect();
    let found: BTreeMap<u64, u64> = numbers.iter().copied().collect();
    assert_eq!(found.len(), numbers.len(), "by {by}: a row is there twice");
    found
}
