//! Formats numbers in a few characters.

use miot_trace_events::text::duration;

/// Formats a number in at most six characters: from 1000 on, three digits and a letter.
pub(crate) fn count(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value < 9.95 {
        return format!("{value:.1}");
    }
    scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Formats bytes with a unit in at most eight characters.
pub(crate) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // A value that rounds up to the next unit is printed in that unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$}{}", units[unit])
}

/// Formats a duration in at most seven characters, if it is shorter than some days.
pub(crate) fn time(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    if nanoseconds < 99_995_000_000 {
        duration(i64::try_from(nanoseconds).unwrap_or(i64::MAX))
    } else if seconds < 36_000 {
        format!("{seconds}s")
    } else {
        format!("{}h", seconds / 3600)
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, time};

    #[test]
    fn numbers_fit_their_width() {
        let counts = [0.0, 0.26, 9.94, 9.96, 999.4, 999.6, 1_234.0, 99_940.0, 123_456.0, 4.2e6, 9e18];
        let expected = ["0", "0.3", "9.9", "10", "999", "1.0k", "1.2k", "99.9k", "123k", "4.2M", "9.0E"];
        assert_eq!(counts.map(count), expected);
        assert_eq!(
            [0.0, 1023.0, 1024.0, 1536.0, 1023.9 * 1024.0, 150.0 * (1 << 20) as f64].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "150 MiB"]
        );
        assert_eq!(
            [999, 1_500, 99_900_000_000, 100_000_000_000, 36_000_000_000_000].map(time),
            ["999ns", "1.5us", "99.90s", "100s", "10h"]
        );
    }
}
