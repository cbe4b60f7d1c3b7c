//! `tables`: writes the results into the marked sections of `docs/performance.md`.
//!
//! A section stands between `<!-- NAME: ... -->` and `<!-- end -->`; what is between is replaced. A section
//! whose benchmark has not run stays as it is.

use crate::targets;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Turns the results of a benchmark into its section.
type Table = fn(&Value) -> String;

/// Fills the document from the files in `out`.
pub(crate) fn write(out: &Path) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.md");
    let mut text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let load = |name: &str| -> Option<Value> {
        serde_json::from_str(&std::fs::read_to_string(out.join(format!("{name}.json"))).ok()?).ok()
    };
    let all: Vec<(&str, Option<Value>)> =
        ["op", "threads", "hook", "pipeline", "delay"].into_iter().map(|name| (name, load(name))).collect();
    let found =
        |name: &str| all.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_ref());
    let mut sections = vec![("machine", all.iter().find_map(|(_, value)| value.as_ref()).map(machine))];
    sections.push(("targets", Some(targets::table(&found))));
    let tables: [(&str, Table); 5] =
        [("op", op), ("threads", threads), ("hook", hook), ("pipeline", pipeline), ("delay", delay)];
    sections.extend(
        tables.map(|(name, table)| (name, found(name).map(|value| note(value) + &table(&value["results"])))),
    );
    for (name, section) in sections {
        match section {
            Some(section) => {
                text = replace(&text, name, &section)
                    .with_context(|| format!("docs/performance.md has no section {name}"))?
            }
            None => eprintln!("   {name}: no results, its section stays"),
        }
    }
    std::fs::write(&path, text)?;
    eprintln!("   docs/performance.md");
    Ok(())
}

fn replace(text: &str, name: &str, section: &str) -> Option<String> {
    let start = text.find(&format!("<!-- {name}:"))?;
    let start = start + text[start..].find("-->\n")? + 4;
    let end = start + text[start..].find("<!-- end -->")?;
    Some(format!("{}\n{}\n{}", &text[..start], section.trim_end(), &text[end..]))
}

/// Says so if the figures are rough.
fn note(document: &Value) -> String {
    if document["quick"] == true {
        "*From a run with `--quick`: the figures are rough.*\n\n".into()
    } else {
        String::new()
    }
}

fn machine(document: &Value) -> String {
    let machine = &document["machine"];
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_string();
    let kind = if machine["virtual"] == true { "virtual machine" } else { "machine" };
    format!(
        "{} processors ({}, time stamp counter {} GHz), {kind}, {} memory, Linux {}; load average at the end of the first benchmark {}.",
        machine["cpus"],
        text("cpu"),
        machine["tsc_ghz"],
        text("memory"),
        text("kernel"),
        text("load")
    )
}

/// A number with so many decimals, or a dash.
pub(crate) fn number(value: &Value, decimals: usize) -> String {
    value.as_f64().map_or_else(|| "–".into(), |number| format!("{number:.decimals$}"))
}

fn op(results: &Value) -> String {
    let mut text =
        String::from("| one operation | ns | TSC cycles | instructions | × floor |\n|---|--:|--:|--:|--:|\n");
    for way in results["ways"].as_array().into_iter().flatten() {
        let label = way["label"].as_str().unwrap_or("");
        let _ = writeln!(
            text,
            "| {label} | {} | {} | {} | {} |",
            number(&way["ns"], 1),
            number(&way["tsc_cycles"], 0),
            number(&way["instructions"], 0),
            number(&way["times_floor"], 2)
        );
    }
    if results["lttng"] != true {
        text.push_str("\nLTTng-UST was not installed.\n");
    }
    let _ = writeln!(
        text,
        "\nLost while measuring: MIOT {}, LTTng {}.",
        results["miot_lost"],
        if results["lttng_discarded"].is_null() {
            "–".into()
        } else {
            results["lttng_discarded"].to_string()
        }
    );
    text
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

fn hook(results: &Value) -> String {
    let mut text = String::from(
        "| `pread` of 4 KiB | file on | ns | added ns | added instructions |\n|---|---|--:|--:|--:|\n",
    );
    for row in results["calls"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            word("way"),
            word("place"),
            number(&row["ns"], 0),
            number(&row["added_ns"], 1),
            number(&row["added_instructions"], 0)
        );
    }
    if results["fio"].is_array() {
        text.push_str("\n| fio, 4 KiB psync | CPU ns per request | floor wrapper | hook | % | ns in the call | floor wrapper | hook | % |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    }
    for row in results["fio"].as_array().into_iter().flatten() {
        let cell = |clock: &str, at: usize| number(&row[clock][at]["median"], 0);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row["what"].as_str().unwrap_or(""),
            cell("cpu_ns", 0),
            cell("cpu_ns", 1),
            cell("cpu_ns", 2),
            number(&row["cpu_percent"], 2),
            cell("wall_ns", 0),
            cell("wall_ns", 1),
            cell("wall_ns", 2),
            number(&row["wall_percent"], 2)
        );
    }
    let trace = &results["trace"];
    let _ = writeln!(
        text,
        "\nThe daemons ran beside it: {} events recorded, {} lost (policy `drop-newest`), {} bytes per event sealed, log-client {} ns and log-server {} ns of CPU per event.",
        trace["events"],
        trace["lost"],
        number(&trace["bytes_per_event"], 1),
        number(&trace["client_ns_per_event"], 0),
        number(&trace["server_ns_per_event"], 0)
    );
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

/// Says what the peer lost, in spite of producers that wait.
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

/// The runs of one configuration.
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

/// The configurations of `pipeline`, in order of appearance.
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

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_marked_section_changes() {
        let text = "a\n<!-- op: tests/bench/run.sh op -->\nold\n<!-- end -->\nb\n<!-- hook: x -->\nkeep\n<!-- end -->\n";
        assert_eq!(super::replace(text, "op", "new\n"), Some(text.replace("old", "\nnew")));
        assert!(super::replace(text, "nothing", "").is_none());
    }
}
