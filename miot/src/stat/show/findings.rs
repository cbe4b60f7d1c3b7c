//! Inefficient I/O, with evidence and advice.

use super::{AnalysisContext, report_left_out};
use crate::summary::shortened;
use miot_trace_analysis::findings::{Finding, Findings};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{printable, time};
use miot_trace_results::show;
use serde::Serialize;
use std::io::Write;

pub(super) fn view(asked: &AnalysisContext<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let block_size = asked.arguments.by.block_size();
    let findings = show::findings(&asked.input(), asked.system_files(), block_size)?;
    match asked.format() {
        Format::Text => {
            asked.report_missing(out)?;
            Ok(text(&findings, out)?)
        }
        Format::Json => asked.json(out, &findings),
        Format::Csv => Ok(records(out, Format::Csv, true, findings.findings.iter().map(row))?),
    }
}

/// CSV row of a finding.
#[derive(Serialize)]
struct FindingRow<'a> {
    rule: &'static str,
    job: Option<&'a str>,
    exe: &'a str,
    what: &'a str,
    because: &'a str,
    advice: &'a str,
    source: &'a str,
    path: Option<&'a str>,
    begin: Option<String>,
    end: Option<String>,
}

fn row(finding: &Finding) -> FindingRow<'_> {
    FindingRow {
        rule: finding.rule.name(),
        job: finding.program.job.as_deref(),
        exe: &finding.program.exe,
        what: &finding.what,
        because: &finding.because,
        advice: &finding.advice,
        source: &finding.source,
        path: finding.files.first().map(|file| file.path.as_str()),
        begin: finding.begin.map(time),
        end: finding.end.map(time),
    }
}

fn text(findings: &Findings, out: &mut impl Write) -> std::io::Result<()> {
    for finding in &findings.findings {
        let job = finding.program.job.as_ref().map(|job| format!(" of job {job}")).unwrap_or_default();
        writeln!(out, "{}: {}{}", finding.rule.name(), printable(&finding.program.exe), printable(&job))?;
        writeln!(out, "  {}", finding.what)?;
        for file in &finding.files {
            writeln!(out, "  {:>12} {}", file.value, shortened(&printable(&file.path)))?;
        }
        if let (Some(begin), Some(end)) = (finding.begin, finding.end) {
            writeln!(out, "  from {} to {}", time(begin), time(end))?;
        }
        writeln!(out, "  rule: {} ({})", finding.because, finding.source)?;
        writeln!(out, "  advice: {}\n", finding.advice)?;
    }
    let found = findings.findings.len();
    writeln!(out, "{found} findings in {} programs", findings.programs)?;
    if findings.files_left_out > 0 {
        writeln!(out, "{} requests to further files were not examined", findings.files_left_out)?;
    }
    report_left_out(findings.system_files_left_out, out)
}
