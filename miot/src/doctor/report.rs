//! Results of the checks.

use serde::Serialize;
use std::fmt;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// No problem.
    Ok,
    /// Works, but may fail under other conditions.
    Warning,
    /// Does not work.
    Problem,
}

/// Result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// Expected and actual state.
    pub(super) found: String,
    /// Command or other action that fixes it. The JSON key is older than the name of the field.
    #[serde(rename = "mend")]
    pub(super) advice: Option<String>,
}

/// Results of all checks.
#[derive(Debug, Default)]
pub(super) struct CheckReport {
    pub(super) findings: Vec<Finding>,
}

impl CheckReport {
    fn add(&mut self, verdict: Verdict, what: [&'static str; 2], found: String, advice: Option<String>) {
        let [area, check] = what;
        self.findings.push(Finding { area, check, verdict, found, advice });
    }

    pub(super) fn ok(&mut self, area: &'static str, check: &'static str, found: impl Into<String>) {
        self.add(Verdict::Ok, [area, check], found.into(), None);
    }

    pub(super) fn warning(
        &mut self,
        area: &'static str,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(Verdict::Warning, [area, check], found.into(), Some(advice.into()));
    }

    pub(super) fn problem(
        &mut self,
        area: &'static str,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(Verdict::Problem, [area, check], found.into(), Some(advice.into()));
    }

    pub(super) fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { area, check, verdict, found, advice } in &self.findings {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Problem => "PROBLEM",
            };
            writeln!(f, "{verdict:<8} {:<28} {found}", format!("{area}: {check}"))?;
            if let Some(advice) = advice {
                writeln!(f, "{:<8} {:<28} -> {advice}", "", "")?;
            }
        }
        let count = |wanted| self.findings.iter().filter(|finding| finding.verdict == wanted).count();
        writeln!(
            f,
            "{} checks, {} warnings, {} problems",
            self.findings.len(),
            count(Verdict::Warning),
            count(Verdict::Problem)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_verdict_counts_and_advice_is_printed() {
        let mut report = CheckReport::default();
        assert_eq!(report.worst(), Verdict::Ok);
        report.ok("clock", "tsc", "invariant");
        report.warning("clock", "ntp", "not in step", "start chrony");
        assert_eq!(report.worst(), Verdict::Warning);
        report.problem("disk", "spool", "full", "rm x");
        assert_eq!(report.worst(), Verdict::Problem);
        let text = report.to_string();
        assert!(text.contains("-> start chrony") && text.contains("PROBLEM  disk: spool"), "{text}");
        assert!(text.ends_with("3 checks, 1 warnings, 1 problems\n"), "{text}");
    }
}
