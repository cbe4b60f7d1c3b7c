//! Comparison of each layer of the I/O stack with the layer above: calls per call, and bytes moved
//! per byte requested.

mod parents;

use arrow_array::RecordBatch;
use miot_proto::op::{ArgMeaning, Layer, OpClass, OpInfo, ResultMeaning};
use miot_trace_events::link::{Linker, Request, Tree};
use miot_trace_events::operations::{BatchOperations, OperationTable};
use miot_trace_events::{EventColumns, IdMap, NodeNumbers};
use parents::Parents;
use serde::Serialize;
use std::collections::BTreeMap;

/// Required columns of events.
pub const COLUMNS: &[&str] = &[
    "duration",
    "node",
    "process",
    "tid",
    "layer",
    "op",
    "offset",
    "length",
    "result",
    "flags",
    "request",
    "enclosing",
    "caller_tid",
];

/// Maximum number of requests that wait for their parent.
const WAITING: usize = 1 << 20;

/// Requests of one layer made within those of another. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerRow {
    /// Layer of the parent requests; `None` for outermost requests.
    pub above: Option<String>,
    /// Layer of the requests.
    pub layer: String,
    /// Requests.
    pub calls: u64,
    /// Number of requests for each request of the layer above, including those without any; `None`
    /// for outermost requests.
    pub calls_per_call: Option<f64>,
    /// Bytes requested by reads.
    pub read_asked: u64,
    /// Bytes read.
    pub read_moved: u64,
    /// Bytes read for each byte that the layer above was requested to read; `None` if that is 0.
    pub read_amplification: Option<f64>,
    /// Bytes requested by writes.
    pub write_asked: u64,
    /// Bytes written.
    pub write_moved: u64,
    /// Bytes written for each byte that the layer above was requested to write; `None` if that is
    /// 0.
    pub write_amplification: Option<f64>,
    /// Sum of durations.
    pub time: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: u64,
    read_asked: u64,
    read_moved: u64,
    write_asked: u64,
    write_moved: u64,
    time: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.read_asked = self.read_asked.saturating_add(other.read_asked);
        self.read_moved = self.read_moved.saturating_add(other.read_moved);
        self.write_asked = self.write_asked.saturating_add(other.write_asked);
        self.write_moved = self.write_moved.saturating_add(other.write_moved);
        self.time = self.time.saturating_add(other.time);
    }

    fn of(info: Option<&OpInfo>, length: Option<i64>, result: i64, time: u64) -> Tally {
        let mut tally = Tally { calls: 1, time, ..Tally::default() };
        let Some(info) = info else { return tally };
        let moved = if info.result == ResultMeaning::Bytes { u64::try_from(result).unwrap_or(0) } else { 0 };
        let asked = match info.args {
            ArgMeaning::Range | ArgMeaning::Length => length.and_then(|length| u64::try_from(length).ok()),
            _ => None,
        };
        let asked = asked.unwrap_or(moved);
        if matches!(info.class, OpClass::Read | OpClass::Copy) {
            (tally.read_asked, tally.read_moved) = (asked, moved);
        }
        if matches!(info.class, OpClass::Write | OpClass::Copy) {
            (tally.write_asked, tally.write_moved) = (asked, moved);
        }
        tally
    }
}

/// Operation number of a request, and its tally.
type Call = (usize, Tally);

/// Compares the layers of a trace. Memory grows with the number of concurrent requests.
#[derive(Debug)]
pub struct Layers {
    operations: OperationTable,
    nodes: NodeNumbers,
    linker: Linker<Call>,
    complete: Vec<Tree<Call>>,
    parents: Parents,
    /// Tallies by operation of the parent and operation of the request.
    calls: IdMap<(Option<usize>, usize), Tally>,
}

impl Default for Layers {
    fn default() -> Layers {
        Layers {
            operations: OperationTable::default(),
            nodes: NodeNumbers::default(),
            linker: Linker::new(WAITING),
            complete: Vec::new(),
            parents: Parents::default(),
            calls: IdMap::default(),
        }
    }
}

impl Layers {
    /// Adds events, in order. A batch without the columns of events adds nothing.
    pub fn add(&mut self, events: &RecordBatch) {
        let _ = self.try_add(events);
    }

    fn try_add(&mut self, batch: &RecordBatch) -> Option<()> {
        let mut numbers = BatchOperations::of(batch)?;
        let nodes = self.nodes.column(batch)?;
        let columns = EventColumns::of(batch, COLUMNS).ok()?;
        for row in 0..batch.num_rows() {
            let number = self.operations.number(&mut numbers, row);
            let info = self.operations.get(number).info;
            let time = u64::try_from(columns.duration.value(row)).unwrap_or(0);
            let tally = Tally::of(info, columns.length.get(row), columns.result.value(row), time);
            let request = Request::of(&columns, nodes.number(row), row);
            if request.is_mpi {
                self.parents.add(&request, number, info.is_some_and(|info| info.name.ends_with("_begin")));
            }
            self.linker.push(request, (number, tally), &mut self.complete);
            self.count();
        }
        Some(())
    }

    fn count(&mut self) {
        for tree in self.complete.drain(..) {
            let above = self.parents.of(&tree.request);
            count(&mut self.calls, above, &tree);
        }
    }

    /// Returns the result: layers from the application downwards, each by the layers above it.
    #[must_use]
    pub fn finish(mut self) -> Vec<LayerRow> {
        std::mem::replace(&mut self.linker, Linker::new(0)).finish(&mut self.complete);
        self.count();
        let layer = |operation: usize| self.operations.get(operation).layer.as_str();
        let mut rows: BTreeMap<(Option<&str>, &str), Tally> = BTreeMap::new();
        let mut totals: BTreeMap<&str, Tally> = BTreeMap::new();
        for ((above, operation), tally) in &self.calls {
            rows.entry((above.map(layer), layer(*operation))).or_default().add(tally);
            totals.entry(layer(*operation)).or_default().add(tally);
        }
        let depth = |name: &str| Layer::from_name(name).map_or(u8::MAX, |layer| layer as u8);
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|((above, layer), _)| (depth(layer), above.map(depth)));
        let row = |((above, layer), tally): ((Option<&str>, &str), Tally)| {
            let total = above.and_then(|above| totals.get(above));
            let ratio = |part: u64, whole: fn(&Tally) -> u64| {
                total.map(whole).filter(|whole| *whole > 0).map(|whole| part as f64 / whole as f64)
            };
            LayerRow {
                above: above.map(str::to_owned),
                layer: layer.to_owned(),
                calls: tally.calls,
                calls_per_call: ratio(tally.calls, |total| total.calls),
                read_asked: tally.read_asked,
                read_moved: tally.read_moved,
                read_amplification: ratio(tally.read_moved, |total| total.read_asked),
                write_asked: tally.write_asked,
                write_moved: tally.write_moved,
                write_amplification: ratio(tally.write_moved, |total| total.write_asked),
                time: tally.time,
            }
        };
        rows.into_iter().map(row).collect()
    }
}

fn count(calls: &mut IdMap<(Option<usize>, usize), Tally>, above: Option<usize>, tree: &Tree<Call>) {
    let (operation, tally) = tree.value;
    calls.entry((above, operation)).or_default().add(&tally);
    tree.children.iter().for_each(|child| count(calls, Some(operation), child));
}
