//! Settings as they are written, and what is different in others.

use figment::value::{Dict, Value};
use serde::Serialize;

fn keys(settings: &impl Serialize) -> Dict {
    Value::serialize(settings).ok().and_then(Value::into_dict).unwrap_or_default()
}

/// All keys that have a value, as a configuration file has them.
#[must_use]
pub fn to_toml(settings: &impl Serialize) -> String {
    let keys = keys(settings);
    let lines = keys.iter().filter_map(|(key, value)| {
        let value = match value {
            Value::String(_, text) => format!("{text:?}"),
            Value::Bool(_, on) => on.to_string(),
            Value::Num(_, number) => number.to_u128()?.to_string(),
            _ => return None,
        };
        Some(format!("{key} = {value}\n"))
    });
    lines.collect()
}

/// The keys whose values are not the same, in alphabetical order.
#[must_use]
pub fn differences<S: Serialize>(one: &S, other: &S) -> Vec<String> {
    let (mut one, other) = (keys(one), keys(other));
    for (key, value) in other {
        match one.get(&key) {
            Some(same) if *same == value => drop(one.remove(&key)),
            _ => drop(one.insert(key, value)),
        }
    }
    one.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Settings {
        same: bool,
        size: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<&'static str>,
    }

    #[test]
    fn differences_are_named_also_where_one_says_nothing() {
        let one = Settings { same: true, size: 7, file: None };
        let other = Settings { same: true, size: 8, file: Some("/a") };
        assert_eq!(differences(&one, &other), ["file", "size"]);
        assert_eq!(differences(&other, &one), ["file", "size"]);
        assert!(differences(&one, &one).is_empty());
        assert_eq!(to_toml(&other), "file = \"/a\"\nsame = true\nsize = 8\n");
    }
}
