//! Ids of nodes, processes, streams and files in the trace.
//!
//! Definitions are repeated after each reconnection, and after a restart of either side; the same
//! key gets the same id. Ended processes and streams are kept for a while (`KEEP_ENDED`,
//! `KEEP_ENDED_STREAMS`), because their last messages may be repeated. The number of processes and
//! streams that have not ended is limited per node.

use crate::columns::ops::NameDictionary;
use crate::columns::side_tables::{ProcessRow, ThreadRow};
use crate::ids::handles::{Handles, PathIds};
use crate::ids::{NodeId, ProcessId, StreamId};
use crate::store::merge::{EndedStream, Gap};
use arrow_array::ArrayRef;
use miot_proto::wire::{self, ProcessKey, ProcessLoss};
use miot_trace_store::ids::first;
use miot_trace_store::schema::{elsewhere, place_of_total};
use miot_trace_store::{IdMap, KnownIds, RecoveredTrace};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Number of ended processes that are kept with their streams, a few hundred bytes each.
const KEEP_ENDED: usize = 100_000;
/// Number of ended streams that are kept, also of running processes: some have a thread for each
/// request. About 130 bytes each, in tables that are up to half empty.
const KEEP_ENDED_STREAMS: usize = 1 << 18;
/// Number of paths of one node that are kept.
const KEEP_PATHS: usize = 1 << 20;

/// A node. Its name is the key of the dictionary in the events.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) paths: PathIds,
    /// Number of processes and of streams that have not ended, see [`Defined`].
    live: [usize; 2],
}

/// Definitions whose number per node is limited. The value is the index in [`Node::live`].
#[derive(Clone, Copy)]
enum Defined {
    Process,
    Stream,
}

impl Defined {
    fn plural(self) -> &'static str {
        match self {
            Defined::Process => "processes",
            Defined::Stream => "streams",
        }
    }
}

/// A node has reached a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// `processes` or `streams`.
    pub what: &'static str,
    /// The limit.
    pub limit: usize,
}

/// A process image.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) node: NodeId,
    pub(crate) key: ProcessKey,
    pub(crate) handles: Handles,
    /// Its streams that have not ended.
    pub(crate) streams: HashSet<StreamId>,
    live: bool,
    /// An earlier server process knew it, or it had ended: its handles are only in the trace.
    handles_in_trace_only: bool,
    /// Its end is in the trace, or it has sent nothing since this server started: it may be removed
    /// later.
    ended: bool,
    reported: ReportedLosses,
}

/// Name of a stream: id of its process, lane, incarnation.
type StreamName = (ProcessId, u32, u32);

/// A stream. Kept small, because there are many.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) process: ProcessId,
    node: NodeId,
    lane: u32,
    incarnation: u32,
    pub(crate) tid: u32,
    /// Next attempt number, while the stream is not in the merge.
    pub(crate) next: u64,
    /// Attempt numbers beyond `next` that the trace already has losses or path records for,
    /// ascending: see [`miot_trace_store::RecoveredStream`].
    beyond: Vec<(u64, u64)>,
    live: bool,
    reported: ReportedLosses,
}

impl Stream {
    fn name(&self) -> StreamName {
        (self.process, self.lane, self.incarnation)
    }

    /// True if the trace has a row for this attempt number although it is beyond `next`: side
    /// tables become durable before events, so a crash leaves such rows, and the node sends their
    /// records again.
    pub(crate) fn has_row_beyond(&self, attempt: u64) -> bool {
        self.beyond.iter().any(|(first, last)| (*first..=*last).contains(&attempt))
    }

    /// Returns the parts of a gap that the trace does not contain yet. A repeated report of a node
    /// may have other boundaries.
    pub(crate) fn unreported(&self, gap: &Gap) -> Vec<(u64, u64)> {
        let (mut rest, mut first) = (Vec::new(), gap.first);
        for (reported_first, reported_last) in &self.beyond {
            if *reported_last < first || *reported_first > gap.last {
                continue;
            }
            if *reported_first > first {
                rest.push((first, reported_first - 1));
            }
            match reported_last.checked_add(1) {
                Some(next) if next <= gap.last => first = next,
                _ => return rest,
            }
        }
        rest.push((first, gap.last));
        rest
    }
}

/// Losses without a range in the trace, in the order of [`PLACES`]. Nodes report totals,
/// repeatedly.
#[derive(Debug, Default)]
struct ReportedLosses([u64; PLACES.len()]);

impl ReportedLosses {
    /// Returns the part of a total that is new, and records it.
    fn take_new(&mut self, place: &'static str, total: u64) -> Option<(&'static str, u64)> {
        let before = self.total_mut(place)?;
        let new = total.checked_sub(*before).filter(|new| *new > 0)?;
        *before = total;
        Some((place, new))
    }

    /// Records totals that other log-servers have. Returns the parts that are new, with the places
    /// that say so.
    fn take_moved(&mut self, totals: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let new = totals.iter().filter_map(|(place, total)| self.take_new(place, *total));
        new.filter_map(|(place, count)| Some((elsewhere(place)?, count))).collect()
    }

    /// Adds a row of the trace.
    fn add(&mut self, place: &str, count: u64) {
        if let Some(total) = self.total_mut(place_of_total(place)) {
            *total = total.saturating_add(count);
        }
    }

    fn total_mut(&mut self, place: &str) -> Option<&mut u64> {
        PLACES.iter().zip(&mut self.0).find(|(known, _)| **known == place).map(|(_, total)| total)
    }
}

/// Places of losses without a range.
const PLACES: [&str; 4] = ["nested", "filtered", "no_lane", "abi_violation"];

/// Ids and state of all nodes, processes and streams, see the module.
#[derive(Debug)]
pub struct Catalog {
    pub(crate) nodes: Vec<Node>,
    names: NameDictionary<u32>,
    pub(crate) processes: IdMap<ProcessId, Process>,
    process_ids: HashMap<(NodeId, ProcessKey), ProcessId>,
    pub(crate) streams: IdMap<StreamId, Stream>,
    stream_ids: HashMap<StreamName, StreamId>,
    ended: VecDeque<ProcessId>,
    ended_streams: VecDeque<StreamId>,
    /// Maximum number of processes, and of streams, of a node that have not ended.
    limit: usize,
    next_process: u64,
    next_stream: u64,
    pub(crate) next_file: u64,
}

impl Catalog {
    /// Creates the catalog of a trace of this partition; of a new trace if `recovered` is `None`.
    #[must_use]
    pub fn new(partition: u16, recovered: Option<&RecoveredTrace>) -> Catalog {
        let mut catalog = Catalog {
            nodes: Vec::new(),
            names: NameDictionary::default(),
            processes: IdMap::default(),
            process_ids: HashMap::new(),
            streams: IdMap::default(),
            stream_ids: HashMap::new(),
            ended: VecDeque::new(),
            ended_streams: VecDeque::new(),
            limit: usize::MAX,
            next_process: first(partition),
            next_stream: first(partition),
            next_file: first(partition),
        };
        if let Some(recovered) = recovered {
            catalog.recover(recovered);
        }
        catalog
    }

    fn recover(&mut self, recovered: &RecoveredTrace) {
        for row in &recovered.processes {
            let boot = row.boot.as_deref().and_then(|boot| u128::from_str_radix(boot, 16).ok());
            let (Some(boot), Some(nonce), Some(node)) = (boot, row.nonce, self.node(&row.node)) else {
                continue;
            };
            let key = ProcessKey { boot, nonce, pid: row.pid };
            let id = ProcessId(row.process);
            self.insert_process(id, node, key);
            if let Some(process) = self.processes.get_mut(&id) {
                process.handles_in_trace_only = true;
            }
            self.end(id);
        }
        for row in &recovered.streams {
            let (id, process) = (StreamId(row.stream), ProcessId(row.process));
            if let Some(Process { node, .. }) = self.processes.get(&process) {
                let (node, name) = (*node, (process, row.lane, row.incarnation));
                self.insert_stream(id, node, name, row.tid);
                if let Some(stream) = self.streams.get_mut(&id) {
                    (stream.next, stream.beyond) = (row.next_seq, row.beyond.clone());
                }
            }
        }
        self.next_process = recovered.next_process;
        self.next_stream = recovered.next_stream;
        self.next_file = recovered.next_file;
    }

    /// Returns the ids that later events may refer to without a definition, and that nodes may
    /// repeat.
    #[must_use]
    pub fn live_ids(&self) -> KnownIds {
        let handles =
            |process: &Process| (!process.handles_in_trace_only).then(|| process.handles.iter().collect());
        KnownIds {
            processes: self.processes.values().map(|process| (process.id.0, handles(process))).collect(),
            files: self.nodes.iter().flat_map(|node| node.paths.ids()).collect(),
        }
    }

    /// Returns the number of a node, which is added if it is new. `None` if the dictionary of node
    /// names is full.
    pub fn node(&mut self, name: &str) -> Option<NodeId> {
        let node = NodeId(self.names.try_key(name)? as usize);
        if node.0 == self.nodes.len() {
            self.nodes.push(Node { name: name.into(), paths: PathIds::new(KEEP_PATHS), live: [0; 2] });
        }
        Some(node)
    }

    /// Names of the nodes, by number.
    pub fn node_names(&mut self) -> ArrayRef {
        self.names.values()
    }

    /// Name of a node.
    #[must_use]
    pub fn node_name(&self, node: NodeId) -> &str {
        self.nodes.get(node.0).map_or("", |n| &n.name)
    }

    /// Sets the maximum number of processes, and of streams, of a node that have not ended.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Defines a process. Returns its row if it is new.
    ///
    /// # Errors
    /// [`LimitReached`].
    pub fn define_process(
        &mut self,
        node: NodeId,
        process: &wire::Process,
    ) -> Result<Option<ProcessRow>, LimitReached> {
        let known = self.process_ids.get(&(node, process.key)).copied();
        if known.and_then(|id| self.processes.get(&id)).is_none_or(|process| !process.live) {
            self.count(node, Defined::Process)?;
        }
        let (id, row) = match known {
            Some(id) => (id, None),
            None => {
                let id = ProcessId(self.next_process);
                self.next_process += 1;
                self.insert_process(id, node, process.key);
                (id, Some(ProcessRow::new(id, self.node_name(node), process)))
            }
        };
        if let Some(process) = self.processes.get_mut(&id)
            && !std::mem::replace(&mut process.live, true)
        {
            process.ended = false;
        }
        Ok(row)
    }

    /// Defines a stream. Returns its id, and its row if it is new. `None` if its process is
    /// unknown.
    ///
    /// # Errors
    /// [`LimitReached`].
    pub fn define_stream(
        &mut self,
        node: NodeId,
        stream: &wire::Stream,
    ) -> Result<Option<(StreamId, Option<ThreadRow>)>, LimitReached> {
        let Some(&process) = self.process_ids.get(&(node, stream.key.process)) else { return Ok(None) };
        let name = (process, stream.key.lane, stream.key.incarnation);
        let known = self.stream_ids.get(&name).copied();
        if known.and_then(|id| self.streams.get(&id)).is_none_or(|stream| !stream.live) {
            self.count(node, Defined::Stream)?;
        }
        let (id, row) = match known {
            Some(id) => (id, None),
            None => {
                let id = StreamId(self.next_stream);
                self.next_stream += 1;
                self.insert_stream(id, node, name, stream.tid);
                (id, Some(ThreadRow::new(id, process, self.node_name(node), stream)))
            }
        };
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.live, true)
            && let Some(process) = self.processes.get_mut(&process)
        {
            process.streams.insert(id);
        }
        Ok(Some((id, row)))
    }

    fn count(&mut self, node: NodeId, what: Defined) -> Result<(), LimitReached> {
        let limit = self.limit;
        match self.nodes.get_mut(node.0).map(|node| &mut node.live[what as usize]) {
            Some(live) if *live >= limit => Err(LimitReached { what: what.plural(), limit }),
            Some(live) => {
                *live += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn uncount(&mut self, node: NodeId, what: Defined, count: usize) {
        if let Some(node) = self.nodes.get_mut(node.0) {
            let live = &mut node.live[what as usize];
            *live = live.saturating_sub(count);
        }
    }

    fn insert_process(&mut self, id: ProcessId, node: NodeId, key: ProcessKey) {
        let process = Process {
            id,
            node,
            key,
            handles: Handles::default(),
            streams: HashSet::new(),
            live: false,
            handles_in_trace_only: false,
            ended: false,
            reported: ReportedLosses::default(),
        };
        self.processes.insert(id, process);
        self.process_ids.insert((node, key), id);
    }

    fn insert_stream(&mut self, id: StreamId, node: NodeId, name: StreamName, tid: u32) {
        let (process, lane, incarnation) = name;
        let (next, beyond, live, reported) = (0, Vec::new(), false, ReportedLosses::default());
        self.streams
            .insert(id, Stream { process, node, lane, incarnation, tid, next, beyond, live, reported });
        self.stream_ids.insert(name, id);
        if let Some(process) = self.processes.get_mut(&process) {
            process.streams.insert(id);
        }
    }

    /// Id of a process.
    #[must_use]
    pub fn process_id(&self, node: NodeId, key: ProcessKey) -> Option<ProcessId> {
        self.process_ids.get(&(node, key)).copied()
    }

    /// True, once, for a process whose handles must be read from the trace.
    pub fn wants_handles(&mut self, process: ProcessId) -> bool {
        self.processes
            .get_mut(&process)
            .is_some_and(|process| std::mem::take(&mut process.handles_in_trace_only))
    }

    /// True if the stream and its process are known, so its rows can be written.
    #[must_use]
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|stream| self.processes.contains_key(&stream.process))
    }

    /// Next attempt number of a stream that is not in the merge.
    #[must_use]
    pub fn next_of(&self, stream: StreamId) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.next)
    }

    /// Records that all rows of a stream are in the trace. Returns the losses to report: places and
    /// counts.
    pub fn stream_ended(&mut self, ended: &EndedStream) -> Vec<(&'static str, u64)> {
        let Some(stream) = self.streams.get_mut(&ended.stream) else { return Vec::new() };
        stream.next = stream.next.max(ended.next);
        let totals = [("nested", ended.end.lost_nested), ("filtered", ended.end.filtered)];
        let new_losses =
            totals.into_iter().filter_map(|(place, total)| stream.reported.take_new(place, total)).collect();
        let (node, process, live) = (stream.node, stream.process, std::mem::take(&mut stream.live));
        if let Some(process) = self.processes.get_mut(&process) {
            process.streams.remove(&ended.stream);
        }
        self.uncount(node, Defined::Stream, live.into());
        self.ended_streams.push_back(ended.stream);
        while self.ended_streams.len() > KEEP_ENDED_STREAMS {
            if let Some(id) = self.ended_streams.pop_front() {
                self.forget_stream(id);
            }
        }
        new_losses
    }

    /// Records the totals of a stream that other log-servers have. Returns places and counts of
    /// those that are new.
    pub fn stream_resumed(&mut self, id: StreamId, nested: u64, filtered: u64) -> Vec<(&'static str, u64)> {
        let reported = self.streams.get_mut(&id).map(|stream| &mut stream.reported);
        reported
            .map_or_else(Vec::new, |known| known.take_moved(&[("nested", nested), ("filtered", filtered)]))
    }

    /// Like [`Catalog::stream_resumed`], for a process.
    pub fn process_resumed(&mut self, id: ProcessId, no_lane: u64) -> Vec<(&'static str, u64)> {
        let reported = self.processes.get_mut(&id).map(|process| &mut process.reported);
        reported.map_or_else(Vec::new, |known| known.take_moved(&[("no_lane", no_lane)]))
    }

    /// Removes a stream, unless it was defined again.
    fn forget_stream(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(|stream| !stream.live)
            && let Some(stream) = self.streams.remove(&id)
        {
            self.stream_ids.remove(&stream.name());
        }
    }

    /// Records that all rows of a process are in the trace. Returns the losses to report: places
    /// and counts. Unless the process returned, its handles are dropped. The oldest ended processes
    /// are removed.
    pub fn process_ended(
        &mut self,
        id: ProcessId,
        lost: ProcessLoss,
        returned: bool,
    ) -> Vec<(&'static str, u64)> {
        let Some(process) = self.processes.get_mut(&id) else { return Vec::new() };
        let totals = [("no_lane", lost.no_lane), ("abi_violation", lost.abi_violations)];
        let new_losses =
            totals.into_iter().filter_map(|(place, total)| process.reported.take_new(place, total)).collect();
        if returned {
            return new_losses;
        }
        process.handles = Handles::default();
        process.handles_in_trace_only = true;
        // Streams without an end message end with their process.
        let (node, live) = (process.node, std::mem::take(&mut process.live));
        let streams = std::mem::take(&mut process.streams);
        let live_streams = streams
            .iter()
            .filter(|id| self.streams.get_mut(id).is_some_and(|stream| std::mem::take(&mut stream.live)));
        let live_streams = live_streams.count();
        self.ended_streams.extend(streams);
        self.uncount(node, Defined::Process, live.into());
        self.uncount(node, Defined::Stream, live_streams);
        self.end(id);
        while self.ended.len() > KEEP_ENDED {
            // A process that was defined again is running, although it is in the queue.
            let gone = self.ended.pop_front().filter(|id| self.processes.get(id).is_some_and(|p| p.ended));
            if let Some(process) = gone.and_then(|id| self.processes.remove(&id)) {
                self.process_ids.remove(&(process.node, process.key));
                process.streams.into_iter().for_each(|stream| self.forget_stream(stream));
            }
        }
        new_losses
    }

    fn end(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id);
        if process.is_some_and(|process| !std::mem::replace(&mut process.ended, true)) {
            self.ended.push_back(id);
        }
    }

    /// Records a loss without a range that the trace already contains.
    pub fn add_reported_loss(
        &mut self,
        process: Option<ProcessId>,
        stream: Option<StreamId>,
        place: &str,
        count: u64,
    ) {
        if let Some(stream) = stream.and_then(|id| self.streams.get_mut(&id)) {
            stream.reported.add(place, count);
        } else if let Some(process) = process.and_then(|id| self.processes.get_mut(&id)) {
            process.reported.add(place, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::wire::{StreamEnd, StreamKey};

    fn process(pid: u32) -> wire::Process {
        let key = ProcessKey { boot: 1, nonce: 2, pid };
        let text = Vec::new;
        wire::Process {
            key,
            ppid: 1,
            uid: 0,
            started: 0,
            rank: None,
            exe: text(),
            cmdline: text(),
            job: text(),
            cwd: text(),
        }
    }

    fn stream(pid: u32, lane: u32) -> wire::Stream {
        let key = StreamKey { process: process(pid).key, lane, incarnation: 1 };
        wire::Stream { number: lane, key, tid: 1, comm: Vec::new() }
    }

    fn end(stream: StreamId) -> EndedStream {
        let end = StreamEnd {
            stream: 0,
            attempts: 0,
            lost_full: 0,
            lost_nested: 0,
            filtered: 0,
            after: 0,
            time: 0,
        };
        EndedStream { stream, next: 0, end }
    }

    #[test]
    fn open_processes_and_streams_of_a_node_are_limited() {
        let mut catalog = Catalog::new(0, None);
        catalog.set_limit(2);
        let (a, b) = (catalog.node("a").unwrap(), catalog.node("b").unwrap());
        for node in [a, b] {
            assert!(catalog.define_process(node, &process(1)).unwrap().is_some());
            assert!(catalog.define_process(node, &process(2)).unwrap().is_some());
            assert!(catalog.define_process(node, &process(1)).unwrap().is_none(), "defined again");
            let full = catalog.define_process(node, &process(3)).unwrap_err();
            assert_eq!((full.what, full.limit), ("processes", 2));
        }
        let first = catalog.define_stream(a, &stream(1, 0)).unwrap().unwrap().0;
        catalog.define_stream(a, &stream(1, 1)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(2, 0)).is_err());
        assert_eq!(catalog.define_stream(a, &stream(1, 0)).unwrap().unwrap().0, first, "it exists");
        catalog.stream_ended(&end(first));
        catalog.stream_ended(&end(first));
        catalog.define_stream(a, &stream(2, 0)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(1, 0)).is_err(), "it would be open again");
        // Its streams end with the process.
        let id = catalog.process_id(a, process(1).key).unwrap();
        catalog.process_ended(id, ProcessLoss::default(), false);
        catalog.define_process(a, &process(3)).unwrap().unwrap();
        catalog.define_stream(a, &stream(3, 0)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(3, 1)).is_err());
    }

    #[test]
    fn old_ended_streams_of_a_process_are_removed() {
        let mut catalog = Catalog::new(0, None);
        let node = catalog.node("a").unwrap();
        catalog.define_process(node, &process(1)).unwrap();
        let mut first = StreamId(0);
        for lane in 0..KEEP_ENDED_STREAMS as u32 + 10 {
            let id = catalog.define_stream(node, &stream(1, lane)).unwrap().unwrap().0;
            first = if lane == 0 { id } else { first };
            catalog.stream_ended(&end(id));
        }
        assert!(!catalog.has_stream(first) && catalog.has_stream(StreamId(first.0 + 10)));
        assert_eq!(
            (catalog.streams.len(), catalog.stream_ids.len()),
            (KEEP_ENDED_STREAMS, KEEP_ENDED_STREAMS)
        );
        assert!(catalog.processes.values().all(|process| process.streams.is_empty()));
    }
}
