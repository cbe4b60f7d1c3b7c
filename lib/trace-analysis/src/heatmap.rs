//! Heat map: bytes, requests or time of outermost requests ([`miot_trace_events::Outermost`]) by
//! rank, node, file or process, and by interval of time.
//!
//! Bytes and time are distributed evenly over the duration of a request, rounded down up to each
//! edge, so that no byte is lost or counted twice. Requests count in the interval in which they
//! completed. Two passes over the events are needed: the first finds the time range and the rows
//! with the largest totals. Memory grows with the number of rows, not with the number of events.

use crate::{column, text};
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::outermost::{OutermostEvents, each_outermost};
use miot_trace_events::{Event, IdMap};
use miot_trace_store::FileNames;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeatmapRows {
    /// MPI rank, of each job if there are several.
    Rank,
    /// Node.
    Node,
    /// File, by path.
    File,
    /// Process.
    Process,
}

/// What is summed in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeatmapFigure {
    /// Bytes read.
    ReadBytes,
    /// Bytes written.
    WriteBytes,
    /// Bytes read and written.
    Bytes,
    /// Completed requests.
    Requests,
    /// Nanoseconds in requests.
    Time,
}

/// Name of a row for requests without rank, file or node.
const NONE: &str = "(none)";
/// Name of the row of all rows beyond the maximum.
const OTHERS: &str = "(others)";

/// A heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heatmap {
    /// Begin of the first interval, nanoseconds since 1970.
    pub begin: i64,
    /// End of the last interval.
    pub end: i64,
    /// Number of intervals of equal length.
    pub bins: usize,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// Cells, row by row.
    pub values: Vec<u64>,
}

/// Assigns events to rows.
#[derive(Debug)]
struct RowIndex {
    by: HeatmapRows,
    /// Names of the processes of the trace: rank or process id.
    processes: IdMap<u64, String>,
    names: Vec<String>,
    by_name: HashMap<String, usize>,
    /// Row by process, node or file.
    by_id: IdMap<u64, usize>,
    none: Option<usize>,
}

impl RowIndex {
    fn new(by: HeatmapRows, processes: &[RecordBatch]) -> RowIndex {
        RowIndex {
            by,
            processes: process_names(by, processes),
            names: Vec::new(),
            by_name: HashMap::new(),
            by_id: IdMap::default(),
            none: None,
        }
    }

    fn named(&mut self, name: &str) -> usize {
        if let Some(row) = self.by_name.get(name) {
            return *row;
        }
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    /// Returns the row of an event.
    fn of(&mut self, event: &Event, names: &OutermostEvents, files: &FileNames) -> usize {
        let id = match self.by {
            HeatmapRows::Rank | HeatmapRows::Process => Some(event.process),
            HeatmapRows::Node => Some(u64::from(event.node)),
            HeatmapRows::File => event.file,
        };
        let Some(id) = id else {
            let row = self.none.unwrap_or_else(|| self.named(NONE));
            self.none = Some(row);
            return row;
        };
        if let Some(row) = self.by_id.get(&id) {
            return *row;
        }
        let name = match self.by {
            HeatmapRows::Rank | HeatmapRows::Process => {
                self.processes.get(&event.process).cloned().unwrap_or_else(|| NONE.to_owned())
            }
            HeatmapRows::Node => {
                let nodes = names.names.nodes();
                nodes.get(event.node as usize).map_or(NONE, |name| *name).to_owned()
            }
            HeatmapRows::File => event.file.and_then(|file| files.get(file)).unwrap_or(NONE).to_owned(),
        };
        let row = self.named(&name);
        self.by_id.insert(id, row);
        row
    }
}

/// Returns the names of processes: their rank, with the job if there are several, or process id.
fn process_names(by: HeatmapRows, processes: &[RecordBatch]) -> IdMap<u64, String> {
    let mut found: IdMap<u64, (String, String)> = IdMap::default();
    for batch in processes {
        let (Some(ids), Some(ranks), Some(pids)) = (
            column::<UInt64Type>(batch, "process"),
            column::<UInt32Type>(batch, "rank"),
            column::<UInt32Type>(batch, "pid"),
        ) else {
            continue;
        };
        let texts = |name| text(batch, name).map(|column| column.iter().map(Option::unwrap_or_default));
        let (mut jobs, mut steps) = (texts("job"), texts("job_step"));
        let (mut nodes, rows) = (texts("node"), 0..batch.num_rows());
        for row in rows {
            let (job, step, node) = (next_text(&mut jobs), next_text(&mut steps), next_text(&mut nodes));
            let (group, name) = match by {
                HeatmapRows::Rank if ranks.is_valid(row) => {
                    (format!("{job} {step}").trim().to_owned(), ranks.value(row).to_string())
                }
                HeatmapRows::Rank => continue,
                _ => (node.to_owned(), pids.value(row).to_string()),
            };
            found.insert(ids.value(row), (group, name));
        }
    }
    let groups: BTreeSet<&str> = found.values().map(|(group, _)| group.as_str()).collect();
    let several = groups.len() > 1;
    let full = |(id, (group, name)): (&u64, &(String, String))| {
        (*id, if several { format!("{group}/{name}") } else { name.clone() })
    };
    found.iter().map(full).collect()
}

fn next_text<'a>(texts: &mut Option<impl Iterator<Item = &'a str>>) -> &'a str {
    texts.as_mut().and_then(Iterator::next).unwrap_or_default()
}

/// Returns what a request adds to its row.
fn amount(figure: HeatmapFigure, event: &Event) -> u64 {
    let moved = || event.moved();
    let (read, written) = match event.class() {
        OpClass::Read => (moved(), 0),
        OpClass::Write => (0, moved()),
        OpClass::Copy => (moved(), moved()),
        OpClass::Sync | OpClass::Meta => (0, 0),
    };
    match figure {
        HeatmapFigure::ReadBytes => read,
        HeatmapFigure::WriteBytes => written,
        HeatmapFigure::Bytes => read.saturating_add(written),
        HeatmapFigure::Requests => 1,
        HeatmapFigure::Time => event.duration(),
    }
}

/// First pass: totals of the rows, and the time range.
#[derive(Debug)]
pub struct HeatmapTotals<'a> {
    events: OutermostEvents,
    figure: HeatmapFigure,
    files: &'a FileNames,
    index: RowIndex,
    totals: Vec<u64>,
    times: Option<(i64, i64)>,
}

impl<'a> HeatmapTotals<'a> {
    /// Returns a collector for the rows and the figure.
    #[must_use]
    pub fn new(
        rows: HeatmapRows,
        figure: HeatmapFigure,
        processes: &[RecordBatch],
        files: &'a FileNames,
    ) -> HeatmapTotals<'a> {
        HeatmapTotals {
            events: OutermostEvents::default(),
            figure,
            files,
            index: RowIndex::new(rows, processes),
            totals: Vec::new(),
            times: None,
        }
    }

    /// Adds events, in order.
    pub fn add(&mut self, batch: &RecordBatch) {
        let requests = outermost_requests(&mut self.events, batch);
        for event in &requests {
            let row = self.index.of(event, &self.events, self.files);
            if row >= self.totals.len() {
                self.totals.resize(row + 1, 0);
            }
            self.totals[row] = self.totals[row].saturating_add(amount(self.figure, event));
            let (begin, end) = self.times.unwrap_or((event.begin, event.end));
            self.times = Some((begin.min(event.begin), end.max(event.end)));
        }
    }

    /// Returns the collector of the cells: `bins` intervals, and at most `most` rows, those with
    /// the largest totals. The rows beyond are summed in one more row.
    #[must_use]
    pub fn finish(self, bins: usize, most: usize) -> HeatmapCells<'a> {
        let HeatmapTotals { figure, files, index, totals, times, .. } = self;
        let mut largest: Vec<usize> = (0..totals.len()).collect();
        largest.sort_by_key(|row| std::cmp::Reverse(totals[*row]));
        let others = largest.split_off(most.max(1).min(largest.len()));
        if index.by != HeatmapRows::File {
            let key = |row: &usize| {
                let name = &index.names[*row];
                let number = name.rsplit('/').next().and_then(|number| number.parse::<u64>().ok());
                let group = name.rsplit_once('/').map_or("", |(group, _)| group).to_owned();
                (name == NONE, group, number, name.clone())
            };
            largest.sort_by_cached_key(key);
        }
        let mut rows: Vec<String> = largest.iter().map(|row| index.names[*row].clone()).collect();
        let mut place = vec![0; totals.len()];
        largest.iter().enumerate().for_each(|(at, row)| place[*row] = at);
        others.iter().for_each(|row| place[*row] = rows.len());
        if !others.is_empty() {
            rows.push(OTHERS.to_owned());
        }
        let (begin, end) = times.unwrap_or((0, 0));
        let bins = bins.max(1);
        let values = vec![0; rows.len() * bins];
        let map = Heatmap { begin, end: end.max(begin.saturating_add(1)), bins, rows, values };
        HeatmapCells { events: OutermostEvents::default(), figure, files, index, place, map }
    }
}

/// Returns the outermost requests of a batch, without regions of the application.
fn outermost_requests(events: &mut OutermostEvents, batch: &RecordBatch) -> Vec<Event> {
    let mut requests = Vec::new();
    each_outermost(
        &mut (events, &mut requests),
        |state| state.0,
        batch,
        |state, event| {
            if event.layer != Some(Layer::App) {
                state.1.push(*event);
            }
        },
    );
    requests
}

/// Second pass: the cells.
#[derive(Debug)]
pub struct HeatmapCells<'a> {
    events: OutermostEvents,
    figure: HeatmapFigure,
    files: &'a FileNames,
    index: RowIndex,
    /// Row of the map by row of the index.
    place: Vec<usize>,
    map: Heatmap,
}

impl HeatmapCells<'_> {
    /// Adds the same events again, in order. Later rows are ignored.
    pub fn add(&mut self, batch: &RecordBatch) {
        let requests = outermost_requests(&mut self.events, batch);
        for event in &requests {
            let row = self.index.of(event, &self.events, self.files);
            if let Some(place) = self.place.get(row) {
                let even = self.figure != HeatmapFigure::Requests;
                self.map.spread(*place, event, amount(self.figure, event), even);
            }
        }
    }

    /// Returns the map.
    #[must_use]
    pub fn finish(self) -> Heatmap {
        self.map
    }
}

impl Heatmap {
    /// Returns the interval of a time.
    fn bin(&self, time: i64) -> usize {
        let elapsed = i128::from(time) - i128::from(self.begin);
        let span = (i128::from(self.end) - i128::from(self.begin)).max(1);
        let bin = elapsed.max(0) * self.bins as i128 / span;
        usize::try_from(bin).unwrap_or(0).min(self.bins - 1)
    }

    /// Returns the end of an interval, nanoseconds since 1970, rounded up.
    fn edge(&self, bin: usize) -> i128 {
        let span = i128::from(self.end) - i128::from(self.begin);
        let elapsed = span * (bin as i128 + 1);
        i128::from(self.begin) + (elapsed + self.bins as i128 - 1) / self.bins as i128
    }

    fn spread(&mut self, row: usize, event: &Event, amount: u64, even: bool) {
        if amount == 0 {
            return;
        }
        let last = self.bin(event.end.saturating_sub(1).max(event.begin));
        let first = if even { self.bin(event.begin) } else { last };
        let duration = i128::from(event.duration()).max(1);
        let mut before = 0;
        for bin in first..=last {
            let elapsed = (self.edge(bin) - i128::from(event.begin)).clamp(0, duration);
            let until = if bin == last { amount } else { (i128::from(amount) * elapsed / duration) as u64 };
            if let Some(cell) = self.values.get_mut(row * self.bins + bin) {
                *cell = cell.saturating_add(until - before);
            }
            before = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_trace_events::testing::{batch, row};

    fn map(bins: usize, most: usize) -> Heatmap {
        let events = [row("read", 7, 100, 0, 100), row("read", 8, 60, 100, 30), row("read", 7, 9, 150, 50)];
        let batch = batch(&events);
        let mut files = FileNames::default();
        files.put(7, "/a");
        files.put(8, "/b");
        let mut totals = HeatmapTotals::new(HeatmapRows::File, HeatmapFigure::ReadBytes, &[], &files);
        totals.add(&batch);
        let mut cells = totals.finish(bins, most);
        cells.add(&batch);
        cells.finish()
    }

    #[test]
    fn bytes_are_spread_over_durations() {
        let map = map(4, 10);
        assert_eq!((map.begin, map.end, map.rows.clone()), (0, 200, vec!["/a".to_owned(), "/b".to_owned()]));
        assert_eq!(map.values, [50, 50, 0, 9, 0, 0, 60, 0]);
    }

    #[test]
    fn no_byte_is_lost_at_any_resolution() {
        for bins in [1, 3, 7, 199, 1000] {
            let map = map(bins, 1);
            assert_eq!(map.rows, ["/a", OTHERS]);
            let sums: Vec<u64> = map.values.chunks(bins).map(|row| row.iter().sum()).collect();
            assert_eq!(sums, [109, 60], "{bins}");
        }
    }
}
