//! I/O phases of a parallel application (Méndez et al. 2012, section 3.1): similar accesses of some
//! processes to a file, in similar order, with no communication between their requests.
//!
//! | step | module |
//! |---|---|
//! | requests of a process become local patterns, units and runs | `local`, `nest` |
//! | layout of the bytes of a request through a view | `pieces` |
//! | runs of all processes become phases, in families | `merge` |
//! | patterns of all processes of a phase become an operation | `operation` |
//! | repeated phases on other positions or files become one family | `series` |
//! | access mode of each operation | [`access`] |
//!
//! docs/guide/phases.md describes the rules and distinguishes those of the paper from MIOT's own.
//! The result is a [`Model`]. Memory grows with the number of different patterns, not with the
//! number of events.

pub mod access;
mod local;
mod merge;
pub mod nest;
mod operation;
pub(crate) mod pieces;
mod series;

use crate::model::Model;
use crate::{column, text};
use access::{Access, is_collective};
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use local::{Key, Local, Request};
use miot_proto::event::flag;
use miot_proto::op::{Layer, mpi_io};
use miot_trace_events::events;
use miot_trace_events::{Event, EventNames, Events};
use miot_trace_store::FileNames;
use miot_trace_store::schema::{FILTERED, is_elsewhere};
use pieces::{RequestLayout, Set, Views, VisibleBytes};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Columns that [`Phases`] needs in addition to [`events::COLUMNS`].
const MORE: [&str; 2] = ["mpi_size", "type_size"];

/// Maximum number of individually kept times of phases; beyond it only sums are known.
const MOST_TIMES: usize = 1 << 20;

/// Returns the columns that [`Phases`] needs, for [`miot_trace_store::Select`].
#[must_use]
pub fn columns() -> Vec<&'static str> {
    events::COLUMNS.iter().copied().chain(MORE).collect()
}

/// Selection of the requests that form phases.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Layer; by default MPI-IO if the trace has any, else POSIX, else STDIO. A layer all of whose
    /// requests lack explicit offsets, as in Darshan 3.5's DXT, comes after layers that have them.
    pub layer: Option<Layer>,
    /// Files to include; `None` for all.
    pub files: Option<HashSet<u64>>,
    /// Time in nanoseconds without requests after which a process has ended a phase.
    pub gap: Option<u64>,
}

/// Reason why there are no phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The batches do not have the required columns.
    Columns,
    /// No request of the selected layer moved data.
    Nothing(Option<Layer>),
    /// Several processes of the trace have the same rank.
    SameRank {
        /// The rank.
        rank: u32,
        /// Process ids with this rank.
        pids: Vec<u32>,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Columns => {
                write!(out, "the trace has no columns of events: was it written by another version?")
            }
            Error::Nothing(Some(layer)) => write!(
                out,
                "no request of layer {} moved data of a file, so there are no phases; `miot stat DIR` lists what there is",
                layer.name()
            ),
            Error::Nothing(None) => write!(
                out,
                "no request of MPI-IO, POSIX or STDIO moved data of a file, so there are no phases; `miot stat DIR` lists what there is"
            ),
            Error::SameRank { rank, pids } => write!(
                out,
                "rank {rank} occurs several times (processes {pids:?}): the trace holds more than one run; choose one with --since and --until"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// A process of the application.
#[derive(Debug, Default)]
struct Process {
    layers: BTreeMap<u8, Local>,
    pid: u32,
    /// Numbers of communication events so far, and of collective calls of all processes.
    ticks: u64,
    epoch: u64,
    /// End of the last communication event.
    last: i64,
    is_interrupted: bool,
    /// True if the process made an MPI-IO call.
    has_mpi_io: bool,
    /// Number of MPI files that it has opened and not closed.
    open_files: u64,
}

/// Data of a process from the table `processes`.
#[derive(Clone, Debug, Default)]
struct ProcessInfo {
    rank: Option<u32>,
    started: i64,
    node: String,
    cmdline: String,
}

/// Finds the phases of a trace: [`add`](Phases::add) its events, in order, then
/// [`finish`](Phases::finish).
#[derive(Debug)]
pub struct Phases<'a> {
    options: Options,
    files: &'a FileNames,
    names: EventNames,
    known: HashMap<u64, ProcessInfo>,
    has_ranks: bool,
    /// Number of processes of the application, from the highest rank.
    world: u64,
    processes: HashMap<u64, Process>,
    views: Views,
    /// Elementary type and view of each open file of each process.
    handles: HashMap<(u64, u64), (u64, VisibleBytes)>,
    begin: i64,
    end: i64,
    /// Size of the largest communicator with which a file was opened.
    largest: u64,
    has_communication: bool,
    /// Processes that lost events; `None` for an unknown process.
    lossy: BTreeSet<Option<u64>>,
    capacity: usize,
}

impl<'a> Phases<'a> {
    /// Returns a collector for a trace with this table of processes and these paths.
    #[must_use]
    pub fn new(options: Options, processes: &[RecordBatch], files: &'a FileNames) -> Phases<'a> {
        let mut known = HashMap::new();
        for batch in processes {
            let (Some(ids), Some(ranks)) =
                (column::<UInt64Type>(batch, "process"), column::<UInt32Type>(batch, "rank"))
            else {
                continue;
            };
            let started = column::<arrow_array::types::TimestampNanosecondType>(batch, "started");
            for row in 0..batch.num_rows() {
                let word = |name| text(batch, name).map_or_else(String::new, |c| c.value(row).to_owned());
                let it = ProcessInfo {
                    rank: ranks.is_valid(row).then(|| ranks.value(row)),
                    started: started.as_ref().map_or(0, |started| started.value(row)),
                    node: word("node"),
                    cmdline: word("cmdline"),
                };
                known.insert(ids.value(row), it);
            }
        }
        let last = known.values().filter_map(|it: &ProcessInfo| it.rank).max();
        Phases {
            options,
            files,
            names: EventNames::default(),
            has_ranks: last.is_some(),
            world: last.map_or(0, |last| u64::from(last) + 1),
            known,
            processes: HashMap::new(),
            views: Views::default(),
            handles: HashMap::new(),
            begin: i64::MAX,
            end: i64::MIN,
            largest: 0,
            has_communication: false,
            lossy: BTreeSet::new(),
            capacity: MOST_TIMES,
        }
    }

    /// Adds events, in order of completion.
    ///
    /// # Errors
    /// [`Error::Columns`].
    pub fn add(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let wide = |name| column::<Int64Type>(batch, name).ok_or(Error::Columns);
        let (etypes, sizes, extents) = (wide("etypes")?, wide("type_size")?, wide("type_extent")?);
        let communicators = column::<UInt32Type>(batch, "mpi_size").ok_or(Error::Columns)?;
        fn value(array: &PrimitiveArray<Int64Type>, row: usize) -> Option<i64> {
            array.is_valid(row).then(|| array.value(row))
        }
        let mut names = std::mem::take(&mut self.names);
        let events = Events::of(batch, &mut names).ok_or(Error::Columns)?;
        for (row, event) in events.enumerate() {
            let more = More {
                size: communicators.is_valid(row).then(|| u64::from(communicators.value(row))),
                etypes: value(&etypes, row),
                type_size: value(&sizes, row),
                type_extent: value(&extents, row),
            };
            self.event(&event, more);
        }
        self.names = names;
        Ok(())
    }

    /// Adds rows of the table `losses`.
    pub fn add_losses(&mut self, batch: &RecordBatch) {
        let (Some(processes), Some(places)) = (column::<UInt64Type>(batch, "process"), text(batch, "place"))
        else {
            return;
        };
        for row in 0..batch.num_rows() {
            if is_elsewhere(places.value(row)) {
                continue;
            }
            self.lossy.insert(processes.is_valid(row).then(|| processes.value(row)));
            if places.value(row) == FILTERED {
                self.lossy.insert(None);
            }
        }
    }

    fn event(&mut self, event: &Event, more: More) {
        let rank = self.known.get(&event.process).and_then(|known| known.rank);
        if self.has_ranks && rank.is_none() {
            return;
        }
        let (Some(layer), Some(info)) = (event.layer, event.info) else { return };
        self.begin = self.begin.min(event.begin);
        self.end = self.end.max(event.end);
        let process = self.processes.entry(event.process).or_default();
        process.pid = event.pid;
        process.is_interrupted |= event.interrupted();
        if layer == Layer::MpiIo {
            let is_communication = info.op.is_communication();
            let collective = is_collective(info) || is_communication;
            let is_all = collective && more.size.is_some_and(|size| size == self.world && size > 1);
            if is_communication || access::is_separator(info) {
                process.layers.values_mut().for_each(|local| local.close_all(&mut self.capacity));
                process.ticks += 1;
                self.has_communication |= is_communication;
            }
            if !is_communication {
                process.has_mpi_io = true;
                self.largest = self.largest.max(more.size.unwrap_or(0));
            }
            if event.failed() {
                return;
            } else if info.op == mpi_io::OPEN {
                process.open_files += 1;
            } else if info.op == mpi_io::CLOSE {
                process.open_files = process.open_files.saturating_sub(1);
                self.handles.remove(&(event.process, event.handle.unwrap_or(0)));
            } else if info.op == mpi_io::SET_VIEW {
                self.set_view(event, more);
            }
            self.data(event, more, layer);
            if is_all && let Some(process) = self.processes.get_mut(&event.process) {
                process.epoch += 1;
            }
            return;
        }
        if matches!(info.name, "close" | "fclose")
            && let (Some(file), Some(local)) = (event.file, process.layers.get_mut(&(layer as u8)))
        {
            local.close_file(file, &mut self.capacity);
        }
        self.data(event, more, layer);
    }

    fn set_view(&mut self, event: &Event, more: More) {
        let Some(handle) = event.handle else { return };
        let etype = event.length.and_then(|length| u64::try_from(length).ok()).unwrap_or(1).max(1);
        let bytes = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let set = Set {
            map: event.file2,
            is_cut: event.flags & flag::PATH_CUT != 0,
            size: bytes(more.type_size),
            extent: bytes(more.type_extent),
        };
        let shown = self.views.set(set, self.files);
        self.handles.insert((event.process, handle), (etype, shown));
    }

    fn data(&mut self, event: &Event, more: More, layer: Layer) {
        let Some(access) = event.info.and_then(Access::of) else { return };
        let moved = event.moved();
        let (Some(file), Some(asked)) = (event.file, event.length.and_then(|l| u64::try_from(l).ok())) else {
            return;
        };
        let is_wanted = match self.options.layer {
            Some(wanted) => wanted == layer,
            None => matches!(layer, Layer::MpiIo | Layer::Posix | Layer::Stdio),
        };
        if moved == 0
            || asked == 0
            || !is_wanted
            || self.options.files.as_ref().is_some_and(|wanted| !wanted.contains(&file))
        {
            return;
        }
        let handle = event.handle.unwrap_or(0);
        let known = self.handles.get(&(event.process, handle)).copied();
        let (etype, shown) = known.unwrap_or((1, VisibleBytes::File));
        let in_view =
            more.etypes.map(|etypes| etypes.saturating_mul(i64::try_from(etype).unwrap_or(i64::MAX)));
        let position = in_view.and_then(|position| u64::try_from(position).ok());
        let layout = self.views.layout(shown, position, asked);
        let offset = event.offset.and_then(|in_file| match layout {
            RequestLayout::Contiguous | RequestLayout::Pieces(_) => Some(in_file),
            RequestLayout::Unknown(_) => in_view,
        });
        let Some(process) = self.processes.get_mut(&event.process) else { return };
        let local = process.layers.entry(layer as u8).or_default();
        if let Some(gap) = self.options.gap
            && event.begin.saturating_sub(process.last) >= i64::try_from(gap).unwrap_or(i64::MAX)
        {
            local.close_all(&mut self.capacity);
        }
        process.last = process.last.max(event.end);
        let request = Request {
            key: Key { file, access, size: Some(asked), etype, layout },
            offset,
            moved,
            asked,
            begin: event.begin,
            end: event.end,
            tick: process.ticks,
            epoch: process.epoch,
        };
        local.add(&request, &mut self.capacity);
    }

    /// Returns the model.
    ///
    /// # Errors
    /// [`Error::Nothing`], [`Error::SameRank`].
    pub fn finish(mut self) -> Result<Model, Error> {
        for process in self.processes.values_mut() {
            process.layers.values_mut().for_each(|local| local.close_all(&mut self.capacity));
        }
        let has = |layer: Layer| {
            let of =
                |process: &Process| process.layers.get(&(layer as u8)).is_some_and(|l| !l.runs.is_empty());
            self.processes.values().any(of)
        };
        let has_offsets = |layer: Layer| {
            let of = |process: &Process| process.layers.get(&(layer as u8)).is_some_and(|l| l.has_offsets);
            self.processes.values().any(of)
        };
        let wanted = match self.options.layer {
            Some(layer) => vec![layer],
            None => vec![Layer::MpiIo, Layer::Posix, Layer::Stdio],
        };
        let present = || wanted.iter().copied().filter(|layer| has(*layer));
        let Some(layer) = present().find(|layer| has_offsets(*layer)).or_else(|| present().next()) else {
            return Err(Error::Nothing(self.options.layer));
        };
        merge::finish(self, layer)
    }
}

/// Columns of an event that [`Event`] does not have.
#[derive(Clone, Copy, Debug)]
struct More {
    size: Option<u64>,
    etypes: Option<i64>,
    type_size: Option<i64>,
    type_extent: Option<i64>,
}
