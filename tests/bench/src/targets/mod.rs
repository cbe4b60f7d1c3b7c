//! Targets of the design, and whether the figures meet them.

mod analyses;
mod cluster;
mod daemons;
mod programs;
mod recording;

use serde_json::Value;
use std::fmt::Write as _;

/// Benchmarks with targets, and their sections in `docs/dev/performance-method.md`, which explain
/// targets that are not met.
const SECTIONS: [(&str, &str, AddTargets); 16] = [
    ("op", "one-recorded-operation", recording::op),
    ("threads", "threads", recording::threads),
    ("hook", "the-posix-hook", recording::hook),
    ("startup", "short-lived-programs", programs::startup),
    ("apps", "real-programs", programs::apps),
    ("fuse", "through-fuse", programs::fuse),
    ("drain", "draining-without-loss", daemons::drain),
    ("idle", "idle-node", daemons::idle),
    ("pipeline", "from-lanes-to-ordered-files", daemons::pipeline),
    ("nodes", "many-nodes", cluster::nodes),
    ("cluster", "a-large-cluster", cluster::cluster),
    ("broker", "through-a-broker", cluster::broker),
    ("bytes", "bytes-per-event", daemons::bytes),
    ("recovery", "recovery-after-a-crash", daemons::recovery),
    ("delay", "delay", daemons::delay),
    ("analysis", "analyses-of-a-long-trace", analyses::analysis),
];

/// Adds the targets of a benchmark, whose results are null if it has not run.
type AddTargets = fn(&Value, &mut Vec<Target>);

/// A target and its measured value.
struct Target {
    what: &'static str,
    limit: Limit,
    unit: &'static str,
    /// `None`: not measured.
    found: Option<Found>,
}

#[derive(Clone, Copy)]
enum Limit {
    Maximum(f64),
    Minimum(f64),
}

impl Limit {
    fn is_met(self, value: f64) -> bool {
        match self {
            Limit::Maximum(limit) => value <= limit,
            Limit::Minimum(limit) => value >= limit,
        }
    }
}

/// A measured value.
#[derive(Clone, Copy)]
struct Found {
    value: f64,
    /// Bounds of its 95 % interval, if it has one.
    interval: Option<[f64; 2]>,
}

impl From<f64> for Found {
    fn from(value: f64) -> Found {
        Found { value, interval: None }
    }
}

impl Found {
    /// Returns a median and its interval.
    fn of(median: &Value) -> Option<Found> {
        let interval = median["low"].as_f64().zip(median["high"].as_f64());
        Some(Found { value: median["median"].as_f64()?, interval: interval.map(|(low, high)| [low, high]) })
    }
}

/// Adds a target. `found` is its measured value, if there is one.
fn push(
    targets: &mut Vec<Target>,
    what: &'static str,
    limit: Limit,
    unit: &'static str,
    found: Option<impl Into<Found>>,
) {
    targets.push(Target { what, limit, unit, found: found.map(Into::into) });
}

impl Target {
    /// Whether the target is met. If its limit lies in the interval, the run cannot tell.
    fn verdict(&self, found: Found, section: &str) -> String {
        match found.interval {
            Some([low, high]) if self.limit.is_met(low) != self.limit.is_met(high) => {
                format!("not resolved: {} to {}", format(low), format(high))
            }
            _ if self.limit.is_met(found.value) => "met".into(),
            _ => format!("**not met**, [why](performance-method.md#{section})"),
        }
    }

    fn row(&self, command: &str, section: &str) -> String {
        let wanted = match self.limit {
            Limit::Maximum(limit) => format!("≤ {limit} {}", self.unit),
            Limit::Minimum(limit) => format!("≥ {limit} {}", self.unit),
        };
        let (value, verdict) = match self.found {
            Some(found) => (format!("{} {}", format(found.value), self.unit), self.verdict(found, section)),
            None => ("–".into(), "not measured".into()),
        };
        format!(
            "| {} | {} | {} | {verdict} | `run.sh {command}` |",
            self.what,
            wanted.trim_end(),
            value.trim_end()
        )
    }
}

fn format(value: f64) -> String {
    let decimals = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// Returns the table of all targets. `found` returns the document of a benchmark, if it has run.
pub(crate) fn table<'a>(found: &dyn Fn(&str) -> Option<&'a Value>) -> String {
    let mut text = String::from("| what | target | found | | command |\n|---|---|--:|---|---|\n");
    for (command, section, add_targets) in SECTIONS {
        let mut targets = Vec::new();
        add_targets(found(command).map_or(&Value::Null, |document| &document["results"]), &mut targets);
        for target in targets {
            let _ = writeln!(text, "{}", target.row(command, section));
        }
    }
    text + &found("op").map(|document| recording::bounds(&document["results"])).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verdict_of(limit: Limit, median: &Value) -> String {
        let target = Target { what: "x", limit, unit: "ns", found: Found::of(median) };
        target.row("op", "one")
    }

    #[test]
    fn figures_are_compared_with_both_bounds_of_their_interval() {
        let resolved = json!({ "median": 2.0, "low": 1.5, "high": 2.5 });
        assert_eq!(
            verdict_of(Limit::Maximum(3.0), &resolved),
            "| x | ≤ 3 ns | 2.00 ns | met | `run.sh op` |"
        );
        assert!(verdict_of(Limit::Minimum(3.0), &resolved).contains("**not met**"));
        assert!(verdict_of(Limit::Maximum(2.2), &resolved).contains("not resolved: 1.50 to 2.50"));
        assert!(verdict_of(Limit::Maximum(2.2), &json!({ "median": 2.0 })).contains("| met |"));
        assert!(verdict_of(Limit::Maximum(2.2), &Value::Null).contains("| – | not measured |"));
    }

    #[test]
    fn benchmarks_without_results_have_rows() {
        let text = table(&|_| None);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(rows.len() > SECTIONS.len());
        assert!(rows.iter().all(|row| row.contains("| – | not measured |")), "{text}");
    }
}
