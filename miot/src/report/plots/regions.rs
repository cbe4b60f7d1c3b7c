//! Times of regions, a strip for each name.

use super::super::model::Model;
use super::super::times::Times;
use super::super::words::{counted, span};
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, WIDE};
use miot_trace_results::regions::{NamedSpans, RegionKind};
use std::fmt::Write as _;

const STRIP: f64 = 16.0;
/// Space between strips, which contains the name of the regions.
const GAP: f64 = 22.0;
/// Maximum number of names: those with the most time.
const NAMES: usize = 12;
/// Maximum number of characters of a name.
const CHARACTERS: usize = 80;
/// Least width of a region, so that short ones are visible.
const LEAST: f64 = 0.6;
/// Classes of the colors of kinds of regions, and their meaning.
const KINDS: [(RegionKind, &str, &str); 5] = [
    (RegionKind::Compute, "busy", "computes"),
    (RegionKind::Fetch, "read", "waits for input"),
    (RegionKind::Checkpoint, "written", "saves its state"),
    (RegionKind::Io, "sync", "waits for other I/O"),
    (RegionKind::Other, "meta", "anything else"),
];

/// Draws the plot; `None` without regions.
pub(super) fn plot(model: &Model, times: Times) -> Option<Plot> {
    let shown = &model.regions.spans[..model.regions.spans.len().min(NAMES)];
    if shown.is_empty() {
        return None;
    }
    let height = shown.len() as f64 * (STRIP + GAP) + BOTTOM;
    let mut plot = Plot::new("regions-over-time", "Regions over time", (WIDE, height));
    let kinds = KINDS.iter().filter(|(kind, ..)| shown.iter().any(|named| named.kind == *kind));
    plot.keys = kinds.map(|(_, class, meaning)| LegendEntry::Area(class, meaning)).collect();
    plot.axes = (times.axis(), String::new());
    "Times in which a thread is in a region, by the name of the regions.".clone_into(&mut plot.description);
    let x = times.scale(LEFT, WIDE - RIGHT);
    let mut top = 0.0;
    for named in shown {
        top += GAP;
        let regions = counted(named.count, "region", "regions");
        let name: String = named.region.chars().take(CHARACTERS).collect();
        let label = format!("{name}: {regions}, {}", span(named.time));
        plot.text("strip", "start", (LEFT, top - 6.0), &label);
        plot.add(format_args!(
            "<rect class=\"ground\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{STRIP}\"/>",
            WIDE - RIGHT - LEFT
        ));
        let at = |time: i64| x.at(time.saturating_sub(times.begin) as f64);
        plot.path(class(named), &bars(&named.spans, at, top));
        top += STRIP;
    }
    plot.columns(&x, top, &times.ticks(9));
    Some(plot)
}

fn class(named: &NamedSpans) -> &'static str {
    KINDS.iter().find(|(kind, ..)| *kind == named.kind).map_or("meta", |(_, class, _)| class)
}

fn bars(spans: &[(i64, i64)], at: impl Fn(i64) -> f64, top: f64) -> String {
    let mut path = String::new();
    for (begin, end) in spans {
        let (from, to) = (at(*begin), at(*end));
        let width = (to - from).max(LEAST);
        // Writing to a string cannot fail.
        let _ = write!(path, "M{from:.1} {top:.1}h{width:.1}v{STRIP}h-{width:.1}z");
    }
    path
}
