//! Burstiness of the throughput: rates by share of the time.

use super::super::model::Model;
use super::super::words::span;
use crate::numbers::bytes;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, ticks};
use std::fmt::Write as _;

const WIDTH: f64 = 528.0;
const HEIGHT: f64 = 250.0;
const TOP: f64 = 10.0;

/// Draws the plot; `None` if no bytes were moved.
pub(super) fn plot(model: &Model) -> Option<Plot> {
    let peak = model.bursts.total.peak;
    if peak <= 0.0 || model.curve.len() < 2 {
        return None;
    }
    let mut plot = Plot::new("bursts", "Burstiness", (WIDTH, HEIGHT));
    plot.keys = vec![LegendEntry::Area("busy", "intervals in order of their throughput")];
    plot.axes = ("share of the time".to_owned(), "bytes per second".to_owned());
    let below = |fraction: f64| {
        let found = model.bursts.total.below.iter().find(|below| below.of_peak == fraction);
        found.map_or(0.0, |below| 100.0 * below.share)
    };
    plot.description = format!(
        "Throughput per interval of {}, in order of size: the peak is {}/s, in {:.1} % of the intervals it is below a third of that, in {:.1} % below a twentieth.",
        span(model.bursts.interval),
        bytes(peak),
        below(0.33),
        below(0.05)
    );
    let bottom = HEIGHT - BOTTOM;
    let x = Scale { from: 0.0, to: (model.curve.len() - 1) as f64, start: LEFT, end: WIDTH - RIGHT };
    let y = Scale { from: 0.0, to: peak, start: bottom, end: TOP };
    let labels = ticks(peak, 4, 1024.0).into_iter().map(|value| (value, format!("{}/s", bytes(value))));
    plot.rows((LEFT, WIDTH - RIGHT), &y, &labels.collect::<Vec<_>>());
    let mut path = format!("M{LEFT} {bottom:.1}");
    for (index, rate) in model.curve.iter().enumerate() {
        let _ = write!(path, "L{:.1} {:.1}", x.at(index as f64), y.at(*rate));
    }
    let _ = write!(path, "V{bottom:.1}z");
    plot.path("busy", &path);
    let mean = y.at(model.bursts.total.mean);
    plot.add(format_args!("<path class=\"mark\" d=\"M{LEFT} {mean:.1}H{:.1}\"/>", WIDTH - RIGHT));
    plot.text("note", "end", (WIDTH - RIGHT, mean - 5.0), "mean");
    let percent = Scale { from: 0.0, to: 100.0, ..x };
    let shares = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0].map(|share| (share, format!("{share} %")));
    plot.columns(&percent, bottom, &shares);
    Some(plot)
}
