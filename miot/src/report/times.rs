//! Time axis with round labels: elapsed time for a short range, clock times (UTC) for a long one.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use miot_plot::Scale;
use miot_trace_events::text::duration;

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Range from which labels are clock times, nanoseconds.
const LONG: i64 = 10 * MINUTE;

/// Time range of plots, nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) begin: i64,
    pub(super) end: i64,
}

impl Times {
    fn span(self) -> i64 {
        self.end.saturating_sub(self.begin).max(1)
    }

    /// Returns the scale of nanoseconds since the start.
    pub(super) fn scale(self, start: f64, end: f64) -> Scale {
        Scale { from: 0.0, to: self.span() as f64, start, end }
    }

    /// Returns at most `most` values of the scale with their labels.
    pub(super) fn ticks(self, most: i64) -> Vec<(f64, String)> {
        let step = step(self.span() / most.max(1));
        let is_long = self.span() >= LONG;
        let first = if is_long { step - self.begin.rem_euclid(step) } else { 0 };
        let first = if first == step { 0 } else { first };
        let values = (0..).map(|number: i64| first.saturating_add(number.saturating_mul(step)));
        let within = values.take_while(|value| *value <= self.span()).take(most as usize + 2);
        let label = |value: i64| {
            if is_long {
                clock(self.begin.saturating_add(value), step)
            } else {
                since(value, step, self.span())
            }
        };
        within.map(|value| (value as f64, label(value))).collect()
    }

    /// Returns the label of the axis.
    pub(super) fn axis(self) -> String {
        if self.span() >= LONG {
            format!("time (UTC), from {} on", moment(self.begin, "%-d %B %Y"))
        } else {
            "time since the first event".to_owned()
        }
    }

    /// Formats a time for tooltips.
    pub(super) fn in_words(self, value: i64) -> String {
        if self.span() >= LONG {
            clock(self.begin.saturating_add(value), MINUTE / 2)
        } else {
            format!("+{}", duration(value))
        }
    }
}

/// Returns the smallest round step that is at least `least`.
fn step(least: i64) -> i64 {
    let least = least.max(1);
    if least <= SECOND {
        let ten = 10i64.pow(least.ilog10());
        return [1, 2, 5, 10]
            .map(|step| step * ten)
            .into_iter()
            .find(|step| *step >= least)
            .unwrap_or(SECOND);
    }
    let of = |unit: i64, steps: &[i64]| steps.iter().map(|step| step * unit).find(|step| *step >= least);
    of(SECOND, &[1, 2, 5, 10, 15, 30])
        .or_else(|| of(MINUTE, &[1, 2, 5, 10, 15, 30]))
        .or_else(|| of(HOUR, &[1, 2, 3, 6, 12]))
        .or_else(|| of(DAY, &[1, 2, 7, 14, 28, 91, 182, 364, 3640, 36_400]))
        .unwrap_or(i64::MAX)
}

/// Formats elapsed time in the unit of the span, with as many digits as the step needs.
fn since(value: i64, step: i64, span: i64) -> String {
    let (unit, name) = match span {
        SECOND.. => (SECOND, "s"),
        1_000_000.. => (1_000_000, "ms"),
        1_000.. => (1_000, "µs"),
        _ => (1, "ns"),
    };
    let digits = (0..9).find(|digits| step % (unit / 10i64.pow(*digits)).max(1) == 0).unwrap_or(9) as usize;
    format!("{:.digits$} {name}", value as f64 / unit as f64)
}

fn clock(nanoseconds: i64, step: i64) -> String {
    let format = if step >= DAY {
        "%-d %b"
    } else if step >= HOUR {
        "%-d %b %H:%M"
    } else if step >= MINUTE {
        "%H:%M"
    } else {
        "%H:%M:%S"
    };
    moment(nanoseconds, format)
}

/// Formats a point in time, UTC.
pub(super) fn moment(nanoseconds: i64, format: &str) -> String {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).map_or_else(
        |_| nanoseconds.to_string(),
        |time| time.to_zoned(TimeZone::UTC).strftime(format).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(begin: i64, span: i64) -> Vec<String> {
        Times { begin, end: begin + span }.ticks(6).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn short_range_has_elapsed_times() {
        assert_eq!(labels(123, 2_500_000), ["0.0 ms", "0.5 ms", "1.0 ms", "1.5 ms", "2.0 ms", "2.5 ms"]);
        assert_eq!(labels(123, 50 * SECOND), ["0 s", "10 s", "20 s", "30 s", "40 s", "50 s"]);
        assert_eq!(labels(0, 0), ["0 ns", "1 ns"]);
    }

    #[test]
    fn long_range_has_clock_times() {
        let noon = 1_700_049_600 * SECOND;
        assert_eq!(labels(noon + 1, HOUR), ["12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]);
        assert_eq!(labels(noon, 60 * DAY)[0], "23 Nov");
        // Extreme values.
        assert!(!labels(i64::MIN, i64::MAX).is_empty());
    }
}
