//! Exports are read by independent programs and compared with `miot cat`, row by row.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::{
    ArrayRef, Int32Array, Int64Array, StringArray, TimestampNanosecondArray, UInt16Array, UInt32Array,
    UInt64Array, new_null_array,
};
use arrow_schema::DataType;
use miot_tests::built::{built, root};
use miot_tests::compile::compile;
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use miot_tests::{mpi, traced};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Options, Table, Writer, schema};
use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn miot(words: &[&str], trace: &Path) -> Ended {
    run(Command::new(&built().miot).args(words).arg(trace))
}

fn export(trace: &Path, format: &str, to: &Path, more: &[&str]) -> Ended {
    miot(&[&["export", "--format", format, "-o", to.to_str().unwrap()], more].concat(), trace)
}

/// Runs a program of `tests/programs` with the Python that has babeltrace2's library. Returns its
/// output.
fn python(program: &str, words: &[&Path]) -> Value {
    let script = root().join("tests/programs").join(program);
    let ended = run(Command::new("/usr/bin/python3").arg(script).args(words)).success();
    assert_eq!(ended.stderr, "", "a warning");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
}

/// Writes the output of `miot cat` to a file.
fn rows(place: &Path, trace: &Path) -> PathBuf {
    let path = place.join("rows.json");
    fs::write(&path, miot(&["cat", "--format", "json"], trace).success().stdout).unwrap();
    path
}

/// Checks that CTF and JSON trace events of a trace hold its rows. Returns the results of the
/// checks.
fn agree(place: &Path, trace: &Path) -> [Value; 2] {
    let rows = rows(place, trace);
    let count = fs::read_to_string(&rows).unwrap().lines().count();
    let ctf = place.join("ctf");
    let _ = export(trace, "ctf", &ctf, &[]).success();
    let text = run(Command::new("babeltrace2").arg(&ctf)).success();
    assert_eq!((text.stderr.as_str(), text.stdout.lines().count()), ("", count));
    let json = place.join("trace.json");
    let _ = export(trace, "perfetto", &json, &[]).success();
    [python("ctf.py", &[&ctf, &rows]), python("perfetto.py", &[&json, &rows])]
}

/// Several processes and threads, standard I/O, a path that is not UTF-8, one with a newline, and
/// failures.
#[test]
fn exports_of_programs_agree_with_other_readers() {
    let place = fresh("export-programs");
    let work = place.join("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join(std::ffi::OsStr::from_bytes(b"a\xff b")), "x").unwrap();
    let script =
        "dd if=/dev/zero of=file bs=4096 count=9 2> /dev/null; cat file ./a* > copy; cat nothing 2> /dev/null
        sqlite3 base 'create table t(a); insert into t values (1), (2);'; echo x > 'two
lines'; ls -l | wc -l";
    let trace = place.join("trace");
    let _ = traced::traced(&work, &trace, &["sh", "-c", script]).success();
    let [ctf, perfetto] = agree(&place, &trace);
    assert_eq!(ctf["lost"], 0);
    assert_eq!(ctf["events"], perfetto["events"]);

    let cat = |words: &[&str]| miot(&[&["cat"], words].concat(), &trace).success().stdout;
    let exported = |words: &[&str]| miot(&[&["export", "-o", "-"], words].concat(), &trace).success().stdout;
    assert_eq!(exported(&["--format", "jsonl"]), cat(&["--format", "json"]));
    assert_eq!(exported(&["--format", "csv"]), cat(&["--format", "csv"]));
    let chosen = ["--op", "write,pwrite", "--path", "**/work/*", "--layer", "posix"];
    let all = cat(&[&chosen[..], &["--format", "json"]].concat());
    assert!(all.lines().count() >= 9);
    assert_eq!(exported(&[&chosen[..], &["--format", "jsonl"]].concat()), all);

    // Half of the time span and three columns.
    let events: Vec<Value> =
        cat(&["--format", "json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let middle = events[events.len() / 2]["time"].as_str().unwrap();
    let columns = ["--format", "jsonl", "--columns", "op,time,path"];
    let found = exported(&[&columns[..], &["--since", middle]].concat());
    let expected: Vec<String> = events
        .iter()
        .filter(|event| event["time"].as_str().unwrap() >= middle)
        .map(|event| {
            let path = event.get("path").map_or(String::new(), |path| format!(",\"path\":{path}"));
            format!("{{\"op\":{},\"time\":{}{path}}}", event["op"], event["time"])
        })
        .collect();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    let csv = exported(&["--format", "csv", "--columns", "op,length", "--op", "write", "--path", "**/file"]);
    assert_eq!(csv, "op,length\n".to_owned() + &"write,4096\n".repeat(9));
}

/// Nested calls of four ranks are drawn inside each other. Concurrent requests are not drawn over
/// each other.
#[test]
fn nested_and_asynchronous_requests_are_drawn() {
    let place = fresh("export-mpi");
    let program = mpi::compile(&place, "patterns", "patterns.c", &[]);
    let trace = place.join("trace");
    let file = place.join("shared");
    let words = [program.as_os_str(), "collective".as_ref(), file.as_os_str()];
    let _ = mpi::traced(&trace, 2, &[], &words).success();
    let [ctf, perfetto] = agree(&place, &trace);
    assert!(perfetto["deepest"].as_u64() >= Some(2), "{perfetto}");
    assert_eq!(ctf["events"], perfetto["events"]);

    let place = fresh("export-asynchronous");
    let program = compile(&place, "async_aio", &["async_aio.c"], &["-lrt"]);
    let trace = place.join("trace");
    let work = place.join("work");
    fs::create_dir(&work).unwrap();
    let _ = traced::traced(&work, &trace, &[&program]).success();
    let [_, perfetto] = agree(&place, &trace);
    assert!(perfetto["phases"]["b"].as_u64() >= Some(10), "{perfetto}");
}

/// Eight blocks written and read, derived by hand: two files of one process and one of another.
#[test]
fn known_requests_are_known_records() {
    let place = fresh("export-miller");
    let work = place.join("work");
    fs::create_dir(&work).unwrap();
    let script = "dd if=/dev/zero bs=1000 count=8 of=odd 2> /dev/null; dd if=odd of=even bs=512 count=4 skip=2 2> /dev/null";
    let trace = place.join("trace");
    let _ = traced::traced(&work, &trace, &["sh", "-c", script]).success();
    let out = place.join("trace.miller");
    let only = ["--path", "**/work/*"];
    let said = export(&trace, "miller", &out, &only).success().stderr;
    assert!(said.contains("16 records; skipped: 0 failed requests"), "{said}");
    let text = fs::read_to_string(&out).unwrap();
    // Type, compression, and the words present of offset and length.
    let shown: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with("FF"))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let flags = u8::from_str_radix(words[1], 16).unwrap();
            let there = usize::from(flags & 0x40 == 0) + usize::from(flags & 0x04 == 0);
            words[..2 + there].join(" ")
        })
        .collect();
    let mut expected = vec!["C0 20 0 3E8".to_owned()];
    expected.extend(std::iter::repeat_n("C0 EC".to_owned(), 7));
    // 0x23: offset and length in blocks; the second file of the process, with its own number; then
    // both alternate.
    expected.extend(
        ["80 23 2 1", "C0 2A 0 1", "80 6C", "C0 6C", "80 6C", "C0 6C", "80 6C", "C0 6C"].map(str::to_owned),
    );
    assert_eq!(shown, expected, "{text}");
    let named = |name: &str| text.lines().filter(|line| line.ends_with(&format!("/work/{name}"))).count();
    assert_eq!((named("odd"), named("even")), (2, 1), "{text}");

    // Imported as a trace, it has the same requests and the same records.
    let import = |file: &Path, more: &[&str]| {
        let again = place.join("again");
        let _ = fs::remove_dir_all(&again);
        let mut miot = Command::new(&built().miot);
        miot.args(["import", "-o"]).arg(&again).args(more).arg(file);
        (run(&mut miot), again)
    };
    let (said, again) = import(&out, &[]);
    let said = said.success().stdout;
    assert!(said.starts_with("16 requests of 2 processes on 2 files"), "{said}");
    traced::assert_good(&again);
    let requests = |trace: &Path| {
        let all = traced::events(trace)
            .into_iter()
            .filter(|row| row.path.as_ref().is_some_and(|path| path.contains("/work/")));
        let data = all.filter(|row| row.op == "read" || row.op == "write");
        data.map(|row| (row.pid, row.op, row.path, row.offset, row.length, row.result)).collect::<Vec<_>>()
    };
    let sorted = |mut rows: Vec<_>| {
        rows.sort();
        rows
    };
    assert_eq!(sorted(requests(&again)), sorted(requests(&trace)));
    let twice = miot(&["export", "--format", "miller", "-o", "-"], &again).success().stdout;
    let without_time = |text: &str| -> Vec<String> {
        let records = text.lines().filter(|line| !line.starts_with("FF"));
        records.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    assert_eq!(without_time(&twice), without_time(&text));

    let damaged = place.join("damaged.miller");
    fs::write(&damaged, text.replace("C0 2A 0 1 ", "C0 2A 0 ")).unwrap();
    let (refused, again) = import(&damaged, &["--on-error", "stop"]);
    assert!(refused.code() == 1 && refused.stderr.contains("damaged.miller, line 1"), "{}", refused.stderr);
    assert!(refused.stderr.contains("expected") && !again.exists(), "{}", refused.stderr);
    // Without the first record of a file, three more records that depend on it are skipped.
    let (skipped, _) = import(&damaged, &[]);
    let skipped = skipped.success().stdout;
    assert!(skipped.starts_with("12 requests") && skipped.contains("4 of 2"), "{skipped}");
}

/// Rows that no program produces: late ones, before 1970, at the end of time, unknown operations,
/// names of any bytes; and losses, also of a node without events.
#[test]
fn unusual_rows_and_losses_are_exported() {
    let place = fresh("export-absurd");
    let trace = place.join("trace");
    let late = 1 << 7;
    let events = [
        (10, "a", "read", 0),
        (20, "a", "posix:200", 0),
        (30, "b\"\\\n", "we\"ird\\op", 0),
        (15, "a", "write", late),
        (-5, "b\"\\\n", "read", late),
        (12, "a", "read", late),
        (40, "a", "read", 0),
        (i64::MAX - 1, "a", "read", 0),
        (41, "a", "read", late),
    ];
    let losses = [
        (1, "a", "lane_full", 3),
        (25, "a", "filtered", 100),
        (1000, "a", "nested", 4),
        (7, "c", "no_lane", 5),
    ];
    forge(&trace, &events, &losses);
    let rows = place.join("rows.json");
    fs::write(&rows, without_side_tables(miot(&["cat", "--format", "json"], &trace)).stdout).unwrap();
    let ctf = place.join("ctf");
    let _ = without_side_tables(export(&trace, "ctf", &ctf, &[]));
    let text = run(Command::new("babeltrace2").args(["--clock-seconds"]).arg(&ctf)).success();
    assert_eq!(text.stdout.lines().count(), events.len(), "{}", text.stdout);
    let script = root().join("tests/programs/ctf.py");
    let found = run(Command::new("/usr/bin/python3").arg(script).args([&ctf, &rows])).success().stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["events"], &found["lost"]), (&9.into(), &12.into()));
    let json = place.join("trace.json");
    let said = without_side_tables(export(&trace, "perfetto", &json, &[])).stderr;
    assert!(said.contains("12 events of the trace were lost"), "{said}");
    let parsed: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let complete =
        parsed["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    let pairs = parsed["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "e").count();
    assert_eq!(complete + pairs, events.len());

    let empty = place.join("empty");
    forge(&empty, &[], &[]);
    for format in ["ctf", "perfetto", "csv", "jsonl", "miller"] {
        let _ = export(&empty, format, &place.join(format!("empty.{format}")), &[]).success();
    }
    let parsed: Value =
        serde_json::from_str(&fs::read_to_string(place.join("empty.perfetto")).unwrap()).unwrap();
    assert_eq!(parsed["traceEvents"], Value::Array(Vec::new()));
    assert_eq!(fs::read_to_string(place.join("empty.csv")).unwrap().lines().count(), 1);
}

#[test]
fn export_is_complete_or_absent() {
    let place = fresh("export-refused");
    let trace = place.join("trace");
    let rows: Vec<_> = (0..20_000).map(|time| (time, "a", "read", 0)).collect();
    forge(&trace, &rows, &[]);
    let refused = |words: &[&str], expected: &str| {
        let ended = miot(&[&["export"], words].concat(), &trace);
        assert_eq!(ended.code(), 1, "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{words:?}: {}", ended.stderr);
    };
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    fs::write(place.join("there"), "mine").unwrap();
    for format in ["csv", "ctf", "perfetto"] {
        refused(&["--format", format, "-o", &path("there")], "exists; remove it");
    }
    assert_eq!(fs::read_to_string(place.join("there")).unwrap(), "mine");
    fs::write(place.join("other.partial"), "half").unwrap();
    refused(&["--format", "csv", "-o", &path("other")], "other.partial exists");
    assert_eq!(fs::read_to_string(place.join("other.partial")).unwrap(), "half");
    refused(&["--format", "ctf", "-o", "-"], "a directory");
    refused(&["--format", "csv", "-o", &path("none/x")], "cannot create");
    refused(&["--format", "csv", "--columns", "tme", "-o", "-"], "no such column; there are time, duration");
    refused(&["--format", "ctf", "--columns", "time", "-o", &path("x")], "only csv and jsonl");
    let ended = export(&place, "csv", &place.join("x"), &[]);
    assert!(ended.code() == 1 && ended.stderr.contains("is not a MIOT trace"), "{}", ended.stderr);

    // A part with damage in the middle.
    let damaged = place.join("damaged");
    forge(&damaged, &rows, &[]);
    let _ = Writer::open(&damaged, Options::default()).unwrap().0.finish().unwrap();
    let part = damaged.join("events/part-000000.parquet");
    let mut bytes = fs::read(&part).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle..middle + 64].fill(0x5a);
    fs::write(&part, bytes).unwrap();
    for format in ["csv", "ctf", "perfetto", "miller"] {
        let ended = export(&damaged, format, &place.join("x"), &[]);
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
    }
    assert!(!place.join("x").exists() && !place.join("x.partial").exists());

    // A full disk.
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let disk = place.join("disk");
    fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&disk);
    let _ = run(&mut room.inside(&mount)).success();
    for format in ["csv", "ctf", "perfetto"] {
        let mut miot = Command::new(&built().miot);
        miot.args(["export", "--format", format, "-o"]).arg(disk.join("x")).arg(&trace);
        let ended = run(&mut room.inside(&miot));
        assert!(ended.code() == 1 && ended.stderr.contains("No space left on device"), "{}", ended.stderr);
        assert!(ended.stderr.contains("choose another directory"), "{}", ended.stderr);
        let mut list = Command::new("ls");
        list.arg("-A").arg(&disk);
        assert_eq!(
            run(&mut room.inside(&list)).success().stdout,
            "",
            "{format}: the incomplete export is removed"
        );
    }
}

/// Checks that all rows were read except those of side tables, which a forged trace does not have.
fn without_side_tables(ended: Ended) -> Ended {
    assert_eq!(ended.code(), 4, "{}", ended.stderr);
    assert!(ended.stderr.contains("rows for process 1 to"), "{}", ended.stderr);
    ended
}

/// Writes a trace of events (time, node, operation, flags) in this order, and of losses (time,
/// node, place, count).
fn forge(trace: &Path, events: &[(i64, &str, &str, u16)], losses: &[(i64, &str, &str, u64)]) {
    let mut writer = Writer::create(trace, Options::default()).unwrap();
    let time = |times: Vec<i64>| -> ArrayRef {
        Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))
    };
    if !losses.is_empty() {
        let columns: Vec<ArrayRef> = vec![
            time(losses.iter().map(|row| row.0).collect()),
            Arc::new(StringArray::from_iter_values(losses.iter().map(|row| row.1))),
            new_null_array(&DataType::UInt64, losses.len()),
            new_null_array(&DataType::UInt64, losses.len()),
            Arc::new(StringArray::from_iter_values(losses.iter().map(|row| row.2))),
            Arc::new(UInt64Array::from_iter_values(losses.iter().map(|row| row.3))),
            new_null_array(&DataType::UInt64, losses.len()),
            new_null_array(&DataType::UInt64, losses.len()),
        ];
        writer.append(Table::Losses, &schema::batch(Table::Losses, columns).unwrap()).unwrap();
    }
    if !events.is_empty() {
        let count = events.len();
        let path = "/a\0b\n\u{1F600}\"\\";
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(vec![1])),
            Arc::new(StringArray::from(vec!["a"])),
            Arc::new(StringArray::from(vec![path])),
        ];
        let schema = schema::of(Table::Files);
        let missing = schema.fields()[3..].iter().map(|field| new_null_array(field.data_type(), 1));
        let columns = columns.into_iter().chain(missing).collect();
        writer.append(Table::Files, &schema::batch(Table::Files, columns).unwrap()).unwrap();

        let mut node = StringDictionaryBuilder::<NameKey>::new();
        let mut layer = StringDictionaryBuilder::<NameKey>::new();
        let mut op = StringDictionaryBuilder::<NameKey>::new();
        for event in events {
            node.append_value(event.1);
            layer.append_value("posix");
            op.append_value(event.2);
        }
        let mut names = [
            ("node", Arc::new(node.finish()) as ArrayRef),
            ("layer", Arc::new(layer.finish())),
            ("op", Arc::new(op.finish())),
            ("time", time(events.iter().map(|event| event.0).collect())),
            ("flags", Arc::new(UInt16Array::from_iter_values(events.iter().map(|event| event.3)))),
            ("seq", Arc::new(UInt64Array::from_iter_values(0..count as u64))),
            ("request", Arc::new(UInt32Array::from_iter_values(1..=count as u32))),
        ]
        .to_vec();
        let schema = schema::of(Table::Events);
        let columns = schema.fields().iter().map(|field| {
            if let Some(at) = names.iter().position(|(name, _)| name == field.name()) {
                return names.swap_remove(at).1;
            }
            // All other columns have their extreme value or are absent.
            match (field.name().as_str(), field.data_type()) {
                ("file", _) => Arc::new(UInt64Array::from(vec![1; count])) as ArrayRef,
                ("offset", _) => Arc::new(Int64Array::from(vec![i64::MIN; count])),
                ("length" | "result", _) => Arc::new(Int64Array::from(vec![i64::MAX; count])),
                (name, data_type) if field.is_nullable() && name != "handle" => {
                    new_null_array(data_type, count)
                }
                ("duration", _) => Arc::new(Int64Array::from(vec![-1; count])),
                (_, DataType::Int64) => Arc::new(Int64Array::from(vec![i64::MAX; count])),
                _ => Arc::new(Int32Array::from(vec![i32::MAX; count])),
            }
        });
        let columns = columns.collect();
        writer.append(Table::Events, &schema::batch(Table::Events, columns).unwrap()).unwrap();
    }
    // A live part keeps its rows in order of arrival.
    writer.commit().unwrap();
}
