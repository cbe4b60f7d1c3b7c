//! `miot bench`: the requests of its processes as recorded by the hook, and its report.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::mpi::Mpi;
use miot_tests::process::{Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::with_tmpfs;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{events, traced};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn bench(dir: &Path, arguments: &[&str]) -> Ended {
    run(Command::new(&built().miot).arg("bench").arg("--dir").arg(dir).args(arguments))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// Computes bytes and calls of all processes by hand for each run.
#[test]
fn requests_match_the_options() {
    let dir = fresh("bench-does");
    let suite = dir.join("suite.toml");
    let runs = [
        ("a", "pattern = 'strided'\nblock = 4096\ncount = 10", (0, 3 * 10 * 4096, 30)),
        (
            "b",
            "pattern = 'segmented'\nblock = '8 KiB'\ncount = 4\noperation = 'read'\nverify = 'all'",
            (3 * 4 * 8192, 0, 12),
        ),
        (
            "c",
            "pattern = 'sequential'\nblock = 1000\ncount = 7\noperation = 'read-modify-write'\nfile-per-process = true",
            (21000, 21000, 42),
        ),
        ("d", "pattern = 'rank-zero'\nblock = 100\ncount = 5\nsync = 'each'", (0, 1500, 15)),
        (
            "e",
            "pattern = 'segmented'\nblock = 4096\ncount = 2\ncache = 'direct'\noperation = 're-write'",
            (0, 3 * 8192, 6),
        ),
        (
            "f",
            "pattern = 'strided'\nblock = '64 KiB'\ncount = 5\ncache = 'drop'\naligned = false\noperation = 'read'\nverify = 'all'",
            (15 * 65536, 0, 15),
        ),
        (
            "g",
            "pattern = 'looped'\nblock = 100\nloops = [{ count = 3, stride = 1000 }]\nstarts = [[0, 5000], [100, 5100], [200, 5200]]",
            (0, 18 * 100, 18),
        ),
    ];
    let text: Vec<String> =
        runs.iter().map(|(name, lines, _)| format!("[[run]]\nname = '{name}'\n{lines}\n")).collect();
    fs::write(&suite, format!("processes = 3\nrepetitions = 2\n{}", text.join(""))).unwrap();
    let target = dir.join("target");
    fs::create_dir(&target).unwrap();
    let ended = bench(&target, &[suite.to_str().unwrap(), "--format", "json"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let outcomes: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), runs.len());
    for (outcome, (name, _, (read, written, calls))) in outcomes.iter().zip(runs) {
        assert_eq!(outcome["run"]["name"], name);
        let repetitions = outcome["repetitions"].as_array().unwrap();
        assert_eq!(repetitions.len(), 2);
        for one in repetitions {
            assert_eq!(
                (one["read"].as_u64(), one["written"].as_u64()),
                (Some(read), Some(written)),
                "{name}"
            );
            assert_eq!(one["calls"], calls, "{name}");
            let [start, accesses, barrier, aggregate] = ["start", "accesses", "barrier", "aggregate"]
                .map(|part| one["times"][part].as_f64().unwrap());
            assert!(start >= 0.0 && accesses > 0.0 && barrier >= 0.0);
            assert!((start + accesses + barrier - aggregate).abs() < 1e-8);
            let bandwidth = (read + written) as f64 / 1048576.0 / aggregate;
            assert!((one["bandwidth"].as_f64().unwrap() / bandwidth - 1.0).abs() < 1e-9);
        }
    }
    assert!(is_empty(&target), "its files are removed");
}

/// The hook records the requests of five repetitions of two pieces of 4 KiB by one process, and
/// those that fill the file before. It also records how often the file is created.
#[test]
fn phases_lie_in_one_file() {
    const PIECE: i64 = 4096;
    const MIB: i64 = 1 << 20;
    let dir = fresh("bench-phases");
    let (suite, target) = (dir.join("suite.toml"), dir.join("target"));
    fs::create_dir(&target).unwrap();
    let cases: [(&str, &str, [i64; 5], usize); 6] = [
        ("write", "", [0; 5], 5),
        ("write", "phases = 3", [0, 2 * PIECE, 4 * PIECE, 0, 2 * PIECE], 2),
        ("write", "phases = 2\nadvance = '1 MiB'", [0, MIB, 0, MIB, 0], 3),
        ("write", "phases = 9\nadvance = 0", [0; 5], 1),
        ("read", "phases = 4", [0, 2, 4, 6, 0].map(|piece| piece * PIECE), 2),
        ("re-read", "", [0; 5], 5),
    ];
    for (number, (operation, lines, begins, files)) in cases.into_iter().enumerate() {
        let settings = "pattern = 'segmented'\nblock = 4096\ncount = 2\nverify = 'none'";
        let run = format!("[[run]]\nname = 'x'\n{settings}\noperation = '{operation}'\n{lines}\n");
        fs::write(&suite, format!("processes = 1\nrepetitions = 5\nprecision = 1e-9\n{run}")).unwrap();
        let trace = dir.join(format!("trace-{number}"));
        let words = [built().miot.to_str().unwrap(), "bench", "--dir", "target", suite.to_str().unwrap()];
        let _ = traced(&dir, &trace, &words).success();
        let all = events(&trace);
        let requests = |op: &str, length: i64| -> Vec<i64> {
            let of = |row: &&PrintedEvent| row.op == op && row.length == Some(length);
            all.iter().filter(of).filter_map(|row| row.offset).collect()
        };
        let (op, times) = match operation {
            "write" => ("pwrite", 1),
            "read" => ("pread", 1),
            _ => ("pread", 2),
        };
        let expected: Vec<i64> =
            begins.iter().flat_map(|begin| [*begin, begin + PIECE].repeat(times)).collect();
        assert_eq!(requests(op, PIECE), expected, "{operation} {lines}");
        let filled = if op == "pread" { begins.as_slice() } else { &[] };
        assert_eq!(requests("pwrite", 2 * PIECE), filled, "{lines}");
        let is_removal = |row: &&PrintedEvent| {
            row.op == "unlink" && row.path.as_ref().is_some_and(|path| path.ends_with("/file"))
        };
        assert_eq!(all.iter().filter(is_removal).count(), files, "{lines}");
    }
    assert!(is_empty(&target));
}

/// Runs a suite with known delays in two ranks.
fn delayed(dir: &Path) -> PathBuf {
    let suite = dir.join("suite.toml");
    let run = "name = 'x'\npattern = 'segmented'\nblock = 4096\ncount = 2\n";
    let delays = "late = ['200ms', '500ms']\nlinger = ['0s', '400ms']\n";
    fs::write(&suite, format!("processes = 2\nrepetitions = 1\n[[run]]\n{run}{delays}")).unwrap();
    suite
}

/// Each injected delay appears in its part of the time. The bounds are lower bounds, because a
/// loaded machine only adds time.
#[test]
fn delays_are_counted_in_their_part_of_the_time() {
    let dir = fresh("bench-delays");
    let suite = delayed(&dir);
    for launcher in [&[][..], &["mpiexec.mpich", "-n", "2"]] {
        let outcome = outcomes(launcher, &dir, &[suite.to_str().unwrap()]).remove(0);
        let times = &outcome["repetitions"][0]["times"];
        let [start, accesses, barrier, aggregate] =
            ["start", "accesses", "barrier", "aggregate"].map(|part| times[part].as_f64().unwrap());
        // The second rank starts 0.3 s after the first and is the last at the second barrier. Its
        // own part is exact. The time between the two ranks is shorter if the first one is delayed.
        assert!(start >= 0.2 && start + accesses >= 0.5, "{times}");
        assert!(accesses >= 0.1 && barrier >= 0.1, "{times}");
        assert!((start + accesses + barrier - aggregate).abs() < 1e-8 && aggregate >= 0.9, "{times}");
    }
}

/// The second rank has its own clock and is configured as if on another machine.
#[test]
fn ranks_on_several_machines_need_no_common_clock() {
    const APART: f64 = 1e6;
    let dir = fresh("bench-machines");
    let (suite, boot) = (delayed(&dir), dir.join("boot"));
    fs::write(&boot, "00000000-0000-4000-8000-000000000001\n").unwrap();
    let rank = |command: &mut Command| {
        command.arg(&built().miot).args(["bench", "--mpi", "--format", "json", "--dir"]);
        command.arg(&dir).arg(&suite);
    };
    let elsewhere = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let mut command = Command::new("mpiexec.mpich");
    rank(command.args(["-n", "1"]));
    command.args([
        ":",
        "-n",
        "1",
        "unshare",
        "--mount",
        "--time",
        "--monotonic",
        &APART.to_string(),
        "--fork",
    ]);
    rank(command.args(["sh", "-c", elsewhere]).arg(&boot));
    let outcome: Value = serde_json::from_str(&run(&mut command).success().stdout).unwrap();
    let times = &outcome["repetitions"][0]["times"];
    let [start, accesses, aggregate] =
        ["start", "accesses", "aggregate"].map(|part| times[part].as_f64().unwrap());
    assert!(start >= 0.2 && start + accesses >= 0.5 && (0.9..APART / 10.0).contains(&aggregate), "{times}");
}

/// The plot has a bar for each measurement and a mark for each of its repetitions.
#[test]
fn suite_is_drawn_as_a_plot() {
    let dir = fresh("bench-plot");
    let (suite, plot) = (dir.join("suite.toml"), dir.join("plot.svg"));
    let run = |name: &str, operation: &str| {
        format!(
            "[[run]]\nname = '{name}'\npattern = 'segmented'\nblock = 4096\ncount = 4\noperation = '{operation}'\n"
        )
    };
    let runs = [run("one & <two>", "write"), run("three", "read"), run("four", "read-modify-write")].concat();
    fs::write(&suite, format!("repetitions = 3\nprecision = 1e-9\n{runs}")).unwrap();
    let words = [suite.to_str().unwrap(), "--plot", plot.to_str().unwrap()];
    let said = bench(&dir, &words).success().stdout;
    assert!(said.contains("one & <two>"), "{said}");
    let svg = fs::read_to_string(&plot).unwrap();
    assert_eq!(svg.matches("<title>repetition ").count(), 9);
    for (class, text) in [("written", ">one &amp; &lt;two&gt;: "), ("read", ">three: "), ("both", ">four: ")]
    {
        assert!(svg.contains(text), "{text}: {svg}");
        // One in the legend, one bar.
        assert_eq!(svg.matches(&format!("<path class=\"{class}\"")).count(), 2, "{class}: {svg}");
    }
    let drawn =
        miot_tests::process::run(Command::new("rsvg-convert").arg(&plot).arg("-o").arg(dir.join("plot.png")));
    assert_eq!(drawn.code(), 0, "{}", drawn.stderr);
    let nowhere = bench(&dir, &[words[0], "--plot", dir.join("missing/plot.svg").to_str().unwrap()]);
    assert!(nowhere.code() == 1 && nowhere.stderr.contains("missing/plot.svg"), "{}", nowhere.stderr);
}

/// With only the loop there are as many calls and no bytes.
#[test]
fn io_can_be_left_out() {
    let dir = fresh("bench-none");
    let arguments =
        ["--pattern", "segmented", "--count", "1000", "--operation", "none", "--repetitions", "1"];
    let outcome = outcomes(&[], &dir, &arguments).remove(0);
    let one = &outcome["repetitions"][0];
    assert_eq!((&one["read"], &one["written"], &one["calls"]), (&0.into(), &0.into(), &2000.into()));
    assert!(one["times"]["accesses"].as_f64().unwrap() > 0.0);
}

/// Runs `miot bench`, under a launcher unless it is empty, and returns the outcomes.
fn outcomes(launcher: &[&str], dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let ended = launched(launcher, dir, &[arguments, &["--format", "json"]].concat());
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn launched(launcher: &[&str], dir: &Path, arguments: &[&str]) -> Ended {
    let [program, options @ ..] = launcher else { return bench(dir, arguments) };
    let mut command = Command::new(program);
    command.args(options).arg(&built().miot).args(["bench", "--mpi", "--dir"]).arg(dir);
    run(command.args(arguments))
}

const MPI: [&str; 2] = ["mpiexec.mpich", "-n"];

/// Computes each run by hand as above, through MPI-IO, in two phases. The processes read back and
/// compare all written bytes.
#[test]
fn requests_under_mpi_match_the_options() {
    let dir = fresh("bench-mpi");
    let suite = dir.join("suite.toml");
    let target = dir.join("target");
    fs::create_dir(&target).unwrap();
    // Bytes read, bytes written and calls of each process.
    let runs = [
        ("independent", "pattern = 'strided'\nblock = 4096\ncount = 10", (0, 40960, 10)),
        ("collective", "pattern = 'strided'\nblock = 1000\ncount = 10\ncollective = true", (0, 10000, 10)),
        (
            "view",
            "pattern = 'nested-strided'\nblock = 100\ninner-count = 20\ncount = 3\ncollective = true\ntogether = 20\nsync = 'end'",
            (0, 6000, 3),
        ),
        (
            "view, read",
            "pattern = 'nested-strided'\nblock = 100\ninner-count = 20\ncount = 3\ncollective = true\ntogether = 20\noperation = 'read'\nverify = 'all'",
            (6000, 0, 3),
        ),
        (
            "view without a period",
            "pattern = 'strided'\nblock = 4096\ncount = 7\ntogether = 3\noperation = 'read-modify-write'",
            (28672, 28672, 6),
        ),
        (
            "own files",
            "pattern = 'sequential'\nblock = 1000\ncount = 7\nfile-per-process = true\nmemory = '1 MiB'",
            (0, 7000, 7),
        ),
    ];
    let everywhere = [Mpi::Mpich, Mpi::OpenMpi].iter().flat_map(|mpi| [2, 3, 4].map(|ranks| (*mpi, ranks)));
    for (mpi, ranks) in everywhere {
        let text = runs.map(|(name, lines, _)| {
            format!("[[run]]\nname = '{name}'\nphases = 2\ninterface = 'mpi-io'\n{lines}\n")
        });
        fs::write(&suite, format!("repetitions = 2\n{}", text.concat())).unwrap();
        let launcher = mpi.launcher(ranks);
        let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
        let outcomes = outcomes(&launcher, &target, &[suite.to_str().unwrap()]);
        assert_eq!(outcomes.len(), runs.len());
        for (outcome, (name, _, (read, written, calls))) in outcomes.iter().zip(runs) {
            assert_eq!((&outcome["run"]["name"], &outcome["processes"]), (&name.into(), &ranks.into()));
            let all = outcome["repetitions"].as_array().unwrap();
            assert_eq!(all.len(), 2);
            for one in all {
                let found = ["read", "written", "calls"].map(|key| one[key].as_u64().unwrap());
                let expected = [read, written, calls].map(|each: u64| each * u64::from(ranks));
                assert_eq!(found, expected, "{name}, {mpi:?}, {ranks} ranks");
            }
        }
        assert!(is_empty(&target), "its files are removed");
    }
}

/// Ranks with fewer calls than others still take part in collective calls.
#[test]
fn collective_calls_may_differ_in_number() {
    let dir = fresh("bench-collective");
    let arguments = ["--pattern", "rank-zero", "--block", "1000", "--count", "4", "--collective"];
    let outcome = outcomes(&[MPI[0], MPI[1], "3"], &dir, &arguments).remove(0);
    let one = &outcome["repetitions"][0];
    assert_eq!((&one["written"], &one["calls"]), (&12000.into(), &12.into()));
}

#[test]
fn unsupported_options_under_mpi_are_refused() {
    let dir = fresh("bench-mpi-wrong");
    let suite = dir.join("suite.toml");
    let launcher = [MPI[0], MPI[1], "2"];
    let cases = [
        ("pattern = 'segmented'\nblock = 4096\ncount = 1\ncollective = true", "interface = \"mpi-io\""),
        (
            "pattern = 'segmented'\nblock = 4096\ncount = 1\ninterface = 'mpi-io'\ncache = 'direct'",
            "cannot bypass the cache",
        ),
        (
            "pattern = 'segmented'\nblock = 4096\ncount = 1\ninterface = 'mpi-io'\ncollective = true\nfile-per-process = true",
            "remove `file-per-process = true`",
        ),
        ("pattern = 'segmented'\nblock = 0\ncount = 1", "`block` is 0"),
    ];
    for (lines, expected) in cases {
        fs::write(&suite, format!("[[run]]\nname = 'x'\n{lines}\n")).unwrap();
        let ended = launched(&launcher, &dir, &[suite.to_str().unwrap()]);
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        assert_eq!(ended.stderr.matches(expected).count(), 1, "once, not by each rank: {}", ended.stderr);
    }
    let without = bench(&dir, &["--pattern", "segmented", "--collective"]);
    assert!(
        without.code() == 1 && without.stderr.contains("mpiexec -n 2 miot bench --mpi"),
        "{}",
        without.stderr
    );
    let nowhere = launched(&launcher, &dir.join("missing"), &["--pattern", "segmented"]);
    assert!(nowhere.code() == 1 && nowhere.stderr.contains("missing"), "{}", nowhere.stderr);
    let mut unknown = Command::new(&built().miot);
    unknown.args(["bench", "--mpi", "--pattern", "segmented", "--dir"]).arg(&dir);
    let unknown = run(unknown.env("MIOT_MPI_LIBRARY", "libnothing.so"));
    assert!(
        unknown.code() == 1
            && unknown.stderr.contains("libnothing.so")
            && unknown.stderr.contains("MIOT_MPI_LIBRARY"),
        "{}",
        unknown.stderr
    );
    fs::remove_file(&suite).unwrap();
    assert!(is_empty(&dir));
}

/// A known computing time between the bursts of a process is included in T.
#[test]
fn computation_between_bursts_is_part_of_the_time() {
    let dir = fresh("bench-bursts");
    let arguments =
        ["--pattern", "segmented", "--block", "4K", "--count", "6", "--burst", "2", "--compute", "20ms"];
    let ended =
        bench(&dir, &[&arguments[..], &["-n", "1", "--repetitions", "1", "--format", "json"]].concat());
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    // Three bursts have two pauses.
    assert!(outcome["repetitions"][0]["times"]["accesses"].as_f64().unwrap() >= 0.040);
}

#[test]
fn invalid_options_are_refused_and_leave_no_files() {
    let dir = fresh("bench-wrong");
    let cases: [(&[&str], &str); 9] = [
        (&[], "nothing to measure"),
        (&["--pattern", "sequential"], "the same bytes"),
        (&["--pattern", "strided", "--stride", "1K"], "stride"),
        (&["--pattern", "segmented", "--block", "100", "--cache", "direct"], "4096"),
        (&["--pattern", "segmented", "--cache", "direct", "--unaligned"], "begins at a page"),
        (&["--pattern", "segmented", "--phases", "0"], "`phases` must be at least 1"),
        (&["--pattern", "segmented", "--phases", "9", "--advance", "2097152TiB"], "longer than 8 EiB"),
        (&["--pattern", "segmented", "--cache", "direct", "--phases", "2", "--advance", "1000"], "4096"),
        (&["none.toml"], "none.toml"),
    ];
    for (arguments, expected) in cases {
        let ended = bench(&dir, arguments);
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
    let missing = bench(&dir.join("missing"), &["--pattern", "segmented"]);
    assert!(missing.stderr.contains("missing"), "{}", missing.stderr);
    assert!(is_empty(&dir));
}

#[test]
fn full_file_system_is_reported_and_cleaned_up() {
    let dir = fresh("bench-full");
    // The remaining files are listed afterwards, in the same namespace.
    let script = "\"$0\" bench --dir \"$1\" --pattern segmented --block 1M --count 8 -n 2; code=$?; ls \"$1\"; exit $code";
    let words = ["sh", "-c", script, built().miot.to_str().unwrap(), dir.to_str().unwrap()];
    let ended = run(&mut with_tmpfs(&dir, "4m", &words));
    assert_eq!(ended.code(), 1);
    assert!(ended.stderr.contains("No space left") && ended.stderr.contains("rank"), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing stays");
}

#[test]
fn full_file_system_under_mpi_is_reported_and_cleaned_up() {
    let dir = fresh("bench-mpi-full");
    for manner in ["--interface=mpi-io", "--collective"] {
        let script = "mpiexec.mpich -n 2 \"$0\" bench --mpi --dir \"$1\" --pattern strided --block 1M --count 8 $2; code=$?; ls \"$1\"; exit $code";
        let words = ["sh", "-c", script, built().miot.to_str().unwrap(), dir.to_str().unwrap(), manner];
        let ended = run(&mut with_tmpfs(&dir, "4m", &words));
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains("rank") && ended.stderr.contains("write"), "{}", ended.stderr);
        assert_eq!(ended.stdout, "", "nothing stays");
    }
}

#[test]
fn unwritable_directory_is_reported() {
    let dir = fresh("bench-read-only");
    let script = "mount -o remount,ro \"$1\" && \"$0\" bench --dir \"$1\" --pattern segmented";
    let words = ["sh", "-c", script, built().miot.to_str().unwrap(), dir.to_str().unwrap()];
    let ended = run(&mut with_tmpfs(&dir, "4m", &words));
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("cannot create") && ended.stderr.contains("Read-only"), "{}", ended.stderr);
}

/// The launcher kills all processes when one has died. Another process then removes their files.
#[test]
fn killed_rank_under_mpi_leaves_no_files() {
    let dir = fresh("bench-mpi-killed");
    let child = Command::new(MPI[0])
        .args([MPI[1], "2"])
        .arg(&built().miot)
        .args(["bench", "--mpi", "--pattern", "segmented", "--block", "4K", "--count", "4"])
        .args(["--burst", "1", "--compute", "60s", "--dir"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let has_written = || {
        let made = fs::read_dir(&dir).unwrap().next().map(|made| made.unwrap().path().join("file"));
        made.is_some_and(|file| fs::metadata(file).is_ok_and(|file| file.len() > 4 * 4096))
    };
    until("both processes have written", has_written);
    let ranks = processes_with(&["bench", "--mpi", dir.to_str().unwrap()]);
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    kill_process(Pid::from_raw(ranks[1]).unwrap(), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success());
    until("the files are removed", || is_empty(&dir));
    for rank in ranks {
        until("the ranks have ended", || !Path::new(&format!("/proc/{rank}")).exists());
    }
}

/// Processes of this tool whose command line has all these words, without the launcher.
fn processes_with(words: &[&str]) -> Vec<i32> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let has_them = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        line.first().is_some_and(|program| program.ends_with(b"/miot"))
            && words.iter().all(|word| line.contains(&word.as_bytes()))
    };
    all.filter(has_them).collect()
}

/// Starts a long benchmark and waits until its processes access the file.
fn long_one(dir: &Path) -> std::process::Child {
    let arguments =
        ["--pattern", "segmented", "--block", "4K", "--count", "4", "--burst", "1", "--compute", "60s"];
    let child = Command::new(&built().miot)
        .arg("bench")
        .arg("--dir")
        .arg(dir)
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = dir.join(format!("miot-bench-{}/file", child.id()));
    until("both processes have written", || fs::metadata(&made).is_ok_and(|file| file.len() > 4 * 4096));
    child
}

fn ranks_of(parent: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn killed_rank_is_named_and_leaves_no_files() {
    let dir = fresh("bench-killed");
    let child = long_one(&dir);
    let ranks = ranks_of(child.id());
    assert_eq!(ranks.len(), 2);
    // The first failure is reported first. The other process ends with it.
    kill_process(Pid::from_raw(ranks[0]).unwrap(), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(said.contains("rank 0 has ended before"), "{said}");
    assert!(is_empty(&dir));
}

#[test]
fn signal_ends_the_benchmark_and_leaves_no_files() {
    let dir = fresh("bench-signal");
    let child = long_one(&dir);
    let ranks = ranks_of(child.id());
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    assert!(is_empty(&dir));
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "rank {rank} still runs");
    }
}
