//! `miot simulate` and `miot generate`: traces of real programs and of models on machines that are not there.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::place::fresh;
use miot_tests::process::{Ended, run};
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

/// A program writes 64 blocks of 4 KiB and reads them back. Without a cache each request is one access of 2 ms; in a cache what was
/// written is found; with write-behind nobody waits for the writes.
#[test]
fn a_recorded_program_is_simulated_as_it_ran() {
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
    // What the interpreter reads is there too, the same in all three.
    let none = of(&["--cache", "0"]);
    assert!(sum(&none, "reads") >= 64 && sum(&none, "writes") >= 64, "{none:#}");
    let accesses = none["disk"]["reads"].as_u64().unwrap() + none["disk"]["writes"].as_u64().unwrap();
    assert_eq!(sum(&none, "blocked"), accesses * 2_000_000);
    let through = of(&["--cache", "1M", "--write-behind", "false"]);
    let behind = of(&["--cache", "1M", "--write-behind", "true"]);
    assert_eq!(through["disk"]["bytes_written"], behind["disk"]["bytes_written"]);
    assert_eq!(sum(&through, "blocked") - sum(&behind, "blocked"), 64 * 2_000_000);
    // What was written is read from the cache.
    let misses = behind["cache"]["misses"].as_u64().unwrap();
    assert!(behind["cache"]["read"].as_u64().unwrap() >= misses + 64, "{behind:#}");
}

/// A generated trace is a good trace, says that it is a model, and is simulated as the model itself is.
#[test]
fn a_generated_trace_is_the_model() {
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
    // In Miller's format times are in units of 10 us, and there is no computing after the last request.
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
    // Not into a directory that holds something.
    let again = miot(&place, &["generate", "--like", "upw", "-o", "trace"]);
    assert_eq!(again.code(), 1);
}

/// A sweep has a line per point, in order, in each format, and a plot.
#[test]
fn a_sweep_is_a_table_and_a_plot() {
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
    let explained = miot(&place, &["simulate", "trace", "--explain"]).success().stdout;
    assert!(explained.contains("computes") && explained.contains("transfer 0 begins"), "{explained}");
}

/// What cannot be simulated is an error that says why.
#[test]
fn what_cannot_be_simulated_is_told() {
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
    fails(&["simulate", "--like", "upw", "--cache", "1M,2M", "--explain"], 1, "one simulation");
    fails(&["generate", "--like", "upw", "--seconds", "0", "-o", "x"], 2, "more than 0");
    // `--print-config` gives a file that means the same.
    let config = miot(&place, &["simulate", "--storage", "nvme", "--print-config"]).success().stdout;
    std::fs::write(place.join("nvme.toml"), &config).unwrap();
    let again = miot(&place, &["simulate", "--config", "nvme.toml", "--print-config"]).success().stdout;
    assert_eq!(config, again);
}
