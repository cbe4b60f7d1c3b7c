//! Times with requests in progress.

use super::super::model::Model;
use super::super::times::Times;
use super::super::words::span;
use miot_plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, WIDE, staircase};

const STRIP: f64 = 30.0;

pub(super) fn plot(model: &Model, times: Times) -> Plot {
    let mut plot = Plot::new("activity", "Idle times", (WIDE, STRIP + BOTTOM));
    plot.keys = vec![LegendEntry::Area("busy", "requests under way"), LegendEntry::Area("ground", "none")];
    plot.axes = (times.axis(), String::new());
    let course = &model.course;
    let idle = course.requests.iter().filter(|requests| **requests == 0).count();
    plot.description = format!(
        "Intervals of {} in which requests were under way; {idle} of {} were without any.",
        span(course.interval.unsigned_abs()),
        course.requests.len()
    );
    let x = times.scale(LEFT, WIDE - RIGHT);
    let tops: Vec<f64> = course.requests.iter().map(|n| if *n > 0 { 0.0 } else { STRIP }).collect();
    plot.add(format_args!(
        "<rect class=\"ground\" x=\"{LEFT}\" width=\"{:.1}\" height=\"{STRIP}\"/>",
        WIDE - RIGHT - LEFT
    ));
    let shifted = super::of_course(model, &x);
    plot.path("busy", &staircase(&shifted, course.interval as f64, &vec![STRIP; tops.len()], &tops));
    plot.columns(&x, STRIP, &times.ticks(9));
    plot
}
