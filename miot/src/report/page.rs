//! The HTML page.

use super::model::Model;
use super::words::span;
use super::{tables, words};
use crate::numbers::{bytes, count};
use miot_plot::{FILE_STYLE, LegendEntry, PAGE_STYLE, Plot, XmlText};
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Maximum number of findings on the page. Programs with the most time in I/O come first.
const FINDINGS: usize = 24;
/// Maximum number of rows of checkpoints and their files on the page.
const CHECKPOINTS: usize = 200;

pub(super) fn page(model: &Model, plots: &[Plot]) -> String {
    let mut html = String::new();
    let name = model.trace.trim_end_matches('/').rsplit('/').next().unwrap_or(&model.trace);
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n<meta name=\"generator\" content=\"miot {}\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{} – MIOT report</title>\n<style>\n{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n",
        model.version,
        XmlText(name)
    );
    head(&mut html, model, name);
    if model.summary.totals.events > 0 {
        sections(&mut html, model, plots);
    }
    let _ = write!(
        html,
        "</main>\n<footer><p>Made by miot {} of <code>{}</code>. Bytes and times are those of the outermost requests, so that nothing is counted in two layers, unless a layer is named.</p></footer>\n<template id=\"plain-style\">{FILE_STYLE}</template>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        model.version,
        XmlText(&model.trace)
    );
    html
}

fn head(html: &mut String, model: &Model, name: &str) {
    let command = model.summary.processes.first().map_or("", |row| row.cmdline.as_str());
    let _ = write!(
        html,
        "<header><p class=\"brand\">MIOT report</p><h1><bdi>{}</bdi></h1><p class=\"when\">{}</p>",
        XmlText(name),
        XmlText(&words::period(model))
    );
    if !command.is_empty() {
        let _ = write!(html, "<p class=\"command\"><code>{}</code></p>", XmlText(command));
    }
    *html += "</header>\n<main>\n";
    let quality = words::quality(model);
    let _ = write!(
        html,
        "<section id=\"quality\" class=\"quality {}\" aria-label=\"quality of the data\"><h2>{}</h2>",
        if quality.is_good { "good" } else { "bad" },
        XmlText(&quality.title)
    );
    if !quality.details.is_empty() {
        let details = quality.details.iter().map(|detail| format!("<li>{}</li>", XmlText(detail)));
        let _ = write!(html, "<ul>{}</ul>", details.collect::<String>());
    }
    if let Some(losses) = tables::losses(model) {
        *html += &losses;
    }
    *html += "</section>\n";
    tiles(html, model);
    let sentences =
        words::summary(model).iter().map(|text| format!("{} ", XmlText(text))).collect::<String>();
    let _ = writeln!(html, "<p class=\"summary\" id=\"summary\">{}</p>", sentences.trim_end());
}

fn tiles(html: &mut String, model: &Model) {
    let totals = &model.summary.totals;
    let bound = if totals.lost > 0 || !model.unread.is_empty() { "≥ " } else { "" };
    let tiles = [
        ("requests", "Requests", totals.requests, count(totals.requests as f64)),
        ("bytes_read", "Read", totals.bytes_read, bytes(totals.bytes_read as f64)),
        ("bytes_written", "Written", totals.bytes_written, bytes(totals.bytes_written as f64)),
        ("time", "Time in I/O", totals.time, span(totals.time)),
        ("wall", "Duration", totals.wall, span(totals.wall)),
        ("files", "Files", totals.files, count(totals.files as f64)),
        ("processes", "Processes", totals.processes, count(totals.processes as f64)),
        ("events", "Events", totals.events, count(totals.events as f64)),
        ("lost", "Lost", totals.lost, count(totals.lost as f64)),
    ];
    *html += "<dl class=\"tiles\">";
    for (key, name, value, shown) in tiles {
        // Numbers below 1000 are printed exactly.
        let shown = if value < 1000 && !matches!(key, "bytes_read" | "bytes_written" | "time" | "wall") {
            value.to_string()
        } else {
            shown
        };
        let bound = if matches!(key, "lost" | "wall") { "" } else { bound };
        let _ = write!(
            html,
            "<div><dt>{name}</dt><dd data-total=\"{key}\" data-value=\"{value}\">{bound}{shown}</dd></div>"
        );
    }
    *html += "</dl>\n";
}

fn sections(html: &mut String, model: &Model, plots: &[Plot]) {
    *html += "<nav aria-label=\"sections\"><a href=\"#findings\">Findings</a>";
    if !model.regions.rows.is_empty() {
        *html += "<a href=\"#regions\">Regions</a>";
    }
    *html += "<a href=\"#time\">Over time</a><a href=\"#accesses\">Access patterns</a><a href=\"#files\">Files</a><a href=\"#ranks\">Ranks</a><a href=\"#cluster\">Nodes and jobs</a><a href=\"#operations\">Operations</a></nav>\n";
    findings(html, model);
    regions(html, model);
    time_section(html, model, plots);
    access_section(html, model, plots);
    let _ = writeln!(
        html,
        "<section id=\"files\"><h2>Files</h2>{}{}{}</section>",
        tables::files(model),
        tables::counted_files(model),
        notes(model)
    );
    rank_section(html, model, plots);
    let _ = writeln!(
        html,
        "<section id=\"cluster\"><h2>Nodes and jobs</h2>{}{}</section>",
        tables::nodes(model),
        tables::jobs(model).unwrap_or_default()
    );
    let _ = writeln!(
        html,
        "<section id=\"operations\"><h2>Operations</h2>{}</section>",
        tables::operations(model)
    );
}

/// Returns the legend of a plot.
fn keys(plots: &[Plot], name: &str) -> String {
    let keys = plots.iter().find(|plot| plot.name == name).map_or(&[][..], |plot| &plot.keys);
    let spans = keys.iter().map(|(LegendEntry::Area(class, text) | LegendEntry::Line(class, text))| {
        format!("<span class=\"key {class}\">{text}</span>")
    });
    spans.collect()
}

fn time_section(html: &mut String, model: &Model, plots: &[Plot]) {
    let interval = span(model.course.interval.unsigned_abs());
    *html += "<section id=\"time\"><h2>Over time</h2>";
    figure(
        html,
        plots,
        "throughput",
        &format!(
            "Bytes per second: {} Each step is {interval}; the bytes of a request are spread evenly over the time that it took.",
            keys(plots, "throughput")
        ),
    );
    figure(
        html,
        plots,
        "regions-over-time",
        &format!(
            "Times in which at least one thread is in a region, by the name of the regions: {}",
            keys(plots, "regions-over-time")
        ),
    );
    figure(
        html,
        plots,
        "operations",
        &format!(
            "Operations per second: {} Each step is {interval}. A call of one layer may consist of calls of the next layer, so layers must not be added.",
            keys(plots, "operations")
        ),
    );
    figure(
        html,
        plots,
        "latency",
        &format!(
            "Duration of requests by completion time; darker is more, on a logarithmic scale. {}",
            keys(plots, "latency")
        ),
    );
    bursts(html, model, plots);
    figure(
        html,
        plots,
        "sizes",
        &format!(
            "Number of requests by bytes moved: {} The bins are those of Darshan, separately for each layer.",
            keys(plots, "sizes")
        ),
    );
    *html += "</section>\n";
}

fn access_section(html: &mut String, model: &Model, plots: &[Plot]) {
    *html += "<section id=\"accesses\"><h2>Access patterns</h2>";
    if model.accesses.is_empty() {
        *html += "<p>No request moved bytes at a known offset.</p>";
    } else {
        let _ = write!(
            html,
            "<p>Offset against time of the files that moved the most bytes: {} A rising line is sequential access, parallel or dotted lines are strided, a cloud is random. Every request marks the fields of a grid ({} by {} at most) that its bytes and its time touch, so no request is left out, and many in one place are one mark.</p><div class=\"pairs\">",
            keys(plots, "accesses-1"),
            miot_trace_analysis::offsets::COLUMNS,
            miot_trace_analysis::offsets::ROWS
        );
        for (number, file) in (1..).zip(&model.accesses) {
            figure(
                html,
                plots,
                &format!("accesses-{number}"),
                &format!(
                    "<bdi class=\"file\">{}</bdi> {} in {}",
                    XmlText(&file.path),
                    bytes(file.bytes as f64),
                    words::counted(file.accesses.requests, "request", "requests")
                ),
            );
        }
        *html += "</div>";
    }
    *html += "</section>\n";
}

fn rank_section(html: &mut String, model: &Model, plots: &[Plot]) {
    *html += "<section id=\"ranks\"><h2>Processes and ranks</h2>";
    let ranks = &model.rank_times;
    let who = if ranks.are_ranks { "rank" } else { "process" };
    let together = match ranks.together {
        0 | 1 => String::new(),
        together => format!(" Each bar is the slowest of {together} neighbors."),
    };
    figure(
        html,
        plots,
        "ranks",
        &format!("Of each {who} in the layer {}, in order: {}{together}", ranks.layer, keys(plots, "ranks")),
    );
    let _ = writeln!(html, "{}{}</section>", tables::processes(model), tables::counted_ranks(model));
}

/// Writes the tables of regions and checkpoints, if there are any.
fn regions(html: &mut String, model: &Model) {
    if let Some(table) = tables::regions(model) {
        let checkpoints = tables::checkpoints(model, CHECKPOINTS).unwrap_or_default();
        let _ = writeln!(html, "<section id=\"regions\"><h2>Regions</h2>{table}{checkpoints}</section>");
    }
}

/// Writes the findings, each with its evidence, advice and rule.
fn findings(html: &mut String, model: &Model) {
    let found = &model.findings;
    let _ = write!(html, "<section id=\"findings\"><h2>Findings</h2>");
    if found.findings.is_empty() {
        let programs = words::counted(found.programs, "program", "programs");
        let _ = write!(html, "<p>No rule found anything to change in {programs}.</p>");
    }
    for finding in found.findings.iter().take(FINDINGS) {
        let program = &finding.program;
        let name = program.exe.rsplit('/').next().unwrap_or_default();
        let job = program.job.as_ref().map(|job| format!(", job {job}")).unwrap_or_default();
        let title = words::title(finding.rule.name());
        let _ = write!(
            html,
            "<article class=\"finding\" data-rule=\"{}\"><h3>{title} <span>{}{}</span></h3><p>{}</p>",
            finding.rule.name(),
            XmlText(name),
            XmlText(&job),
            XmlText(&finding.what)
        );
        if !finding.files.is_empty() {
            let files =
                finding.files.iter().map(|file| format!("<li><bdi>{}</bdi></li>", XmlText(&file.path)));
            let _ = write!(html, "<ul>{}</ul>", files.collect::<String>());
        }
        let _ = write!(
            html,
            "<p class=\"advice\">{}</p><details><summary>Rule</summary><p>{} <cite>{}</cite></p></details></article>",
            XmlText(&finding.advice),
            XmlText(&finding.because),
            XmlText(&finding.source)
        );
    }
    let more = found.findings.len().saturating_sub(FINDINGS) as u64;
    if more > 0 {
        let more = words::counted(more, "more finding", "more findings");
        let _ = write!(html, "<p class=\"rest\">and {more}: miot stat DIR --show findings</p>");
    }
    if found.files_left_out > 0 {
        let left = words::counted(found.files_left_out, "request", "requests");
        let _ = write!(html, "<p class=\"rest\">{left} to further files were not examined.</p>");
    }
    if found.system_files_left_out.requests > 0 {
        let left = words::counted(found.system_files_left_out.requests, "request", "requests");
        let _ = write!(
            html,
            "<p class=\"rest\">{left} to system files, such as /etc and /usr, were left out: \
             miot stat DIR --show findings --system-files includes them.</p>"
        );
    }
    *html += "</section>";
}

fn bursts(html: &mut String, model: &Model, plots: &[Plot]) {
    let total = &model.bursts.total;
    let below = |fraction: f64| {
        let found = total.below.iter().find(|below| below.of_peak == fraction);
        found.map_or_else(String::new, |below| format!("{:.1} %", 100.0 * below.share))
    };
    *html += "<div class=\"pairs\">";
    figure(
        html,
        plots,
        "bursts",
        &format!(
            "Bytes per second in each {}, in order of size, over the share of the time: {} of the time below a third of the peak of {}/s, {} below a twentieth.",
            span(model.bursts.interval),
            below(0.33),
            bytes(total.peak),
            below(0.05)
        ),
    );
    if let Some(idle) = tables::idle(model) {
        let _ = write!(html, "<div class=\"beside\"><h3>Idle periods</h3>{idle}</div>");
    }
    *html += "</div>";
    figure(
        html,
        plots,
        "activity",
        &format!(
            "Dark: requests were in progress. Each step is {}.",
            span(model.course.interval.unsigned_abs())
        ),
    );
}

/// Returns notes on the accuracy of the counters.
fn notes(model: &Model) -> String {
    let mut notes = vec![
        "A read or write is sequential if it begins above the last byte of the one before by the same process (Darshan's rule). Layers are counted separately, because the same bytes pass through several."
            .to_owned(),
    ];
    if model.notes.block_size_assumed {
        notes.push("A request is misaligned if it does not begin at a multiple of the block size of its file system, or of 4096 bytes if the trace does not contain the block size.".to_owned());
    }
    if model.notes.views_unknown > 0 {
        notes.push(format!(
            "{} requests went through views of MPI-IO whose blocks the trace does not have: figures that need an offset do not include them.",
            model.notes.views_unknown
        ));
    }
    if model.notes.folded_pairs > 0 {
        notes.push(format!(
            "{} pairs of process and file that moved few bytes are combined in one row.",
            model.notes.folded_pairs
        ));
    }
    format!("<p class=\"rest\">{}</p>", notes.join(" "))
}

/// Writes the plot of this name with its caption, if it exists.
fn figure(html: &mut String, plots: &[Plot], name: &str, caption: &str) {
    if let Some(plot) = plots.iter().find(|plot| plot.name == name) {
        let title = if name.starts_with("accesses") {
            String::new()
        } else {
            format!("<h3>{}</h3>", XmlText(&plot.title))
        };
        let _ = write!(
            html,
            "<figure id=\"{name}-figure\"><figcaption>{title}{caption}</figcaption>{}</figure>",
            plot.svg(None)
        );
    }
}
