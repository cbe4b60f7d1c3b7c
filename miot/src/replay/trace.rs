//! Converts the requests of a trace to steps.

use super::ReplayTask;
use crate::source::Source;
use anyhow::{Context as _, ensure};
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, BinaryArray, PrimitiveArray, cast::AsArray as _};
use miot_proto::event::flag;
use miot_proto::op::{Layer, OpClass};
use miot_trace_analysis::Missing;
use miot_trace_events::events::COLUMNS;
use miot_trace_events::{Event, EventNames, Events};
use miot_trace_store::schema::{column, text};
use miot_trace_store::{FileNames, Reader, Table};
use miot_workload::replay::{
    InitialFiles, Planner, ReplayMethod, ReplayStep, TracedProcess, path_below_root, replay_method,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Directories of kernel interfaces, which hold no user files.
const OF_THE_SYSTEM: [&[u8]; 3] = [b"/dev/", b"/proc/", b"/sys/"];
const IN_MEMORY: &[u8] = b"/dev/shm/";

pub(super) fn task(source: &Source) -> anyhow::Result<ReplayTask> {
    let reader = source.open()?;
    let missing = Missing::of(&reader.table(Table::Losses)?);
    let mut steps = Steps { names: Paths::of(&reader)?, who: who(&reader)?, ..Steps::default() };
    let within = steps.inner(source, &reader)?;
    let (mut planner, mut needs) = (Planner::new().context("cannot plan")?, InitialFiles::default());
    let mut names = EventNames::default();
    for batch in source.scan(&reader, &[COLUMNS, &["offset2"]].concat())? {
        let batch = batch?;
        let offsets2: Option<PrimitiveArray<Int64Type>> = column(&batch, "offset2");
        let Some(events) = Events::of(&batch, &mut names) else { continue };
        for (row, event) in events.enumerate().filter(|(_, event)| is_of_libc(event)) {
            if event.enclosing.is_some_and(|parent| within.contains(&(event.stream, parent))) {
                continue;
            }
            let offset2 =
                offsets2.as_ref().filter(|column| column.is_valid(row)).map(|column| column.value(row));
            let Some(step) = steps.of(&event, offset2) else { continue };
            let unknown =
                TracedProcess { process: event.process, pid: event.pid, ..TracedProcess::default() };
            let who = steps.who.get(&event.process).unwrap_or(&unknown);
            needs.add(event.process, &step);
            planner.add(who, event.tid, step).context("cannot write the plan")?;
        }
    }
    let plan = planner.finish().context("cannot write the plan")?;
    ensure!(
        plan.steps > 0,
        "{} has nothing to replay: no requests of the layers posix and stdio on files; see `miot stat --by layer`",
        source.dir.display()
    );
    let Steps { not_replayed, made_otherwise, .. } = steps;
    Ok(ReplayTask { plan, needs, not_replayed, made_otherwise, missing })
}

fn is_of_libc(event: &Event) -> bool {
    matches!(event.layer, Some(Layer::Posix | Layer::Stdio))
}

fn who(reader: &Reader) -> anyhow::Result<HashMap<u64, TracedProcess>> {
    let mut all = HashMap::new();
    for batch in reader.table(Table::Processes)? {
        let process = column::<UInt64Type>(&batch, "process");
        let pid = column::<UInt32Type>(&batch, "pid");
        if let (Some(process), Some(pid), Some(words)) = (process, pid, text(&batch, "cmdline")) {
            all.extend((0..batch.num_rows()).map(|row| {
                let command = words.value(row).to_owned();
                (
                    process.value(row),
                    TracedProcess { process: process.value(row), pid: pid.value(row), command },
                )
            }));
        }
    }
    Ok(all)
}

/// Paths of a trace as bytes.
#[derive(Default)]
struct Paths {
    names: FileNames,
    /// Paths that are not UTF-8.
    raw: HashMap<u64, Vec<u8>>,
}

impl Paths {
    fn of(reader: &Reader) -> anyhow::Result<Paths> {
        let mut raw = HashMap::new();
        for batch in reader.table(Table::Files)? {
            let bytes: Option<&BinaryArray> =
                batch.column_by_name("path_raw").and_then(|column| column.as_binary_opt::<i32>());
            if let (Some(ids), Some(bytes)) = (column::<UInt64Type>(&batch, "file"), bytes) {
                let not_text = (0..batch.num_rows()).filter(|row| bytes.is_valid(*row));
                raw.extend(not_text.map(|row| (ids.value(row), bytes.value(row).to_vec())));
            }
        }
        Ok(Paths { names: reader.files()?, raw })
    }

    fn get(&self, file: Option<u64>) -> Option<Vec<u8>> {
        let file = file?;
        self.raw.get(&file).cloned().or_else(|| Some(self.names.get(file)?.as_bytes().to_vec()))
    }
}

/// Converts events to steps, and counts events that cannot be converted.
#[derive(Default)]
struct Steps {
    names: Paths,
    who: HashMap<u64, TracedProcess>,
    /// Start of the first step of the trace.
    first: i64,
    not_replayed: BTreeMap<String, u64>,
    made_otherwise: BTreeMap<String, u64>,
}

impl Steps {
    /// Returns the libc requests nested in other requests, which the replay causes implicitly. Also
    /// finds the start of the first step.
    fn inner(&mut self, source: &Source, reader: &Reader) -> anyhow::Result<HashSet<(u64, u32)>> {
        let (mut wanted, mut found) = (HashSet::new(), HashSet::new());
        let mut names = EventNames::default();
        self.first = i64::MAX;
        for batch in source.scan(reader, COLUMNS)? {
            let batch = batch?;
            let Some(events) = Events::of(&batch, &mut names) else { continue };
            for event in events.filter(is_of_libc) {
                if let Some(parent) = event.enclosing {
                    wanted.insert((event.stream, parent));
                }
                if wanted.contains(&(event.stream, event.request)) {
                    found.insert((event.stream, event.request));
                }
                if self.reason_against(&event).is_none() {
                    self.first = self.first.min(event.begin);
                }
            }
        }
        Ok(found)
    }

    /// Returns why an event cannot be replayed.
    fn reason_against(&self, event: &Event) -> Option<String> {
        let Some(info) = event.info else { return Some("unknown to this version".into()) };
        if event.interrupted()
            || event.flags & flag::ASYNC != 0 && event.result == -i64::from(libc::EINPROGRESS)
        {
            return Some(format!("{}: its end was not recorded", info.name));
        }
        if event.flags & flag::PATH_CUT != 0 {
            return Some(format!("{}: its path is truncated", info.name));
        }
        if let ReplayMethod::Unsupported(why) = replay_method(info) {
            return Some(format!("{}: {why}", info.name));
        }
        match self.names.get(event.file) {
            Some(path) => {
                let outside = OF_THE_SYSTEM.iter().any(|prefix| path.starts_with(prefix));
                let in_memory = path.starts_with(IN_MEMORY) || path == b"/dev/shm";
                (outside && !in_memory).then(|| format!("{}: a file of the system", info.name))
            }
            None if matches!(info.name, "sync" | "close_range")
                || info.name == "fflush" && event.handle.is_none() =>
            {
                None
            }
            None if info.class == OpClass::Copy && event.file2.is_some() => {
                Some(format!("{}: its copy target is not a file", info.name))
            }
            None => Some(format!("{}: its file is unknown", info.name)),
        }
    }

    fn of(&mut self, event: &Event, offset2: Option<i64>) -> Option<ReplayStep> {
        if let Some(why) = self.reason_against(event) {
            *self.not_replayed.entry(why).or_default() += 1;
            return None;
        }
        let info = event.info?;
        if let ReplayMethod::OtherCall(other) = replay_method(info) {
            *self.made_otherwise.entry(format!("{} by {other}", info.name)).or_default() += 1;
        }
        let first = self.names.get(event.file);
        let second = self.names.get(event.file2);
        let (path, path2) = match info.name {
            "symlink" | "symlinkat" => (
                first.map(|text| target(&text, second.as_deref())),
                second.map(|name| path_below_root(&name)),
            ),
            name if name.contains("xattr") => (first.map(|name| path_below_root(&name)), second),
            _ => (first.map(|name| path_below_root(&name)), second.map(|name| path_below_root(&name))),
        };
        Some(ReplayStep {
            op: (info.op.layer, info.op.number),
            handle: event.handle.unwrap_or(0),
            path,
            path2,
            offset: event.offset,
            offset2,
            length: event.length,
            arg: event.arg.unwrap_or(0),
            flags: event.flags,
            result: event.result,
            begin: event.begin.saturating_sub(self.first),
            end: event.end.saturating_sub(self.first),
            ..ReplayStep::default()
        })
    }
}

/// Returns the target of a symbolic link below the directory.
fn target(text: &[u8], link: Option<&[u8]>) -> Vec<u8> {
    if text.starts_with(b"/") {
        return path_below_root(text);
    }
    let link = link.unwrap_or_default();
    let directory = link.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &link[..end]);
    path_below_root(&[directory, b"/", text].concat())
}
