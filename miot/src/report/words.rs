//! Describes the figures in sentences.

use super::model::Model;
use super::times::moment;
use crate::numbers::{bytes, count};
use miot_proto::op::Layer;

/// Maximum number of unreadable files that are named.
const UNREAD: usize = 10;

/// Formats a duration with three digits and a unit.
pub(super) fn span(nanoseconds: u64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    let value = nanoseconds as f64;
    match nanoseconds {
        0 => "0".to_owned(),
        120_000_000_000.. => long_span(nanoseconds / 1_000_000_000),
        _ => {
            let (unit, name) = units.into_iter().find(|(unit, _)| value >= *unit).unwrap_or((1.0, "ns"));
            let value = value / unit;
            let digits = if value >= 99.95 || unit == 1.0 {
                0
            } else if value >= 9.995 {
                1
            } else {
                2
            };
            let text = format!("{value:.digits$}");
            let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
            format!("{text} {name}")
        }
    }
}

/// Formats a duration of two minutes or more.
fn long_span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..7_200 => format!("{minutes} min {:02} s", seconds % 60),
        7_200..172_800 => format!("{hours} h {:02} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Returns one line for the terminal.
pub(super) fn headline(model: &Model) -> String {
    let totals = &model.summary.totals;
    format!(
        "{} events, {} read, {} written within {}; {}",
        totals.events,
        bytes(totals.bytes_read as f64),
        bytes(totals.bytes_written as f64),
        span(totals.wall),
        match totals.lost {
            0 if !model.missing_parts.is_empty() => "parts are missing".to_owned(),
            0 if !model.unread.is_empty() => "not all could be read".to_owned(),
            0 => "nothing lost".to_owned(),
            lost => format!("{lost} events lost"),
        }
    )
}

/// Formats the time range of the trace.
pub(super) fn period(model: &Model) -> String {
    const SECONDS: &str = "%-d %B %Y %H:%M:%S";
    let totals = &model.summary.totals;
    if totals.events == 0 {
        return "no events".to_owned();
    }
    let (begin, end) = (moment(totals.begin, SECONDS), moment(totals.end, SECONDS));
    let same = begin.rsplit_once(' ').map(|(day, _)| day) == end.rsplit_once(' ').map(|(day, _)| day);
    let end = if same { end.rsplit_once(' ').map_or("", |(_, clock)| clock) } else { &end };
    format!("{begin} – {end} UTC ({})", span(totals.wall))
}

/// Describes requests, rates, processes and where the time went.
pub(super) fn summary(model: &Model) -> Vec<String> {
    let totals = &model.summary.totals;
    if totals.events == 0 {
        return vec!["There are no events in this time.".to_owned()];
    }
    let seconds = (totals.wall as f64 / 1e9).max(1e-9);
    let mut sentences = vec![format!(
        "{} on {} made {} within {}, to {}.",
        capital(&counted(totals.processes, "process", "processes")),
        counted(model.nodes.len() as u64, "node", "nodes"),
        counted(totals.requests, "request", "requests"),
        span(totals.wall),
        counted(totals.files, "file", "files"),
    )];
    let moved = totals.bytes_read.saturating_add(totals.bytes_written);
    if moved > 0 {
        sentences.push(format!(
            "They read {} and wrote {}: {}/s and {}/s on average over the whole time{}.",
            bytes(totals.bytes_read as f64),
            bytes(totals.bytes_written as f64),
            bytes(totals.bytes_read as f64 / seconds),
            bytes(totals.bytes_written as f64 / seconds),
            peak(model)
        ));
    }
    let busy = totals.time as f64 / totals.wall.max(1) as f64;
    sentences.push(format!(
        "Requests took {} in total, so {:.2} requests were in progress on average.",
        span(totals.time),
        busy
    ));
    // A region of a program is not a request.
    if let Some(most) = model.summary.operations.iter().find(|row| row.layer != Layer::App.name()) {
        let share = 100.0 * most.time as f64 / totals.time.max(1) as f64;
        sentences.push(format!(
            "Most time went into {} {}: {}, {} in total ({share:.0} % of the time in requests), half of them within {} and 99 % within {}.",
            most.layer,
            most.op,
            counted(most.count, "call", "calls"),
            span(most.time),
            span(most.p50),
            span(most.p99),
        ));
    }
    let found = model.findings.findings.len() as u64;
    if found > 0 {
        let is = if found == 1 { "is" } else { "are" };
        sentences
            .push(format!("There {is} {} on possible improvements.", counted(found, "finding", "findings")));
    }
    let failed: u64 = model.summary.operations.iter().map(|row| row.failed).sum();
    if failed > 0 {
        sentences.push(format!("{} failed.", capital(&counted(failed, "operation", "operations"))));
    }
    sentences
}

fn peak(model: &Model) -> String {
    let course = &model.course;
    let both = course.read.iter().zip(&course.written).map(|(read, written)| read.saturating_add(*written));
    match both.max() {
        Some(most) if most > 0 => format!(
            ", and {}/s in the busiest {}",
            bytes(most as f64 / (course.interval as f64 / 1e9)),
            span(course.interval.unsigned_abs())
        ),
        _ => String::new(),
    }
}

/// Reliability of the figures: losses, clocks, filtered requests.
pub(super) struct Quality {
    /// True if nothing is missing.
    pub(super) is_good: bool,
    pub(super) title: String,
    pub(super) details: Vec<String>,
}

pub(super) fn quality(model: &Model) -> Quality {
    let totals = &model.summary.totals;
    let mut details = Vec::new();
    if totals.lost > 0 {
        let of = totals.lost as f64 / totals.lost.saturating_add(totals.events) as f64;
        details.push(format!(
            "{} events were lost, {:.2} % of all: every number of requests, bytes and times on this page is a lower bound.",
            totals.lost,
            100.0 * of
        ));
    }
    for unread in model.unread.iter().take(UNREAD) {
        details.push(format!("Not read: {unread}: figures are lower bounds."));
    }
    if model.unread.len() > UNREAD {
        details.push(format!("{} more files could not be read.", model.unread.len() - UNREAD));
    }
    if !model.unread.is_empty() {
        details.push(format!("`miot fsck {}` reports further damage.", model.trace));
    }
    if let Some(removed) = &model.removed {
        details.push(format!("{removed}."));
    }
    if totals.filtered > 0 {
        details.push(format!(
            "{} left out on purpose (minimum duration or sampling): no figure includes them.",
            counted(totals.filtered, "request was", "requests were")
        ));
    }
    if totals.interrupted > 0 {
        details.push(format!(
            "{} cut off by the end of their thread or process.",
            counted(totals.interrupted, "request was", "requests were")
        ));
    }
    if totals.times_moved > 0 {
        details.push(format!(
            "{} another time than that of the completion: marked MOVED in `flags`.",
            counted(totals.times_moved, "event has", "events have")
        ));
    }
    details.extend(clocks(model));
    let complete = totals.lost == 0 && model.unread.is_empty() && model.removed.is_none();
    let title = match (complete, totals.lost) {
        (true, _) => "Complete: no event was lost".to_owned(),
        (false, 0) if !model.missing_parts.is_empty() => {
            let parts = counted(model.missing_parts.count(), "part is", "parts are");
            format!("Lower bounds: {parts} missing")
        }
        (false, 0) if !model.unread.is_empty() => {
            "Lower bounds: parts of the trace could not be read".to_owned()
        }
        (false, 0) => "Not the whole trace".to_owned(),
        (false, lost) => format!("Lower bounds: {} lost", counted(lost, "event was", "events were")),
    };
    Quality { is_good: complete, title, details }
}

fn clocks(model: &Model) -> Vec<String> {
    let mut sentences = Vec::new();
    let known: Vec<_> = model.clocks.iter().filter_map(|clock| Some((clock.uncertainty?, clock))).collect();
    if let Some((most, worst)) = known.iter().max_by_key(|(most, _)| *most) {
        let nodes = counted(known.len() as u64, "node", "nodes");
        let estimated = worst.estimated_error.filter(|error| *error > 0);
        let estimated = estimated
            .map_or_else(String::new, |error| format!(", {} by estimate", span(error.unsigned_abs())));
        sentences.push(if *most == 0 {
            format!("Clocks: {nodes}, on the log-server's own clock.")
        } else {
            format!("Clocks: times of {nodes} agree within {}{estimated}.", span(most.unsigned_abs()))
        });
    }
    let unknown: Vec<_> = model.clocks.iter().filter(|clock| clock.uncertainty.is_none()).collect();
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().take(4).map(|clock| clock.node.as_str()).collect();
        sentences.push(format!(
            "The accuracy of the clocks of {} is unknown ({}{}): the order of their events relative to other nodes may be wrong.",
            counted(unknown.len() as u64, "node", "nodes"),
            names.join(", "),
            if unknown.len() > names.len() { ", …" } else { "" }
        ));
    }
    let steps: u64 = model.clocks.iter().map(|clock| clock.steps).sum();
    if steps > 0 {
        sentences.push(format!(
            "{} of a node's clock {} detected and corrected.",
            counted(steps, "step", "steps"),
            if steps == 1 { "was" } else { "were" }
        ));
    }
    sentences
}

/// Formats a number with its noun: `1 file`, `12,345 files`, `1.2M files`.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    let number_text = if number < 100_000 { number.to_string() } else { count(number as f64) };
    format!("{number_text} {}", if number == 1 { one } else { many })
}

/// Returns the title of a rule.
pub(super) fn title(rule: &str) -> String {
    capital(&rule.replace('_', " "))
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        let spans = [0, 7, 1_500, 10_000_000, 262_144, 99_960_000, 7_440_000_000, 119_000_000_000];
        let expected = ["0", "7 ns", "1.5 µs", "10 ms", "262 µs", "100 ms", "7.44 s", "119 s"];
        assert_eq!(spans.map(span), expected);
        let long =
            [120, 7_199, 7_200, 172_799, 172_800, 3_000_000].map(|seconds| span(seconds * 1_000_000_000));
        assert_eq!(long, ["2 min 00 s", "119 min 59 s", "2 h 00 min", "47 h 59 min", "2 d 0 h", "34 d 17 h"]);
    }
}
