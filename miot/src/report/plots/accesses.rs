//! Accesses over time and offset, a plot for each of the files with the most bytes moved.

use super::super::accesses::FileAccesses;
use super::super::model::Model;
use super::super::times::Times;
use crate::numbers::{bytes, count};
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale};
use miot_trace_analysis::offsets::{READ, WRITTEN};
use std::fmt::Write as _;

/// Width of a plot: two fit side by side.
const WIDTH: f64 = 528.0;
const HEIGHT: f64 = 250.0;
const TOP: f64 = 10.0;

pub(super) fn plots(model: &Model) -> impl Iterator<Item = Plot> {
    (1..).zip(&model.accesses).map(|(number, file)| plot(number, file))
}

fn plot(number: usize, file: &FileAccesses) -> Plot {
    let found = &file.accesses;
    let title = format!("Accesses to {}", file.path);
    let mut plot = Plot::new(&format!("accesses-{number}"), &title, (WIDTH, HEIGHT));
    plot.keys = vec![
        LegendEntry::Area("read", "read"),
        LegendEntry::Area("written", "written"),
        LegendEntry::Area("both", "both"),
    ];
    plot.description = format!(
        "{} requests that moved bytes, from byte {} to byte {}, by time and offset.",
        count(found.requests as f64),
        found.lowest,
        found.highest
    );
    // Show the time range of the file's own requests: a short range in a long trace would be a
    // line.
    let of_file = Times { begin: found.begin, end: found.end.max(found.begin.saturating_add(1)) };
    plot.axes = (of_file.axis(), "offset in the file".to_owned());
    let own = of_file.scale(LEFT, WIDTH - RIGHT);
    let bottom = HEIGHT - BOTTOM;
    let y = Scale { from: found.lowest as f64, to: found.highest as f64 + 1.0, start: bottom, end: TOP };
    let ticks = miot_plot::ticks(found.highest as f64 + 1.0, 5, 1024.0);
    let ticks = ticks.into_iter().filter(|value| *value >= found.lowest as f64);
    plot.rows((LEFT, WIDTH - RIGHT), &y, &ticks.map(|value| (value, bytes(value))).collect::<Vec<_>>());
    for (class, bits) in [("read", READ), ("written", WRITTEN), ("both", READ | WRITTEN)] {
        plot.path(class, &marks(file, bits, (&own, &y)));
    }
    plot.columns(&own, bottom, &of_file.ticks(5));
    plot
}

/// Draws the fields with exactly these bits. Vertically adjacent fields are one shape.
fn marks(file: &FileAccesses, bits: u8, (x, y): (&Scale, &Scale)) -> String {
    let found = &file.accesses;
    let begin = found.first_column.saturating_sub(found.begin) as f64;
    let mut path = String::new();
    let mut marks = found.marks.iter().filter(|(_, _, mark)| *mark == bits).peekable();
    while let Some((column, row, _)) = marks.next() {
        let mut last = *row;
        while marks.next_if(|(c, r, _)| c == column && *r == last + 1).is_some() {
            last += 1;
        }
        let left = x.at(begin + f64::from(*column) * found.column as f64);
        let right = x.at(begin + (f64::from(*column) + 1.0) * found.column as f64);
        let low = y.at(found.first_row as f64 + f64::from(*row) * found.row as f64);
        let high = y.at(found.first_row as f64 + (f64::from(last) + 1.0) * found.row as f64);
        // Shapes smaller than a dot would be invisible.
        let (wide, tall) = ((right - left).max(1.4), (low - high).max(1.4));
        let _ = write!(path, "M{left:.1} {high:.1}h{wide:.1}v{tall:.1}h-{wide:.1}z");
    }
    path
}
