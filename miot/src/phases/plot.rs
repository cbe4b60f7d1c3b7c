//! Phases over logical time and file offset, as SVG.

use crate::numbers::bytes;
use miot_plot::FILE_STYLE;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, XmlText, ticks};
use miot_trace_analysis::model::{Direction, Model, Operation, Phase, Ticks};

const HEIGHT: f64 = 480.0;
const TOP: f64 = 10.0;

/// Maximum number of phases of a family, and of processes, that are drawn. Of more, an even
/// selection is drawn.
const MOST: u64 = 64;

/// Time and file range of a request, or of several adjacent requests.
struct Bar {
    time: (f64, f64),
    offset: (f64, f64),
    reads: bool,
    title: String,
}

/// Draws the phases.
pub(crate) fn svg(model: &Model) -> String {
    let bars: Vec<Bar> = model.phases.iter().flat_map(bars).collect();
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0, f64::max);
    let last = most(&mut bars.iter().map(|bar| bar.time.1));
    let top = most(&mut bars.iter().map(|bar| bar.offset.1));
    let mut plot = Plot::new("phases", &format!("Phases of {}", model.application), (WIDE, HEIGHT));
    plot.description = format!("What each process did in each phase, in files of up to {}.", bytes(top));
    plot.keys = vec![LegendEntry::Area("read", "read"), LegendEntry::Area("written", "written")];
    let time = match model.ticks {
        Ticks::Communication => "logical time (communication)",
        Ticks::Collective => "logical time (collective calls)",
        Ticks::Requests => "logical time (requests)",
    };
    plot.axes = (time.to_owned(), "file offset".to_owned());
    let bottom = HEIGHT - BOTTOM;
    let x = Scale { from: 0.0, to: last, start: LEFT, end: WIDE - RIGHT };
    let y = Scale { from: 0.0, to: top, start: bottom, end: TOP };
    let offsets = ticks(top, 5, 1024.0).into_iter().map(|value| (value, bytes(value)));
    plot.rows((LEFT, WIDE - RIGHT), &y, &offsets.collect::<Vec<_>>());
    let whole = ticks(last, 8, 1000.0).into_iter().filter(|value| value.fract() == 0.0);
    plot.columns(&x, bottom, &whole.map(|value| (value, value.to_string())).collect::<Vec<_>>());
    for bar in &bars {
        let (left, right) = (x.at(bar.time.0), x.at(bar.time.1));
        let (low, high) = (y.at(bar.offset.0), y.at(bar.offset.1));
        plot.add(format_args!(
            "<rect class=\"{}\" x=\"{left:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\"0.75\"><title>{}</title></rect>",
            if bar.reads { "read" } else { "written" },
            (right - left).max(2.0),
            (low - high).max(1.0),
            XmlText(&bar.title)
        ));
    }
    plot.svg(Some(FILE_STYLE))
}

/// Returns the bars of a family, for at most [`MOST`] of its phases and processes.
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

/// Returns the lowest and the highest byte that a process accesses in a phase.
fn touched(operation: &Operation, place: u64, nth: u64) -> (f64, f64) {
    /// Maximum number of requests examined. Of more, an even selection is examined.
    const LOOKED_AT: u64 = 4096;
    let last = operation.repetitions.saturating_sub(1);
    let step = operation.repetitions.div_ceil(LOOKED_AT).max(1);
    let (mut low, mut high) = (f64::MAX, 0f64);
    for request in (0..last).step_by(step as usize).chain([last]) {
        if let Some(ranges) = operation.ranges(place, nth, request) {
            let (first, last) = (ranges.first(), ranges.last());
            low = first.map_or(low, |range| low.min(range.offset as f64));
            high = last.map_or(high, |range| high.max((range.offset + range.bytes) as f64));
            continue;
        }
        let request = operation.request(place, nth, request);
        let offset = request.offset.unwrap_or(0).max(0) as f64;
        (low, high) = (low.min(offset), high.max(offset + request.size as f64));
    }
    (low.min(high), high)
}
