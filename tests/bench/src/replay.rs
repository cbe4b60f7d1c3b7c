//! `replay`: duration of `miot replay` compared with that of the replayed trace, and the delay of
//! requests.

use crate::Bench;
use crate::daemons;
use crate::report::{medians, number};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let miot = daemons::built("miot")?;
    let dir = bench.disk.path().join("replay");
    fs::create_dir_all(dir.join("into"))?;
    let seconds = bench.pick(10, 5, 1);
    let runtime = format!("--runtime={seconds}");
    // With think times, as of a program that computes between requests, and without.
    let kinds = [
        ("fio, one job, 1000 requests/s", "1", "--rate_iops=500,500"),
        ("fio, four jobs, 250 requests/s each", "4", "--rate_iops=125,125"),
        ("fio, one job, no pause", "1", "--thinktime=0"),
    ];
    println!("{:40} {:>9} {:>9} {:>10} {:>10}", "", "trace s", "replay s", "late p50 us", "p99 us");
    let mut rows = Vec::new();
    for round in 1..=bench.pick(5, 3, 1) {
        for (who, jobs, rate) in kinds {
            let trace = dir.join("trace");
            let _ = fs::remove_dir_all(&trace);
            let mut fio = Command::new(&miot);
            fio.args(["run", "--quiet", "-o"]).arg(&trace).args([
                "--",
                "fio",
                "--name=job",
                "--size=16m",
                "--bs=4k",
                "--rw=randrw",
            ]);
            fio.args([
                "--ioengine=psync",
                "--time_based",
                "--output=/dev/null",
                &runtime,
                rate,
                "--numjobs",
                jobs,
                "--directory",
            ])
            .arg(&dir);
            output(&mut fio)?;
            let outcome = replayed(&miot, &trace, &dir.join("into"))?;
            let requests = outcome["requests"].as_u64().unwrap_or(0);
            ensure!(requests >= seconds * 100, "{who}: only {requests} requests are replayed");
            let value = |name: &str| outcome.pointer(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
            let (here, there) = (value("/elapsed_seconds"), value("/recorded_seconds"));
            let late = ["p50", "p99", "max"].map(|at| value(&format!("/late_nanoseconds/{at}")) / 1e3);
            println!("{who:40} {there:9.3} {here:9.3} {:10.1} {:10.1}", late[0], late[1]);
            rows.push(json!({
                "who": who, "round": round, "requests": outcome["requests"], "trace_s": there, "replay_s": here,
                "error_percent": (here / there - 1.0) * 100.0, "late_p50_us": late[0], "late_p99_us": late[1], "late_max_us": late[2],
            }));
        }
    }
    fs::remove_dir_all(&dir)?;
    Ok(Value::Array(rows))
}

fn replayed(miot: &Path, trace: &Path, into: &Path) -> Result<Value> {
    let mut replay = Command::new(miot);
    let out = output(replay.arg("replay").arg(trace).arg("--into").arg(into).args(["--format", "json"]))?;
    Ok(serde_json::from_slice(&out)?)
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| | trace s | replay s | error % | late µs, median | 99 % |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let names = ["trace_s", "replay_s", "error_percent", "late_p50_us", "late_p99_us"];
    for (who, values) in medians(results, "who", &names) {
        let cells: Vec<String> =
            values.iter().zip([3, 3, 2, 1, 1]).map(|(value, digits)| number(&json!(value), digits)).collect();
        let _ = writeln!(text, "| {who} | {} |", cells.join(" | "));
    }
    text
}
