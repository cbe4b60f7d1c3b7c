//! Plots of simulations: bytes over time, and results by parameter.

use crate::numbers::bytes;
use miot_plot::FILE_STYLE;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, staircase, ticks};
use miot_simulator::Outcome;
use miot_simulator::rates::Point;

/// Height of one strip.
const STRIP: f64 = 110.0;
/// Space above a strip, for its name.
const ABOVE: f64 = 24.0;
/// Space above a plot with a single strip.
const TOP: f64 = 10.0;
/// Number of steps of a plot over time.
const STEPS: usize = 1000;

/// Draws the bytes requested by programs and transferred by disks over time. Returns an SVG file.
pub(super) fn over_time(outcome: &Outcome, title: &str) -> String {
    let height = 2.0 * (ABOVE + STRIP) + BOTTOM;
    let mut plot = Plot::new("rates", title, (WIDE, height));
    plot.keys = vec![LegendEntry::Area("read", "read"), LegendEntry::Area("written", "written")];
    plot.axes = ("simulated time".to_owned(), "bytes per second".to_owned());
    let seconds = outcome.drained as f64 / 1e9;
    let x = Scale { from: 0.0, to: seconds, start: LEFT, end: WIDE - RIGHT };
    let together = outcome.rates.points.len().div_ceil(STEPS).max(1);
    let step = outcome.rates.interval as f64 * together as f64 / 1e9;
    let sums = |of: &dyn Fn(&Point) -> u64| -> Vec<f64> {
        let chunks = outcome.rates.points.chunks(together);
        chunks.map(|chunk| chunk.iter().map(of).sum::<u64>() as f64 / step).collect()
    };
    let strips: [(&str, Vec<f64>, Vec<f64>); 2] = [
        ("programs", sums(&|point| point.read), sums(&|point| point.written)),
        ("disks", sums(&|point| point.disk_read), sums(&|point| point.disk_written)),
    ];
    for (nth, (name, read, written)) in strips.iter().enumerate() {
        let top = ABOVE + nth as f64 * (ABOVE + STRIP);
        let all: Vec<f64> = read.iter().zip(written).map(|(read, written)| read + written).collect();
        let most = all.iter().copied().fold(0.0, f64::max).max(1.0);
        let y = Scale { from: 0.0, to: most, start: top + STRIP, end: top };
        let labels: Vec<_> =
            ticks(most, 3, 1024.0).into_iter().map(|value| (value, format!("{}/s", bytes(value)))).collect();
        plot.rows((LEFT, WIDE - RIGHT), &y, &labels);
        let at = |values: &[f64]| values.iter().map(|value| y.at(*value)).collect::<Vec<_>>();
        let (floor, middle, roof) = (at(&vec![0.0; all.len()]), at(read), at(&all));
        plot.path("read", &staircase(&x, step, &floor, &middle));
        plot.path("written", &staircase(&x, step, &middle, &roof));
        plot.text("strip", "start", (LEFT, top - 8.0), name);
    }
    time_axis(&mut plot, &x, height - BOTTOM);
    plot.description = format!(
        "{} read and {} written by programs in {seconds:.1} s; {} read and {} written by disks.",
        bytes(outcome.processes.iter().map(|process| process.bytes_read).sum::<u64>() as f64),
        bytes(outcome.processes.iter().map(|process| process.bytes_written).sum::<u64>() as f64),
        bytes(outcome.disk.bytes_read as f64),
        bytes(outcome.disk.bytes_written as f64),
    );
    plot.svg(Some(FILE_STYLE))
}

fn time_axis(plot: &mut Plot, x: &Scale, bottom: f64) {
    let labels: Vec<_> = ticks(x.to, 8, 1000.0).into_iter().map(|value| (value, seconds(value))).collect();
    plot.columns(x, bottom, &labels);
}

fn seconds(value: f64) -> String {
    format!("{} s", (value * 1000.0).round() / 1000.0)
}

/// Draws idle time, overhead and computing time of all processors, for each simulation. `labels`
/// has one entry per simulation.
pub(super) fn of_sweep(outcomes: &[Outcome], labels: &[String], parameter: &str) -> String {
    let height = TOP + 2.0 * STRIP + BOTTOM;
    let title = format!("Time of processors by {parameter}");
    let mut plot = Plot::new("sweep", &title, (WIDE, height));
    plot.keys = vec![
        LegendEntry::Area("read", "computing"),
        LegendEntry::Area("meta", "overhead"),
        LegendEntry::Area("written", "idle"),
    ];
    plot.axes = (parameter.to_owned(), "time of processors".to_owned());
    let (top, bottom) = (TOP, height - BOTTOM);
    let part =
        |outcome: &Outcome| [outcome.run(), outcome.overhead(), outcome.idle()].map(|t| t as f64 / 1e9);
    let most = outcomes.iter().map(|outcome| part(outcome).iter().sum::<f64>()).fold(0.0, f64::max);
    let y = Scale { from: 0.0, to: most, start: bottom, end: top };
    let rows: Vec<_> = ticks(most, 6, 1000.0).into_iter().map(|value| (value, seconds(value))).collect();
    plot.rows((LEFT, WIDE - RIGHT), &y, &rows);
    let x = Scale { from: 0.0, to: outcomes.len() as f64, start: LEFT, end: WIDE - RIGHT };
    for (nth, outcome) in outcomes.iter().enumerate() {
        let (left, right) = (x.at(nth as f64 + 0.15), x.at(nth as f64 + 0.85));
        let mut sum = 0.0;
        for (class, value) in ["read", "meta", "written"].into_iter().zip(part(outcome)) {
            let (low, high) = (y.at(sum), y.at(sum + value));
            sum += value;
            if low - high >= 0.05 {
                plot.path(class, &format!("M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}z"));
            }
        }
    }
    let columns: Vec<_> =
        labels.iter().enumerate().map(|(nth, label)| (nth as f64 + 0.5, label.clone())).collect();
    plot.columns(&x, bottom, &columns);
    let idle: Vec<_> = outcomes
        .iter()
        .zip(labels)
        .map(|(o, label)| format!("{label}: {:.1} s", o.idle() as f64 / 1e9))
        .collect();
    plot.description = format!("Idle time by {parameter}: {}.", idle.join(", "));
    plot.svg(Some(FILE_STYLE))
}
