//! I/O time of each rank, which shows imbalance.

use super::super::model::Model;
use super::super::words::span;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, ticks};
use std::fmt::Write as _;

const HEIGHT: f64 = 200.0;
const TOP: f64 = 10.0;

/// Draws the plot; `None` if there are fewer than two ranks.
pub(super) fn plot(model: &Model) -> Option<Plot> {
    let ranks = &model.rank_times;
    if ranks.rows.len() < 2 {
        return None;
    }
    let who = if ranks.are_ranks { "rank" } else { "process" };
    let mut plot = Plot::new("ranks", &format!("Time in I/O, by {who}"), (WIDE, HEIGHT));
    let times = ranks.rows.iter().map(|row| row.read.saturating_add(row.write).saturating_add(row.meta));
    let (least, most) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0).max(1));
    plot.keys = vec![
        LegendEntry::Area("read", "reading"),
        LegendEntry::Area("written", "writing"),
        LegendEntry::Area("meta", "metadata"),
    ];
    let across = match ranks.together {
        0 | 1 => who.to_owned(),
        together => format!("{who}, the slowest of each {together} neighbors"),
    };
    plot.axes = (across, format!("time in {}", ranks.layer));
    plot.description = format!(
        "Time in reads, writes and metadata of each {who} in the layer {}: from {} to {}.",
        ranks.layer,
        span(least),
        span(most)
    );
    let bottom = HEIGHT - BOTTOM;
    let y = Scale { from: 0.0, to: most as f64, start: bottom, end: TOP };
    let x = Scale { from: 0.0, to: ranks.rows.len() as f64, start: LEFT, end: WIDE - RIGHT };
    let seconds = ticks(most as f64, 4, 1000.0).into_iter().map(|value| (value, span(value as u64)));
    plot.rows((LEFT, WIDE - RIGHT), &y, &seconds.collect::<Vec<_>>());
    // Leave a gap between bars if there is space.
    let room = x.at(1.0) - x.at(0.0);
    let bar = if room > 4.0 { (room - 1.5).min(60.0) } else { room };
    let mut paths = [("read", String::new()), ("written", String::new()), ("meta", String::new())];
    for (number, row) in ranks.rows.iter().enumerate() {
        let left = x.at(number as f64 + 0.5) - bar / 2.0;
        let mut below = 0.0;
        for ((_, path), part) in paths.iter_mut().zip([row.read, row.write, row.meta]) {
            if part > 0 {
                let (low, high) = (y.at(below), y.at(below + part as f64));
                let _ = write!(path, "M{left:.1} {high:.1}h{bar:.1}v{:.1}h-{bar:.1}z", low - high);
                below += part as f64;
            }
        }
    }
    for (class, path) in &paths {
        plot.path(class, path);
    }
    let every = ranks.rows.len().div_ceil(16);
    let labels = ranks.rows.iter().enumerate().step_by(every);
    let labels = labels.map(|(number, row)| (number as f64 + 0.5, row.rank.to_string()));
    plot.columns(&x, bottom, &labels.collect::<Vec<_>>());
    Some(plot)
}
