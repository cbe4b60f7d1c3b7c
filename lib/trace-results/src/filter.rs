//! Selection of events by operation, layer, path, node, process and time.

use crate::Error;
use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, BooleanArray};
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use jiff::Timestamp;
use miot_trace_events::EventColumns;
use miot_trace_events::columns::TextColumn;
use miot_trace_store::schema::column;
use miot_trace_store::{Reader, Table};
use std::collections::HashSet;
use std::ops::Range;

/// Values that select events. Of several values any may match; different fields must all match.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Names of operations, e.g. `read`.
    pub op: Vec<String>,
    /// Names of layers.
    pub layer: Vec<String>,
    /// Globs of the path or the second path; `*` does not match `/`, `**` does.
    pub path: Vec<String>,
    /// Process ids.
    pub pid: Vec<u32>,
    /// Names of nodes.
    pub node: Vec<String>,
    /// Only events completed at or after this time, nanoseconds since 1970.
    pub since: Option<i64>,
    /// Only events completed before this time.
    pub until: Option<i64>,
}

/// Parses a point in time, or an age.
///
/// # Errors
/// A text for the user.
pub fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    // In an age, `m` means minutes.
    let minutes = text.strip_suffix('m').map(|number| format!("{number}min"));
    let ago = miot_proto::units::parse_duration(minutes.as_deref().unwrap_or(text));
    let ago =
        ago.map_err(|_| "expected a time such as 2026-11-21T12:00:00Z, or an age such as 10m, 90s, 2h, 1d")?;
    Timestamp::now().checked_sub(ago).map_err(|error| error.to_string())
}

/// Returns nanoseconds since 1970, as in a trace. Times out of range are clamped.
#[must_use]
pub fn nanoseconds(time: Timestamp) -> i64 {
    time.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Compiled filter.
#[derive(Clone, Debug)]
pub struct Matcher {
    filter: EventFilter,
    paths: Option<GlobSet>,
    /// Only events of these processes of the trace.
    processes: Option<HashSet<u64>>,
    since: i64,
    until: i64,
}

/// The values of an event that a matcher reads.
struct Candidate<'a> {
    time: i64,
    op: &'a str,
    layer: &'a str,
    node: &'a str,
    pid: u32,
    process: u64,
    paths: [Option<&'a str>; 2],
}

impl EventFilter {
    /// Compiles the filter.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown name, or a glob that is not valid.
    pub fn matcher(&self) -> Result<Matcher, Error> {
        for name in &self.layer {
            if miot_proto::op::Layer::from_name(name).is_none() {
                return Err(Error::Option(format!(
                    "--layer {name}: no such layer; there are app, mpi-io, stdio, posix, fuse, client and block"
                )));
            }
        }
        for name in &self.op {
            if !miot_proto::op::all_operations().any(|row| row.name == name) {
                return Err(Error::Option(format!(
                    "--op {name}: no such operation; `miot stat DIR` lists those in a trace"
                )));
            }
        }
        let mut globs = GlobSetBuilder::new();
        for glob in &self.path {
            globs.add(compiled(glob)?);
        }
        let globs = globs.build().map_err(|error| Error::Option(error.to_string()))?;
        Ok(Matcher {
            paths: (!self.path.is_empty()).then_some(globs),
            processes: None,
            since: self.since.unwrap_or(i64::MIN),
            until: self.until.unwrap_or(i64::MAX),
            filter: self.clone(),
        })
    }
}

/// Compiles a glob of paths.
pub(crate) fn compiled(glob: &str) -> Result<Glob, Error> {
    let built = GlobBuilder::new(glob).literal_separator(true).build();
    built.map_err(|error| Error::Option(Error::chain(&format!("--path {glob}"), &error)))
}

/// Returns the numbers of the processes of these jobs.
///
/// # Errors
/// [`Error::Trace`].
pub fn of_jobs(reader: &Reader, wanted: &[String]) -> Result<HashSet<u64>, Error> {
    let mut found = HashSet::new();
    for batch in reader.batches(Table::Processes) {
        let batch = batch?;
        let ids = column::<UInt64Type>(&batch, "process");
        let jobs = batch.column_by_name("job").and_then(|c| c.as_string_opt::<i32>());
        if let (Some(ids), Some(jobs)) = (ids, jobs) {
            let rows = 0..batch.num_rows();
            let is_wanted =
                |row: &usize| jobs.is_valid(*row) && wanted.iter().any(|id| id == jobs.value(*row));
            found.extend(rows.filter(is_wanted).map(|row| ids.value(row)));
        }
    }
    Ok(found)
}

impl Matcher {
    /// Restricts the filter to these processes of the trace.
    #[must_use]
    pub fn of_processes(self, processes: HashSet<u64>) -> Matcher {
        Matcher { processes: Some(processes), ..self }
    }

    /// Returns whether the globs match a path, independently of the other options.
    #[must_use]
    pub fn matches_path(&self, path: &str) -> bool {
        self.paths.as_ref().is_none_or(|globs| globs.is_match(path))
    }

    /// Returns whether the filter selects an event of a batch.
    #[must_use]
    pub fn matches_row(&self, columns: &EventColumns<'_>, row: usize) -> bool {
        self.matches(&Candidate {
            time: columns.time.value(row),
            op: columns.op.value(row),
            layer: columns.layer.value(row),
            node: columns.node.value(row),
            pid: columns.pid.value(row),
            process: columns.process.value(row),
            paths: [columns.path.get(row), columns.path2.get(row)],
        })
    }

    /// Returns [`Matcher::matches_row`] as a closure for [`miot_trace_events::RowPrinter::print`].
    pub fn rows(&self) -> impl Fn(&EventColumns<'_>, usize) -> bool {
        |columns, row| self.matches_row(columns, row)
    }

    /// Returns the selected times.
    #[must_use]
    pub fn times(&self) -> Range<i64> {
        self.since..self.until
    }

    /// Returns whether the filter selects events by path.
    #[must_use]
    pub fn has_paths(&self) -> bool {
        self.paths.is_some()
    }

    /// Returns whether the filter selects events by anything but their time.
    #[must_use]
    pub fn is_selective(&self) -> bool {
        let filter = &self.filter;
        !(filter.op.is_empty() && filter.layer.is_empty() && filter.node.is_empty() && filter.pid.is_empty())
            || self.paths.is_some()
            || self.processes.is_some()
    }

    /// Returns the selected rows of a batch without the columns `path` and `path2`: `files` are the
    /// files whose path matches.
    pub(crate) fn mask(&self, columns: &EventColumns<'_>, files: Option<&HashSet<u64>>) -> BooleanArray {
        let named = |wanted: &[String], column: &TextColumn<'_>| {
            (!wanted.is_empty()).then(|| column.matching(|name| wanted.iter().any(|w| w == name)))
        };
        let filter = &self.filter;
        let names = [
            named(&filter.op, &columns.op),
            named(&filter.layer, &columns.layer),
            named(&filter.node, &columns.node),
        ];
        let of_file = |file: Option<u64>| file.is_some_and(|file| files.is_some_and(|f| f.contains(&file)));
        let wanted = |row: usize| {
            names.iter().flatten().all(|mask| mask.get(row).is_some_and(|wanted| *wanted))
                && (filter.pid.is_empty() || filter.pid.contains(&columns.pid.value(row)))
                && self.processes.as_ref().is_none_or(|of| of.contains(&columns.process.value(row)))
                && (files.is_none() || of_file(columns.file.get(row)) || of_file(columns.file2.get(row)))
        };
        (0..columns.rows()).map(|row| Some(wanted(row))).collect()
    }

    fn matches(&self, event: &Candidate<'_>) -> bool {
        let named = |wanted: &[String], name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
        (self.since..self.until).contains(&event.time)
            && named(&self.filter.op, event.op)
            && named(&self.filter.layer, event.layer)
            && named(&self.filter.node, event.node)
            && (self.filter.pid.is_empty() || self.filter.pid.contains(&event.pid))
            && self.processes.as_ref().is_none_or(|wanted| wanted.contains(&event.process))
            && self.paths.as_ref().is_none_or(|globs| event.paths.iter().flatten().any(|p| globs.is_match(p)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>() -> Candidate<'a> {
        Candidate {
            time: 5,
            op: "read",
            layer: "posix",
            node: "n1",
            pid: 7,
            process: 3,
            paths: [Some("/data/a/b.dat"), None],
        }
    }

    #[test]
    fn all_options_and_any_value_must_match() {
        let cases = [
            (EventFilter::default(), true),
            (
                EventFilter {
                    op: vec!["write".into(), "read".into()],
                    pid: vec![7],
                    ..EventFilter::default()
                },
                true,
            ),
            (EventFilter { op: vec!["write".into()], ..EventFilter::default() }, false),
            (EventFilter { path: vec!["/data/*".into()], ..EventFilter::default() }, false),
            (EventFilter { path: vec!["/data/**".into()], ..EventFilter::default() }, true),
            (
                EventFilter {
                    path: vec!["**/*.dat".into()],
                    node: vec!["n2".into()],
                    ..EventFilter::default()
                },
                false,
            ),
            (EventFilter { until: Some(5), ..EventFilter::default() }, false),
            (EventFilter { since: Some(5), ..EventFilter::default() }, true),
        ];
        for (filter, expected) in cases {
            assert_eq!(filter.matcher().unwrap().matches(&event()), expected, "{filter:?}");
        }
    }

    #[test]
    fn misspelled_name_is_an_error() {
        assert!(EventFilter { op: vec!["raed".into()], ..EventFilter::default() }.matcher().is_err());
        assert!(EventFilter { layer: vec!["posx".into()], ..EventFilter::default() }.matcher().is_err());
        assert!(EventFilter { path: vec!["a[".into()], ..EventFilter::default() }.matcher().is_err());
    }

    #[test]
    fn processes_are_selected_by_number() {
        let of = |ids: &[u64]| {
            EventFilter::default().matcher().unwrap().of_processes(ids.iter().copied().collect())
        };
        assert!(of(&[3, 4]).matches(&event()));
        assert!(!of(&[4]).matches(&event()));
        assert!(!of(&[]).matches(&event()));
    }

    #[test]
    fn moments_are_times_or_ages() {
        assert_eq!(moment("2026-11-21T12:00:00Z").unwrap().as_second(), 1_795_262_400);
        for (text, seconds) in [("10m", 600), ("90s", 90), ("2h", 7200), ("1.5h", 5400), ("20min", 1200)] {
            let before = Timestamp::now().as_second();
            let ago = before - moment(text).unwrap().as_second();
            assert!((seconds - 60..=seconds).contains(&ago), "{text}: {ago}");
        }
        assert!(moment("yesterday").unwrap_err().contains("10m"));
        let [early, late] =
            ["0001-01-01T00:00:00Z", "9000-01-01T00:00:00Z"].map(|text| moment(text).unwrap());
        assert_eq!([early, late].map(nanoseconds), [i64::MIN, i64::MAX]);
    }
}
