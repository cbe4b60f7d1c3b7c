//! `fsstats`: names per second of `miot fsstats` compared with `find -printf` with the same
//! attributes, on a tree whose inodes are in memory.

use crate::Bench;
use crate::daemons;
use crate::report::{medians, number};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Entries of a directory: the `/usr` of Debian has nine on average.
const ENTRIES: u64 = 9;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let files = bench.pick(400_000, 100_000, 900);
    let tree = bench.disk.path().join("fsstats");
    let names = make(&tree, files)?;
    let all = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8).to_string();
    let miot = daemons::built("miot")?;
    println!("{:28} {:>10} {:>12}", "names per second", "names", "k/s");
    let mut rows = Vec::new();
    for round in 0..=bench.pick(5, 3, 1) {
        let threads = |threads: &str| -> Result<(f64, u64)> {
            let mut command = Command::new(&miot);
            command.args(["fsstats", "--format", "json", "--threads", threads]).arg(&tree);
            let (seconds, out) = timed(&mut command)?;
            let snapshot: Value = serde_json::from_slice(&out)?;
            Ok((seconds, snapshot["contents"]["names"].as_u64().unwrap_or(0)))
        };
        let mut find = Command::new("find");
        // Type, device, inode, size, blocks, links, times.
        find.arg(&tree).args(["-mindepth", "1", "-printf", "%y %D %i %s %b %n %A@ %T@ %C@ %f\n"]);
        let (seconds, out) = timed(&mut find)?;
        let lines = out.iter().filter(|byte| **byte == b'\n').count() as u64;
        let runs = [
            ("find -printf", (seconds, lines)),
            ("miot fsstats, 1 thread", threads("1")?),
            ("miot fsstats, all processors", threads(&all)?),
        ];
        for (who, (seconds, found)) in runs {
            ensure!(found == names, "{who}: {found} names of {names}");
            // The first round brings the inodes into memory.
            if round > 0 {
                let rate = names as f64 / seconds;
                println!("{who:28} {names:10} {:12.1}", rate / 1e3);
                rows.push(json!({ "who": who, "names": names, "seconds": seconds, "names_per_s": rate, "round": round }));
            }
        }
    }
    fs::remove_dir_all(&tree)?;
    Ok(Value::Array(rows))
}

fn timed(command: &mut Command) -> Result<(f64, Vec<u8>)> {
    let begun = Instant::now();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok((begun.elapsed().as_secs_f64(), output.stdout))
}

/// Creates directories of directories of files. Returns the number of names.
fn make(tree: &Path, files: u64) -> Result<u64> {
    let mut names = 0;
    for number in 0..files {
        let folder = number / (ENTRIES - 1);
        let outer = tree.join((folder / ENTRIES).to_string());
        let dir = outer.join(folder.to_string());
        if number % (ENTRIES - 1) == 0 {
            names += u64::from(folder.is_multiple_of(ENTRIES)) + 1;
            fs::create_dir_all(&dir)?;
        }
        fs::File::create(dir.join(format!("file-{number}")))?.set_len(number)?;
        names += 1;
    }
    Ok(names)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from("| | thousand names per second | beside `find` |\n|---|--:|--:|\n");
    let rows = medians(results, "who", &["names_per_s"]);
    let find = rows.first().map_or(f64::NAN, |(_, values)| values[0]);
    for (who, values) in rows {
        let cells = [values[0] / 1e3, values[0] / find].map(|value| json!(value));
        let _ = writeln!(text, "| `{who}` | {} | {} |", number(&cells[0], 0), number(&cells[1], 2));
    }
    text
}
