//! Phases over logical time and file offset, as SVG.

use crate::numbers::bytes;
use miot_trace_analysis::model::{Direction, Model, Operation, Phase, Ticks};
use std::fmt::Write as _;

/// Size of the picture, and room for the axes, pixels.
const SIZE: (f64, f64) = (960.0, 480.0);
const MARGIN: (f64, f64) = (90.0, 40.0);

/// Phases of a family and processes that are drawn one by one; of more an even choice.
const MOST: u64 = 64;

/// A request, or several next to each other: when and where.
struct Bar {
    time: (f64, f64),
    offset: (f64, f64),
    reads: bool,
    title: String,
}

/// The picture.
pub(crate) fn svg(model: &Model) -> String {
    let bars: Vec<Bar> = model.phases.iter().flat_map(bars).collect();
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0, f64::max);
    let last = most(&mut bars.iter().map(|bar| bar.time.1));
    let top = most(&mut bars.iter().map(|bar| bar.offset.1));
    let (width, height) = (SIZE.0 - MARGIN.0 - 10.0, SIZE.1 - 2.0 * MARGIN.1);
    let x = |time: f64| MARGIN.0 + time / last * width;
    let y = |offset: f64| SIZE.1 - MARGIN.1 - offset / top * height;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
        SIZE.0,
        SIZE.1,
        escaped(&model.application)
    );
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        let (at, level) = (x(share * last), y(share * top));
        let _ = writeln!(
            out,
            "<path d=\"M{} {level}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{:.0}</text>",
            MARGIN.0,
            MARGIN.0 + width,
            MARGIN.0 - 6.0,
            level + 4.0,
            bytes(share * top),
            SIZE.1 - MARGIN.1 + 18.0,
            share * last
        );
    }
    for bar in &bars {
        let (left, right) = (x(bar.time.0), x(bar.time.1));
        let (low, high) = (y(bar.offset.0), y(bar.offset.1));
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.75\"><title>{}</title></rect>",
            (right - left).max(2.0),
            (low - high).max(1.0),
            if bar.reads { "#1b7f3b" } else { "#b5421b" },
            escaped(&bar.title)
        );
    }
    let time = match model.ticks {
        Ticks::Communication => "logical time (communication)",
        Ticks::Requests => "logical time (requests)",
    };
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{time}</text><text x=\"{}\" y=\"20\">file offset; \
         <tspan fill=\"#b5421b\">write</tspan> <tspan fill=\"#1b7f3b\">read</tspan></text>\n</svg>",
        MARGIN.0 + width / 2.0,
        SIZE.1 - 4.0,
        MARGIN.0
    );
    out
}

/// What a family does, at most [`MOST`] of its phases and processes.
fn bars(phase: &Phase) -> Vec<Bar> {
    let (count, processes) = (phase.count(), phase.processes.len());
    let (begin, end) = phase.measured.map_or((0, 0), |measured| measured.ticks);
    let long = (end + 1).saturating_sub(begin) as f64 / count.max(1) as f64;
    let chosen = |all: u64| (0..all).step_by(all.div_ceil(MOST).max(1) as usize);
    let mut bars = Vec::new();
    for nth in chosen(count) {
        let start = begin as f64 + nth as f64 * long;
        let number = phase.numbers.iter().nth(nth as usize).unwrap_or(0);
        for (place, rank) in
            phase.processes.iter().enumerate().step_by(processes.div_ceil(MOST).max(1) as usize)
        {
            for operation in &phase.operations {
                let (low, high) = touched(operation, place as u64, nth);
                bars.push(Bar {
                    time: (start, start + if count > 1 { long * 0.6 } else { long }),
                    offset: (low, high),
                    reads: operation.direction == Direction::Read,
                    title: format!("phase {number}, process {rank}: {}", phase.file),
                });
            }
        }
    }
    bars
}

/// From the lowest to the highest byte of a process in a phase.
fn touched(operation: &Operation, place: u64, nth: u64) -> (f64, f64) {
    /// Of more requests, an even choice.
    const LOOKED_AT: u64 = 4096;
    let last = operation.repetitions.saturating_sub(1);
    let step = operation.repetitions.div_ceil(LOOKED_AT).max(1);
    let (mut low, mut high) = (f64::MAX, 0f64);
    for request in (0..last).step_by(step as usize).chain([last]) {
        let request = operation.request(place, nth, request);
        let offset = request.offset.unwrap_or(0).max(0) as f64;
        (low, high) = (low.min(offset), high.max(offset + request.size as f64));
    }
    (low.min(high), high)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
