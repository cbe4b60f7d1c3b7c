//! Targets of the design, and whether the figures meet them.

mod analyses;
mod cluster;
mod daemons;
mod paper;
mod programs;
mod recording;

use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Benchmarks with targets, and their sections in `docs/dev/performance-method.md`, which explain
/// targets that are not met or not resolved.
const SECTIONS: [(&str, &str, AddTargets); 21] = [
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
    ("sets", "several-log-servers", cluster::sets),
    ("store", "object-store-and-table", cluster::store),
    ("distributed", "queries-on-several-machines", cluster::distributed),
    ("analysis", "analyses-of-a-long-trace", analyses::analysis),
    ("paper", "the-miot-papers-table-and-figures", paper::paper),
    ("python", "the-python-package", analyses::python),
];

/// Adds the targets of a benchmark, whose results are null if it has not run.
type AddTargets = fn(&Value, &mut Vec<Target>);

/// A target and its measured value.
struct Target {
    what: Cow<'static, str>,
    limit: Limit,
    unit: &'static str,
    /// `None`: not measured.
    found: Option<Found>,
}

#[derive(Clone, Copy)]
enum Limit {
    Maximum(f64),
    Minimum(f64),
    /// The value cannot be distinguished from zero, and its interval is narrower than this to both
    /// sides.
    Zero(f64),
}

/// Whether a target is met, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Met,
    /// The limit lies in the interval, or the interval is too wide.
    NotResolved,
    NotMet,
}

impl Limit {
    fn is_met(self, value: f64) -> bool {
        match self {
            Limit::Maximum(limit) => value <= limit,
            Limit::Minimum(limit) => value >= limit,
            Limit::Zero(half) => value.abs() <= half,
        }
    }

    fn outcome(self, found: Found) -> Outcome {
        let is_met = match (self, found.interval) {
            (Limit::Zero(half), Some([low, high])) if high - low > 2.0 * half => return Outcome::NotResolved,
            // An interval below zero shows no cost.
            (Limit::Zero(_), Some([low, _])) => low <= 0.0,
            (_, Some([low, high])) if self.is_met(low) != self.is_met(high) => return Outcome::NotResolved,
            _ => self.is_met(found.value),
        };
        if is_met { Outcome::Met } else { Outcome::NotMet }
    }

    /// Returns the worst of a group: by outcome, then by value.
    fn worst(self, group: impl Iterator<Item = Found>) -> Option<Found> {
        group.max_by(|a, b| self.outcome(*a).cmp(&self.outcome(*b)).then(a.value.total_cmp(&b.value)))
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
    what: impl Into<Cow<'static, str>>,
    limit: Limit,
    unit: &'static str,
    found: Option<impl Into<Found>>,
) {
    targets.push(Target { what: what.into(), limit, unit, found: found.map(Into::into) });
}

impl Target {
    /// Returns whether the target is met. If not, with the bounds and the section that explains it.
    fn verdict(&self, found: Found, section: &str) -> String {
        let verdict = match (self.limit.outcome(found), found.interval) {
            (Outcome::Met, _) => return "met".into(),
            (Outcome::NotResolved, Some([low, high])) => {
                format!("not resolved: {} to {}", format(low), format(high))
            }
            _ => "**not met**".into(),
        };
        format!("{verdict}, [why](performance-method.md#{section})")
    }

    fn row(&self, command: &str, section: &str) -> String {
        let wanted = match self.limit {
            Limit::Maximum(limit) => format!("≤ {limit} {}", self.unit),
            Limit::Minimum(limit) => format!("≥ {limit} {}", self.unit),
            Limit::Zero(half) => format!("0 ± {half} {}", self.unit),
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
        let target = Target { what: "x".into(), limit, unit: "ns", found: Found::of(median) };
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
    fn zero_is_met_only_by_a_narrow_interval() {
        let of = |low, high| Limit::Zero(1.0).outcome(Found { value: 0.1, interval: Some([low, high]) });
        assert_eq!(of(-0.4, 0.5), Outcome::Met);
        assert_eq!(of(0.05, 0.5), Outcome::NotMet);
        assert_eq!(of(-1.5, 1.0), Outcome::NotResolved);
        let wide = json!({ "median": 0.1, "low": -1.5, "high": 1.0 });
        assert!(
            verdict_of(Limit::Zero(1.0), &wide)
                .contains("| 0 ± 1 ns | 0.10 ns | not resolved: -1.50 to 1.00")
        );
    }

    #[test]
    fn worst_is_not_met_before_not_resolved() {
        let found = |value, low, high| Found { value, interval: Some([low, high]) };
        let group = [found(3.0, -4.0, 9.0), found(0.2, 0.1, 0.3), found(0.5, -0.1, 0.6)];
        let worst = Limit::Zero(1.0).worst(group.into_iter());
        assert_eq!(worst.map(|found| found.value), Some(0.2));
    }

    #[test]
    fn benchmarks_without_results_have_rows() {
        let text = table(&|_| None);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(rows.len() > SECTIONS.len());
        assert!(rows.iter().all(|row| row.contains("| – | not measured |")), "{text}");
    }
}
