//! `--report`: writes the results into the marked sections of `docs/dev/performance.md`.
//!
//! A section is between `<!-- NAME: ... -->` and `<!-- end -->`, and is replaced. A section whose
//! benchmark has not run is unchanged.

use crate::{
    analysis, apps, broker, bytes, cluster, distributed, drain, estimate, fsstats, fuse, gluster, hook, idle,
    mpi, nodes, paper, parallel, python, recovery, replay, sets, simulate, startup, store, streams, sync,
    targets,
};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Converts the results of a benchmark to its section.
type Table = fn(&Value) -> String;

/// Benchmarks and their tables.
const TABLES: [(&str, Table); 30] = [
    ("op", op),
    ("threads", threads),
    ("drain", drain::table),
    ("idle", idle::table),
    ("startup", startup::table),
    ("hook", hook::table),
    ("mpi", mpi::table),
    ("apps", apps::table),
    ("gluster", gluster::table),
    ("fuse", fuse::table),
    ("pipeline", pipeline),
    ("nodes", nodes::table),
    ("bytes", bytes::table),
    ("sync", sync::table),
    ("streams", streams::table),
    ("cluster", cluster::table),
    ("broker", broker::table),
    ("recovery", recovery::table),
    ("delay", delay),
    ("sets", sets::table),
    ("store", store::table),
    ("distributed", distributed::table),
    ("fsstats", fsstats::table),
    ("replay", replay::table),
    ("simulate", simulate::table),
    ("bench", parallel::table),
    ("estimate", estimate::table),
    ("paper", paper::table),
    ("analysis", analysis::table),
    ("python", python::table),
];

/// Fills the document from the files in `out`.
pub(crate) fn write(out: &Path) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dev/performance.md");
    let mut text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let load = |name: &str| -> Option<Value> {
        serde_json::from_str(&std::fs::read_to_string(out.join(format!("{name}.json"))).ok()?).ok()
    };
    let all: Vec<(&str, Option<Value>)> = TABLES.iter().map(|(name, _)| (*name, load(name))).collect();
    let found =
        |name: &str| all.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_ref());
    let documents: Vec<&Value> = all.iter().filter_map(|(_, value)| value.as_ref()).collect();
    let mut sections = vec![("machine", machine(&documents))];
    sections.push(("targets", Some(kept(&targets::table(&found), &text))));
    sections.extend(
        TABLES.map(|(name, table)| (name, found(name).map(|value| note(value) + &table(&value["results"])))),
    );
    for (name, section) in sections {
        match section {
            Some(section) => {
                text = replace(&text, name, &section)
                    .with_context(|| format!("docs/dev/performance.md has no section {name}"))?
            }
            None => eprintln!("   {name}: no results, its section stays"),
        }
    }
    std::fs::write(&path, text)?;
    eprintln!("   docs/dev/performance.md");
    Ok(())
}

fn replace(text: &str, name: &str, section: &str) -> Option<String> {
    let start = text.find(&format!("<!-- {name}:"))?;
    let start = start + text[start..].find("-->\n")? + 4;
    let end = start + text[start..].find("<!-- end -->")?;
    Some(format!("{}\n{}\n{}", &text[..start], section.trim_end(), &text[end..]))
}

/// Returns the table of targets. Rows whose benchmark has not run are taken from the page.
fn kept(table: &str, page: &str) -> String {
    let old = |row: &str| {
        let (what, _) = row.strip_prefix("| ")?.split_once(" | ")?;
        page.lines().find(|line| line.starts_with(&format!("| {what} | ")))
    };
    let rows = table.lines().map(|row| match row.contains("| not measured |") {
        true => old(row).unwrap_or(row),
        false => row,
    });
    rows.flat_map(|row| [row, "\n"]).collect()
}

/// Notes whether the figures are rough, their commit, and the load of the machine.
fn note(document: &Value) -> String {
    let size = document["size"].as_str().unwrap_or("?");
    let rough =
        if size == "full" { String::new() } else { format!("**From a run with `--{size}`: rough.** ") };
    let of = |when: &str, key: &str, decimals| number(&document[when][key], decimals);
    format!(
        "{rough}{} UTC, commit {}, {} s; load average {} before and {} after; core {} GHz before, {} after.\n\n",
        document["before"]["utc"].as_str().unwrap_or("?"),
        document["commit"].as_str().unwrap_or("?"),
        document["seconds"],
        of("before", "load", 2),
        of("after", "load", 2),
        of("before", "core_ghz", 2),
        of("after", "core_ghz", 2),
    )
}

/// Describes the machine.
fn machine(documents: &[&Value]) -> Option<String> {
    let machine = &documents.first()?["machine"];
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_string();
    let kind = if machine["virtual"] == true { "virtual machine" } else { "machine" };
    Some(format!(
        "{} processors ({}, time stamp counter {} GHz), {kind}, {} memory, Linux {}.",
        machine["cpus"],
        text("cpu"),
        machine["tsc_ghz"],
        text("memory"),
        text("kernel")
    ))
}

/// Formats a number with this number of decimals, or a dash.
pub(crate) fn number(value: &Value, decimals: usize) -> String {
    value.as_f64().map_or_else(|| "–".into(), |number| format!("{number:.decimals$}"))
}

fn op(results: &Value) -> String {
    let mut text = String::from(
        "| one operation | ns | 95 % interval | TSC cycles | instructions | × floor | 95 % interval |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for way in results["ways"].as_array().into_iter().flatten() {
        let label = way["label"].as_str().unwrap_or("");
        let (ns, floor) = (&way["ns"], &way["times_floor"]);
        let _ = writeln!(
            text,
            "| {label} | {} | {} | {} | {} | {} | {} |",
            number(&ns["median"], 1),
            interval(ns, 1),
            number(&way["tsc_cycles"], 0),
            number(&way["instructions"], 0),
            number(&floor["median"], 2),
            interval(floor, 2)
        );
    }
    if results["lttng"] != true {
        text.push_str("\nLTTng-UST was not installed.\n");
    }
    text.push_str(
        "\n| CPU time beyond that of a later operation | µs, median | least | most |\n|---|--:|--:|--:|\n",
    );
    for row in results["first"].as_array().into_iter().flatten() {
        let us = |key: &str| number(&row["us"][key], 1);
        let label = row["label"].as_str().unwrap_or("");
        let _ = writeln!(text, "| {label} | {} | {} | {} |", us("median"), us("min"), us("max"));
    }
    let _ = writeln!(
        text,
        "\nLost while measuring, except where the lane is full on purpose: MIOT {}, LTTng {}.",
        results["miot_lost"],
        if results["lttng_discarded"].is_null() {
            "–".into()
        } else {
            results["lttng_discarded"].to_string()
        }
    );
    text
}

/// Formats the bounds of an interval.
pub(crate) fn interval(found: &Value, decimals: usize) -> String {
    format!("{} to {}", number(&found["low"], decimals), number(&found["high"], decimals))
}

fn threads(results: &Value) -> String {
    let mut text =
        String::from("| threads | floor | one shared ring | MIOT | LTTng-UST |\n|--:|--:|--:|--:|--:|\n");
    let mut rows: Vec<_> = results["threads"].as_object().into_iter().flatten().collect();
    rows.sort_by_key(|(threads, _)| threads.parse::<u64>().unwrap_or(0));
    for (threads, row) in rows {
        let cell = |way: &str| number(&row[way]["median"], 1);
        let _ = writeln!(
            text,
            "| {threads} | {} | {} | {} | {} |",
            cell("floor"),
            cell("shared-ring"),
            cell("miot"),
            cell("lttng")
        );
    }
    let _ = writeln!(text, "\nLost while measuring: MIOT {}.", results["miot_lost"]);
    text
}

fn pipeline(results: &Value) -> String {
    let mut text = format!(
        "{} events a run; CPU nanoseconds per event; medians over the rounds.\n\n\
         | | streams | M events/s, ordered | M events/s, recorded | producers | log-client / consumer | log-server / relay | ordering | bytes before | bytes at the end | zstd |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        results["events"]
    );
    let groups = groups(results);
    for group in &groups {
        let cell = |key: &str, decimals| {
            group.median(key).map_or("–".into(), |value| format!("{value:.decimals$}"))
        };
        let rate = |key: &str| group.median(key).map_or("–".into(), |value| format!("{:.2}", value / 1e6));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            group.who,
            group.streams,
            rate("events_per_s"),
            rate("recorded_per_s"),
            cell("producer_ns", 0),
            cell("client_ns", 0),
            cell("server_ns", 0),
            cell("ordering_ns", 0),
            cell("live_bytes", 1),
            cell("final_bytes", 1),
            cell("zstd_bytes", 1)
        );
    }
    text.push_str(&peer_losses(&groups));
    text
}

/// Reports losses of the peer although its producers wait.
fn peer_losses(groups: &[Group<'_>]) -> String {
    let mut text = String::new();
    for group in groups {
        let lost: Vec<String> =
            group.runs.iter().filter_map(|run| run["lost"].as_u64()).map(|n| n.to_string()).collect();
        let said: Vec<String> =
            group.runs.iter().filter_map(|run| run["discarded"].as_u64()).map(|n| n.to_string()).collect();
        if lost.iter().chain(&said).any(|n| n != "0") {
            let _ = writeln!(
                text,
                "\n{} with {} streams lost {} events in the rounds although its producers wait; its own count says {}.",
                group.who,
                group.streams,
                lost.join(", "),
                said.join(", ")
            );
        }
    }
    text
}

/// Runs of one configuration.
pub(crate) struct Group<'a> {
    pub(crate) who: &'a str,
    pub(crate) streams: u64,
    runs: Vec<&'a Value>,
}

impl Group<'_> {
    /// Median of a number over the rounds.
    pub(crate) fn median(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run[key].as_f64()).collect();
        (!values.is_empty()).then(|| crate::stats::Summary::of(values).median)
    }
}

/// Configurations of `pipeline`, in order of appearance.
pub(crate) fn groups(results: &Value) -> Vec<Group<'_>> {
    let mut groups = Vec::<Group<'_>>::new();
    for run in results["runs"].as_array().into_iter().flatten() {
        let (Some(who), Some(streams)) = (run["who"].as_str(), run["streams"].as_u64()) else { continue };
        match groups.iter_mut().find(|group| group.who == who && group.streams == streams) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { who, streams, runs: vec![run] }),
        }
    }
    groups
}

fn delay(results: &Value) -> String {
    let mut text =
        String::from("| completion to `miot tail -f`, ms | p50 | p99 | longest |\n|---|--:|--:|--:|\n");
    for row in results.as_array().into_iter().flatten() {
        let what = row["what"].as_str().unwrap_or("");
        let _ = writeln!(
            text,
            "| {what} | {} | {} | {} |",
            number(&row["p50_ms"], 1),
            number(&row["p99_ms"], 1),
            number(&row["max_ms"], 1)
        );
    }
    text
}

/// Medians over the rounds of these figures for each value of `group`, in order of appearance.
pub(crate) fn medians<'a>(results: &'a Value, group: &str, figures: &[&str]) -> Vec<(&'a str, Vec<f64>)> {
    let mut names: Vec<&str> = Vec::new();
    let rows = || results.as_array().into_iter().flatten();
    for name in rows().filter_map(|row| row[group].as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let median = |name: &str, figure: &str| {
        let of_group = rows().filter(|row| row[group] == name);
        crate::stats::Summary::of(of_group.filter_map(|row| row[figure].as_f64()).collect()).median
    };
    let of = |name| figures.iter().map(|figure| median(name, figure)).collect();
    names.into_iter().map(|name| (name, of(name))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_marked_section_changes() {
        let text = "a\n<!-- op: tests/bench/run.sh op -->\nold\n<!-- end -->\nb\n<!-- hook: x -->\nkeep\n<!-- end -->\n";
        assert_eq!(super::replace(text, "op", "new\n"), Some(text.replace("old", "\nnew")));
        assert!(super::replace(text, "nothing", "").is_none());
    }
}
