//! What was found.

use serde::Serialize;
use std::fmt;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and might not always.
    Warning,
    /// It does not work.
    Problem,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// What was expected and what is there.
    pub(super) found: String,
    /// The command, or what else is to be done.
    pub(super) mend: Option<String>,
}

/// All checks.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, verdict: Verdict, what: [&'static str; 2], found: String, mend: Option<String>) {
        let [area, check] = what;
        self.findings.push(Finding { area, check, verdict, found, mend });
    }

    pub(super) fn ok(&mut self, area: &'static str, check: &'static str, found: impl Into<String>) {
        self.add(Verdict::Ok, [area, check], found.into(), None);
    }

    pub(super) fn warning(
        &mut self,
        area: &'static str,
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(Verdict::Warning, [area, check], found.into(), Some(mend.into()));
    }

    pub(super) fn problem(
        &mut self,
        area: &'static str,
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(Verdict::Problem, [area, check], found.into(), Some(mend.into()));
    }

    pub(super) fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { area, check, verdict, found, mend } in &self.findings {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Problem => "PROBLEM",
            };
            writeln!(f, "{verdict:<8} {:<28} {found}", format!("{area}: {check}"))?;
            if let Some(mend) = mend {
                writeln!(f, "{:<8} {:<28} -> {mend}", "", "")?;
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
    fn the_worst_counts_and_each_says_how_it_is_mended() {
        let mut report = Report::default();
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
