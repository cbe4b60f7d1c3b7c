//! The ids of nodes, processes, streams and files: who is who in the trace.
//!
//! Definitions come again after every reconnection, and after a restart of either side; the same key gets
//! the same id. What has ended is remembered for a while (`KEEP_ENDED`, `KEEP_ENDED_STREAMS`), because its last
//! messages may be repeated. What has not ended has a limit per node.

use crate::handles::{Handles, Paths};
use crate::merge::{Ended, Gap};
use crate::ops::Names;
use crate::side::{ProcessRow, ThreadRow};
use arrow_array::ArrayRef;
use miot_proto::wire::{self, ProcessKey, ProcessLoss};
use miot_trace_store::{Known, Recovered};
use std::collections::{HashMap, HashSet, VecDeque};

/// Ended processes that are remembered with their streams, a few hundred bytes each.
const KEEP_ENDED: usize = 100_000;
/// Ended streams that are remembered, also of processes that go on: some have a thread for every request. Some 130 bytes
/// each, in tables that are up to half empty.
const KEEP_ENDED_STREAMS: usize = 1 << 18;
/// Paths of one node whose ids are remembered.
const KEEP_PATHS: usize = 1 << 20;

/// A node: its name is the key of the dictionary in the events.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) paths: Paths,
    /// Processes and streams that have not ended.
    live: [usize; 2],
}

/// Indices into [`Node::live`].
const PROCESSES: usize = 0;
/// See [`PROCESSES`].
const STREAMS: usize = 1;

/// A node has as many processes or streams as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Which.
    pub what: &'static str,
    /// How many.
    pub limit: usize,
}

/// A process image.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) key: ProcessKey,
    pub(crate) handles: Handles,
    /// Its streams that have not ended.
    pub(crate) streams: HashSet<u64>,
    live: bool,
    /// It was there in an earlier life of this server, or had ended: what its handles stand for is in the trace only.
    forgotten: bool,
    /// Its end is in the trace, or it has not been heard of since this server began: it may be forgotten some day.
    ended: bool,
    told: Told,
}

/// What a stream is called here: id of its process, lane, incarnation.
type StreamName = (u64, u32, u32);

/// A stream. There are many, so it is small.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) process: u64,
    node: usize,
    lane: u32,
    incarnation: u32,
    pub(crate) tid: u32,
    /// Attempt number it goes on with, while it is not in the merge.
    pub(crate) next: u64,
    /// Losses and path records beyond `next` that are in the trace already, ascending: see
    /// [`miot_trace_store::RecoveredStream`].
    beyond: Vec<(u64, u64)>,
    live: bool,
    told: Told,
}

impl Stream {
    fn name(&self) -> StreamName {
        (self.process, self.lane, self.incarnation)
    }

    /// True if the trace has a row for this attempt number, although it lies beyond `next`: side tables become durable
    /// before events, so a crash leaves such rows and the node sends their records again.
    pub(crate) fn is_beyond(&self, attempt: u64) -> bool {
        self.beyond.iter().any(|(first, last)| (*first..=*last).contains(&attempt))
    }

    /// What the trace does not tell of a gap yet. A node that tells it again may put more or less of it together.
    pub(crate) fn untold(&self, gap: &Gap) -> Vec<(u64, u64)> {
        let (mut rest, mut first) = (Vec::new(), gap.first);
        for (told_first, told_last) in &self.beyond {
            if *told_last < first || *told_first > gap.last {
                continue;
            }
            if *told_first > first {
                rest.push((first, told_first - 1));
            }
            match told_last.checked_add(1) {
                Some(next) if next <= gap.last => first = next,
                _ => return rest,
            }
        }
        rest.push((first, gap.last));
        rest
    }
}

/// Losses without a range that the trace tells of, in the order of [`PLACES`]. Nodes say totals, and say them again.
#[derive(Debug, Default)]
struct Told([u64; PLACES.len()]);

impl Told {
    /// What is new in a total.
    fn news(&mut self, place: &'static str, total: u64) -> Option<(&'static str, u64)> {
        let before = self.of(place)?;
        let news = total.checked_sub(*before).filter(|news| *news > 0)?;
        *before = total;
        Some((place, news))
    }

    /// A row of the trace.
    fn add(&mut self, place: &str, count: u64) {
        if let Some(total) = self.of(place) {
            *total = total.saturating_add(count);
        }
    }

    fn of(&mut self, place: &str) -> Option<&mut u64> {
        PLACES.iter().zip(&mut self.0).find(|(known, _)| **known == place).map(|(_, total)| total)
    }
}

/// Places of losses without a range.
const PLACES: [&str; 4] = ["nested", "filtered", "no_lane", "abi_violation"];

/// See the module.
#[derive(Debug)]
pub struct Catalog {
    pub(crate) nodes: Vec<Node>,
    names: Names<u32>,
    pub(crate) processes: HashMap<u64, Process>,
    process_ids: HashMap<(usize, ProcessKey), u64>,
    pub(crate) streams: HashMap<u64, Stream>,
    stream_ids: HashMap<StreamName, u64>,
    ended: VecDeque<u64>,
    ended_streams: VecDeque<u64>,
    /// Processes, and streams, of a node that have not ended.
    limit: usize,
    next_process: u64,
    next_stream: u64,
    pub(crate) next_file: u64,
}

impl Catalog {
    /// The catalog of a trace: of a new one, if nothing was recovered.
    #[must_use]
    pub fn new(recovered: Option<&Recovered>) -> Catalog {
        let mut catalog = Catalog {
            nodes: Vec::new(),
            names: Names::default(),
            processes: HashMap::new(),
            process_ids: HashMap::new(),
            streams: HashMap::new(),
            stream_ids: HashMap::new(),
            ended: VecDeque::new(),
            ended_streams: VecDeque::new(),
            limit: usize::MAX,
            next_process: 1,
            next_stream: 1,
            next_file: 1,
        };
        if let Some(recovered) = recovered {
            catalog.recover(recovered);
        }
        catalog
    }

    fn recover(&mut self, recovered: &Recovered) {
        for found in &recovered.processes {
            let boot = found.boot.as_deref().and_then(|boot| u128::from_str_radix(boot, 16).ok());
            let (Some(boot), Some(nonce), Some(node)) = (boot, found.nonce, self.node(&found.node)) else {
                continue;
            };
            let key = ProcessKey { boot, nonce, pid: found.pid };
            self.put_process(found.process, node, key, true);
            self.end(found.process);
        }
        for found in &recovered.streams {
            if let Some(process) = self.processes.get(&found.process) {
                let (node, name) = (process.node, (found.process, found.lane, found.incarnation));
                self.put_stream(found.stream, node, name, found.tid);
                if let Some(stream) = self.streams.get_mut(&found.stream) {
                    (stream.next, stream.beyond) = (found.next_seq, found.beyond.clone());
                }
            }
        }
        self.next_process = recovered.next_process;
        self.next_stream = recovered.next_stream;
        self.next_file = recovered.next_file;
    }

    /// What events from now on may refer to without defining it, and what nodes may repeat.
    #[must_use]
    pub fn known(&self) -> Known {
        let handles = |process: &Process| (!process.forgotten).then(|| process.handles.iter().collect());
        Known {
            processes: self.processes.values().map(|process| (process.id, handles(process))).collect(),
            files: self.nodes.iter().flat_map(|node| node.paths.ids()).collect(),
        }
    }

    /// The number of a node; `None` if the trace has as many names as it can hold.
    pub fn node(&mut self, name: &str) -> Option<usize> {
        let node = self.names.try_key(name)? as usize;
        if node == self.nodes.len() {
            self.nodes.push(Node { name: name.to_owned(), paths: Paths::new(KEEP_PATHS), live: [0; 2] });
        }
        Some(node)
    }

    /// Names of the nodes, by number.
    pub fn node_names(&mut self) -> ArrayRef {
        self.names.values()
    }

    /// Name of a node.
    #[must_use]
    pub fn node_name(&self, node: usize) -> &str {
        self.nodes.get(node).map_or("", |n| &n.name)
    }

    /// From now on a node has so many processes, and streams, that have not ended.
    pub fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Learns of a process; returns its row if it is new.
    ///
    /// # Errors
    /// [`Full`].
    pub fn define_process(
        &mut self,
        node: usize,
        process: &wire::Process,
    ) -> Result<Option<ProcessRow>, Full> {
        let known = self.process_ids.get(&(node, process.key)).copied();
        if known.and_then(|id| self.processes.get(&id)).is_none_or(|process| !process.live) {
            self.count(node, PROCESSES)?;
        }
        let (id, row) = match known {
            Some(id) => (id, None),
            None => {
                let id = self.next_process;
                self.next_process += 1;
                self.put_process(id, node, process.key, false);
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

    /// Learns of a stream; returns its id, and its row if it is new. `None` if its process is unknown.
    ///
    /// # Errors
    /// [`Full`].
    pub fn define_stream(
        &mut self,
        node: usize,
        stream: &wire::Stream,
    ) -> Result<Option<(u64, Option<ThreadRow>)>, Full> {
        let Some(&process) = self.process_ids.get(&(node, stream.key.process)) else { return Ok(None) };
        let name = (process, stream.key.lane, stream.key.incarnation);
        let known = self.stream_ids.get(&name).copied();
        if known.and_then(|id| self.streams.get(&id)).is_none_or(|stream| !stream.live) {
            self.count(node, STREAMS)?;
        }
        let (id, row) = match known {
            Some(id) => (id, None),
            None => {
                let id = self.next_stream;
                self.next_stream += 1;
                self.put_stream(id, node, name, stream.tid);
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

    fn count(&mut self, node: usize, what: usize) -> Result<(), Full> {
        let limit = self.limit;
        match self.nodes.get_mut(node).map(|node| &mut node.live[what]) {
            Some(live) if *live >= limit => Err(Full { what: ["processes", "streams"][what], limit }),
            Some(live) => {
                *live += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn uncount(&mut self, node: usize, what: usize, count: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.live[what] = node.live[what].saturating_sub(count);
        }
    }

    fn put_process(&mut self, id: u64, node: usize, key: ProcessKey, recovered: bool) {
        let process = Process {
            id,
            node,
            key,
            handles: Handles::default(),
            streams: HashSet::new(),
            live: false,
            forgotten: recovered,
            ended: false,
            told: Told::default(),
        };
        self.processes.insert(id, process);
        self.process_ids.insert((node, key), id);
    }

    fn put_stream(&mut self, id: u64, node: usize, name: StreamName, tid: u32) {
        let (process, lane, incarnation) = name;
        let (next, beyond, live, told) = (0, Vec::new(), false, Told::default());
        self.streams.insert(id, Stream { process, node, lane, incarnation, tid, next, beyond, live, told });
        self.stream_ids.insert(name, id);
        if let Some(process) = self.processes.get_mut(&process) {
            process.streams.insert(id);
        }
    }

    /// The id of a process.
    #[must_use]
    pub fn process_id(&self, node: usize, key: ProcessKey) -> Option<u64> {
        self.process_ids.get(&(node, key)).copied()
    }

    /// True, once, for a process whose handles are to be read from the trace.
    pub fn wants_handles(&mut self, process: u64) -> bool {
        self.processes.get_mut(&process).is_some_and(|process| std::mem::take(&mut process.forgotten))
    }

    /// True if rows of the stream can be put into the trace.
    #[must_use]
    pub fn has_stream(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|stream| self.processes.contains_key(&stream.process))
    }

    /// Attempt number with which a stream goes on that is not in the merge.
    #[must_use]
    pub fn next_of(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.next)
    }

    /// All of a stream is in the trace. Returns what is to be told of it: places and counts.
    pub fn stream_ended(&mut self, ended: &Ended) -> Vec<(&'static str, u64)> {
        let Some(stream) = self.streams.get_mut(&ended.stream) else { return Vec::new() };
        stream.next = stream.next.max(ended.next);
        let totals = [("nested", ended.end.lost_nested), ("filtered", ended.end.filtered)];
        let news = totals.into_iter().filter_map(|(place, total)| stream.told.news(place, total)).collect();
        let (node, process, live) = (stream.node, stream.process, std::mem::take(&mut stream.live));
        if let Some(process) = self.processes.get_mut(&process) {
            process.streams.remove(&ended.stream);
        }
        self.uncount(node, STREAMS, live.into());
        self.ended_streams.push_back(ended.stream);
        while self.ended_streams.len() > KEEP_ENDED_STREAMS {
            if let Some(id) = self.ended_streams.pop_front() {
                self.forget_stream(id);
            }
        }
        news
    }

    /// Forgets a stream, unless it is there again.
    fn forget_stream(&mut self, id: u64) {
        if self.streams.get(&id).is_some_and(|stream| !stream.live)
            && let Some(stream) = self.streams.remove(&id)
        {
            self.stream_ids.remove(&stream.name());
        }
    }

    /// All of a process is in the trace. Returns what is to be told of it: places and counts. Unless it is there
    /// again, forgets its handles; forgets those that ended long ago altogether.
    pub fn process_ended(&mut self, id: u64, lost: ProcessLoss, returned: bool) -> Vec<(&'static str, u64)> {
        let Some(process) = self.processes.get_mut(&id) else { return Vec::new() };
        let totals = [("no_lane", lost.no_lane), ("abi_violation", lost.abi_violations)];
        let news = totals.into_iter().filter_map(|(place, total)| process.told.news(place, total)).collect();
        if returned {
            return news;
        }
        process.handles = Handles::default();
        process.forgotten = true;
        // Streams whose end was not said have ended with it.
        let (node, live) = (process.node, std::mem::take(&mut process.live));
        let streams = std::mem::take(&mut process.streams);
        let live_streams = streams
            .iter()
            .filter(|id| self.streams.get_mut(id).is_some_and(|stream| std::mem::take(&mut stream.live)));
        let live_streams = live_streams.count();
        self.ended_streams.extend(streams);
        self.uncount(node, PROCESSES, live.into());
        self.uncount(node, STREAMS, live_streams);
        self.end(id);
        while self.ended.len() > KEEP_ENDED {
            // One that was defined again since is there, whatever the queue says.
            let gone = self.ended.pop_front().filter(|id| self.processes.get(id).is_some_and(|p| p.ended));
            if let Some(process) = gone.and_then(|id| self.processes.remove(&id)) {
                self.process_ids.remove(&(process.node, process.key));
                process.streams.into_iter().for_each(|stream| self.forget_stream(stream));
            }
        }
        news
    }

    fn end(&mut self, id: u64) {
        let process = self.processes.get_mut(&id);
        if process.is_some_and(|process| !std::mem::replace(&mut process.ended, true)) {
            self.ended.push_back(id);
        }
    }

    /// The trace tells of a loss without a range already.
    pub fn is_told_of(&mut self, process: Option<u64>, stream: Option<u64>, place: &str, count: u64) {
        if let Some(stream) = stream.and_then(|id| self.streams.get_mut(&id)) {
            stream.told.add(place, count);
        } else if let Some(process) = process.and_then(|id| self.processes.get_mut(&id)) {
            process.told.add(place, count);
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

    fn end(stream: u64) -> Ended {
        let end = StreamEnd {
            stream: 0,
            attempts: 0,
            lost_full: 0,
            lost_nested: 0,
            filtered: 0,
            after: 0,
            time: 0,
        };
        Ended { stream, next: 0, end }
    }

    #[test]
    fn a_node_has_a_limit_for_what_has_not_ended() {
        let mut catalog = Catalog::new(None);
        catalog.limit(2);
        let (a, b) = (catalog.node("a").unwrap(), catalog.node("b").unwrap());
        for node in [a, b] {
            assert!(catalog.define_process(node, &process(1)).unwrap().is_some());
            assert!(catalog.define_process(node, &process(2)).unwrap().is_some());
            assert!(catalog.define_process(node, &process(1)).unwrap().is_none(), "said again");
            let full = catalog.define_process(node, &process(3)).unwrap_err();
            assert_eq!((full.what, full.limit), ("processes", 2));
        }
        let first = catalog.define_stream(a, &stream(1, 0)).unwrap().unwrap().0;
        catalog.define_stream(a, &stream(1, 1)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(2, 0)).is_err());
        assert_eq!(catalog.define_stream(a, &stream(1, 0)).unwrap().unwrap().0, first, "the one it has");
        catalog.stream_ended(&end(first));
        catalog.stream_ended(&end(first));
        catalog.define_stream(a, &stream(2, 0)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(1, 0)).is_err(), "it would be there again");
        // With the process end its streams.
        let id = catalog.process_id(a, process(1).key).unwrap();
        catalog.process_ended(id, ProcessLoss::default(), false);
        catalog.define_process(a, &process(3)).unwrap().unwrap();
        catalog.define_stream(a, &stream(3, 0)).unwrap().unwrap();
        assert!(catalog.define_stream(a, &stream(3, 1)).is_err());
    }

    #[test]
    fn streams_that_ended_long_ago_are_forgotten_though_their_process_goes_on() {
        let mut catalog = Catalog::new(None);
        let node = catalog.node("a").unwrap();
        catalog.define_process(node, &process(1)).unwrap();
        let mut first = 0;
        for lane in 0..KEEP_ENDED_STREAMS as u32 + 10 {
            let id = catalog.define_stream(node, &stream(1, lane)).unwrap().unwrap().0;
            first = if lane == 0 { id } else { first };
            catalog.stream_ended(&end(id));
        }
        assert!(!catalog.has_stream(first) && catalog.has_stream(first + 10));
        assert_eq!(
            (catalog.streams.len(), catalog.stream_ids.len()),
            (KEEP_ENDED_STREAMS, KEEP_ENDED_STREAMS)
        );
        assert!(catalog.processes.values().all(|process| process.streams.is_empty()));
    }
}
