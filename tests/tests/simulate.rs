//! `miot simulate` and `miot generate`: traces of real programs and of models on simulated
//! machines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_simulator::generate::MODELS;
use miot_tests::built::{built, root};
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events, traced};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

fn miot(directory: &Path, words: &[&str]) -> Ended {
    run(Command::new(&built().miot).args(words).current_dir(directory))
}

fn json(directory: &Path, words: &[&str]) -> Value {
    let out = miot(directory, &[words, &["--format", "json"]].concat()).success().stdout;
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// A program writes 64 blocks of 4 KiB and reads them back. Without a cache each request is one
/// access of 2 ms. With a cache the reads are hits. With write-behind no process waits for the
/// writes.
#[test]
fn recorded_program_is_simulated_as_it_ran() {
    let place = fresh("simulate-recorded");
    let script = "import os\nf = os.open('file', os.O_RDWR | os.O_CREAT)\nfor n in range(64): os.pwrite(f, bytes(4096), n * 4096)\nfor n in range(64): os.pread(f, 4096, n * 4096)";
    let _ = traced(&place, &place.join("trace"), &["python3", "-c", script]).success();
    let machine = "call = \"0\"\nswitch = \"0\"\ninterrupt = \"0\"\nread_ahead = false\ndelay = \"0\"\n[disk]\nqueue = false\nread_latency = \"2ms\"\nwrite_latency = \"2ms\"\nmin_seek = \"0\"\nmax_seek = \"0\"\nrotation = \"0\"\nread_rate = 0\nwrite_rate = 0\n";
    std::fs::write(place.join("machine.toml"), machine).unwrap();
    let of = |more: &[&str]| {
        let words = [&["simulate", "trace", "--config", "machine.toml"], more].concat();
        json(&place, &words)["outcome"].take()
    };
    let sum = |outcome: &Value, key: &str| -> u64 {
        outcome["processes"].as_array().unwrap().iter().map(|process| process[key].as_u64().unwrap()).sum()
    };
    // The reads of the interpreter are there too, the same in all three cases.
    let none = of(&["--cache", "0"]);
    assert!(sum(&none, "reads") >= 64 && sum(&none, "writes") >= 64, "{none:#}");
    let accesses = none["disk"]["reads"].as_u64().unwrap() + none["disk"]["writes"].as_u64().unwrap();
    assert_eq!(sum(&none, "blocked"), accesses * 2_000_000);
    let through = of(&["--cache", "1M", "--write-behind", "false"]);
    let behind = of(&["--cache", "1M", "--write-behind", "true"]);
    assert_eq!(through["disk"]["bytes_written"], behind["disk"]["bytes_written"]);
    assert_eq!(sum(&through, "blocked") - sum(&behind, "blocked"), 64 * 2_000_000);
    // Written blocks are read from the cache.
    let misses = behind["cache"]["misses"].as_u64().unwrap();
    assert!(behind["cache"]["read"].as_u64().unwrap() >= misses + 64, "{behind:#}");
}

/// With `--cpu-time` each request has the processor time of its thread, which is the computing time
/// of the simulation.
#[test]
fn recorded_processor_time_is_the_computing_time() {
    let place = fresh("simulate-cpu");
    let script = "
import os, time
file, said = os.open('file', os.O_RDWR | os.O_CREAT), []
for n in range(20):
    until = time.thread_time_ns() + 2_000_000
    while time.thread_time_ns() < until: pass
    time.sleep(0.01)
    before = time.thread_time_ns()
    os.pwrite(file, b'x' * 4096, n * 4096)
    said.append((before, time.thread_time_ns()))
for before, after in said: print(before, after)
";
    let words = ["run", "-q", "--cpu-time", "-o", "trace", "--", "python3", "-c", script];
    let printed = miot(&place, &words).success().stdout;
    assert_good(&place.join("trace"));
    let cpu_times = |trace: &str, op: &str| -> Vec<Option<i64>> {
        let lines = miot(&place, &["cat", "--format", "json", "--op", op, trace]).success().stdout;
        let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| event["cpu_time"].as_i64()).collect()
    };
    let times = cpu_times("trace", "pwrite");
    assert_eq!(times.len(), 20);
    for (line, cpu) in printed.lines().zip(&times) {
        let (before, after) = line.split_once(' ').unwrap();
        let range = before.parse().unwrap()..=after.parse().unwrap();
        assert!(cpu.is_some_and(|cpu| range.contains(&cpu)), "{cpu:?} in {range:?}");
    }
    let simulated = json(&place, &["simulate", "trace"]);
    assert_eq!(simulated["notes"].as_array().unwrap().len(), 0, "{:#}", simulated["notes"]);
    // Where `python3` is a script, its shells are there too.
    let processes = simulated["outcome"]["processes"].as_array().unwrap();
    let program = processes.iter().max_by_key(|process| process["writes"].as_u64()).unwrap();
    let computing = program["run"].as_i64().unwrap();
    // Up to the last request of any kind that the trace has of the thread.
    assert!(
        times[19].is_some_and(|last| computing >= last && computing < last + 1_000_000_000),
        "{computing}"
    );
    let _ = miot(&place, &["export", "--format", "miller", "-o", "trace.txt", "trace"]).success();
    let text = std::fs::read_to_string(place.join("trace.txt")).unwrap();
    assert!(text.contains("processtime=cpu"), "{text}");
    let _ = miot(&place, &["run", "-q", "-o", "without", "--", "python3", "-c", script]).success();
    assert_eq!(cpu_times("without", "pwrite"), [None; 20]);
    let note = &json(&place, &["simulate", "without"])["notes"][0];
    assert!(note.as_str().unwrap().contains("processor time was not recorded"), "{note}");
}

/// Text of `docs/guide/simulate.md`.
fn page() -> String {
    std::fs::read_to_string(root().join("docs/guide/simulate.md")).unwrap()
}

/// Section of the page below a heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

/// Commands of a section, each with the output printed below it.
fn commands(section: &str) -> Vec<(&str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for block in section.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => all.push((command, String::new())),
                None => all.last_mut().unwrap().1 += &format!("{line}\n"),
            }
        }
    }
    all
}

/// Runs a command of the page.
fn sh(place: &Path, command: &str) -> Ended {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", built().folder.display());
    run(Command::new("sh").args(["-c", command]).current_dir(place).env("PATH", path))
}

/// The page explains a trace of steps by hand. The tool prints the same steps.
#[test]
fn steps_of_the_page_equal_the_output() {
    let place = fresh("simulate-steps");
    let page = page();
    let commands = commands(section(&page, "Step by step"));
    assert_eq!(commands.len(), 1);
    for (command, expected) in commands {
        assert_eq!(sh(&place, command).stdout, expected);
    }
}

/// The worked example of the page: a program is traced, exported, and simulated on three kinds of
/// storage.
#[test]
fn worked_example_of_the_page_works() {
    let place = fresh("simulate-example");
    let page = page();
    let commands = commands(section(&page, "A real program"));
    assert!(commands.len() >= 6 && commands[0].0 == "cat job.sql");
    std::fs::write(place.join("job.sql"), &commands[0].1).unwrap();
    let first_words = |text: &str| -> Vec<Option<String>> {
        let first = |line: &str| line.split("  ").next().map(str::to_owned);
        text.lines().map(first).take_while(|word| word.as_deref() != Some("")).collect()
    };
    for (command, expected) in &commands[1..] {
        let ended = sh(&place, command);
        assert_eq!(ended.code(), 0, "{command}: {}", ended.stderr);
        // Sweeps have the same points, but figures of another run.
        if command.contains("--cache") && command.contains("..") {
            assert_eq!(first_words(&ended.stdout), first_words(expected), "{command}");
        }
        if let Some((_, name)) = command.split_once("--plot ") {
            let plot = std::fs::read_to_string(place.join(name.split(' ').next().unwrap())).unwrap();
            assert!(plot.starts_with("<svg"), "{command}");
        }
    }
    // The export is the same program.
    let of =
        |what: &str| json(&place, &["simulate", what, "--storage", "nvme"])["outcome"]["processes"][0].take();
    let (trace, text) = (of("trace"), of("job.miller"));
    for key in ["writes", "bytes_written"] {
        assert_eq!(trace[key], text[key], "{key}");
    }
    // Reads have the requested length, also at the end of a file.
    let [found, asked] = [&trace, &text].map(|process| process["reads"].as_u64().unwrap());
    assert!(found <= asked && asked <= found + found / 100, "{found} and {asked}");
    // Times are in units of 10 us, and computing after the last request is unknown.
    let [trace, text] = [&trace, &text].map(|process| process["run"].as_u64().unwrap());
    assert!(text <= trace + 10_000 && text * 10 > trace * 9, "{trace} and {text}");
}

/// `miot stat` finds the parameters of the models in their traces within 2 %, and the figures of
/// the page. These are within 10 % of the paper's Tables 1 and 2 except for the cells in
/// parentheses, which other figures of the paper contradict.
#[test]
fn models_have_the_figures_of_the_tables() {
    let place = fresh("simulate-models");
    let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
    let _ = miot(&place, &["generate", "--like", &names.join(","), "-o", "trace"]).success();
    let out = miot(&place, &["stat", "trace", "--by", "process", "--view", "miller", "--format", "json"]);
    let rows: Value = serde_json::from_str(&out.success().stdout).unwrap();
    let mut found: HashMap<String, Value> = HashMap::new();
    for row in rows["rows"].as_array().unwrap() {
        let _ = found.insert(row["command"].as_str().unwrap().to_owned(), row.clone());
    }
    let near = |what: &str, ours: f64, wanted: f64, within: f64| {
        assert!((ours / wanted - 1.0).abs() <= within, "{what}: {ours}, wanted {wanted}");
    };
    for model in &MODELS {
        let of = |key: &str| found[model.name][key].as_f64().unwrap();
        let sum = |two: [f64; 2]| two[0] + two[1];
        for (key, given) in [
            ("cpu_seconds", model.cpu as f64 / 1e9),
            ("data_size", model.data as f64),
            ("bytes", model.moved as f64),
            ("ios", model.requests as f64),
            ("reads", model.requests as f64 * model.per_second[0] / sum(model.per_second)),
            ("writes", model.requests as f64 * model.per_second[1] / sum(model.per_second)),
            ("bytes_read", model.moved as f64 * model.rates[0] / sum(model.rates)),
            ("bytes_written", model.moved as f64 * model.rates[1] / sum(model.rates)),
        ] {
            near(&format!("{}: {key}", model.name), of(key), given, 0.02);
        }
    }
    let keys: [(&str, f64); 10] = [
        ("data_size", 1e6),
        ("bytes", 1e6),
        ("ios", 1.0),
        ("ios_per_cpu_second", 1.0),
        ("read_mib_per_cpu_second", 1.0),
        ("write_mib_per_cpu_second", 1.0),
        ("read_ios_per_cpu_second", 1.0),
        ("write_ios_per_cpu_second", 1.0),
        ("average_size", 1024.0),
        ("read_write_ratio", 1.0),
    ];
    let page = page();
    let table = section(&page, "The paper's programs");
    for name in names {
        let line = table.lines().find(|line| line.starts_with(&format!("| {name} | "))).unwrap();
        let cells: Vec<_> = line.trim_matches(['|', ' ']).split(" | ").skip(1).collect();
        assert_eq!(cells.len(), keys.len(), "{line}");
        for (cell, (key, unit)) in cells.into_iter().zip(keys) {
            let (paper, ours) = cell.split_once(" / ").unwrap();
            let number = |text: &str| text.replace(',', "").parse::<f64>().unwrap();
            let found = found[name][key].as_f64().unwrap() / unit;
            near(&format!("{name}, the page's {key}"), number(ours), found, 0.01);
            if paper != "-" && !paper.starts_with('(') {
                near(&format!("{name}, the paper's {key}"), found, number(paper), 0.1);
            }
        }
    }
}

/// A generated trace is valid, is marked as a model, and is simulated like the model itself.
#[test]
fn generated_trace_equals_the_model() {
    let place = fresh("simulate-generated");
    let said = miot(&place, &["generate", "--like", "les,venus", "--seconds", "20", "-o", "trace"]).success();
    assert!(said.stdout.contains("not a recorded trace"), "{}", said.stdout);
    assert_good(&place.join("trace"));
    let rows = events(&place.join("trace"));
    assert!(rows.iter().any(|row| row.op == "aio_write") && rows.iter().any(|row| row.op == "pwrite"));
    let outcome = json(&place, &["simulate", "trace"])["outcome"].take();
    let computing: Vec<_> = outcome["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["run"].as_u64().unwrap())
        .collect();
    assert_eq!(computing, [20_000_000_000; 2]);
    let text = miot(&place, &["simulate", "trace"]).success().stdout;
    assert!(text.contains("les 1") && text.contains("venus 2"), "{text}");
    // Processor time at the last data request of each program.
    let mut last_cpu = HashMap::new();
    let printed =
        miot(&place, &["cat", "--format", "json", "--op", "pread,pwrite,aio_read,aio_write", "trace"]);
    for line in printed.success().stdout.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let last: &mut u64 = last_cpu.entry(event["comm"].as_str().unwrap().to_owned()).or_default();
        *last = event["cpu_time"].as_u64().unwrap().max(*last);
    }
    // In Miller's format times are in units of 10 us, and there is no computing after the last
    // request.
    let _ = miot(&place, &["export", "--format", "miller", "-o", "trace.txt", "trace"]).success();
    let same = json(&place, &["simulate", "trace.txt"])["outcome"].take();
    for (process, again) in
        outcome["processes"].as_array().unwrap().iter().zip(same["processes"].as_array().unwrap())
    {
        for key in ["reads", "writes", "bytes_read", "bytes_written"] {
            assert_eq!(process[key], again[key]);
        }
        let name = process["name"].as_str().unwrap();
        let computed = last_cpu[name.split(' ').next().unwrap()];
        assert!(
            computed.abs_diff(again["run"].as_u64().unwrap()) <= 10_000,
            "{name}: {computed} and {again:#}"
        );
    }
    // A directory with files is refused.
    let again = miot(&place, &["generate", "--like", "upw", "-o", "trace"]);
    assert_eq!(again.code(), 1);
}

/// A sweep has a line per point, in order, in each format, and a plot.
#[test]
fn sweep_is_a_table_and_a_plot() {
    let place = fresh("simulate-sweep");
    let _ = miot(&place, &["generate", "--like", "upw", "--seconds", "30", "-o", "trace"]).success();
    let words =
        ["simulate", "trace", "--cache", "1M..4M", "--vary", "write_behind=true,false", "--plot", "plot.svg"];
    let csv = miot(&place, &[words.as_slice(), &["--format", "csv"]].concat()).success().stdout;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 6, "{csv}");
    assert!(lines[0].starts_with("cache.size,write_behind,elapsed,"), "{csv}");
    assert!(lines[1].starts_with("1048576,true,") && lines[6].starts_with("4194304,false,"), "{csv}");
    let svg = std::fs::read_to_string(place.join("plot.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("4 MiB"), "{svg}");
    let all = json(&place, &words);
    assert_eq!(all["simulations"].as_array().unwrap().len(), 6);
    // Several machines in one table.
    let words = ["simulate", "trace", "--storage", "cray,nvme", "--cache", "1M,2M", "--format", "csv"];
    let csv = miot(&place, &words).success().stdout;
    let points: Vec<_> = csv.lines().map(|line| line.split(',').take(2).collect::<Vec<_>>()).collect();
    let expected = [
        ["storage", "cache.size"],
        ["cray", "1048576"],
        ["cray", "2097152"],
        ["nvme", "1048576"],
        ["nvme", "2097152"],
    ];
    assert_eq!(points, expected);
    // Bytes over time: all requested bytes, in at most this number of steps.
    let words = ["simulate", "trace", "--over-time", "7"];
    let text = miot(&place, &words).success().stdout;
    assert!(text.contains("disk written") && text.contains("/s"), "{text}");
    let csv = miot(&place, &[words.as_slice(), &["--format", "csv"]].concat()).success().stdout;
    let sums = csv
        .lines()
        .skip(1)
        .map(|line| line.split(',').skip(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>());
    let outcome = json(&place, &["simulate", "trace"])["outcome"].take();
    let of = |keys: [&str; 2], from: &Value| keys.map(|key| from[key].as_u64().unwrap()).iter().sum::<u64>();
    let keys = ["bytes_read", "bytes_written"];
    assert!(csv.lines().count() <= 1 + 7, "{csv}");
    assert_eq!(sums.sum::<u64>(), of(keys, &outcome["processes"][0]) + of(keys, &outcome["disk"]));
    let explained = miot(&place, &["simulate", "trace", "--explain"]).success().stdout;
    assert!(explained.contains("computes") && explained.contains("transfer 0 begins"), "{explained}");
}

/// An impossible simulation is refused with a reason.
#[test]
fn impossible_simulation_is_refused() {
    let place = fresh("simulate-wrong");
    let _ = traced(&place, &place.join("pipes"), &["sh", "-c", "echo x | cat > /dev/null"]).success();
    let fails = |words: &[&str], code: i32, says: &str| {
        let ended = miot(&place, words);
        assert_eq!(ended.code(), code, "{words:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(says), "{words:?}: {}", ended.stderr);
    };
    std::fs::write(place.join("wrong.toml"), "cash = 1\n").unwrap();
    fails(&["simulate"], 1, "nothing to simulate");
    fails(&["simulate", "nowhere"], 1, "nowhere");
    fails(&["simulate", "--like", "mars"], 2, "venus");
    fails(&["simulate", "--like", "upw", "--storage", "drum"], 2, "nvme");
    fails(&["simulate", "--like", "upw", "--cache", "100"], 1, "one block");
    fails(&["simulate", "--like", "upw", "--cache", "8M..4M"], 1, "8M..4M");
    fails(&["simulate", "--like", "upw", "--set", "cash.size=1"], 1, "no such parameter");
    fails(&["simulate", "--like", "upw", "--config", "wrong.toml"], 1, "cash");
    fails(&["simulate", "--like", "upw", "--cache", "1M,2M", "--explain"], 1, "a single simulation");
    fails(
        &["simulate", "--like", "upw", "--storage", "cray,nvme", "--over-time", "5"],
        1,
        "a single simulation",
    );
    fails(&["simulate", "--storage", "cray,nvme", "--print-config"], 1, "a single --storage");
    fails(&["simulate", "--like", "upw", "--set", "disk.link_rate=1M"], 1, "disk.queue");
    std::fs::write(place.join("damaged"), "C0 0 0 200 0 1 0 1 1 0\nC0 zz\n").unwrap();
    fails(&["simulate", "damaged"], 1, "line 2");
    fails(&["generate", "--like", "upw", "--seconds", "0", "-o", "x"], 2, "more than 0");
    // `--print-config` prints an equivalent configuration file.
    let config = miot(&place, &["simulate", "--storage", "nvme", "--print-config"]).success().stdout;
    std::fs::write(place.join("nvme.toml"), &config).unwrap();
    let again = miot(&place, &["simulate", "--config", "nvme.toml", "--print-config"]).success().stdout;
    assert_eq!(config, again);
}
