//! Artificial error of the node's clock: in tests, the daemons of one machine stand for nodes with
//! different clocks.

/// Environment variable with the error, e.g. `offset=-5s,drift=+100ppm`; for tests only.
const ENV: &str = "MIOT_TEST_CLOCK";

/// Error added to the clock of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Skew {
    /// Nanoseconds.
    offset: i64,
    /// Parts per billion.
    drift: i64,
}

impl Skew {
    /// The error in the environment; zero by default.
    pub(super) fn from_environment() -> Skew {
        let Ok(text) = std::env::var(ENV) else { return Skew::default() };
        let skew = Skew::parse(&text).unwrap_or_else(|| {
            tracing::error!(text, "{ENV} is not of the form offset=-5s,drift=+100ppm, ignoring it");
            Skew::default()
        });
        tracing::warn!(?skew, "the clock has an artificial error ({ENV})");
        skew
    }

    fn parse(text: &str) -> Option<Skew> {
        let mut skew = Skew::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=')? {
                ("offset", value) => skew.offset = number(value, &[("ms", 1e6), ("us", 1e3), ("s", 1e9)])?,
                ("drift", value) => skew.drift = number(value, &[("ppm", 1e3)])?,
                _ => return None,
            }
        }
        Some(skew)
    }

    /// Error at a time since boot, nanoseconds. Depends only on that time, so that successive
    /// log-clients have the same clock.
    pub(super) fn at(self, boottime: i64) -> i64 {
        let gained = i128::from(boottime) * i128::from(self.drift) / 1_000_000_000;
        self.offset.saturating_add(gained as i64)
    }
}

fn number(text: &str, units: &[(&str, f64)]) -> Option<i64> {
    let (digits, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    digits.trim().parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| (value * unit) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_parsed_and_invalid_text_is_refused() {
        let parsed = |text| Skew::parse(text).map(|skew| (skew.offset, skew.drift));
        assert_eq!(parsed("offset=-5s,drift=+100ppm"), Some((-5_000_000_000, 100_000)));
        assert_eq!(parsed("drift=-0.5ppm, offset=1.5ms"), Some((1_500_000, -500)));
        assert_eq!(parsed(""), Some((0, 0)));
        for odd in ["offset=5", "drift=1s", "offset", "skew=1s", "offset=xs", "offset=infs"] {
            assert_eq!(parsed(odd), None, "{odd}");
        }
        assert_eq!(Skew { offset: -7, drift: 100_000 }.at(10_000_000_000), 999_993);
    }
}
