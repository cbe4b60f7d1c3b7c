//! Options that select events, shared by `cat`, `tail` and `export`.

use anyhow::Context as _;
use clap::Args;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use jiff::Timestamp;
use miot_trace_events::EventColumns;
use std::collections::HashSet;

/// Options that select events. An option with several values (repeated or separated by commas)
/// matches any of them; different options must all match.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only events of this operation, e.g. `read` or `openat`.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) op: Vec<String>,
    /// Only events of this layer: app, mpi-io, stdio, posix, fuse, client, block.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) layer: Vec<String>,
    /// Only events of files whose path (or second path) matches this glob; `*` does not match `/`,
    /// `**` does.
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Vec<String>,
    /// Only events of this process id.
    #[arg(long, value_delimiter = ',', value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Only events of this node.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) node: Vec<String>,
    /// Only events completed at or after this time, e.g. 2026-11-21T12:00:00Z, or an age such as
    /// 10m, 90s, 2h, 1d.
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only events completed before this time or age.
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
}

/// Parses a point in time, or an age.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
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
pub(crate) fn nanoseconds(time: Timestamp) -> i64 {
    time.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Compiled filter.
#[derive(Debug)]
pub(crate) struct Matcher {
    filter: Filter,
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

impl Filter {
    /// Returns true if all events match.
    pub(crate) fn is_empty(&self) -> bool {
        let Filter { op, layer, path, pid, node, since, until } = self;
        let names = [op, layer, path, node];
        names.iter().all(|names| names.is_empty()) && pid.is_empty() && since.is_none() && until.is_none()
    }

    /// Compiles the filter; checks names and globs.
    pub(crate) fn matcher(&self) -> anyhow::Result<Matcher> {
        for name in &self.layer {
            let known = miot_proto::op::Layer::from_name(name);
            known.with_context(|| format!("--layer {name}: no such layer; there are app, mpi-io, stdio, posix, fuse, client and block"))?;
        }
        for name in &self.op {
            let known = miot_proto::op::all_operations().any(|row| row.name == name);
            anyhow::ensure!(known, "--op {name}: no such operation; `miot stat DIR` lists those in a trace");
        }
        let mut globs = GlobSetBuilder::new();
        for glob in &self.path {
            globs.add(
                GlobBuilder::new(glob)
                    .literal_separator(true)
                    .build()
                    .with_context(|| format!("--path {glob}"))?,
            );
        }
        Ok(Matcher {
            paths: if self.path.is_empty() { None } else { Some(globs.build()?) },
            processes: None,
            since: self.since.map_or(i64::MIN, nanoseconds),
            until: self.until.map_or(i64::MAX, nanoseconds),
            filter: self.clone(),
        })
    }
}

impl Matcher {
    /// Restricts the filter to these processes of the trace.
    pub(crate) fn of_processes(self, processes: HashSet<u64>) -> Matcher {
        Matcher { processes: Some(processes), ..self }
    }

    /// Returns whether the globs match a path, independently of the other options.
    pub(crate) fn matches_path(&self, path: &str) -> bool {
        self.paths.as_ref().is_none_or(|globs| globs.is_match(path))
    }

    /// Returns whether the filter selects an event of a batch.
    pub(crate) fn matches_row(&self, columns: &EventColumns<'_>, row: usize) -> bool {
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
    pub(crate) fn rows(&self) -> impl Fn(&EventColumns<'_>, usize) -> bool {
        |columns, row| self.matches_row(columns, row)
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
            (Filter::default(), true),
            (Filter { op: vec!["write".into(), "read".into()], pid: vec![7], ..Filter::default() }, true),
            (Filter { op: vec!["write".into()], ..Filter::default() }, false),
            (Filter { path: vec!["/data/*".into()], ..Filter::default() }, false),
            (Filter { path: vec!["/data/**".into()], ..Filter::default() }, true),
            (Filter { path: vec!["**/*.dat".into()], node: vec!["n2".into()], ..Filter::default() }, false),
            (
                Filter {
                    until: Some("1970-01-01T00:00:00.000000005Z".parse().unwrap()),
                    ..Filter::default()
                },
                false,
            ),
            (
                Filter {
                    since: Some("1970-01-01T00:00:00.000000005Z".parse().unwrap()),
                    ..Filter::default()
                },
                true,
            ),
        ];
        for (filter, expected) in cases {
            assert_eq!(filter.matcher().unwrap().matches(&event()), expected, "{filter:?}");
        }
    }

    #[test]
    fn misspelled_name_is_an_error() {
        assert!(Filter { op: vec!["raed".into()], ..Filter::default() }.matcher().is_err());
        assert!(Filter { layer: vec!["posx".into()], ..Filter::default() }.matcher().is_err());
        assert!(Filter { path: vec!["a[".into()], ..Filter::default() }.matcher().is_err());
    }

    #[test]
    fn processes_are_selected_by_number() {
        let of =
            |ids: &[u64]| Filter::default().matcher().unwrap().of_processes(ids.iter().copied().collect());
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
