//! Bandwidths of a suite, as SVG.

use miot_plot::{BOTTOM, FILE_STYLE, LEFT, LegendEntry, Plot, RIGHT, Scale, WIDE, XmlText, ticks};
use miot_workload::coordinator::Outcome;

const TOP: f64 = 6.0;
/// Height of a measurement in the plot: a line of text, and a bar below it.
const ROW: f64 = 38.0;
const BAR: f64 = 14.0;

/// Draws a bar for the mean of each measurement, its confidence interval, and a mark for each
/// repetition.
pub(super) fn svg(outcomes: &[Outcome]) -> String {
    let height = TOP + ROW * outcomes.len() as f64 + BOTTOM;
    let mut plot = Plot::new("bandwidths", "Bandwidth of each measurement", (WIDE, height));
    plot.keys = vec![
        LegendEntry::Area("read", "read"),
        LegendEntry::Area("written", "written"),
        LegendEntry::Area("both", "both"),
        LegendEntry::Line("median", "95 % confidence interval of the mean"),
        LegendEntry::Line("axis", "a repetition"),
    ];
    plot.axes = ("MiB/s".to_owned(), String::new());
    let said: Vec<String> = outcomes.iter().map(label).collect();
    plot.description = format!("{}.", said.join("; "));
    let interval = |outcome: &Outcome| {
        let (mean, half) = (outcome.bandwidth.mean, outcome.bandwidth.half_width.unwrap_or(0.0));
        ((mean - half).max(0.0), mean + half)
    };
    let most =
        outcomes.iter().map(|outcome| interval(outcome).1.max(outcome.bandwidth.most)).fold(0.0, f64::max);
    let x = Scale { from: 0.0, to: most, start: LEFT, end: WIDE - RIGHT };
    let labels: Vec<_> = ticks(most, 8, 1000.0).into_iter().map(|value| (value, value.to_string())).collect();
    plot.columns(&x, height - BOTTOM, &labels);
    for (nth, (outcome, label)) in outcomes.iter().zip(&said).enumerate() {
        let text = TOP + ROW * nth as f64 + 11.0;
        plot.text("label", "start", (LEFT, text), label);
        let (high, low) = (text + 6.0, text + 6.0 + BAR);
        let (zero, mean) = (x.at(0.0), x.at(outcome.bandwidth.mean));
        plot.path(class(outcome), &format!("M{zero:.1} {low:.1}V{high:.1}H{mean:.1}V{low:.1}z"));
        for (number, one) in outcome.repetitions.iter().enumerate() {
            let at = x.at(one.bandwidth);
            plot.add(format_args!(
                "<path class=\"axis\" d=\"M{at:.1} {:.1}V{:.1}\"><title>{}</title></path>",
                high - 2.0,
                low + 2.0,
                XmlText(&format!("repetition {}: {:.1} MiB/s", number + 1, one.bandwidth))
            ));
        }
        let (from, to) = interval(outcome);
        let (from, to, middle) = (x.at(from), x.at(to), f64::midpoint(high, low));
        plot.path(
            "median",
            &format!(
                "M{from:.1} {:.1}v6M{from:.1} {middle:.1}H{to:.1}M{to:.1} {:.1}v6",
                middle - 3.0,
                middle - 3.0
            ),
        );
    }
    plot.svg(Some(FILE_STYLE))
}

/// Returns the label of a measurement: `strided: 812.4 MiB/s, ±2.1 %, 4 processes`.
fn label(outcome: &Outcome) -> String {
    let sample = outcome.bandwidth;
    let sure = sample.half_width.map(|half| format!(", ±{:.1} %", 100.0 * half / sample.mean));
    let processes = match outcome.processes {
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    };
    format!("{}: {:.1} MiB/s{}, {processes}", outcome.run.name, sample.mean, sure.unwrap_or_default())
}

fn class(outcome: &Outcome) -> &'static str {
    match (outcome.repetitions.iter().any(|one| one.read > 0), outcome.run.operation.writes()) {
        (true, true) => "both",
        (true, false) => "read",
        _ => "written",
    }
}
