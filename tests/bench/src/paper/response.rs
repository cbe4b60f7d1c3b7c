//! Table I: a line of a formatted debug log beside the same line recorded raw, in the same client.

use super::client::{Client, succeed};
use crate::Bench;
use crate::report::{interval, number};
use crate::stats::{Interval, median_with_interval};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

/// Calls of a line, in their order, with what they do.
const PARTS: [(&str, &str); 8] = [
    ("sprintf", "`sprintf`, prefix"),
    ("gettimeofday", "`gettimeofday`"),
    ("localtime", "`localtime`"),
    ("strftime", "`strftime`"),
    ("sprintf_us", "`sprintf`, microseconds"),
    ("vsnprintf", "`vsnprintf`, message"),
    ("fprintf", "`fprintf`"),
    ("fflush", "`fflush`, a `write` to the file"),
];

/// Cycles of each quantity less those of an empty measurement, block by block.
type Blocks = BTreeMap<String, Vec<f64>>;

pub(super) fn run(bench: &Bench, client: &Client) -> Result<Value> {
    let count = bench.pick(50_000, 10_000, 500_u32);
    let mut command = Command::new(&client.program);
    command.args(["response", &count.to_string()]).arg(&client.log).env("MIOT_DIR", &client.node);
    let text = succeed(&mut command)?;
    let _ = std::fs::remove_file(&client.log);
    let blocks = parse(&text).with_context(|| text.clone())?;
    let of = |key: &str| blocks.get(key).map(|values| median_with_interval(values));
    let sum = |keys: &[&str]| -> Option<Interval> {
        let all: Vec<&Vec<f64>> = keys.iter().map(|key| blocks.get(*key)).collect::<Option<_>>()?;
        let sums: Vec<f64> = (0..all[0].len()).map(|at| all.iter().map(|own| own[at]).sum()).collect();
        Some(median_with_interval(&sums))
    };
    let ratio = |own: &str, other: &str| -> Option<Interval> {
        let ratios: Vec<f64> =
            blocks.get(own)?.iter().zip(blocks.get(other)?).map(|(own, other)| own / other).collect();
        Some(median_with_interval(&ratios))
    };
    let keys = PARTS.map(|(key, _)| key);
    let (format, write) = keys.split_at(6);
    let results = json!({
        "count": count,
        "line": of("line"), "line_with_tz": of("line_with_tz"), "format": sum(format), "write": sum(write),
        "parts": PARTS.map(|(key, label)| json!({ "part": label, "cycles": of(key) })),
        "raw": of("raw"), "raw_after_line": of("raw_after_line"), "copy": of("copy"), "stat": of("stat"),
        "ratio": ratio("line", "raw"), "ratio_with_tz": ratio("line_with_tz", "raw"),
        "ratio_after_line": ratio("line", "raw_after_line"), "ratio_copy": ratio("line", "copy"),
    });
    for key in ["line", "line_with_tz", "format", "write", "raw", "raw_after_line", "copy", "stat", "ratio"] {
        ensure!(results[key].is_object(), "no `{key}` in {text}");
        println!("{key:20} {:>9} {:>20}", number(&results[key]["median"], 1), interval(&results[key], 1));
    }
    Ok(results)
}

/// Parses the output of the client: a line per quantity, with the means of its blocks.
fn parse(text: &str) -> Option<Blocks> {
    let mut blocks = Blocks::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_string();
        blocks.insert(name, words.map(str::parse).collect::<Result<_, _>>().ok()?);
    }
    let empty = blocks.remove("empty")?;
    for values in blocks.values_mut() {
        values.iter_mut().zip(&empty).for_each(|(value, empty)| *value -= empty);
    }
    Some(blocks)
}

pub(super) fn table(response: &Value) -> String {
    let mut text = String::from(
        "| Table I, cycles of the time-stamp counter | paper | here | 95 % interval |\n|---|--:|--:|--:|\n",
    );
    let mut row = |label: &str, paper: &str, figure: &Value, decimals| {
        let _ = writeln!(
            text,
            "| {label} | {paper} | {} | {} |",
            number(&figure["median"], decimals),
            interval(figure, decimals)
        );
    };
    row("formatted log, a line", "16 089", &response["line"], 0);
    row("formatting", "14 373", &response["format"], 0);
    row("writing", "1 716", &response["write"], 0);
    row("raw copy into shared memory", "293", &response["raw"], 0);
    row("ratio", "54", &response["ratio"], 1);
    for part in response["parts"].as_array().into_iter().flatten() {
        row(&format!("of the line: {}", part["part"].as_str().unwrap_or("")), "", &part["cycles"], 0);
    }
    row("`stat` of `/etc/localtime`, which `localtime` makes", "", &response["stat"], 0);
    row("a line where `TZ` is set: no `stat`", "", &response["line_with_tz"], 0);
    row("ratio where `TZ` is set", "", &response["ratio_with_tz"], 1);
    row("raw copy directly after a formatted line", "", &response["raw_after_line"], 0);
    row("ratio to it", "", &response["ratio_after_line"], 1);
    row("lower bound: one clock read, and a copy of the arguments", "", &response["copy"], 0);
    row("ratio to it", "", &response["ratio_copy"], 1);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_measurement_is_subtracted_block_by_block() {
        let blocks = parse("line 100 110\nempty 10 20\n").unwrap_or_default();
        assert_eq!(blocks.get("line"), Some(&vec![90.0, 90.0]));
        assert!(!blocks.contains_key("empty"));
    }
}
