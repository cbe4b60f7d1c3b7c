//! Imports recordings of real programs under strace.

use super::import;
use miot_tests::fact::{Fact, is_excluded};
use miot_tests::scenario::{ScenarioDirs, scenario, steady_name};
use miot_tests::strace::{FLAGS, witness};
use miot_tests::traced::{assert_good, events};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Removes times and durations from lines.
fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let (tid, rest) = line.split_once(char::is_whitespace).unwrap();
        let rest = rest.trim_start().split_once(' ').unwrap().1;
        let rest = match rest.rsplit_once(" <") {
            Some((call, took)) if took.ends_with('>') && took.starts_with(|c: char| c.is_ascii_digit()) => {
                call
            }
            _ => rest,
        };
        format!("{tid} {rest}\n")
    };
    text.lines().map(line).collect()
}

/// Checks that the import and the tests' own reader of strace's output agree on the same run.
fn alike(name: &str, least: usize) {
    let scenario = scenario(name);
    let place = ScenarioDirs::new(&format!("import-{name}"));
    place.prepare(scenario);
    let before = place.contents();
    let output = place.evidence.join("strace.out");
    let mut wrapper = words(&["strace", "-ttt", "-T"]);
    wrapper.extend(words(FLAGS));
    wrapper.extend(["-o".into(), output.clone().into(), "--".into()]);
    let _ = place.run(scenario, &wrapper).success();
    let text = without_times(&fs::read_to_string(&output).unwrap());
    let size_at_start =
        |path: &[u8]| before.get(Path::new(OsStr::from_bytes(path))).map_or(0, |m| m.len() as i64);
    let expected = witness(&text, place.work.as_os_str().as_bytes(), &size_at_start).unwrap();

    let trace = place.evidence.join("imported");
    let told = import(&trace, &[output.as_os_str(), "--on-error".as_ref(), "stop".as_ref()]).success();
    assert_good(&trace);
    let mut found: BTreeMap<u32, Vec<Fact>> = BTreeMap::new();
    for row in events(&trace) {
        found.entry(row.tid).or_default().extend(row.fact());
    }
    let mut compared = 0;
    for (tid, seen) in &expected.threads {
        let mut facts = found.remove(tid).unwrap_or_default();
        facts.retain(|fact| !fact.file().is_some_and(|path| !path.starts_with(b"/") || is_excluded(path)));
        // The import does not name these files. The other reader leaves out mapped files that are
        // excluded.
        let mut seen: Vec<Fact> = seen.iter().map(|seen| seen.fact.clone()).collect();
        for facts in [&mut seen, &mut facts] {
            facts.retain(|fact| fact.op != "munmap");
        }
        let (expected_requests, found_requests) = (seen.len(), facts.len());
        for (seen, mut fact) in seen.into_iter().zip(facts) {
            // The text does not contain the size before the run.
            if fact.offset.is_none() && fact.op.starts_with("write") {
                fact.offset = seen.offset;
            }
            let mut seen = seen;
            if seen.arg.is_none() || fact.arg.is_none() {
                (seen.arg, fact.arg) = (None, None);
            }
            assert_eq!(fact, seen, "{name}, thread {tid}: {fact} is {seen}");
            compared += 1;
        }
        assert_eq!(found_requests, expected_requests, "{name}, thread {tid}: {}", told.stdout);
    }
    println!("{name}: {compared} requests");
    assert!(compared >= least, "{name}: only {compared} requests");
}

macro_rules! alike {
    ($($test:ident $name:literal $least:literal;)*) => {
        $(#[test] fn $test() { alike($name, $least); })*
    };
}

alike! {
    dd_is_read_alike "dd" 100;
    dd_append_is_read_alike "dd-append" 100;
    tar_is_read_alike "tar-create" 200;
    sqlite_is_read_alike "sqlite3" 400;
    git_is_read_alike "git-clone" 800;
    python_is_read_alike "python3" 1200;
}

/// Number of requests that move data, by file, kind and position.
fn moved(trace: &Path) -> BTreeMap<String, u64> {
    let mut moved = BTreeMap::new();
    for fact in events(trace).iter().filter_map(|row| row.fact()) {
        let op = &*fact.op;
        if !matches!(op, "read" | "write" | "pread" | "pwrite" | "readv" | "writev" | "copy_file_range") {
            continue;
        }
        let Some(path) = fact.path.as_deref().filter(|path| path.starts_with(b"/") && !is_excluded(path))
        else {
            continue;
        };
        let path = steady_name(path).escape_ascii().to_string();
        let (offset, length, result) = (fact.offset, fact.length, fact.result);
        *moved.entry(format!("{path} {op} {offset:?} {length:?} = {result}")).or_default() += 1;
    }
    moved
}

/// Runs a program once under strace with common options and once under `miot run`, and compares
/// both. The program reads `stream` through C streams: requests that the C library makes for it,
/// and on its own, are only in strace's output.
fn as_recorded(name: &str, least: usize, strace: &[&str], stream: Option<&str>) {
    let scenario = scenario(name);
    let place = ScenarioDirs::new(&format!("import-run-{name}"));
    place.prepare(scenario);
    let before = place.contents();
    let output = place.evidence.join("log");
    let mut wrapper = words(strace);
    wrapper.extend(["-o".into(), output.clone().into(), "--".into()]);
    let _ = place.run(scenario, &wrapper).success();
    let mut files: Vec<_> =
        fs::read_dir(&place.evidence).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log"));
    let imported = place.evidence.join("imported");
    let told = import(&imported, &files).success();
    assert!(!told.stdout.contains("could not be parsed"), "{}", told.stdout);
    assert_good(&imported);

    place.restore(scenario, &before);
    let recorded = place.evidence.join("recorded");
    let miot = miot_tests::built::built().miot.clone();
    let wrapper = [miot.into(), "run".into(), "-o".into(), recorded.clone().into(), "--".into()];
    let _ = place.run(scenario, &wrapper).success();
    let (imported, recorded) = (moved(&imported), moved(&recorded));
    for (request, times) in &recorded {
        assert_eq!(imported.get(request), Some(times), "{name}: {request}\n{imported:#?}");
    }
    let own = place.work.display().to_string();
    let stream = stream.map(|name| format!("{own}/{name} read "));
    let mut more =
        imported.keys().filter(|request| request.starts_with(&own) && !recorded.contains_key(*request));
    let unexplained = more.find(|request| !stream.as_ref().is_some_and(|stream| request.starts_with(stream)));
    assert_eq!(unexplained, None, "{name}");
    let all: u64 = recorded.values().sum();
    assert!(all >= least as u64, "{name}: only {all} requests");
}

const PLAIN: &[&str] = &["strace", "-f", "-ttt", "-T", "-y"];

#[test]
fn dd_under_strace_equals_dd_under_miot() {
    as_recorded("dd", 60, PLAIN, None);
}

#[test]
fn sqlite_under_strace_equals_sqlite_under_miot() {
    as_recorded("sqlite3", 100, &["strace", "-ff", "-ttt", "-T", "-yy"], Some("load.sql"));
}

#[test]
fn python_under_strace_equals_python_under_miot() {
    as_recorded("python3", 100, &["strace", "-ff", "-ttt", "-T", "-y"], Some("program.py"));
}
