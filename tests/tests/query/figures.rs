//! Figures of a program with known requests, in every format.

use crate::{asked, parts, place, python, query, rows, shell, value};
use miot_tests::process::{run, until};
use miot_tests::traced;
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// 10 writes of 4096 bytes, 5 reads of 1000 bytes, one read at the end of the file that returns 0,
/// a copy of 8192 bytes, and a read that fails because the file is write-only.
const PROGRAM: &str = r#"
import os
a = os.open("a", os.O_RDWR | os.O_CREAT, 0o600)
for i in range(10):
    os.pwrite(a, b"x" * 4096, i * 4096)
for i in range(5):
    os.pread(a, 1000, i * 5000)
os.pread(a, 1000, 40960)
b = os.open("b", os.O_WRONLY | os.O_CREAT, 0o600)
os.copy_file_range(a, b, 8192, 0, 0)
try:
    os.pread(b, 10, 0)
except OSError:
    pass
"#;

fn known(name: &str) -> (PathBuf, PathBuf) {
    let place = place(name);
    let trace = place.join("trace");
    let mut command = traced::command(&place, &trace, &["python3", "-c", PROGRAM]);
    let _ = run(command.env("MIOT_JOB", "climate")).success();
    (place, trace)
}

#[test]
fn every_view_has_the_program_requests() {
    let (place, trace) = known("figures");
    let of = |name: &str| format!("path = '{}'", place.join(name).display());
    let io = |name: &str, what: &str| value(&trace, &format!("SELECT {what} FROM io WHERE {}", of(name)));

    let counts = "count(*), count(*) FILTER (WHERE class = 'write'), sum(bytes) FILTER (WHERE class = 'write'),
        count(*) FILTER (WHERE class = 'read'), sum(bytes) FILTER (WHERE class = 'read'), sum(length) FILTER (WHERE class = 'read')";
    assert_eq!(io("a", counts), "16,10,40960,6,5000,6000");
    let copied = "min(bytes), min(path2), count(*)";
    let b = value(&trace, &format!("SELECT {copied} FROM io WHERE class = 'copy'"));
    assert_eq!(b, format!("8192,{},1", place.join("a").display()));
    assert_eq!(io("b", "count(*), sum(bytes), count(*) FILTER (WHERE result = -9)"), "2,8192,1");
    assert_eq!(io("a", "DISTINCT job, job_system, class IN ('read', 'write'), rank"), "climate,miot,true,");
    assert_eq!(io("a", "bool_and(CAST(time AS BIGINT) - CAST(\"begin\" AS BIGINT) = duration)"), "true");

    let stats = "requests, reads, writes, copies, read_bytes, write_bytes, copy_bytes, failed, processes";
    let file = |name: &str| rows(&trace, &format!("SELECT {stats} FROM file_stats WHERE {}", of(name)));
    assert_eq!(file("a"), ["16,6,10,0,5000,40960,,0,1"]);
    assert_eq!(file("b"), ["2,1,0,1,0,,8192,1,1"]);
    let job = rows(
        &trace,
        "SELECT job, job_system, layer, writes, write_bytes, copies, copy_bytes, nodes FROM job_stats WHERE layer = 'posix'",
    );
    assert_eq!(job.len(), 1);
    assert_eq!(job[0], "climate,miot,posix,10,40960,1,8192,1");

    // Without views, with filters by names, and as read by the trace's own reader.
    assert_eq!(
        value(&trace, "SELECT sum(result) FROM events WHERE layer = 'posix' AND op = 'pwrite'"),
        "40960"
    );
    assert_eq!(value(&trace, "SELECT count(*) FROM events"), traced::events(&trace).len().to_string());
    assert_eq!(
        value(&trace, "SELECT count(*) FROM paths"),
        value(&trace, "SELECT count(DISTINCT file) FROM files")
    );
}

#[test]
fn formats_hold_the_same_rows() {
    let place = place("formats");
    let trace = place.join("trace");
    let _ = parts(&trace, &[300, 200], false);
    let sql = "SELECT time, op, file, file2, seq, trace FROM events ORDER BY time";
    for format in ["json", "csv", "parquet", "arrow"] {
        let file = place.join(format);
        let words = [trace.to_str().unwrap(), sql, "--format", format, "-o", file.to_str().unwrap()];
        let _ = asked(&words).success();
    }
    let script = r#"
import json, sys, csv, pyarrow.parquet, pyarrow.ipc
place = sys.argv[1]
def rows(table):
    return [[None if v is None else str(v) for v in row.values()] for row in table.set_column(0, "time", table["time"].cast("int64")).to_pylist()]
parquet = rows(pyarrow.parquet.read_table(place + "/parquet"))
assert rows(pyarrow.ipc.open_stream(place + "/arrow").read_all()) == parquet
assert len(parquet) == 500, len(parquet)
assert parquet[0][1:] == ["read", "1", None, "0", "trace"], parquet[0]
names = ["time", "op", "file", "file2", "seq", "trace"]
lines = [json.loads(line) for line in open(place + "/json")]
assert [[None if n not in line else str(line[n]) for n in names[1:]] for line in lines] == [row[1:] for row in parquet]
table = list(csv.reader(open(place + "/csv")))
assert table[0] == names
assert [row[1:] for row in table[1:]] == [[v or "" for v in row[1:]] for row in parquet]
assert lines[0]["time"] == table[1][0] == "1970-01-01T00:00:00.001Z", (lines[0], table[1])
print("same")
"#;
    let said = run(std::process::Command::new(python()).args(["-c", script]).arg(&place)).success().stdout;
    assert_eq!(said, "same\n");
}

#[test]
fn sealed_events_need_no_sort_and_names_are_pushed_down() {
    let place = place("plans");
    let trace = place.join("trace");
    let _ = parts(&trace, &[300, 200, 100], false);
    let plan = |sql: &str| asked(&[trace.to_str().unwrap(), &format!("EXPLAIN {sql}")]).success().stdout;
    let sorted = plan("SELECT * FROM events ORDER BY time");
    let physical = sorted.split("physical_plan:").nth(1).unwrap();
    assert!(!physical.contains("SortExec"), "{sorted}");
    let filtered = plan("SELECT count(*) FROM io WHERE op = 'read'");
    assert!(filtered.contains("required_guarantees=[op in (read)]"), "{filtered}");
    let pruned = plan("SELECT count(*) FROM events WHERE time < '1970-01-01T00:00:00.002Z'");
    assert!(pruned.contains("pruning_predicate=") && pruned.contains("time_min"), "{pruned}");
}

#[test]
fn traces_with_the_same_ids_are_distinguished() {
    let place = place("several");
    let (mon, tue) = (place.join("mon"), place.join("tue"));
    let _ = parts(&mon, &[30], false);
    let _ = parts(&tue, &[50, 40], false);
    let both = |sql: &str| -> Vec<String> {
        let words = ["-t", mon.to_str().unwrap(), "-t", tue.to_str().unwrap(), sql, "--format", "csv"];
        asked(&words).success().stdout.lines().skip(1).map(str::to_owned).collect()
    };
    assert_eq!(
        both("SELECT trace, count(*), sum(bytes) FROM io GROUP BY trace ORDER BY trace"),
        ["mon,30,122880", "tue,90,368640"]
    );
    assert_eq!(both("SELECT count(*) FROM io"), ["120"]);
    assert_eq!(
        both("SELECT trace, path, requests FROM file_stats ORDER BY 1"),
        ["mon,/data/1,30", "tue,/data/1,90"]
    );
    let same = place.join("other/mon");
    let _ = parts(&same, &[1], false);
    let ended = run(&mut query(&["-t", mon.to_str().unwrap(), "-t", same.to_str().unwrap(), "SELECT 1"]));
    assert_eq!(ended.code(), 2);
    assert!(ended.stderr.contains("two of the traces have the name `mon`"), "{}", ended.stderr);
}

#[test]
fn large_results_spill_to_temporary_files() {
    let place = place("spill");
    let trace = place.join("trace");
    let _ = parts(&trace, &[200_000], false);
    let sorted = |limit: &str, sql: &str| {
        asked(&[
            trace.to_str().unwrap(),
            sql,
            "--format",
            "csv",
            "--memory-limit",
            limit,
            "--spill-dir",
            place.to_str().unwrap(),
        ])
    };
    let sql = "SELECT seq, stream, time, duration, \"offset\", process FROM events ORDER BY seq DESC, stream";
    let (little, much) = (sorted("16MiB", sql).success(), sorted("1GiB", sql).success());
    assert!(little.stdout == much.stdout, "the rows depend on the memory");
    let left: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["trace"], "temporary files are left");
    let explained = sorted("16MiB", &format!("EXPLAIN ANALYZE {sql}")).success().stdout;
    let spilled = explained
        .split("spill_count=")
        .skip(1)
        .filter_map(|rest| rest.split([',', ' ', ']']).next()?.parse::<u64>().ok());
    assert!(spilled.sum::<u64>() > 0, "{explained}");
    let greedy = sorted(
        "16MiB",
        "SELECT count(*) FROM events a JOIN events b ON a.seq = b.seq AND a.stream <> b.stream JOIN events c ON c.time = a.time",
    );
    assert!(greedy.code() == 0 || greedy.stderr.contains("--memory-limit"), "{}", greedy.stderr);
}

#[test]
fn statements_are_read_from_standard_input() {
    use std::io::Write as _;
    let place = place("input");
    let trace = place.join("trace");
    let _ = parts(&trace, &[30], false);
    let asked = |options: &[&str], sql: &str| {
        let mut command = query(&[&[trace.to_str().unwrap()], options].concat());
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let both = asked(&["--format", "csv"], "SELECT count(*) AS n FROM events; SELECT 2 AS m -- two\n;\n");
    assert_eq!(String::from_utf8(both.stdout).unwrap(), "n\n30\nm\n2\n");
    let nothing = asked(&["--format", "csv"], " -- nothing\n");
    assert_eq!(nothing.status.code(), Some(2));
    let file = place.join("file");
    let several = asked(&["-o", file.to_str().unwrap()], "SELECT 1; SELECT 2");
    assert_eq!((several.status.code(), Path::new(&file).exists()), (Some(2), false));
}

#[test]
fn closed_output_ends_the_query_and_leaves_no_files() {
    let place = place("pipe");
    let trace = place.join("trace");
    let _ = parts(&trace, &[100_000], false);
    let command = query(&[
        trace.to_str().unwrap(),
        "SELECT * FROM events ORDER BY seq DESC",
        "--format",
        "csv",
        "--memory-limit",
        "16MiB",
    ]);
    let mut line = format!("{:?}", command.get_program());
    command.get_args().for_each(|word| line += &format!(" '{}'", word.to_str().unwrap()));
    let script = format!("({line} --spill-dir '{}'; echo code $? >&2) | head -1", place.display());
    let ended = run(std::process::Command::new("sh").args(["-c", &script])).success();
    assert!(ended.stdout.starts_with("time,duration,node"), "{}", ended.stdout);
    assert_eq!(ended.stderr, "code 141\n");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "temporary files are left");
}

#[test]
fn signal_ends_the_query_and_leaves_no_files() {
    let place = place("signals");
    let trace = place.join("trace");
    let _ = parts(&trace, &[20_000], false);
    let (files, out) = (place.join("files"), place.join("out"));
    std::fs::create_dir_all(&files).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    // Both would take hours: one writes temporary files, the other returns no rows.
    let sorts = "SELECT * FROM events a, events b ORDER BY a.seq * b.seq";
    let joins = "SELECT count(*) FROM events a, events b, events c WHERE a.seq + b.seq + c.seq < 0";
    for (sql, signal) in [(sorts, Signal::TERM), (sorts, Signal::INT), (joins, Signal::HUP)] {
        let mut command = query(&[trace.to_str().unwrap(), sql, "--memory-limit", "64MiB"]);
        command.arg("--spill-dir").arg(&files).arg("-o").arg(out.join("rows"));
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let is_working = || match sql == sorts {
            true => bytes(&files) > 0,
            false => shell::ticks(&child.id().to_string()) > 30,
        };
        until("the query runs", is_working);
        miot_tests::process::signal(&child, signal);
        let status = miot_tests::process::wait(&mut child, miot_tests::process::WATCHDOG).unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()));
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!(said, "miot query: interrupted\n");
        for folder in [&files, &out] {
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "{} is left in", folder.display());
        }
    }
}

/// Total bytes of the files in a folder. Files may vanish meanwhile.
fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    };
    entries.map(size).sum()
}
