//! First pass over a trace: collects its regions.

use super::io::RegionIo;
use super::scope::Span;
use super::{MOST, RegionKind};
use arrow_array::RecordBatch;
use miot_proto::op;
use miot_trace_events::{Event, EventNames, Events, IdMap, message};
use miot_trace_store::FileNames;

/// Regions of one name, or with the same attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowName {
    pub(super) region: String,
    /// Attributes, in rows of single regions.
    pub(super) attributes: Option<String>,
    pub(super) kind: RegionKind,
}

/// Name and attributes of a region as ids of files, and its number.
type RowKey = (Option<u64>, Option<u64>, Option<i64>);

/// Returns the attributes of a region as text.
fn attributes_of(text: &str, number: Option<i64>) -> String {
    message::attributes("app", "region", Some(text), number).unwrap_or_default()
}

/// Collects the regions of a trace.
#[derive(Debug, Default)]
pub struct RegionSpans {
    events: EventNames,
    /// Name of the regions that get a row for each value of their attributes.
    by: Option<String>,
    names: Vec<RowName>,
    rows: IdMap<RowKey, u32>,
    /// By process and thread.
    threads: IdMap<(u64, u32), Vec<Span>>,
    count: u64,
    left_out: u64,
}

impl RegionSpans {
    /// Returns a collector. Regions with the name `by` get a row for each value of their
    /// attributes.
    #[must_use]
    pub fn new(by: Option<String>) -> RegionSpans {
        RegionSpans { by, ..RegionSpans::default() }
    }

    /// Adds events, with the names of regions among the names of files. A batch without
    /// [`miot_trace_events::events::FILE_COLUMNS`] adds nothing.
    pub fn add(&mut self, batch: &RecordBatch, paths: &FileNames) {
        let mut names = std::mem::take(&mut self.events);
        if let Some(mut events) = Events::of(batch, &mut names) {
            for row in 0..events.rows() {
                if events.layer(row) == Some(op::Layer::App) {
                    self.event(&events.get(row), paths);
                }
            }
        }
        self.events = names;
    }

    /// Adds an event.
    pub fn event(&mut self, event: &Event, paths: &FileNames) {
        if event.info.is_none_or(|info| info.op != op::app::REGION) {
            return;
        }
        self.count += 1;
        if self.count > MOST {
            self.left_out += 1;
            return;
        }
        let row = self.row(event, paths);
        let kind = self.names[row as usize].kind;
        // The thread that began it.
        let thread = event.caller.unwrap_or(event.tid);
        let span = Span { begin: event.begin, end: event.end, row, kind };
        self.threads.entry((event.process, thread)).or_default().push(span);
    }

    fn row(&mut self, event: &Event, paths: &FileNames) -> u32 {
        let path = |file: Option<u64>| file.and_then(|file| paths.get(file)).unwrap_or_default();
        let name = path(event.file);
        let is_single = self.by.as_deref() == Some(name);
        let key = (event.file, event.file2, event.arg.filter(|_| is_single));
        if let Some(row) = self.rows.get(&key) {
            return *row;
        }
        let attributes = path(event.file2);
        let row = RowName {
            region: name.to_owned(),
            attributes: is_single.then(|| attributes_of(attributes, event.arg)),
            kind: RegionKind::of(name, attributes),
        };
        let index = self.names.iter().position(|other| *other == row).filter(|_| !is_single);
        let index = index.unwrap_or_else(|| {
            self.names.push(row);
            self.names.len() - 1
        });
        self.rows.insert(key, index as u32);
        index as u32
    }

    /// Returns true if there are checkpoints.
    #[must_use]
    pub fn has_checkpoints(&self) -> bool {
        self.names.iter().any(|name| name.kind == RegionKind::Checkpoint)
    }

    /// Returns true if there are no regions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Ends the first pass. `processes`: batches of the table `processes`.
    #[must_use]
    pub fn finish(self, processes: &[RecordBatch]) -> RegionIo {
        RegionIo::new(self.names, self.threads, self.count, self.left_out, processes)
    }
}
