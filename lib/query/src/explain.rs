//! Explains errors in queries, with suggestions.

use crate::{catalog, views};
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use std::fmt::Write as _;

/// Functions and clauses of other databases, and their equivalents here.
const ELSEWHERE: [(&str, &str); 21] = [
    ("any_value", "first_value(x)"),
    ("arg_max", "last_value(x ORDER BY y)"),
    ("arg_min", "first_value(x ORDER BY y)"),
    ("countif", "count(*) FILTER (WHERE condition)"),
    ("count_if", "count(*) FILTER (WHERE condition)"),
    ("epoch", "date_part('epoch', time)"),
    ("epoch_ns", "CAST(time AS BIGINT)"),
    ("group_concat", "string_agg(x, ',')"),
    ("histogram", "a GROUP BY of x / width * width"),
    ("iff", "CASE WHEN condition THEN a ELSE b END"),
    ("list", "array_agg(x)"),
    ("listagg", "string_agg(x, ',')"),
    ("mode", "GROUP BY x ORDER BY count(*) DESC LIMIT 1"),
    ("parquet_scan", "the name of a table, such as events"),
    ("quantile", "approx_percentile_cont(x, 0.99)"),
    ("quantile_cont", "approx_percentile_cont(x, 0.99)"),
    ("read_parquet", "the name of a table, such as events"),
    ("strftime", "to_char(time, '%H:%M')"),
    ("time_bucket", "date_bin(INTERVAL '1 minute', time)"),
    ("to_epoch", "date_part('epoch', time)"),
    ("len", "length(x)"),
];

/// Explanation of an error, with a suggestion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) text: String,
    /// True if the SQL is wrong, not the trace.
    pub(crate) is_sql: bool,
}

/// Explains an error.
pub(crate) fn explain(error: &DataFusionError) -> Explained {
    let root = error.find_root();
    let message = root.strip_backtrace();
    let message = message.split_once(": ").map_or(message.as_str(), |(_, message)| message);
    let sql = |text: String| Explained { text, is_sql: true };
    match root {
        DataFusionError::SchemaError(schema, _) => sql(columns(schema, message)),
        DataFusionError::Plan(plan) => sql(planned(plan)),
        DataFusionError::SQL(parser, _) => sql(format!(
            "the SQL cannot be read: {}",
            first_line(&parser.to_string().replace("sql parser error: ", ""))
        )),
        DataFusionError::NotImplemented(_) => sql(format!("not supported: {message}")),
        DataFusionError::ResourcesExhausted(_) => Explained {
            text: format!(
                "not enough memory: {}\nraise --memory-limit, or reduce the query: fewer groups, a shorter time",
                first_line(message)
            ),
            is_sql: false,
        },
        DataFusionError::ObjectStore(found) if matches!(**found, object_store::Error::NotFound { .. }) => {
            Explained {
                text: format!("{}\na part is missing; `miot fsck` reports further damage", found),
                is_sql: false,
            }
        }
        DataFusionError::External(found) => Explained { text: found.to_string(), is_sql: false },
        _ => Explained { text: error.strip_backtrace(), is_sql: false },
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

fn columns(error: &SchemaError, message: &str) -> String {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let mut names: Vec<&str> = valid_fields.iter().map(Column::name).collect();
            names.dedup();
            let mut text = format!("there is no column `{}`", field.flat_name());
            let close = similar_names(field.name(), names.iter().copied());
            if !close.is_empty() {
                text += &close;
            } else if views::JOINED.contains(&field.name()) && !names.contains(&field.name()) {
                let _ = write!(text, ": view io has `{}`", field.name());
            } else {
                text += "; text requires single quotes: 'read'";
            }
            if !names.is_empty() {
                let _ = write!(text, "\ncolumns here: {}", names.join(" "));
            }
            text
        }
        SchemaError::AmbiguousReference { field } => {
            format!("several tables have a column `{0}`: name one, such as e.{0}", field.name())
        }
        SchemaError::DuplicateUnqualifiedField { .. } | SchemaError::DuplicateQualifiedField { .. } => {
            format!(
                "{message}\na CAST does not change the name of a column: rename one of them in a subquery, FROM (SELECT CAST(time AS BIGINT) AS t FROM events)"
            )
        }
    }
}

fn planned(message: &str) -> String {
    let message = first_line(message);
    if let Some(name) = message.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found")) {
        let name = name.rsplit('.').next().unwrap_or(name);
        let file = ["parquet", "arrows", "csv"].iter().any(|ending| message.contains(ending));
        let mut text = format!("there is no table `{name}`{}", similar_names(name, catalog::names()));
        let _ = write!(text, "\ntables and views: {}", catalog::names().collect::<Vec<_>>().join(" "));
        if file {
            text += "\na query does not name files: give the trace before it, miot query TRACE 'SELECT … FROM events'";
        }
        return text;
    }
    let function =
        message.strip_prefix("Invalid function '").or_else(|| message.strip_prefix("table function '"));
    if let Some(rest) = function {
        let name = rest.split('\'').next().unwrap_or(rest).to_lowercase();
        return match ELSEWHERE.iter().find(|(other, _)| *other == name) {
            Some((_, here)) => format!("there is no function `{name}`: use {here}"),
            None => format!(
                "there is no function `{name}`{}",
                rest.split_once(".\n").map_or("", |(_, hint)| hint)
            ),
        };
    }
    if message.starts_with("DDL not supported") || message.starts_with("DML not supported") {
        return format!(
            "{message}: a trace is read-only; -o FILE with --format writes the result of a query"
        );
    }
    if message.contains("Timestamp") && (message.contains("Int64") || message.contains("coerce")) {
        return format!(
            "{message}\ntimes: time > '2026-11-22T12:00:00Z', time - INTERVAL '1 minute', CAST(time AS BIGINT) for nanoseconds"
        );
    }
    message.to_owned()
}

/// Suggests similar names.
fn similar_names<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&name, &other.to_lowercase());
    let close = |other: &&str| {
        distance(other) <= 1 + name.chars().count() / 4
            || (name.len() > 2 && (other.starts_with(&name) || name.starts_with(other)))
    };
    let mut found: Vec<&str> = names.filter(close).collect();
    found.sort_by_key(|other| distance(other));
    found.dedup();
    found.truncate(3);
    match found.is_empty() {
        true => String::new(),
        false => format!(": did you mean `{}`?", found.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::similar_names;

    #[test]
    fn similar_names_are_suggested() {
        let similar_names =
            |name| similar_names(name, ["events", "processes", "files", "file_stats"].into_iter());
        assert_eq!(similar_names("event"), ": did you mean `events`?");
        assert_eq!(similar_names("PROCESES"), ": did you mean `processes`?");
        assert_eq!(similar_names("fiels"), ": did you mean `files`?");
        assert_eq!(similar_names("x"), "");
    }
}
