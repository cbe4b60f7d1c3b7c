//! Sizes and durations in configuration files, e.g. `64 MiB`, `20ms`.
//!
//! | | units |
//! |---|---|
//! | sizes | none or `B`; `KiB` `MiB` `GiB` `TiB` (also `K` `M` `G` `T`): powers of 1024; `KB` `MB` `GB` `TB`: powers of 1000 |
//! | durations | `ns` `us` `ms` `s` `min` `h` `d`; a bare `0` |
//!
//! Case does not matter. A space before the unit and a decimal fraction (`1.5 GiB`) are allowed.
//! [`bytes`] and [`duration`] are for serde's `with`.

use std::time::Duration;

/// A text is not a size or a duration. `Display` contains the text and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

impl std::fmt::Display for UnitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not {}", self.text, self.expected)
    }
}

impl std::error::Error for UnitError {}

const SIZES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

const DURATIONS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Parses a size such as `64 MiB`. Returns bytes.
///
/// # Errors
/// [`UnitError`] if the text is not a size, or its value exceeds `u64`.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse(text, &SIZES).ok_or_else(|| UnitError {
        text: text.to_owned(),
        expected: "a size such as 4096, 64 KiB, 512 MiB or 2 GiB",
    })
}

/// Parses a duration such as `20ms`.
///
/// # Errors
/// [`UnitError`] if the text is not a duration, or its value exceeds `u64` nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    parse(text, &DURATIONS).map(Duration::from_nanos).ok_or_else(|| UnitError {
        text: text.to_owned(),
        expected: "a duration such as 500us, 20ms, 5s, 15min, 2h or 1d",
    })
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    let factor = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let value = number.parse::<f64>().ok()? * factor as f64;
    (value < u64::MAX as f64).then_some(value.round() as u64)
}

/// Returns the shortest exact notation of a number of bytes, e.g. `64 MiB`, `1000 B`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{} {name}", bytes / factor),
        None => format!("{bytes} B"),
    }
}

/// Returns the shortest exact notation of a duration, e.g. `20ms`, `15min`. Above 584 years it
/// saturates.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match DURATIONS.iter().rev().find(|(_, factor)| nanos >= *factor && nanos.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{}{name}", nanos / factor),
        None => "0".to_owned(),
    }
}

/// Serde's `with` for a number of bytes: reads a text with a unit or a number, writes a text.
pub mod bytes {
    use super::{TextOrNumber, format_bytes, parse_bytes};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes a text with a unit.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_bytes(*value))
    }

    /// Reads a text with a unit, or a number.
    ///
    /// # Errors
    /// Those of the deserializer, and a text or number that is not a size.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        parse_bytes(&TextOrNumber::deserialize(deserializer)?.into_text()).map_err(D::Error::custom)
    }
}

/// Serde's `with` for a [`Duration`]: reads and writes a text with a unit.
pub mod duration {
    use super::{Duration, TextOrNumber, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes a text with a unit.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*value))
    }

    /// Reads a text with a unit, or a number.
    ///
    /// # Errors
    /// Those of the deserializer, and a text that is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_duration(&TextOrNumber::deserialize(deserializer)?.into_text()).map_err(D::Error::custom)
    }
}

/// Value in a configuration file where a size or duration is expected.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a size such as 64 MiB or a duration such as 20ms")]
enum TextOrNumber {
    Text(String),
    Number(i64),
}

impl TextOrNumber {
    fn into_text(self) -> String {
        match self {
            TextOrNumber::Text(text) => text,
            TextOrNumber::Number(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_notations_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64 MiB", 64 << 20),
            ("64m", 64 << 20),
            ("1.5 GiB", 3 << 29),
            ("2KB", 2000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for (text, nanos) in [
            ("0", 0),
            ("20ms", 20_000_000),
            ("1.5 s", 1_500_000_000),
            ("15 min", 900_000_000_000),
            ("7ns", 7),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in ["", "MiB", "-1", "1 parsec", "1.2.3 s", "20000000 TiB", "1e3"] {
            assert!(parse_bytes(text).is_err(), "{text}");
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_duration("20").is_err(), "a duration without a unit");
        let message = parse_bytes("7 apples").map_err(|e| e.to_string());
        assert_eq!(message, Err("`7 apples` is not a size such as 4096, 64 KiB, 512 MiB or 2 GiB".into()));
    }

    #[test]
    fn formatted_values_are_parsed_back() {
        for bytes in [0, 1, 1000, 1024, 1536, 64 << 20, u64::MAX, 5 << 40] {
            assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }
        for nanos in [0, 1, 1000, 1_500_000, 60_000_000_000, 90_000_000_000, u64::MAX] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        assert_eq!(
            (format_bytes(64 << 20).as_str(), format_duration(Duration::from_millis(20)).as_str()),
            ("64 MiB", "20ms")
        );
    }
}
