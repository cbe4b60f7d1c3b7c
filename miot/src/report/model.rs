//! What is on the page, as figures.

use crate::source::Source;
use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use miot_proto::op::Class;
use miot_trace_analysis::events::{COLUMNS, Event, Events, Names};
use miot_trace_analysis::offsets::{Accesses, Grid};
use miot_trace_analysis::timeline::{Course, Timeline};
use miot_trace_analysis::{Outermost, Report, Summary};
use miot_trace_store::clocks::{errors, pieces};
use miot_trace_store::{Reader, Removed, Table};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Files whose accesses are shown over time.
const SHOWN_FILES: usize = 8;
/// So many files have a grid from the start, 32 KiB each; if others move more bytes, the trace is read once more.
const GRIDS: usize = 512;

/// The figures of the page. Times are nanoseconds since 1970, durations nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    /// The trace directory.
    pub(super) trace: String,
    /// Version of the tool.
    pub(super) version: &'static str,
    /// Options `--since` and `--until`.
    pub(super) since: Option<i64>,
    pub(super) until: Option<i64>,
    /// As `miot stat --format json` has it.
    pub(super) summary: Report,
    pub(super) course: Course,
    /// Files that moved the most bytes.
    pub(super) accesses: Vec<FileAccesses>,
    /// By node.
    pub(super) nodes: Vec<Group>,
    /// By job; none if no process has one.
    pub(super) jobs: Vec<Group>,
    pub(super) clocks: Vec<Clock>,
    /// Parts of the trace that retention had removed.
    pub(super) removed: Option<String>,
}

/// Where in a file outermost requests were.
#[derive(Debug, Serialize)]
pub(super) struct FileAccesses {
    pub(super) file: u64,
    pub(super) path: String,
    /// Read and written.
    pub(super) bytes: u64,
    #[serde(flatten)]
    pub(super) accesses: Accesses,
}

/// What the processes of a node or job did.
#[derive(Debug, Default, Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    /// Users that they ran as.
    pub(super) users: BTreeSet<String>,
    pub(super) processes: u64,
    pub(super) requests: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) time: u64,
}

/// How good the times of a node are.
#[derive(Debug, Serialize)]
pub(super) struct Clock {
    pub(super) node: String,
    /// Times are at most so wrong; none: nothing is known.
    pub(super) uncertainty: Option<i64>,
    /// The largest standard error.
    pub(super) estimated_error: Option<i64>,
    /// Steps of the clock that were seen.
    pub(super) steps: u64,
}

/// What a file's requests are remembered by while the trace is read.
#[derive(Debug, Default)]
struct Moved {
    bytes: u64,
    grid: Option<Grid>,
}

#[derive(Debug, Default)]
struct Files {
    by_id: HashMap<u64, Moved>,
    grids: usize,
}

impl Files {
    fn add(&mut self, event: &Event) {
        let is_data = matches!(event.class(), Class::Read | Class::Write | Class::Copy);
        let (Some(file), true, moved @ 1..) = (event.file, is_data, event.moved()) else { return };
        let of = self.by_id.entry(file).or_default();
        of.bytes = of.bytes.saturating_add(moved);
        if of.grid.is_some() || self.grids < GRIDS {
            let before = of.grid.is_some();
            Grid::add(&mut of.grid, event);
            self.grids += usize::from(!before && of.grid.is_some());
        }
    }

    /// Files that moved the most bytes.
    fn top(&self) -> Vec<u64> {
        let mut all: Vec<_> =
            self.by_id.iter().map(|(file, of)| (std::cmp::Reverse(of.bytes), *file)).collect();
        let top = SHOWN_FILES.min(all.len());
        if top < all.len() {
            all.select_nth_unstable(top);
        }
        all.truncate(top);
        all.sort_unstable();
        all.into_iter().map(|(_, file)| file).collect()
    }
}

/// Reads a trace.
pub(super) fn gather(source: &Source, rows: usize) -> anyhow::Result<Model> {
    let reader = source.open()?;
    let (mut summary, mut timeline, mut files) = (Summary::new(), Timeline::default(), Files::default());
    each(source, &reader, &mut |batch| summary.add(batch), &mut |event, outermost| {
        timeline.add(event, outermost);
        if outermost {
            files.add(event);
        }
    })?;
    for losses in reader.table(Table::Losses)? {
        summary.add_losses(&losses);
    }
    let top = files.top();
    if top.iter().any(|file| files.by_id[file].grid.is_none()) {
        top.iter().for_each(|file| {
            if let Some(of) = files.by_id.get_mut(file) {
                of.grid = None
            }
        });
        each(source, &reader, &mut |_| (), &mut |event, outermost| {
            if outermost
                && event.file.is_some_and(|file| top.contains(&file))
                && let Some(of) = event.file.and_then(|file| files.by_id.get_mut(&file))
            {
                Grid::add(&mut of.grid, event);
            }
        })?;
    }
    let names = reader.files()?;
    let accesses = top.iter().filter_map(|file| {
        let of = files.by_id.get(file)?;
        let path = names.get(*file).unwrap_or_default().to_owned();
        Some(FileAccesses { file: *file, path, bytes: of.bytes, accesses: of.grid.as_ref()?.finish() })
    });
    let accesses = accesses.collect();
    let processes = reader.table(Table::Processes)?;
    let mut summary = summary.finish(&names, &processes, rows);
    let (nodes, jobs) = groups(&summary, &processes);
    summary.processes.truncate(rows);
    let times = summary.totals.begin..summary.totals.end.saturating_add(1);
    Ok(Model {
        trace: source.dir.display().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        since: source.since.map(crate::filter::nanoseconds),
        until: source.until.map(crate::filter::nanoseconds),
        course: timeline.finish(),
        accesses,
        nodes,
        jobs,
        clocks: clocks(&reader.table(Table::Clocks)?, &times),
        removed: Some(reader.removed()?).filter(|removed: &Removed| removed.parts > 0).map(|r| r.to_string()),
        summary,
    })
}

/// Goes through the events, and says of each whether it is an outermost request.
fn each(
    source: &Source,
    reader: &Reader,
    batches: &mut dyn FnMut(&RecordBatch),
    events: &mut dyn FnMut(&Event, bool),
) -> anyhow::Result<()> {
    let (mut names, mut outermost) = (Names::default(), Outermost::default());
    for batch in source.scan(reader, COLUMNS)? {
        let batch = batch?;
        batches(&batch);
        for event in Events::of(&batch, &mut names).into_iter().flatten() {
            events(&event, outermost.is(&event));
        }
    }
    Ok(())
}

/// What processes did, by node and by job.
fn groups(summary: &Report, processes: &[RecordBatch]) -> (Vec<Group>, Vec<Group>) {
    let facts = jobs_of(processes);
    let (mut nodes, mut jobs) = (BTreeMap::<String, Group>::new(), BTreeMap::<String, Group>::new());
    for row in &summary.processes {
        let node = nodes.entry(row.node.clone()).or_default();
        let job = facts.get(&row.process);
        let user = job.and_then(|(_, user)| user.clone());
        let job = job.and_then(|(job, _)| job.clone()).map(|job| jobs.entry(job).or_default());
        for group in [Some(node), job].into_iter().flatten() {
            group.processes += 1;
            group.users.extend(user.clone());
            group.requests += row.requests;
            group.bytes_read = group.bytes_read.saturating_add(row.bytes_read);
            group.bytes_written = group.bytes_written.saturating_add(row.bytes_written);
            group.time = group.time.saturating_add(row.time);
        }
    }
    let rows = |groups: BTreeMap<String, Group>| {
        let named = groups.into_iter().map(|(name, group)| Group { name, ..group });
        let mut rows: Vec<_> = named.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        rows
    };
    (rows(nodes), rows(jobs))
}

type JobAndUser = (Option<String>, Option<String>);

fn jobs_of(processes: &[RecordBatch]) -> HashMap<u64, JobAndUser> {
    let mut facts = HashMap::new();
    for batch in processes {
        let Some(ids) = batch.column_by_name("process").and_then(|ids| ids.as_primitive_opt::<UInt64Type>())
        else {
            continue;
        };
        let texts =
            ["job", "user"].map(|name| batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>()));
        facts.extend((0..batch.num_rows()).map(|row| {
            let [job, user] =
                texts.map(|text| text.filter(|t| t.is_valid(row)).map(|t| t.value(row).to_owned()));
            (ids.value(row), (job, user))
        }));
    }
    facts
}

/// The worst of each node in a time.
fn clocks(batches: &[RecordBatch], times: &Range<i64>) -> Vec<Clock> {
    let mut nodes = BTreeMap::<String, (Option<Clock>, Clock)>::new();
    let nothing =
        |node: &str| Clock { node: node.to_owned(), uncertainty: Some(0), estimated_error: None, steps: 0 };
    for batch in batches {
        let texts =
            ["node", "reason"].map(|name| batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>()));
        let [Some(names), reasons] = texts else { continue };
        for (row, (piece, error)) in pieces(batch).into_iter().zip(errors(batch)).enumerate() {
            if piece.time >= times.end {
                continue;
            }
            let name = names.value(row);
            let step = reasons.is_some_and(|reasons| reasons.value(row) == "step");
            let known = error.uncertainty < i64::MAX;
            let this = Clock {
                node: name.to_owned(),
                uncertainty: known.then_some(error.uncertainty),
                estimated_error: error.estimated.filter(|_| known),
                steps: u64::from(step),
            };
            let (before, worst) = nodes.entry(name.to_owned()).or_insert_with(|| (None, nothing(name)));
            // A piece holds until the next one, so the last of those before the time is the first within it.
            if piece.time <= times.start {
                *before = Some(Clock { steps: 0, ..this });
            } else {
                join(worst, this);
            }
        }
    }
    let worst = nodes.into_values().map(|(before, mut worst)| {
        before.into_iter().for_each(|before| join(&mut worst, before));
        worst
    });
    worst.collect()
}

fn join(worst: &mut Clock, other: Clock) {
    worst.uncertainty = worst.uncertainty.zip(other.uncertainty).map(|(a, b)| a.max(b));
    worst.estimated_error = worst.estimated_error.max(other.estimated_error);
    worst.steps += other.steps;
}
