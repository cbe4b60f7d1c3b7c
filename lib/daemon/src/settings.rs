//! Settings as TOML, differences between settings, and explanations of errors in them.

use figment::Source;
use figment::error::Kind;
use figment::value::{Dict, Value};
use serde::Serialize;

fn keys(settings: &impl Serialize) -> Dict {
    Value::serialize(settings).ok().and_then(Value::into_dict).unwrap_or_default()
}

/// Returns all keys that have a value, as in a configuration file.
#[must_use]
pub fn to_toml(settings: &impl Serialize) -> String {
    let lines = keys(settings)
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key} = {}\n", toml_value(&value)?)));
    lines.collect()
}

/// Returns a value in TOML; `None` if it is empty or a table.
fn toml_value(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(_, text) => quoted(text),
        Value::Char(_, char) => quoted(char.encode_utf8(&mut [0; 4])),
        Value::Bool(_, on) => on.to_string(),
        Value::Num(_, number) => number.to_u128()?.to_string(),
        Value::Array(_, values) => {
            format!("[{}]", values.iter().filter_map(toml_value).collect::<Vec<_>>().join(", "))
        }
        Value::Empty(..) | Value::Dict(..) => return None,
    })
}

/// Returns a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted += &format!("\\u{:04x}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

/// Returns the keys with different values, in alphabetical order.
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

/// Explains errors, each with its source: a file, an option, or an environment variable that begins
/// with `prefix`.
#[must_use]
pub fn explain(prefix: &str, errors: figment::Error) -> String {
    let one = |error: figment::Error| {
        let key = error.path.join(".");
        let what = match &error.kind {
            Kind::UnknownField(_, known) => format!("there is no such key; there are {}", known.join(", ")),
            kind => kind.to_string().trim_end().to_owned(),
        };
        let place = match error.metadata.as_ref().map(|metadata| metadata.source.as_ref()) {
            Some(Some(Source::File(file))) if key.is_empty() => file.display().to_string(),
            Some(Some(Source::File(file))) => format!("{}: {key}", file.display()),
            Some(Some(Source::Code(_))) => format!("--{}", key.replace('_', "-")),
            Some(_) => format!("{prefix}{}", key.to_uppercase()),
            None => key,
        };
        format!("{place}: {what}")
    };
    errors.into_iter().map(one).collect::<Vec<_>>().join("; ")
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
        users: &'static [&'static str],
    }

    #[test]
    fn differences_include_missing_keys() {
        let one = Settings { same: true, size: 7, file: None, users: &[] };
        let other = Settings { same: true, size: 8, file: Some("/a"), users: &["root", "a\"b\\c\n"] };
        assert_eq!(differences(&one, &other), ["file", "size", "users"]);
        assert_eq!(differences(&other, &one), ["file", "size", "users"]);
        assert!(differences(&one, &one).is_empty());
        assert_eq!(to_toml(&one), "same = true\nsize = 7\nusers = []\n");
        let users = r#"users = ["root", "a\"b\\c\u000a"]"#;
        assert_eq!(to_toml(&other), format!("file = \"/a\"\nsame = true\nsize = 8\n{users}\n"));
    }
}
