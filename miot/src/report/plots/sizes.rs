//! Sizes of accesses in Darshan's ten bins, by layer.

use super::super::model::{LayerSizes, Model};
use crate::numbers::count;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, ticks};

/// Names of the bins of `characterize::counters::BINS`, by their upper bounds.
const NAMES: [&str; 10] = [
    "≤ 100 B",
    "≤ 1 KiB",
    "≤ 10 KiB",
    "≤ 100 KiB",
    "≤ 1 MiB",
    "≤ 4 MiB",
    "≤ 10 MiB",
    "≤ 100 MiB",
    "≤ 1 GiB",
    "> 1 GiB",
];
const STRIP: f64 = 130.0;
/// Space between strips, which contains the name of the layer, and numbers above the bars.
const GAP: f64 = 38.0;
/// Width of a bar, as a fraction of its bin.
const BAR: f64 = 0.34;

/// Draws the plot; `None` if no bytes were moved.
pub(super) fn plot(model: &Model) -> Option<Plot> {
    if model.layers.is_empty() {
        return None;
    }
    let height = model.layers.len() as f64 * (STRIP + GAP) + BOTTOM;
    let mut plot = Plot::new("sizes", "Access sizes", (WIDE, height));
    plot.keys = vec![LegendEntry::Area("read", "reads"), LegendEntry::Area("written", "writes")];
    plot.axes = ("bytes that a request moved".to_owned(), "requests".to_owned());
    plot.description = "Numbers of reads and writes by the bytes that they moved.".to_owned();
    let room = (WIDE - RIGHT - LEFT) / NAMES.len() as f64;
    let mut top = 0.0;
    for layer in &model.layers {
        top += GAP;
        strip(&mut plot, layer, top, room);
        top += STRIP;
    }
    let x = Scale { from: 0.0, to: NAMES.len() as f64, start: LEFT, end: WIDE - RIGHT };
    let names = (0..).zip(NAMES).map(|(bin, name)| (f64::from(bin) + 0.5, name.to_owned()));
    plot.columns(&x, top, &names.collect::<Vec<_>>());
    Some(plot)
}

fn strip(plot: &mut Plot, layer: &LayerSizes, top: f64, room: f64) {
    let sides = [("read", &layer.reads), ("written", &layer.writes)];
    let most = sides.iter().flat_map(|(_, bins)| bins.iter()).copied().max().unwrap_or(0) as f64;
    let bottom = top + STRIP;
    let y = Scale { from: 0.0, to: most, start: bottom, end: top };
    plot.text("strip", "start", (LEFT, top - 20.0), layer.layer);
    let labels = ticks(most, 3, 1000.0).into_iter().map(|value| (value, count(value)));
    plot.rows((LEFT, WIDE - RIGHT), &y, &labels.collect::<Vec<_>>());
    for (side, (class, bins)) in (0..).zip(sides) {
        for (bin, requests) in (0..).zip(bins).filter(|(_, requests)| **requests > 0) {
            let left = LEFT + room * (f64::from(bin) + 0.5 + BAR * (f64::from(side) - 1.0));
            // Keep one request among millions visible.
            let high = y.at(*requests as f64).min(bottom - 1.5);
            plot.add(format_args!(
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{requests} {class}, {}</title></rect>",
                room * BAR - 1.0,
                bottom - high,
                NAMES[bin as usize]
            ));
            // Numbers of reads end, and those of writes begin, between the two bars.
            let middle = LEFT + room * (f64::from(bin) + 0.5);
            let (anchor, x) = if side == 0 { ("end", middle - 2.0) } else { ("start", middle + 1.0) };
            plot.text("bar", anchor, (x, high - 4.0), &count(*requests as f64));
        }
    }
}
