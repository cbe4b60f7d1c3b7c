//! Explains errors in queries, with suggestions.

use crate::{catalog, views};
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use std::fmt::Write as _;

/// Functions and clauses of other databases, and what stands for them here.
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

/// What was done wrong, in words, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) text: String,
    /// The SQL is wrong, not the trace.
    pub(crate) is_sql: bool,
}

/// Says what an error means.
pub(crate) fn explain(error: &DataFusionError) -> Explained {
    let root = error.find_root();
    let said = root.strip_backtrace();
    let said = said.split_once(": ").map_or(said.as_str(), |(_, said)| said);
    let sql = |text: String| Explained { text, is_sql: true };
    match root {
        DataFusionError::SchemaError(schema, _) => sql(columns(schema, said)),
        DataFusionError::Plan(plan) => sql(planned(plan)),
        DataFusionError::SQL(parser, _) => sql(format!(
            "the SQL cannot be read: {}",
            first_line(&parser.to_string().replace("sql parser error: ", ""))
        )),
        DataFusionError::NotImplemented(_) => sql(format!("not supported: {said}")),
        DataFusionError::ResourcesExhausted(_) => Explained {
            text: format!(
                "not enough memory: {}\ngive more with --memory-limit, or ask for less: fewer groups, a shorter time",
                first_line(said)
            ),
            is_sql: false,
        },
        DataFusionError::ObjectStore(found) if matches!(**found, object_store::Error::NotFound { .. }) => {
            Explained {
                text: format!("{}\na part is missing; `miot fsck` says what else is wrong", found),
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

fn columns(error: &SchemaError, said: &str) -> String {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let mut names: Vec<&str> = valid_fields.iter().map(Column::name).collect();
            names.dedup();
            let mut text = format!("there is no column `{}`", field.flat_name());
            let close = near(field.name(), names.iter().copied());
            if !close.is_empty() {
                text += &close;
            } else if views::JOINED.contains(&field.name()) && !names.contains(&field.name()) {
                let _ = write!(text, ": view io has `{}`", field.name());
            } else {
                text += "; text stands between single quotes: 'read'";
            }
            if !names.is_empty() {
                let _ = write!(text, "\ncolumns here: {}", names.join(" "));
            }
            text
        }
        SchemaError::AmbiguousReference { field } => {
            format!("several tables have a column `{0}`: say which one, such as e.{0}", field.name())
        }
        SchemaError::DuplicateUnqualifiedField { .. } | SchemaError::DuplicateQualifiedField { .. } => {
            format!(
                "{said}\na CAST is no part of a name: give one of them another name in a query within, FROM (SELECT CAST(time AS BIGINT) AS t FROM events)"
            )
        }
    }
}

fn planned(said: &str) -> String {
    let said = first_line(said);
    if let Some(name) = said.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found")) {
        let name = name.rsplit('.').next().unwrap_or(name);
        let file = ["parquet", "arrows", "csv"].iter().any(|ending| said.contains(ending));
        let mut text = format!("there is no table `{name}`{}", near(name, catalog::names()));
        let _ = write!(text, "\ntables and views: {}", catalog::names().collect::<Vec<_>>().join(" "));
        if file {
            text += "\nfiles are not named in the query: the trace is given before it, miot query TRACE 'SELECT … FROM events'";
        }
        return text;
    }
    let function = said.strip_prefix("Invalid function '").or_else(|| said.strip_prefix("table function '"));
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
    if said.starts_with("DDL not supported") || said.starts_with("DML not supported") {
        return format!("{said}: a trace is only read; -o FILE with --format writes what a query gives");
    }
    if said.contains("Timestamp") && (said.contains("Int64") || said.contains("coerce")) {
        return format!(
            "{said}\ntimes: time > '2026-11-22T12:00:00Z', time - INTERVAL '1 minute', CAST(time AS BIGINT) for nanoseconds"
        );
    }
    said.to_owned()
}

/// Which names were perhaps meant.
fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
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
    use super::near;

    #[test]
    fn names_that_are_close_are_offered() {
        let near = |name| near(name, ["events", "processes", "files", "file_stats"].into_iter());
        assert_eq!(near("event"), ": did you mean `events`?");
        assert_eq!(near("PROCESES"), ": did you mean `processes`?");
        assert_eq!(near("fiels"), ": did you mean `files`?");
        assert_eq!(near("x"), "");
    }
}
