//! Bytes per second over time: reads above the axis, writes below.

use super::super::model::Model;
use super::super::times::Times;
use super::super::words::span;
use crate::numbers::bytes;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, staircase, ticks};

const HEIGHT: f64 = 260.0;
const TOP: f64 = 10.0;
/// Maximum number of shapes with a tooltip.
const TOOLTIPS: usize = 250;

pub(super) fn plot(model: &Model, times: Times) -> Plot {
    let course = &model.course;
    let interval = course.interval as f64;
    let rate = |bytes: u64| bytes as f64 / (interval / 1e9);
    let most = |bytes: &[u64]| bytes.iter().copied().max().map_or(0.0, rate);
    let (most_read, most_written) = (most(&course.read), most(&course.written));
    let both = (most_read + most_written).max(1.0);
    let mut plot = Plot::new("throughput", "Throughput over time", (WIDE, HEIGHT));
    plot.keys =
        vec![LegendEntry::Area("read", "read, upwards"), LegendEntry::Area("written", "written, downwards")];
    plot.axes = (times.axis(), "bytes per second".to_owned());
    plot.description = format!(
        "Bytes per second in intervals of {}, read above the line and written below. Most read: {}/s; most written: {}/s.",
        span(course.interval as u64),
        bytes(most_read),
        bytes(most_written)
    );
    let x = times.scale(LEFT, WIDE - RIGHT);
    let bottom = HEIGHT - BOTTOM;
    // One scale for both, so that areas can be compared.
    let zero = TOP + (bottom - TOP) * most_read / both;
    let up = Scale { from: 0.0, to: both, start: zero, end: zero - (bottom - TOP) };
    let down = Scale { end: zero + (bottom - TOP), ..up };
    let tick = ticks(both, 5, 1024.0);
    let step = tick.get(1).copied().unwrap_or(both);
    let label = |value: f64| format!("{}/s", bytes(value));
    let of = |most: f64| tick.iter().copied().filter(move |value| *value <= most).map(|v| (v, label(v)));
    plot.rows((LEFT, WIDE - RIGHT), &up, &of(most_read).collect::<Vec<_>>());
    plot.rows((LEFT, WIDE - RIGHT), &down, &of(most_written).filter(|(v, _)| *v >= step).collect::<Vec<_>>());
    let shifted = super::of_course(model, &x);
    for (class, amounts, scale) in [("read", &course.read, up), ("written", &course.written, down)] {
        let values: Vec<f64> = amounts.iter().map(|bytes| scale.at(rate(*bytes))).collect();
        plot.path(class, &staircase(&shifted, interval, &vec![zero; values.len()], &values));
    }
    plot.add(format_args!("<path class=\"axis\" d=\"M{LEFT} {zero:.1}H{:.1}\"/>", WIDE - RIGHT));
    plot.columns(&x, bottom, &times.ticks(9));
    tooltips(&mut plot, model, times, &shifted, (TOP, bottom));
    plot
}

/// Adds invisible shapes whose tooltips show the figures.
fn tooltips(plot: &mut Plot, model: &Model, times: Times, x: &Scale, (top, bottom): (f64, f64)) {
    let course = &model.course;
    let together = course.read.len().div_ceil(TOOLTIPS).max(1);
    for (number, (read, written)) in
        course.read.chunks(together).zip(course.written.chunks(together)).enumerate()
    {
        let (read, written) = (read.iter().sum::<u64>(), written.iter().sum::<u64>());
        if read == 0 && written == 0 {
            continue;
        }
        let width = course.interval as f64 * together as f64;
        let begin = number as f64 * width;
        let (from, to) = (x.at(begin), x.at(begin + width));
        let seconds = width / 1e9;
        let at = times.in_words((begin + super::shift(model)) as i64);
        plot.add(format_args!(
            "<rect class=\"tell\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\"><title>{at}: {}/s read, {}/s written</title></rect>",
            to - from,
            bottom - top,
            bytes(read as f64 / seconds),
            bytes(written as f64 / seconds)
        ));
    }
}
