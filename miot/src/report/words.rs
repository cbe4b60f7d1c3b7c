//! What the figures say, in sentences.

use super::model::Model;
use super::times::moment;
use crate::numbers::{bytes, count, time};
use crate::output::duration;

/// One line for the terminal.
pub(super) fn headline(model: &Model) -> String {
    let totals = &model.summary.totals;
    format!(
        "{} events, {} read, {} written within {}; {}",
        totals.events,
        bytes(totals.bytes_read as f64),
        bytes(totals.bytes_written as f64),
        time(totals.wall),
        if totals.lost == 0 { "nothing lost".to_owned() } else { format!("{} events lost", totals.lost) }
    )
}

/// When it was.
pub(super) fn period(model: &Model) -> String {
    const SECONDS: &str = "%-d %B %Y %H:%M:%S";
    let totals = &model.summary.totals;
    if totals.events == 0 {
        return "no events".to_owned();
    }
    let (begin, end) = (moment(totals.begin, SECONDS), moment(totals.end, SECONDS));
    let same = begin.rsplit_once(' ').map(|(day, _)| day) == end.rsplit_once(' ').map(|(day, _)| day);
    let end = if same { end.rsplit_once(' ').map_or("", |(_, clock)| clock) } else { &end };
    format!("{begin} – {end} UTC ({})", time(totals.wall))
}

/// What was done, how fast, by whom and where the time went.
pub(super) fn summary(model: &Model) -> Vec<String> {
    let totals = &model.summary.totals;
    if totals.events == 0 {
        return vec!["There are no events in this time.".to_owned()];
    }
    let seconds = (totals.wall as f64 / 1e9).max(1e-9);
    let mut said = vec![format!(
        "{} on {} made {} within {}, to {}.",
        capital(&counted(totals.processes, "process", "processes")),
        counted(model.nodes.len() as u64, "node", "nodes"),
        counted(totals.requests, "request", "requests"),
        time(totals.wall),
        counted(totals.files, "file", "files"),
    )];
    let moved = totals.bytes_read.saturating_add(totals.bytes_written);
    if moved > 0 {
        said.push(format!(
            "They read {} and wrote {}: {}/s and {}/s on average over the whole time{}.",
            bytes(totals.bytes_read as f64),
            bytes(totals.bytes_written as f64),
            bytes(totals.bytes_read as f64 / seconds),
            bytes(totals.bytes_written as f64 / seconds),
            peak(model)
        ));
    }
    let busy = totals.time as f64 / totals.wall.max(1) as f64;
    said.push(format!(
        "Requests took {} in all, so that {:.2} of them were under way on average.",
        time(totals.time),
        busy
    ));
    if let Some(most) = model.summary.operations.first() {
        let share = 100.0 * most.time as f64 / totals.time.max(1) as f64;
        said.push(format!(
            "Most time went into {} {}: {}, {} in all ({share:.0} % of the time in requests), half of them within {} and 99 % within {}.",
            most.layer,
            most.op,
            counted(most.count, "call", "calls"),
            time(most.time),
            duration(most.p50 as i64),
            duration(most.p99 as i64),
        ));
    }
    let failed: u64 = model.summary.operations.iter().map(|row| row.failed).sum();
    if failed > 0 {
        said.push(format!("{} failed.", capital(&counted(failed, "operation", "operations"))));
    }
    said
}

fn peak(model: &Model) -> String {
    let course = &model.course;
    let both = course.read.iter().zip(&course.written).map(|(read, written)| read.saturating_add(*written));
    match both.max() {
        Some(most) if most > 0 => format!(
            ", and {}/s in the busiest {}",
            bytes(most as f64 / (course.interval as f64 / 1e9)),
            time(course.interval.unsigned_abs())
        ),
        _ => String::new(),
    }
}

/// Whether the figures can be relied upon: losses, clocks, what was left out.
pub(super) struct Quality {
    /// Nothing is missing.
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
    if let Some(removed) = &model.removed {
        details.push(format!("{removed}."));
    }
    if totals.filtered > 0 {
        details.push(format!(
            "{} left out on purpose (minimum duration or sampling): they are in no figure here.",
            counted(totals.filtered, "request was", "requests were")
        ));
    }
    if totals.interrupted > 0 {
        details.push(format!(
            "{} cut off by the end of their thread or process.",
            counted(totals.interrupted, "request was", "requests were")
        ));
    }
    details.extend(clocks(model));
    let complete = totals.lost == 0 && model.removed.is_none();
    let title = match (complete, totals.lost) {
        (true, _) => "Complete: no event was lost".to_owned(),
        (false, 0) => "Not the whole trace".to_owned(),
        (false, lost) => format!("Lower bounds: {} lost", counted(lost, "event was", "events were")),
    };
    Quality { is_good: complete, title, details }
}

fn clocks(model: &Model) -> Vec<String> {
    let mut said = Vec::new();
    let known: Vec<_> = model.clocks.iter().filter_map(|clock| Some((clock.uncertainty?, clock))).collect();
    if let Some((most, worst)) = known.iter().max_by_key(|(most, _)| *most) {
        let nodes = counted(known.len() as u64, "node", "nodes");
        let estimated = worst.estimated_error.filter(|error| *error > 0);
        let estimated =
            estimated.map_or_else(String::new, |error| format!(", {} by estimate", duration(error)));
        said.push(if *most == 0 {
            format!("Clocks: {nodes}, on the log-server's own clock.")
        } else {
            format!("Clocks: times of {nodes} agree within {}{estimated}.", duration(*most))
        });
    }
    let unknown: Vec<_> = model.clocks.iter().filter(|clock| clock.uncertainty.is_none()).collect();
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().take(4).map(|clock| clock.node.as_str()).collect();
        said.push(format!(
            "Nothing is known of how good the clocks of {} are ({}{}): the order of their events among those of others may be wrong.",
            counted(unknown.len() as u64, "node", "nodes"),
            names.join(", "),
            if unknown.len() > names.len() { ", …" } else { "" }
        ));
    }
    let steps: u64 = model.clocks.iter().map(|clock| clock.steps).sum();
    if steps > 0 {
        said.push(format!(
            "{} of a node's clock {} seen and taken out.",
            counted(steps, "step", "steps"),
            if steps == 1 { "was" } else { "were" }
        ));
    }
    said
}

/// `1 file`, `12,345 files`, `1.2M files`.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    let number_text = if number < 100_000 { number.to_string() } else { count(number as f64) };
    format!("{number_text} {}", if number == 1 { one } else { many })
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
