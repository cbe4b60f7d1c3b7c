//! `hook`: what the preloaded `posix` hook adds to a call, under a loop of `pread` and under fio.

use crate::daemons::{self, Daemons};
use crate::stats::Summary;
use crate::worker::{self, Worker};
use crate::{Bench, process};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let daemons =
        Daemons::start(&bench.disk.path().join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    let hook = daemons::built("libmiot_posix.so")?;
    let calls = calls(bench, &daemons, &hook)?;
    let fio = fio(bench, &daemons, &hook, &bench.disk.path().join("wrapper-floor.so"))?;
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let rows = crate::pipeline::count(&trace)?;
    Ok(json!({
        "calls": calls,
        "fio": fio,
        "trace": {
            "events": rows.events,
            "lost": rows.lost,
            "bytes_per_event": daemons::folder_bytes(&trace) as f64 / rows.events.max(1) as f64,
            "client_ns_per_event": ended.client.cpu * 1e9 / rows.events.max(1) as f64,
            "server_ns_per_event": ended.server.cpu * 1e9 / rows.events.max(1) as f64,
        },
    }))
}

fn calls(bench: &Bench, daemons: &Daemons, hook: &Path) -> Result<Value> {
    let dir = bench.disk.path();
    let program = worker::compile("pread", dir, &[])?;
    let wrapper = |name: &str, flags: &[&str]| -> Result<PathBuf> {
        let path = worker::compile("wrapper", dir, &[&["-shared", "-fPIC", "-ldl"], flags].concat())?;
        let renamed = dir.join(name);
        std::fs::rename(path, &renamed)?;
        Ok(renamed)
    };
    let (empty, floor) = (wrapper("wrapper-empty.so", &[])?, wrapper("wrapper-floor.so", &["-DFLOOR"])?);
    let command = |file: &Path, preload: Option<&Path>| {
        let mut command = Command::new(&program);
        command.arg(file).env("MIOT_DIR", daemons.node());
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        command
    };
    let mut results = Vec::new();
    for (place, file) in [("tmpfs", bench.memory.path().join("data")), ("disk", dir.join("data"))] {
        let mut ways = vec![
            ("plain", command(&file, None)),
            ("empty wrapper", command(&file, Some(&empty))),
            ("floor wrapper: 2 × rdtsc + 64-byte store", command(&file, Some(&floor))),
            ("MIOT posix hook", command(&file, Some(hook))),
        ];
        let mut dormant = command(&file, Some(hook));
        dormant.env("MIOT_DIR", bench.memory.path().join("nobody"));
        ways.push(("MIOT posix hook, no log-client", dormant));
        if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok() {
            let mut strace = Command::new("strace");
            strace.args(["-f", "-e", "trace=pread64", "-o", "/dev/null"]).arg(&program).arg(&file);
            ways.push(("strace", strace));
        } else {
            eprintln!("strace IS SKIPPED: it is not installed");
        }
        let instructions: Vec<Option<f64>> = ways
            .iter_mut()
            .map(|(name, command)| {
                let stepped =
                    (*name != "strace").then(|| worker::instructions(name, crate::op::again(command), 1000));
                stepped.transpose()
            })
            .collect::<Result<_>>()?;
        let mut workers = Vec::new();
        for (name, command) in ways {
            workers.push((name, Worker::start(name, command)?));
        }
        let mut times = vec![Vec::new(); workers.len()];
        for repetition in 0..=bench.either(31, 5) {
            for ((name, worker), times) in workers.iter_mut().zip(&mut times) {
                let count = if *name == "strace" { 1000 } else { bench.either(100_000, 20_000) };
                let run = worker.run(count, 1)?;
                if repetition > 0 {
                    // A traced process waits for its tracer: there the time that passes is the cost.
                    times.push(if *name == "strace" { run.wall_ns } else { run.cpu_ns } / count as f64);
                }
            }
        }
        let times: Vec<Summary> = times.into_iter().map(Summary::of).collect();
        let plain = times[0].median;
        println!(
            "{:55} {:>9} {:>9} {:>12}",
            format!("pread of 4 KiB, {place}"),
            "ns",
            "added",
            "instructions"
        );
        for (((name, worker), time), steps) in workers.into_iter().zip(times).zip(&instructions) {
            worker.finish()?;
            let added_steps = steps.zip(instructions[0]).map(|(own, plain)| own - plain);
            println!(
                "{name:55} {:9.1} {:9.1} {:12.0}",
                time.median,
                time.median - plain,
                added_steps.unwrap_or(f64::NAN)
            );
            results.push(json!({
                "place": place, "way": name, "ns": time.median, "added_ns": time.median - plain,
                "added_instructions": added_steps, "gross": time,
            }));
        }
    }
    Ok(Value::Array(results))
}

/// Runs of fio without anything, with the floor wrapper and with the hook, alternated.
fn fio(bench: &Bench, daemons: &Daemons, hook: &Path, floor: &Path) -> Result<Value> {
    if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("fio IS SKIPPED: it is not installed");
        return Ok(Value::Null);
    }
    let mut results = Vec::new();
    println!(
        "{:32} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "fio, 4 KiB psync", "CPU ns", "floor", "hook", "%", "call ns", "floor", "hook", "%"
    );
    for (label, dir, options) in [
        ("tmpfs, random read", bench.memory.path(), ["--rw=randread", "--direct=0"]),
        ("tmpfs, random write", bench.memory.path(), ["--rw=randwrite", "--direct=0"]),
        ("disk, page cache, random read", bench.disk.path(), ["--rw=randread", "--direct=0"]),
        ("disk, direct, random read", bench.disk.path(), ["--rw=randread", "--direct=1"]),
        ("disk, direct, random write", bench.disk.path(), ["--rw=randwrite", "--direct=1"]),
    ] {
        let direct = options[1] == "--direct=1";
        let requests = if direct { bench.either(10_000, 1000) } else { bench.either(400_000, 50_000) };
        let (mut cpu, mut wall) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for repetition in 0..=bench.either(if direct { 5 } else { 9 }, 2) {
            for (at, library) in [None, Some(floor), Some(hook)].into_iter().enumerate() {
                let mut command = Command::new("fio");
                command
                    .args([
                        "--name=bench",
                        "--bs=4k",
                        "--ioengine=psync",
                        "--size=64m",
                        "--thread",
                        "--output-format=json",
                    ])
                    .args(["--randrepeat=1", "--fallocate=none", "--invalidate=0"])
                    .args(options)
                    .arg(format!("--io_size={}k", requests * 4))
                    .arg(format!("--filename={}", dir.join("fio").display()))
                    .env("MIOT_DIR", daemons.node());
                if let Some(library) = library {
                    command.env("LD_PRELOAD", library);
                }
                let (cpu_ns, wall_ns) = fio_once(command, requests)?;
                if repetition > 0 {
                    cpu[at].push(cpu_ns);
                    wall[at].push(wall_ns);
                }
            }
        }
        let [cpu, wall] = [cpu, wall].map(|all| all.map(Summary::of));
        let percent = |all: &[Summary; 3]| (all[2].median / all[0].median - 1.0) * 100.0;
        println!(
            "{label:32} {:8.0} {:8.0} {:8.0} {:8.2} {:8.0} {:8.0} {:8.0} {:8.2}",
            cpu[0].median,
            cpu[1].median,
            cpu[2].median,
            percent(&cpu),
            wall[0].median,
            wall[1].median,
            wall[2].median,
            percent(&wall)
        );
        results.push(json!({
            "what": label, "cpu_percent": percent(&cpu), "wall_percent": percent(&wall),
            "cpu_ns": cpu, "wall_ns": wall,
        }));
    }
    Ok(Value::Array(results))
}

/// CPU time of the job and time in the call, nanoseconds per request.
fn fio_once(mut command: Command, requests: u64) -> Result<(f64, f64)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("fio")?;
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut text)?;
    }
    let usage = process::wait(&mut child, Duration::from_secs(60));
    ensure!(usage.success, "fio failed: {text}");
    let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
    let job = &report["jobs"][0];
    let (mut done, mut latency) = (0.0, 0.0);
    for direction in ["read", "write"] {
        let ios = job[direction]["total_ios"].as_f64().unwrap_or(0.0);
        done += ios;
        latency += ios * job[direction]["clat_ns"]["mean"].as_f64().unwrap_or(0.0);
    }
    ensure!(done >= requests as f64, "fio made {done} of {requests} requests");
    let share = (job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0)) / 100.0;
    let cpu_ms = job["job_runtime"].as_f64().unwrap_or(0.0) * share;
    Ok((cpu_ms * 1e6 / done, latency / done))
}
