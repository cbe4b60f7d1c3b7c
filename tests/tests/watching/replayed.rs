//! `miot top` on a trace directory.

use miot_tests::built::built;
use miot_tests::process::{run, until};
use miot_tests::tmux::Terminal;
use miot_tests::traced::traced;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Creates a trace of a program that writes three files, of which one is the largest, reads them,
/// and opens one that does not exist.
fn trace() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let script = "for n in 1 2 3; do dd if=/dev/zero of=file-$n bs=1000 count=${n}00 2> /dev/null; done;
        cat file-1 file-2 file-3 > /dev/null; test -e nothing || true";
    let _ = traced(dir.path(), &trace, &["sh", "-c", script]).success();
    (dir, trace)
}

fn miot(words: &[&str], trace: &Path) -> String {
    run(Command::new(&built().miot).arg(words[0]).arg(trace).args(&words[1..])).success().stdout
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn top(trace: &Path, terminal: &Terminal, words: &str) {
    terminal.line(&format!("{} top {} {words}; echo code $?", built().miot.display(), trace.display()));
}

#[test]
fn figures_equal_those_of_stat() {
    let (_dir, trace) = trace();
    let stat = json(&miot(&["stat", "--format", "json", "--files", "1000"], &trace));
    let top = json(&miot(&["top", "--once", "--format", "json"], &trace));
    let totals = &stat["totals"];
    for (ours, theirs) in [
        ("requests", "requests"),
        ("bytes_read", "bytes_read"),
        ("bytes_written", "bytes_written"),
        ("time", "time"),
    ] {
        assert_eq!(top["cluster"][ours], totals[theirs], "{ours}");
    }
    assert_eq!(top["events"], totals["events"]);
    assert_eq!(totals["bytes_written"], 600_000);
    let files = top["files"]["rows"].as_array().unwrap();
    for file in stat["files"].as_array().unwrap() {
        let row = files.iter().find(|row| row["id"] == file["file"]).unwrap();
        for key in ["requests", "bytes_read", "bytes_written", "time"] {
            assert_eq!(row[key], file[key], "{key} of {}", file["path"]);
        }
        assert_eq!(row["name"], file["path"]);
    }
    assert_eq!(top["nodes"]["rows"][0]["bytes_written"], 600_000);

    let csv = miot(&["top", "--view", "files", "--format", "csv"], &trace);
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let at = |name| header.iter().position(|column| *column == name).unwrap();
    let line = csv.lines().find(|line| line.contains("file-3")).unwrap();
    assert_eq!(line.split(',').nth(at("bytes_written")), Some("300000"));
    let text = miot(&["top", "--once", "--view", "files"], &trace);
    assert!(text.starts_with("whole time: ") && text.contains("/file-3"), "{text}");
}

#[test]
fn keys_and_sizes_work() {
    let (_dir, trace) = trace();
    let terminal = Terminal::new(80, 24);
    top(&trace, &terminal, "--window all --speed 100x");
    let _ = terminal.shows("[1 cluster]");
    until("the end of the trace is reached", || terminal.screen()[0].ends_with("Z end"));
    assert!(terminal.is_taken_over());
    let _ = terminal.shows("posix.write");

    terminal.keys(&["5"]);
    let heading = terminal.shows("[5 files]");
    assert!(!heading.contains("[1 cluster]"));
    let _ = terminal.shows("OPS▼");
    let row = terminal.shows("/file-3");
    assert!(row.contains("293 KiB"), "what was written, {row}");
    terminal.keys(&["/"]);
    terminal.line("FILE-");
    let _ = terminal.shows("1-3 of 3 ");
    // To the column of bytes written, the third after the operations.
    terminal.keys(&["Right", "Right"]);
    let _ = terminal.shows("WRITTEN▼");
    let files = || -> Vec<char> {
        let shown = terminal.screen();
        let names = shown.iter().filter_map(|line| line.rsplit_once("/file-"));
        names.filter_map(|(_, number)| number.chars().next()).collect()
    };
    until("the largest is first", || files() == ['3', '2', '1']);
    terminal.keys(&["r"]);
    let _ = terminal.shows("WRITTEN▲");
    until("the largest is last", || files() == ['1', '2', '3']);
    terminal.keys(&["/"]);
    terminal.line("2");
    until("one is left", || files() == ['2']);
    let _ = terminal.shows("1-1 of 1 ");
    terminal.keys(&["Escape"]);
    until("all are back", || !terminal.screen().iter().any(|line| line.contains("1-1 of 1 ")));

    assert!(!terminal.screen().iter().any(|line| line.contains("FAILED")));
    terminal.resize(150, 30);
    let _ = terminal.shows("FAILED");
    assert!(terminal.screen()[0].len() > 80);
    terminal.resize(40, 10);
    until("the narrow screen is drawn", || terminal.screen().len() <= 10);
    let _ = terminal.shows("1-");
    terminal.resize(80, 24);
    terminal.keys(&["?"]);
    let _ = terminal.shows("any key goes back");
    terminal.keys(&["x", "4"]);
    let _ = terminal.shows("[4 processes]");
    let _ = terminal.shows("dd if=/dev/zero");

    terminal.keys(&["q"]);
    let _ = terminal.shows("code 0");
    assert!(!terminal.is_taken_over());
    // The terminal echoes and edits lines again.
    terminal.line("stty -a | tr ';' '\\n' | grep -ow -e -echo -e echo -e -icanon -e icanon");
    until("stty has answered", || {
        terminal.screen().iter().any(|line| line.trim_start_matches('-') == "icanon")
    });
    let screen = terminal.screen();
    assert!(
        screen.iter().any(|line| line == "echo")
            && !screen.iter().any(|line| line == "-echo" || line == "-icanon"),
        "{screen:?}"
    );
}

#[test]
fn signal_restores_the_terminal() {
    let (_dir, trace) = trace();
    let terminal = Terminal::new(80, 24);
    terminal.line("echo before");
    top(&trace, &terminal, "");
    let _ = terminal.shows("[1 cluster]");
    let pid = format!("--parent {}", terminal.shell());
    let _ = run(Command::new("pkill").args(pid.split(' ')).arg("miot")).success();
    let _ = terminal.shows("code 143");
    assert!(!terminal.is_taken_over());
    let _ = terminal.shows("before");
}

#[test]
fn top_ends_with_its_terminal() {
    let (_dir, trace) = trace();
    let terminal = Terminal::new(80, 24);
    top(&trace, &terminal, "");
    let _ = terminal.shows("[1 cluster]");
    let parent = terminal.shell().to_string();
    let pid = run(Command::new("pgrep").args(["--parent", &parent, "miot"])).success().stdout;
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.join("stat").exists(), "{pid}");
    drop(terminal);
    until("it has ended", || !process.exists());
}

#[test]
fn speed_pause_and_since_work() {
    let (_dir, trace) = trace();
    // At a thousandth of the speed, one second takes hours.
    let terminal = Terminal::new(80, 24);
    top(&trace, &terminal, "--speed 0.001x --no-color");
    let _ = terminal.shows("1/1000x");
    terminal.keys(&["+"]);
    let _ = terminal.shows("1/500x");
    terminal.keys(&["Space"]);
    let _ = terminal.shows(" paused");
    terminal.keys(&["Space"]);
    let _ = terminal.shows("1/500x");
    terminal.keys(&["C-c"]);
    let _ = terminal.shows("code 0");

    let whole = json(&miot(&["top", "--format", "json"], &trace));
    let end = miot(&["top", "--format", "json", "--since", "2000-01-01T00:00:00Z"], &trace);
    assert_eq!(json(&end)["events"], whole["events"]);
    let none = miot(&["top", "--format", "json", "--since", "2100-01-01T00:00:00Z"], &trace);
    assert_eq!(json(&none)["events"], 0);
}

#[test]
fn unsupported_input_is_refused() {
    let (dir, trace) = trace();
    let nothing = run(Command::new(&built().miot).arg("top").arg(dir.path()));
    assert_eq!(nothing.code(), 1);
    assert!(nothing.stderr.contains("is not a MIOT trace"), "{}", nothing.stderr);
    let piped = run(Command::new(&built().miot).arg("top").arg(&trace));
    assert_eq!(piped.code(), 1);
    assert!(piped.stderr.contains("--once"), "{}", piped.stderr);
    let in_flight =
        run(Command::new(&built().miot).arg("top").arg(&trace).args(["--once", "--view", "in-flight"]));
    assert_eq!(in_flight.code(), 1);
    assert!(in_flight.stderr.contains("miot ctl status --server"), "{}", in_flight.stderr);
    let live = run(Command::new(&built().miot).args(["top", "localhost:1", "--since", "10m"]));
    assert_eq!(live.code(), 1);
    assert!(live.stderr.contains("a log-server shows only current activity"), "{}", live.stderr);
    for wrong in [["--window", "3600"], ["--speed", "0"], ["--view", "moon"]] {
        assert_eq!(
            run(Command::new(&built().miot).arg("top").arg(&trace).args(wrong)).code(),
            2,
            "{wrong:?}"
        );
    }
}
