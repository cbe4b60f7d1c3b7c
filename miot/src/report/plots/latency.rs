//! Durations of requests over time: a heat map with the median and the 99th percentile.

use super::super::model::Model;
use super::super::times::Times;
use super::super::words::span;
use crate::numbers::count;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, SHADES, Scale, WIDE};
use miot_trace_analysis::timeline::{STEPS, step, step_begin};
use std::fmt::Write as _;

const HEIGHT: f64 = 300.0;
const TOP: f64 = 10.0;
/// Maximum number of columns. More intervals are merged.
const COLUMNS: usize = 200;

type Durations = [u64; STEPS];

pub(super) fn plot(model: &Model, times: Times) -> Plot {
    let columns = columns(model);
    let mut plot = Plot::new("latency", "Latency over time", (WIDE, HEIGHT));
    let has = |step: usize| columns.iter().any(|column| column[step] > 0);
    let lowest = (0..STEPS).find(|step| has(*step)).unwrap_or(0);
    let highest = (0..STEPS).rev().find(|step| has(*step)).unwrap_or(0) + 1;
    let most = columns.iter().flatten().copied().max().unwrap_or(1).max(2);
    let together = model.course.durations.len().div_ceil(COLUMNS).max(1);
    let width = model.course.interval as f64 * together as f64;
    let x = times.scale(LEFT, WIDE - RIGHT);
    let shifted = super::of_course(model, &x);
    let bottom = HEIGHT - BOTTOM;
    let y = Scale { from: lowest as f64, to: highest as f64, start: bottom, end: TOP };
    plot.keys = vec![LegendEntry::Line("median", "median"), LegendEntry::Line("p99", "99th percentile")];
    plot.shades = Some(format!("1 to {} requests in {}", count(most as f64), span(width as u64)));
    plot.axes = (times.axis(), "duration of requests".to_owned());
    plot.description = format!(
        "Numbers of requests by time and by duration, from {} to {}; the darkest field has {} requests in {}. Lines: median and 99th percentile.",
        span(step_begin(lowest)),
        span(step_begin(highest)),
        count(most as f64),
        span(width as u64)
    );
    let decades = (0..14).map(|power| 10u64.pow(power)).map(|value| (place(value), span(value)));
    let labels = decades.filter(|(at, _)| (y.from..=y.to).contains(at));
    let mut shades = vec![String::new(); SHADES];
    let [mut median, mut high] = [String::new(), String::new()];
    for (number, column) in columns.iter().enumerate() {
        let (from, to) = (shifted.at(number as f64 * width), shifted.at((number + 1) as f64 * width));
        for (step, requests) in column.iter().enumerate().filter(|(_, requests)| **requests > 0) {
            let share = (*requests as f64).ln() / (most as f64).ln();
            // The shade follows the logarithm of the number of requests.
            let shade = ((share * (SHADES - 1) as f64).round() as usize).min(SHADES - 1);
            let (base, top) = (y.at(step as f64), y.at(step as f64 + 1.0));
            let (wide, high) = (to - from, base - top);
            let _ = write!(shades[shade], "M{from:.1} {top:.1}h{wide:.1}v{high:.1}h-{wide:.1}z");
        }
        for (line, share) in [(&mut median, 0.5), (&mut high, 0.99)] {
            if let Some(step) = quantile(column, share) {
                let _ = write!(line, "M{from:.1} {:.1}H{to:.1}", y.at(step as f64 + 0.5));
            }
        }
    }
    for (shade, path) in shades.iter().enumerate() {
        plot.path(&format!("heat{shade}"), path);
    }
    plot.rows((LEFT, WIDE - RIGHT), &y, &labels.collect::<Vec<_>>());
    plot.path("median", &median);
    plot.path("p99", &high);
    plot.columns(&x, bottom, &times.ticks(9));
    plot
}

/// Returns the position of a duration on the axis of steps.
fn place(nanoseconds: u64) -> f64 {
    let step = step(nanoseconds);
    let (begin, end) = (step_begin(step) as f64, step_begin(step + 1) as f64);
    step as f64 + (nanoseconds as f64 - begin) / (end - begin).max(1.0)
}

fn columns(model: &Model) -> Vec<Durations> {
    let together = model.course.durations.len().div_ceil(COLUMNS).max(1);
    let sum = |intervals: &[Vec<(u8, u64)>]| {
        let mut all = [0; STEPS];
        for (step, requests) in intervals.iter().flatten() {
            all[usize::from(*step)] += requests;
        }
        all
    };
    model.course.durations.chunks(together).map(sum).collect()
}

/// Returns the step that contains a quantile.
fn quantile(column: &Durations, share: f64) -> Option<usize> {
    let all: u64 = column.iter().sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut so_far = 0;
    column.iter().position(|requests| {
        so_far += requests;
        so_far >= wanted
    })
}
