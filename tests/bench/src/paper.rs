//! `paper`: the table and the figures of Cho, Kim and Lee, *Shared Memory based Parallel File
//! System Logging Method*.
//!
//! Table I: a line of a formatted debug log compared with the same line recorded raw, in the same
//! client. Fig. 7: four patterns through a file-system client (the stub of PVFS's library with its
//! preloaded hook), without logging, with MIOT, with the formatted log of I/O and of everything,
//! and with both logs recorded raw. Fig. 6: CPU usage of the log-client meanwhile.

use crate::daemons::{Daemons, built};
use crate::report::number;
use crate::stats::Summary;
use crate::{Bench, process, worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Bits of the masks of the stub.
const IO: u64 = 1 << 26;
const ALL: u64 = u64::MAX;

/// Variants of the client: name, whether the hook is preloaded and records requests, mask of the
/// log, recorded or formatted.
const WAYS: [(&str, bool, u64, &str); 6] = [
    ("nothing", false, 0, "pass"),
    ("MIOT", true, 0, "record"),
    ("MIOT, log of I/O raw", true, IO, "record"),
    ("MIOT, log of everything raw", true, ALL, "record"),
    ("log of I/O, formatted", false, IO, "pass"),
    ("log of everything, formatted", false, ALL, "pass"),
];
const PATTERNS: [&str; 4] = ["write", "read", "random-write", "random-read"];

/// Number of log lines of one read or write, as OrangeFS 2.10 writes them with the masks `io` and
/// `all`.
const LINES: (u64, u64) = (32, 290);
/// Transfer size of Fig. 7, bytes.
const TRANSFER: u64 = 64 << 10;

/// Programs of the measurement.
struct Client {
    program: PathBuf,
    hook: PathBuf,
    data: PathBuf,
    log: PathBuf,
    node: PathBuf,
}

impl Client {
    fn build(dir: &Path, node: &Path) -> Result<Client> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (hooks, library) = (root.join("tracer-client/hooks/pvfs"), built("libmiot.a")?);
        let hook = dir.join("libmiot_pvfs.so");
        succeed(Command::new(hooks.join("build.sh")).arg(&library).arg(&hook))?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-std=gnu11", "-w", "-pthread", "-o"])
            .arg(dir.join("libpvfs2.so"));
        succeed(cc.arg("-I").arg(&hooks).arg(root.join("tests/programs/pvfs/library.c")))?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let flags = [
            format!("-I{}", text(&hooks)?),
            format!("-I{}", text(&root.join("tracer-client/include"))?),
            text(&library)?,
            format!("-L{}", text(dir)?),
            format!("-Wl,-rpath,{}", text(dir)?),
            "-lpvfs2".into(),
            "-lgcc_s".into(),
            "-ldl".into(),
            "-lm".into(),
        ];
        let program = worker::compile("paper", dir, &flags.each_ref().map(String::as_str))?;
        Ok(Client { program, hook, data: dir.join("data"), log: dir.join("log"), node: node.into() })
    }

    /// Seconds of a pass over a file.
    fn pass(&self, way: usize, pattern: &str, bytes: u64, transfer: u64) -> Result<f64> {
        let (_, hooked, mask, debug) = WAYS[way];
        std::fs::create_dir_all(&self.data)?;
        let mut command = Command::new(&self.program);
        command.args(["io", pattern, &bytes.to_string(), &transfer.to_string()]);
        command.env("PVFS_STANDIN_DIR", &self.data).env("PVFS_STANDIN_LOG", &self.log);
        command
            .env("PVFS_STANDIN_MASK", mask.to_string())
            .env("PVFS_STANDIN_LINES", format!("{},{}", LINES.0, LINES.1));
        command.env("MIOT_PVFS_DEBUG", debug).env("MIOT_DIR", &self.node).env_remove("LD_PRELOAD");
        if hooked {
            command.env("LD_PRELOAD", &self.hook);
        }
        let nanoseconds: f64 = succeed(&mut command)?.trim().parse()?;
        let _ = std::fs::remove_file(&self.log);
        Ok(nanoseconds / 1e9)
    }
}

fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?}: {}: {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let node = bench.memory.path().join("node");
    let client = Client::build(bench.disk.path(), &node)?;
    let daemons = Daemons::start_client_alone(&bench.disk.path().join("daemons"), &node, "drop-newest")?;
    let response = response(bench, &client)?;
    let steps = steps(&client)?;
    let recorded = expect_records(&client, &daemons)?;
    let passes = passes(bench, &client)?;
    let cpu = cpu(bench, &client, &daemons)?;
    let ended = daemons.stop()?;
    Ok(json!({
        "response": response, "steps": steps, "passes": passes, "cpu": cpu, "transfer": TRANSFER, "lines": format!("{},{}", LINES.0, LINES.1),
        "events": ended.events, "lost": ended.lost, "recorded": recorded,
    }))
}

/// Makes a pass in each way. Fails unless each records what its name says: requests, log lines, or
/// nothing. Returns the records of each.
fn expect_records(client: &Client, daemons: &Daemons) -> Result<Value> {
    const BYTES: u64 = 1 << 20;
    client.pass(0, "write", BYTES, TRANSFER)?;
    let (mut before, mut rows) = (daemons.records()?, Vec::new());
    for (way, (name, hooked, mask, _)) in WAYS.into_iter().enumerate() {
        client.pass(way, "read", BYTES, TRANSFER)?;
        let now = daemons.records()?;
        let lines = match mask {
            0 => 0,
            // The stand-in counts two lines more than it writes (tests/programs/pvfs/library.c).
            IO => LINES.0 - 2,
            _ => LINES.1 - 2,
        };
        let least = BYTES / TRANSFER * (1 + lines);
        let found = now - before;
        let plausible = if hooked { found >= least } else { found == 0 };
        ensure!(plausible, "{name}: {found} records of a pass that makes {least} if it is recorded");
        rows.push(json!({ "way": name, "records": found }));
        before = now;
    }
    Ok(Value::Array(rows))
}

/// Measures Table I.
fn response(bench: &Bench, client: &Client) -> Result<Value> {
    let count = bench.pick(20_000, 10_000, 200_u32);
    let mut command = Command::new(&client.program);
    command.args(["response", &count.to_string()]).arg(&client.log).env("MIOT_DIR", &client.node);
    let text = succeed(&mut command)?;
    let counts: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [line, format, write, raw, empty] = counts[..] else { anyhow::bail!("not five counts: {text}") };
    println!("cycles: line {line}, format {format}, write {write}, raw {raw}, empty {empty}");
    Ok(json!({ "line": line, "format": format, "write": write, "raw": raw, "empty": empty, "count": count }))
}

/// Measures the cost of each step of instrumenting a client: docs/hooks/instrument.md.
fn steps(client: &Client) -> Result<Value> {
    let text = succeed(Command::new(&client.program).arg("steps").env("MIOT_DIR", &client.node))?;
    let ghz = crate::machine::tsc_ghz();
    let mut rows = Vec::new();
    for line in text.lines() {
        let (cycles, step) = line.split_once(' ').context("a step without a name")?;
        let cycles: f64 = cycles.parse()?;
        println!("{step:55} {cycles:7.1} cycles {:6.1} ns", cycles / ghz);
        rows.push(json!({ "step": step, "cycles": cycles, "ns": cycles / ghz }));
    }
    Ok(Value::Array(rows))
}

/// Measures Fig. 7.
fn passes(bench: &Bench, client: &Client) -> Result<Value> {
    let sizes: &[u64] = bench.pick(&[1 << 20, 16 << 20, 64 << 20], &[1 << 20, 16 << 20], &[1 << 20]);
    let rounds = bench.pick(7, 3, 1);
    let mut rows = Vec::new();
    for &bytes in sizes {
        for pattern in PATTERNS {
            let mut times = vec![Vec::new(); WAYS.len()];
            client.pass(0, "write", bytes, TRANSFER)?;
            for _ in 0..rounds {
                for (way, times) in times.iter_mut().enumerate() {
                    times.push(client.pass(way, pattern, bytes, TRANSFER)?);
                }
            }
            let medians: Vec<f64> = times.into_iter().map(|times| Summary::of(times).median).collect();
            let ways: Vec<Value> = WAYS
                .iter()
                .zip(&medians)
                .map(|(way, s)| json!({ "way": way.0, "seconds": s, "percent": (s / medians[0] - 1.0) * 100.0 }))
                .collect();
            println!("{pattern:14} {:4} MiB {:?}", bytes >> 20, medians);
            rows.push(json!({ "pattern": pattern, "bytes": bytes, "ways": ways }));
        }
    }
    Ok(Value::Array(rows))
}

/// Measures Fig. 6.
fn cpu(bench: &Bench, client: &Client, daemons: &Daemons) -> Result<Value> {
    let bytes: u64 = bench.pick(128 << 20, 128 << 20, 16 << 20);
    let pid = daemons.pids()[0];
    let mut rows = Vec::new();
    for shift in (12..=24).step_by(bench.pick(2, 4, 12)) {
        let transfer = 1 << shift;
        client.pass(1, "write", bytes, transfer)?;
        let records = daemons.records()?;
        let (before, started) = (process::threads_cpu(pid), Instant::now());
        for _ in 0..bench.pick(5, 2, 1) {
            client.pass(1, "write", bytes, transfer)?;
            client.pass(1, "read", bytes, transfer)?;
        }
        let spent = process::threads_cpu(pid).saturating_sub(before).as_secs_f64();
        let percent = spent / started.elapsed().as_secs_f64() * 100.0;
        let found = daemons.records()? - records;
        let least = 2 * bench.pick(5, 2, 1) * (bytes / transfer);
        ensure!(found >= least, "{found} records of {least} requests");
        println!("{:6} KiB: log-client {percent:.2} %", transfer >> 10);
        rows.push(json!({ "transfer": transfer, "percent": percent, "records": found }));
    }
    Ok(Value::Array(rows))
}

pub(crate) fn table(results: &Value) -> String {
    let response = &results["response"];
    let cycles =
        |key: &str| response[key].as_f64().unwrap_or(0.0) - response["empty"].as_f64().unwrap_or(0.0);
    let mut text = format!(
        "| Table I, cycles of the time-stamp counter | paper | here |\n|---|--:|--:|\n\
         | formatted log, a line | 16 089 | {:.0} |\n| formatting | 14 373 | {:.0} |\n| writing | 1 716 | {:.0} |\n\
         | raw copy into shared memory | 293 | {:.0} |\n| ratio | 54 | {:.0} |\n",
        cycles("line"),
        cycles("format"),
        cycles("write"),
        cycles("raw"),
        cycles("line") / cycles("raw")
    );
    text.push_str("\n| step, recorded | cycles | ns |\n|---|--:|--:|\n");
    for row in results["steps"].as_array().into_iter().flatten() {
        let step = row["step"].as_str().unwrap_or("");
        let _ = writeln!(text, "| {step} | {} | {} |", number(&row["cycles"], 0), number(&row["ns"], 1));
    }
    text.push_str("\n| Fig. 7, % longer than with nothing | MiB | ms with nothing | MIOT | log of I/O raw | of everything raw | log of I/O formatted | of everything formatted |\n|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for row in results["passes"].as_array().into_iter().flatten() {
        let ways = row["ways"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ms = ways.first().and_then(|way| way["seconds"].as_f64()).unwrap_or(0.0) * 1e3;
        let mib = row["bytes"].as_u64().unwrap_or(0) >> 20;
        let _ = write!(text, "| {} | {mib} | {ms:.1} |", row["pattern"].as_str().unwrap_or(""));
        ways.iter().skip(1).for_each(|way| _ = write!(text, " {} |", number(&way["percent"], 1)));
        text.push('\n');
    }
    text.push_str("| the paper | | | 0.92 to 1.81 | | | 1.18 to 5.01 | 46.99 to 48.21 |\n");
    text.push_str("\n| Fig. 6, transfer | log-client, % of a processor |\n|--:|--:|\n");
    let mut all = Vec::new();
    for row in results["cpu"].as_array().into_iter().flatten() {
        all.extend(row["percent"].as_f64());
        let _ = writeln!(
            text,
            "| {} KiB | {} |",
            row["transfer"].as_u64().unwrap_or(0) >> 10,
            number(&row["percent"], 2)
        );
    }
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let _ = writeln!(text, "| mean (the paper: 1.27) | {mean:.2} |");
    let _ = writeln!(text, "\n{} events, of which lost: {}.", results["events"], results["lost"]);
    text
}
