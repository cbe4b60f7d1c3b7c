//! Operations per second over time, a strip for each layer.

use super::super::model::Model;
use super::super::times::Times;
use super::super::words::span;
use crate::numbers::count;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, staircase, ticks};
use miot_trace_analysis::timeline::KINDS;

const STRIP: f64 = 96.0;
/// Space between strips, which contains the name of the layer.
const GAP: f64 = 26.0;

pub(super) fn plot(model: &Model, times: Times) -> Plot {
    let course = &model.course;
    let seconds = course.interval as f64 / 1e9;
    let layers = course.layers.len() as f64;
    let height = layers * (STRIP + GAP) + BOTTOM;
    let mut plot = Plot::new("operations", "Operations over time, by layer", (WIDE, height));
    plot.keys = vec![
        LegendEntry::Area("read", "read"),
        LegendEntry::Area("write", "write"),
        LegendEntry::Area("sync", "sync"),
        LegendEntry::Area("meta", "metadata"),
    ];
    plot.axes = (times.axis(), "operations per second".to_owned());
    plot.description = format!(
        "Operations per second in intervals of {}, of each layer by kind: reads, writes, synchronization, metadata.",
        span(course.interval.unsigned_abs())
    );
    let x = times.scale(LEFT, WIDE - RIGHT);
    let shifted = super::of_course(model, &x);
    let mut top = 0.0;
    for layer in &course.layers {
        top += GAP;
        let most = layer.operations.iter().map(|kinds| kinds.iter().sum::<u64>()).max().unwrap_or(0);
        let most = most as f64 / seconds;
        plot.description += &format!(" {}: at most {}/s.", layer.layer, count(most));
        let y = Scale { from: 0.0, to: most, start: top + STRIP, end: top };
        plot.text("strip", "start", (LEFT, top - 8.0), layer.layer);
        let labels = ticks(most, 3, 1000.0).into_iter().map(|value| (value, format!("{}/s", count(value))));
        plot.rows((LEFT, WIDE - RIGHT), &y, &labels.collect::<Vec<_>>());
        let mut below = vec![0u64; layer.operations.len()];
        for (kind, name) in KINDS.iter().enumerate() {
            let before: Vec<f64> = below.iter().map(|count| y.at(*count as f64 / seconds)).collect();
            below.iter_mut().zip(&layer.operations).for_each(|(sum, kinds)| *sum += kinds[kind]);
            let after: Vec<f64> = below.iter().map(|count| y.at(*count as f64 / seconds)).collect();
            plot.path(name, &staircase(&shifted, course.interval as f64, &before, &after));
        }
        top += STRIP;
    }
    plot.columns(&x, top, &times.ticks(9));
    plot
}
