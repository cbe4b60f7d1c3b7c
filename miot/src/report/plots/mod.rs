//! Plots of the page.

mod accesses;
mod activity;
mod bursts;
mod latency;
mod operations;
mod ranks;
mod regions;
mod sizes;
mod throughput;

use super::model::Model;
use super::times::Times;
use miot_plot::{Plot, Scale};

/// Returns all plots of a report in its order; none without events.
pub(super) fn all(model: &Model) -> Vec<Plot> {
    if model.summary.totals.events == 0 {
        return Vec::new();
    }
    let times = times(model);
    let mut plots =
        vec![throughput::plot(model, times), operations::plot(model, times), latency::plot(model, times)];
    plots.extend(regions::plot(model, times));
    plots.extend(bursts::plot(model));
    plots.push(activity::plot(model, times));
    plots.extend(sizes::plot(model));
    plots.extend(accesses::plots(model));
    plots.extend(ranks::plot(model));
    plots
}

/// Returns the time range of all plots, which is the range of the events.
pub(super) fn times(model: &Model) -> Times {
    Times { begin: model.summary.totals.begin, end: model.summary.totals.end }
}

/// Returns the scale on which the first interval of the course begins at 0.
fn of_course(model: &Model, x: &Scale) -> Scale {
    let shift = shift(model);
    Scale { from: x.from - shift, to: x.to - shift, ..*x }
}

/// Returns nanoseconds from the first event to the start of the first interval. It is negative if
/// that event is within the interval.
fn shift(model: &Model) -> f64 {
    model.course.begin.saturating_sub(model.summary.totals.begin) as f64
}
