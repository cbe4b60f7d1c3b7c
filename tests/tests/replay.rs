//! `miot replay`: the trace of a replay equals the replayed trace, call by call. Invalid input is
//! reported.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::types::UInt64Type;
use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::losses::lose;
use miot_tests::mpi::{self, Mpi};
use miot_tests::process::{Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::with_tmpfs;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{command, events, traced};
use miot_trace_store::schema::{FILTERED, column, text};
use miot_trace_store::{Reader, Table};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Command `miot replay` of the trace `A` in a directory into its directory `into`, which is
/// created.
fn replay(dir: &Path, options: &[&str]) -> Command {
    let _ = fs::create_dir(dir.join("into"));
    let mut miot = Command::new(&built().miot);
    miot.arg("replay").arg(dir.join("A")).arg("--into").arg(dir.join("into")).args(options);
    miot
}

/// JSON output of a replay.
#[track_caller]
fn json(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.trim())
        .unwrap_or_else(|e| panic!("{e}: {}{}", ended.stdout, ended.stderr))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// Values of a request that must be equal.
type Call = (String, String, Option<String>, Option<String>, Option<i64>, Option<i64>, i64);

/// Returns the request with names relative to `root`.
fn call(row: &PrintedEvent, root: &str) -> Call {
    let below = |name: &Option<String>| {
        let name = name.as_deref()?;
        let name = name.strip_prefix(root).unwrap_or(name);
        let mut parts: Vec<&str> = Vec::new();
        for part in name.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                let _ = parts.pop();
            } else {
                parts.push(part)
            }
        }
        Some(format!("/{}", parts.join("/")))
    };
    // docs/guide/replay.md lists the calls that are replayed by another call.
    let op = match row.op.as_str() {
        "mkstemp" => "open",
        "printf" | "puts" => "fwrite",
        op => op,
    };
    // Numbers of descriptors and addresses may differ, and so may the targets of links, which are
    // elsewhere.
    let gives_number = matches!(
        op,
        "open"
            | "openat"
            | "creat"
            | "fopen"
            | "freopen"
            | "fdopen"
            | "opendir"
            | "fdopendir"
            | "dup"
            | "dup2"
            | "dup3"
            | "fcntl"
            | "mmap"
            | "readlink"
            | "readlinkat"
    );
    let result = if gives_number { row.result.min(0) } else { row.result };
    let is_link = row.op.starts_with("symlink");
    let is_attribute = row.op.contains("xattr");
    let path = if is_link { None } else { below(&row.path) };
    let path2 = if is_attribute { row.path2.clone() } else { below(&row.path2) };
    let length = if row.op.starts_with("readlink") { None } else { row.length };
    (row.layer.clone(), op.to_owned(), path, path2, row.offset, length, result)
}

/// Calls of the threads of each process of the trace `A`, by `process`. Threads of a process are
/// sorted by their calls.
fn calls<'a>(
    rows: impl Iterator<Item = &'a PrintedEvent>,
    root: &str,
    process: impl Fn(u64) -> Option<u64>,
) -> BTreeMap<u64, Vec<Vec<Call>>> {
    let mut threads: BTreeMap<(u64, u32), Vec<Call>> = BTreeMap::new();
    for row in rows.filter(|row| matches!(row.layer.as_str(), "posix" | "stdio")) {
        if let Some(process) = process(row.process) {
            threads.entry((process, row.tid)).or_default().push(call(row, root));
        }
    }
    let mut processes: BTreeMap<u64, Vec<Vec<Call>>> = BTreeMap::new();
    for ((process, _), calls) in threads {
        processes.entry(process).or_default().push(calls);
    }
    processes.values_mut().for_each(|threads| threads.sort());
    processes
}

/// Maps processes of the trace `B` to the processes of the trace `A` that they replay.
fn replays(trace: &Path) -> HashMap<u64, u64> {
    let reader = Reader::open(trace).unwrap();
    let mut all = HashMap::new();
    for batch in reader.table(Table::Processes).unwrap() {
        let (ids, words) =
            (column::<UInt64Type>(&batch, "process").unwrap(), text(&batch, "cmdline").unwrap());
        for row in 0..batch.num_rows() {
            if let Some((_, number)) = words.value(row).split_once(" --of ") {
                all.insert(ids.value(row), number.parse().unwrap());
            }
        }
    }
    all
}

/// Replays the trace `A` under `miot run`, which creates the trace `B`, and compares all requests.
#[track_caller]
fn assert_replayed(dir: &Path, options: &[&str]) -> Value {
    let mut words = vec![built().miot.to_str().unwrap().to_owned()];
    words.extend(replay(dir, options).get_args().map(|word| word.to_str().unwrap().to_owned()));
    words.extend(["--format".to_owned(), "json".to_owned()]);
    let ended = run(command(dir, &dir.join("B"), &words).env_remove("MIOT_EXCLUDE"));
    assert_eq!(ended.code(), 0, "{}{}", ended.stdout, ended.stderr);
    let (recorded, replayed) = (events(&dir.join("A")), events(&dir.join("B")));
    assert!(!replayed.is_empty(), "the replay was not traced: {}", ended.stderr);
    let which = replays(&dir.join("B"));
    let into = dir.join("into").display().to_string();
    let expected = calls(recorded.iter(), "", Some);
    let found = calls(replayed.iter(), &into, |process| which.get(&process).copied());
    assert!(!expected.is_empty());
    for (process, threads) in &expected {
        let found = found.get(process).map_or(&[][..], Vec::as_slice);
        let (all, other) = (threads.concat(), found.concat());
        if let Some(at) = (0..all.len().max(other.len())).find(|at| all.get(*at) != other.get(*at)) {
            let around = at.saturating_sub(3)..at + 4;
            let part = |calls: &[Call]| {
                calls
                    .iter()
                    .take(around.end)
                    .skip(around.start)
                    .map(|c| format!("  {c:?}\n"))
                    .collect::<String>()
            };
            panic!(
                "process {process}, call {at}:\nin the trace:\n{}in the replay:\n{}",
                part(&all),
                part(&other)
            );
        }
        assert_eq!(threads.len(), found.len(), "threads of process {process}");
    }
    assert_eq!(expected.len(), found.len());
    assert!(is_empty(&dir.join("into")), "its files are removed");
    let said = json(&ended);
    let count = |what: &str| said[what].as_u64().unwrap();
    assert_eq!(count("requests"), expected.values().flatten().map(|calls| calls.len() as u64).sum::<u64>());
    let other = ["failed_only_here", "failed_only_in_trace", "other_result"].map(count);
    assert_eq!(other, [0; 3], "{said}");
    said
}

/// Creates a directory with one file that exists before the program starts, and a log.
fn prepared(name: &str) -> (PathBuf, PathBuf) {
    let dir = fresh(name);
    let work = dir.join("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("before"), vec![b'b'; 10_000]).unwrap();
    fs::write(work.join("log"), "there\n").unwrap();
    (dir, work)
}

fn of_program(mode: &str, pace: &str) -> Value {
    let (dir, work) = prepared(&format!("replay-{mode}-{pace}"));
    let program = compile(&dir, "replayed", &["replayed.c"], &[]);
    let words = [program.to_str().unwrap(), mode, work.to_str().unwrap()];
    let _ = traced(&dir, &dir.join("A"), &words).success();
    assert_replayed(&dir, &["--pace", pace])
}

#[test]
fn threads_are_replayed() {
    let said = of_program("threads", "original");
    assert_eq!((said["threads"].as_u64(), said["processes"].as_u64()), (Some(5), Some(1)));
    assert!(said["late_nanoseconds"]["p99"].as_u64().unwrap() > 0);
    assert_eq!(said["bytes"], said["recorded_bytes"]);
}

#[test]
fn dependent_threads_wait_at_full_speed() {
    let said = of_program("threads", "fast");
    assert_eq!(said["late_nanoseconds"], Value::Null);
}

#[test]
fn mappings_are_replayed() {
    of_program("maps", "original");
}

#[test]
fn asynchronous_requests_are_replayed() {
    of_program("aio", "original");
}

#[test]
fn duplicated_and_inherited_descriptors_are_replayed() {
    of_program("descriptors", "original");
    of_program("descriptors", "fast");
}

#[test]
fn lock_ends_with_its_range_of_descriptors() {
    of_program("ranges", "original");
    of_program("ranges", "fast");
}

#[test]
fn sizes_names_and_failures_are_replayed() {
    of_program("sizes", "think");
}

#[test]
fn streams_are_replayed() {
    of_program("streams", "2x");
}

#[test]
fn named_pipes_and_nodes_are_replayed() {
    of_program("pipes", "original");
    of_program("pipes", "fast");
}

/// The replay opens the file without a name or by another name.
#[test]
fn inherited_files_without_names_are_replayed() {
    let (dir, work) = prepared("replay-inherited");
    let program = compile(&dir, "replayed", &["replayed.c"], &[]);
    let words = [program.to_str().unwrap(), "inherited", work.to_str().unwrap()];
    let _ = traced(&dir, &dir.join("A"), &words).success();
    let closes = events(&dir.join("A")).into_iter().filter(|row| row.op == "close");
    assert!(
        closes.filter(|row| row.path.as_deref().is_some_and(|path| path.contains("miot-replayed"))).count()
            > 0
    );
    let said = json(&run(&mut replay(&dir, &["--format", "json"])).success());
    for what in ["failed_only_here", "failed_only_in_trace", "other_result"] {
        assert_eq!(said[what], 0, "{said:#}");
    }
    assert!(is_empty(&dir.join("into")));
}

#[test]
fn ranks_of_open_mpi_are_replayed() {
    let dir = fresh("replay-openmpi");
    let program = Mpi::OpenMpi.compile(&dir, "forms", "forms.c", &[]);
    let words = [program.to_str().unwrap(), dir.join("data").to_str().unwrap()].map(ToOwned::to_owned);
    let _ = Mpi::OpenMpi.traced(&dir.join("A"), 2, &[], &words).success();
    let said = json(&run(&mut replay(&dir, &["--format", "json"])).success());
    assert_eq!(said["failed_only_here"], 0, "{said:#}");
    assert_eq!(said["bytes"], said["recorded_bytes"], "{said:#}");
}

/// Many processes that depend on files of each other.
const SCRIPT: &str = "set -e
cd \"$1\"
mkdir -p a/b; echo hello > a/b/x; cp a/b/x a/y; mv a/y a/z; ln -s z a/l; cat a/l > a/copy; ln a/z a/hard
for i in 1 2 3; do echo line $i >> a/log; done
cat a/log a/b/x before > all; wc -l all; head -c 100 before > part; sort before > sorted
truncate -s 100K sparse; dd if=/dev/zero of=sparse bs=1 count=1 seek=50000 conv=notrunc
cp --sparse=always sparse sparse2; exec 5<>a/log; echo more >&5; cat <&5; (echo sub >&5); exec 5>&-
rm a/hard; rm -r a/b; rmdir nothing || true; ls -l a; find a; touch new;
ln -s nowhere a/dangling; ls -l a; touch -h a/dangling; mv a/dangling a/other; rm a/other; chmod 600 new; test -e gone || test -e all
";

#[test]
fn shell_script_is_replayed_at_any_pace() {
    for pace in ["original", "fast"] {
        let (dir, work) = prepared(&format!("replay-script-{pace}"));
        let words = ["sh", "-c", SCRIPT, "sh", work.to_str().unwrap()];
        let _ = traced(&dir, &dir.join("A"), &words).success();
        let said = assert_replayed(&dir, &["--pace", pace]);
        assert!(said["processes"].as_u64().unwrap() > 10, "{said}");
    }
}

#[test]
fn common_programs_are_replayed() {
    let cases: [(&str, &[&str]); 5] = [
        // Lists the tree without examining each entry.
        ("ls", &["ls", "-R", "."]),
        ("dd", &["dd", "if=before", "of=out", "bs=3000", "conv=fsync"]),
        ("cp", &["cp", "-r", ".", "../copy"]),
        (
            "sqlite",
            &[
                "sqlite3",
                "db",
                "create table t(a, b); insert into t values (1, 2); begin; insert into t select a + 1, hex(randomblob(9000)) from t; commit; vacuum; select count(*) from t;",
            ],
        ),
        (
            "fio",
            &[
                "fio",
                "--name=one",
                "--filename=data",
                "--size=1m",
                "--bs=4k",
                "--rw=randrw",
                "--ioengine=psync",
                "--output=/dev/null",
            ],
        ),
    ];
    for (name, words) in cases {
        let (dir, work) = prepared(&format!("replay-program-{name}"));
        let _ = run(&mut command(&work, &dir.join("A"), words)).success();
        assert_replayed(&dir, &["--pace", "fast"]);
    }
}

#[test]
fn fio_jobs_with_own_and_shared_files_are_replayed() {
    for (name, options) in [("own", "--directory=."), ("shared", "--filename=data")] {
        let (dir, work) = prepared(&format!("replay-fio-{name}"));
        let words = [
            "fio",
            "--name=jobs",
            "--numjobs=3",
            options,
            "--size=512k",
            "--bs=8k",
            "--rw=randrw",
            "--ioengine=psync",
            "--output=/dev/null",
        ];
        let _ = run(&mut command(&work, &dir.join("A"), &words)).success();
        let said = assert_replayed(&dir, &[]);
        assert!(said["processes"].as_u64() >= Some(3));
    }
}

#[test]
fn ranks_of_an_mpi_program_are_replayed() {
    let dir = fresh("replay-mpi");
    let program = mpi::compile(&dir, "btio", "btio.c", &["-lm"]);
    let data = dir.join("data");
    let words = [program.to_str().unwrap(), "full", data.to_str().unwrap(), "12", "3"];
    let _ = mpi::traced(&dir.join("A"), 4, &[], &words).success();
    let said = assert_replayed(&dir, &[]);
    assert!(said["processes"].as_u64() >= Some(4));
}

/// Requests that a trace does not contain cannot be replayed, which a message reports.
#[test]
fn missing_requests_make_a_replay_uncertain() {
    let dir = recorded("replay-losses");
    lose(&dir.join("A"), &[("lane_full", 12), (FILTERED, 3)]);
    let said = run(&mut replay(&dir, &["--pace", "fast"])).success().stdout;
    assert!(said.contains("UNCERTAIN: 12 events") && said.contains("UNCERTAIN: 3 requests"), "{said}");
    let said = json(&run(&mut replay(&dir, &["--pace", "fast", "--format", "json"])).success());
    assert_eq!((&said["missing"]["lost"], &said["missing"]["filtered"]), (&12.into(), &3.into()));
}

/// Creates the trace `A` of `dd`.
fn recorded(name: &str) -> PathBuf {
    let (dir, work) = prepared(name);
    let words = ["dd", "if=before", "of=out", "bs=3000"];
    let _ = run(&mut command(&work, &dir.join("A"), &words)).success();
    dir
}

/// A model without times whose ranks first write one file and then read it.
fn writes_then_reads(ranks: u64) -> String {
    let phases = [("1", "write"), ("2", "read")].map(|(number, direction)| {
        format!(
            "[[phase]]
            numbers = '{number}'
            file = '/data/f'
            sharing = 'shared'
            processes = '0-{last}'
            weight = {weight}
            [[phase.operation]]
            direction = '{direction}'
            size = 1000
            repetitions = 4
            mode = 'sequential'
            pointer = 'explicit'
            displacement = [{{ count = 4, stride = 1000 }}]
            [phase.operation.offset]
            start = 0
            loops = [{{ count = {ranks}, stride = 4000 }}]\n",
            last = ranks - 1,
            weight = ranks * 4000
        )
    });
    format!("format = 1\nlayer = 'posix'\nprocesses = {ranks}\n{}", phases.concat())
}

/// More processes than the replay starts before others have ended, where that is possible.
#[test]
fn phases_are_replayed_by_as_many_processes() {
    let dir = fresh("replay-many");
    fs::write(dir.join("A"), writes_then_reads(70)).unwrap();
    let said = json(&run(&mut replay(&dir, &["--pace", "fast", "--format", "json"])).success());
    assert_eq!((&said["requests"], &said["processes"]), (&(70 * 10).into(), &70.into()));
}

#[test]
fn model_is_replayed_with_barriers_between_phases() {
    let dir = fresh("replay-model");
    fs::write(dir.join("A"), writes_then_reads(3)).unwrap();
    fs::create_dir(dir.join("into")).unwrap();
    let words: Vec<String> = replay(&dir, &["--pace", "fast", "--format", "json"])
        .get_args()
        .map(|word| word.to_str().unwrap().to_owned())
        .collect();
    let words = [&[built().miot.to_str().unwrap().to_owned()][..], &words].concat();
    let ended = traced(&dir, &dir.join("B"), &words).success();
    assert_eq!((json(&ended)["requests"].as_u64(), json(&ended)["processes"].as_u64()), (Some(30), Some(3)));
    let name = dir.join("into/data/f").display().to_string();
    let rows = events(&dir.join("B"));
    let of = |op: &str| -> Vec<PrintedEvent> {
        rows.iter().filter(|row| row.op == op && row.path.as_deref() == Some(&name)).cloned().collect()
    };
    let (writes, reads) = (of("pwrite"), of("pread"));
    assert_eq!((writes.len(), reads.len()), (12, 12));
    assert!(reads.iter().all(|row| row.result == 1000));
    let last = writes.iter().map(|row| row.time).max().unwrap();
    assert!(
        reads.iter().all(|row| row.time - row.duration >= last),
        "a phase begins after the one before it"
    );
    let mut offsets: Vec<_> = writes.iter().map(|row| row.offset.unwrap()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..12).map(|n| n * 1000).collect::<Vec<_>>());
}

#[test]
fn invalid_replay_is_refused_without_changes() {
    let dir = recorded("replay-wrong");
    let fails = |command: &mut Command, expected: &[&str]| {
        let ended = run(command);
        assert_eq!(ended.code(), 1, "{}{}", ended.stdout, ended.stderr);
        for part in expected {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    };
    let into = |target: &Path| {
        let mut miot = Command::new(&built().miot);
        miot.arg("replay").arg(dir.join("A")).arg("--into").arg(target);
        miot
    };
    fails(&mut into(&dir.join("none")), &["none", "create an empty directory"]);
    fails(&mut into(&dir.join("work/before")), &["is not a directory"]);
    fails(&mut into(&dir.join("work")), &["not empty", "--force"]);
    assert_eq!(fs::read(dir.join("work/before")).unwrap(), vec![b'b'; 10_000]);
    fails(
        replay(&dir, &["--since", "2001-01-01T00:00:00Z", "--until", "2001-01-02T00:00:00Z"]).arg("--keep"),
        &["nothing to replay"],
    );
    let wrong = run(&mut replay(&dir, &["--pace=-1x"]));
    assert!(wrong.code() == 2 && wrong.stderr.contains("original"), "{}", wrong.stderr);
    assert!(is_empty(&dir.join("into")));
    let mut read_only = Command::new("unshare");
    let script = "mount -t tmpfs -o ro tmpfs \"$2\" && exec \"$0\" replay \"$1\" --into \"$2\"";
    read_only
        .args(["--mount", "sh", "-c", script])
        .arg(&built().miot)
        .arg(dir.join("A"))
        .arg(dir.join("into"));
    fails(&mut read_only, &["cannot write to", "Read-only file system"]);
    let part = fs::read_dir(dir.join("A/events")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&part).unwrap();
    fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    fails(&mut replay(&dir, &[]), &[part.file_name().unwrap().to_str().unwrap()]);
    assert!(is_empty(&dir.join("into")));
}

#[test]
fn full_target_is_reported_before_and_during_a_replay() {
    let dir = recorded("replay-full");
    let script = "\"$0\" replay \"$1\" --into \"$2\"; code=$?; ls -A \"$2\"; exit $code";
    let words = |dir: &Path| {
        let [miot, trace, into] = [built().miot.clone(), dir.join("A"), dir.join("into")];
        ["sh", "-c", script]
            .map(str::to_owned)
            .into_iter()
            .chain([miot, trace, into].map(|w| w.display().to_string()))
    };
    fs::create_dir(dir.join("into")).unwrap();
    let small = run(&mut with_tmpfs(&dir.join("into"), "8k", &words(&dir).collect::<Vec<_>>()));
    assert!(small.code() == 1 && small.stderr.contains("has 8.0 KiB free"), "{}", small.stderr);
    assert_eq!(small.stdout, "");
    let enough_to_begin = run(&mut with_tmpfs(&dir.join("into"), "16k", &words(&dir).collect::<Vec<_>>()));
    assert_eq!(enough_to_begin.code(), 3, "{}{}", enough_to_begin.stdout, enough_to_begin.stderr);
    assert!(enough_to_begin.stdout.contains("ENOSPC"), "{}", enough_to_begin.stdout);
}

/// Starts a replay that takes a minute, and waits until its process runs.
fn long_one(dir: &Path) -> (Child, i32) {
    let child = replay(dir, &["--pace", "0.001x"]).stderr(Stdio::piped()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let mut process = None;
    until("a process replays", || {
        process = fs::read_to_string(&children).ok().and_then(|pids| pids.trim().parse().ok());
        process.is_some() && dir.join("into").read_dir().unwrap().next().is_some()
    });
    (child, process.unwrap())
}

/// Creates the trace `A` of a program that pauses.
fn slow(name: &str) -> PathBuf {
    let (dir, work) = prepared(name);
    let words = ["sh", "-c", "echo a > a; sleep 0.3; echo b > b"];
    let _ = run(&mut command(&work, &dir.join("A"), &words)).success();
    dir
}

#[test]
fn killed_process_is_named_and_leaves_no_files() {
    let dir = slow("replay-killed");
    let (child, process) = long_one(&dir);
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(said.contains("was killed by signal 9") && said.contains("sh -c"), "{said}");
    assert!(is_empty(&dir.join("into")));
}

#[test]
fn signal_ends_the_replay_and_leaves_no_files() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = slow("replay-signal");
        let (child, process) = long_one(&dir);
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        assert!(String::from_utf8(ended.stderr).unwrap().contains("stopped by signal"));
        assert!(is_empty(&dir.join("into")));
        assert!(!Path::new(&format!("/proc/{process}")).exists());
    }
}

#[test]
fn replay_does_not_write_through_links() {
    let (dir, _) = prepared("replay-outside");
    let words = ["sh", "-c", "mkdir out; echo a > out/a; echo b > link; cat out/a", "sh"];
    let _ = run(&mut command(&dir.join("work"), &dir.join("A"), &words)).success();
    let outside = dir.join("outside");
    fs::create_dir(&outside).unwrap();
    let work = dir.join("into").join(dir.join("work").strip_prefix("/").unwrap());
    fs::create_dir_all(&work).unwrap();
    std::os::unix::fs::symlink(&outside, work.join("out")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), work.join("link")).unwrap();
    let ended = run(&mut replay(&dir, &["--force", "--format", "json"]));
    assert_eq!(ended.code(), 3, "{}{}", ended.stdout, ended.stderr);
    assert!(is_empty(&outside));
    assert!(work.join("out").is_symlink(), "with --force nothing is removed");
}
