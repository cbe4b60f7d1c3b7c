//! Parameters of a simulation by name, with one or several values.

use crate::Error;
use miot_proto::units::{parse_bytes, parse_duration};
use miot_simulator::Config;
use serde_json::Value;

/// A parameter and its values, one per simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Vary {
    /// Name as in the configuration file: `cache.size`.
    pub key: String,
    /// The values.
    pub values: Vec<Value>,
}

/// Maximum number of combinations; more are considered a mistake.
const MOST: usize = 1000;

impl Vary {
    /// Parses `KEY=VALUE`, `KEY=A,B,C`, or `KEY=FROM..TO`, which doubles from value to value.
    ///
    /// # Errors
    /// A text for the user.
    pub fn parse(text: &str) -> Result<Vary, String> {
        let (key, values) = text
            .split_once('=')
            .ok_or("expected NAME=VALUE, NAME=A,B,C or NAME=FROM..TO, e.g. cache.size=4M..512M")?;
        Vary::of(key.trim(), values)
    }

    /// Parses the values of a parameter.
    ///
    /// # Errors
    /// A text for the user.
    pub fn of(key: &str, text: &str) -> Result<Vary, String> {
        let values = match text.split_once("..") {
            Some((from, to)) => range(from.trim(), to.trim())?,
            None => text.split(',').map(|value| value_of(key, value.trim())).collect(),
        };
        Ok(Vary { key: key.to_owned(), values })
    }
}

/// Returns true if the parameter is a number of bytes, or of bytes per second.
#[must_use]
pub fn is_size(key: &str) -> bool {
    ["size", "block", "limit", "transfer", "stripe", "capacity", "rate"].iter().any(|end| key.ends_with(end))
}

/// Parses numbers, sizes and booleans; anything else is text.
fn value_of(key: &str, text: &str) -> Value {
    match (serde_json::from_str(text), parse_bytes(text)) {
        (Ok(value @ (Value::Number(_) | Value::Bool(_))), _) => value,
        (_, Ok(bytes)) if is_size(key) => Value::from(bytes),
        _ => Value::String(text.to_owned()),
    }
}

fn range(from: &str, to: &str) -> Result<Vec<Value>, String> {
    let of = |text: &str| -> Result<(u64, bool), String> {
        if let Ok(bytes) = parse_bytes(text) {
            return Ok((bytes, false));
        }
        let time = parse_duration(text)
            .map_err(|_| format!("`{text}` is not a number, size or duration such as 8, 4M or 10ms"))?;
        Ok((u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), true))
    };
    let ((first, is_time), (last, last_is_time)) = (of(from)?, of(to)?);
    if first == 0 || first > last || (is_time != last_is_time && last != 0) {
        return Err(format!(
            "{from}..{to}: expected from something above 0 to something larger of the same kind"
        ));
    }
    let mut values = Vec::new();
    let mut value = first;
    loop {
        values.push(if is_time { Value::String(format!("{value}ns")) } else { Value::from(value) });
        if value == last {
            return Ok(values);
        }
        value = value.saturating_mul(2).min(last);
    }
}

/// One simulation of several: its varied values, and its complete configuration.
#[derive(Clone, Debug)]
pub struct Point {
    /// The varied values.
    pub values: Vec<Value>,
    /// All parameters.
    pub config: Config,
}

/// Returns all combinations of machines and values, and all varied parameters: the machine first,
/// if there are several.
///
/// # Errors
/// [`Error::Option`].
pub fn points(
    names: &[String],
    machines: &[Config],
    vary: Vec<Vary>,
) -> Result<(Vec<Point>, Vec<Vary>), Error> {
    let count = vary.iter().map(|vary| vary.values.len()).try_fold(machines.len(), usize::checked_mul);
    if count.is_none_or(|count| count > MOST) {
        let text = format!("the parameters have more than {MOST} combinations: remove some values");
        return Err(Error::Option(text));
    }
    let storage =
        Vary { key: "storage".to_owned(), values: names.iter().cloned().map(Value::from).collect() };
    let storage = (names.len() > 1).then_some(storage);
    let point = |(nth, config): (usize, &Config)| {
        let name = storage.as_ref().map(|storage| storage.values[nth].clone());
        Point { values: name.into_iter().collect(), config: config.clone() }
    };
    let mut points: Vec<_> = machines.iter().enumerate().map(point).collect();
    for Vary { key, values } in &vary {
        let mut next = Vec::with_capacity(points.len() * values.len());
        for point in &points {
            for value in values {
                let mut all = point.values.clone();
                all.push(value.clone());
                next.push(Point { values: all, config: set(&point.config, key, value)? });
            }
        }
        points = next;
    }
    for point in &points {
        point.config.check()?;
    }
    Ok((points, storage.into_iter().chain(vary).collect()))
}

/// Returns a configuration with one parameter changed.
///
/// # Errors
/// [`Error::Option`].
pub fn set(config: &Config, key: &str, value: &Value) -> Result<Config, Error> {
    let failed = |error: serde_json::Error| Error::Failed(error.to_string());
    let mut all = serde_json::to_value(config).map_err(failed)?;
    let mut at = &mut all;
    for name in key.split('.') {
        match at.get_mut(name) {
            Some(found) => at = found,
            None => {
                let text = format!("{key}: no such parameter; `miot simulate --print-config` lists them");
                return Err(Error::Option(text));
            }
        }
    }
    if at.is_object() {
        let text = format!("{key} is a group of parameters; `miot simulate --print-config` lists them");
        return Err(Error::Option(text));
    }
    *at = value.clone();
    serde_json::from_value(all).map_err(|error| Error::Option(format!("{key}={}: {error}", plain(value))))
}

/// Formats all parameters as a configuration file.
///
/// # Errors
/// [`Error::Failed`].
pub fn toml(config: &Config) -> Result<String, Error> {
    let all = serde_json::to_value(config).map_err(|error| Error::Failed(error.to_string()))?;
    let (mut plain, mut groups) = (String::new(), String::new());
    for (key, value) in all.as_object().into_iter().flatten() {
        match value {
            Value::Object(group) => {
                groups += &format!("\n[{key}]\n");
                for (key, value) in group {
                    groups += &format!("{key} = {value}\n");
                }
            }
            value => plain += &format!("{key} = {value}\n"),
        }
    }
    Ok(plain + &groups)
}

/// Formats a value like in the configuration file.
#[must_use]
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_lists_or_doubling_ranges() {
        let sizes = |text| Vary::parse(text).unwrap().values.iter().map(plain).collect::<Vec<_>>();
        assert_eq!(sizes("cache.size=4M..12M"), ["4194304", "8388608", "12582912"]);
        assert_eq!(sizes("quantum=1ms..3ms"), ["1000000ns", "2000000ns", "3000000ns"]);
        assert_eq!(sizes("cache.size=0,4096,8M"), ["0", "4096", "8388608"]);
        assert_eq!(sizes("delay=1m,2m"), ["1m", "2m"]);
        assert_eq!(sizes("cache.policy=lru,2q"), ["lru", "2q"]);
        assert_eq!(sizes("write_behind=true,false"), ["true", "false"]);
        for wrong in
            ["cache.size", "cache.size=0..4M", "cache.size=8M..4M", "quantum=1ms..4M", "quantum=a..b"]
        {
            assert!(Vary::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_combination_occurs_once() {
        let vary = [Vary::parse("cache.size=1M,2M"), Vary::parse("write_behind=true,false")];
        let vary: Vec<_> = vary.into_iter().map(Result::unwrap).collect();
        let names = ["a", "b"].map(str::to_owned);
        let machines = [1, 2].map(|processors| Config { processors, ..Config::default() });
        let (points, vary) = points(&names, &machines, vary).unwrap();
        assert_eq!(
            vary.iter().map(|vary| vary.key.as_str()).collect::<Vec<_>>(),
            ["storage", "cache.size", "write_behind"]
        );
        let found: Vec<_> = points
            .iter()
            .map(|p| {
                (plain(&p.values[0]), p.config.processors, p.config.cache.size >> 20, p.config.write_behind)
            })
            .collect();
        let of = |name: &str, processors| {
            [(1, true), (1, false), (2, true), (2, false)]
                .map(|(size, behind)| (name.to_owned(), processors, size, behind))
        };
        assert_eq!(found, [of("a", 1), of("b", 2)].concat());
    }

    #[test]
    fn unsettable_parameters_are_errors() {
        for (key, value) in
            [("cash.size", "1M"), ("cache", "1M"), ("cache.size", "big"), ("cache.policy", "mru")]
        {
            assert!(set(&Config::default(), key, &value_of(key, value)).is_err(), "{key}={value}");
        }
        let vary = vec![Vary::parse("cache.size=100").unwrap()];
        let error = points(&["a".to_owned()], &[Config::default()], vary).unwrap_err();
        assert!(error.to_string().contains("one block"));
    }
}
