//! The ids of nodes, processes, streams and files: who is who in the trace.
//!
//! Definitions come again after every reconnection, and after a restart of either side; the same key gets
//! the same id. What has ended is remembered for a while (`KEEP_ENDED`), because its last messages may
//! be repeated.

use crate::handles::{Handles, Paths};
use crate::merge::{Ended, Gap};
use crate::ops::Names;
use crate::side::{ProcessRow, ThreadRow};
use arrow_array::ArrayRef;
use miot_proto::wire::{self, ProcessKey, ProcessLoss, StreamKey};
use miot_trace_store::Recovered;
use std::collections::{HashMap, VecDeque};

/// Ended processes that are remembered with their streams, a few hundred bytes each.
const KEEP_ENDED: usize = 100_000;
/// Paths of one node whose ids are remembered.
const KEEP_PATHS: usize = 1 << 20;

/// A node: its name is the key of the dictionary in the events.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) paths: Paths,
}

/// A process image.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) key: ProcessKey,
    pub(crate) handles: Handles,
    pub(crate) streams: Vec<u64>,
    /// It is from an earlier life of this server: what its handles stand for is in the trace only.
    recovered: bool,
    /// Its losses are in the trace.
    pub(crate) settled: bool,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) process: u64,
    pub(crate) key: StreamKey,
    pub(crate) tid: u32,
    /// Attempt number it goes on with, while it is not in the merge.
    pub(crate) next: u64,
    /// Losses beyond `next` that are in the trace already: see [`miot_trace_store::RecoveredStream`].
    beyond: Vec<(u64, u64)>,
    /// Its end is in the trace.
    ended: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Catalog {
    pub(crate) nodes: Vec<Node>,
    names: Names<u16>,
    pub(crate) processes: HashMap<u64, Process>,
    process_ids: HashMap<(usize, ProcessKey), u64>,
    pub(crate) streams: HashMap<u64, Stream>,
    stream_ids: HashMap<(usize, StreamKey), u64>,
    ended: VecDeque<u64>,
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
        }
        for found in &recovered.streams {
            if let Some(process) = self.processes.get(&found.process) {
                let key =
                    StreamKey { process: process.key, lane: found.lane, incarnation: found.incarnation };
                let node = process.node;
                self.put_stream(found.stream, node, found.process, key, found.tid);
                if let Some(stream) = self.streams.get_mut(&found.stream) {
                    (stream.next, stream.beyond) = (found.next_seq, found.beyond.clone());
                }
            }
        }
        self.next_process = recovered.next_process;
        self.next_stream = recovered.next_stream;
        self.next_file = recovered.next_file;
    }

    /// The number of a node; `None` if the trace has as many names as it can hold.
    pub fn node(&mut self, name: &str) -> Option<usize> {
        let node = usize::from(self.names.try_key(name)?);
        if node == self.nodes.len() {
            self.nodes.push(Node { name: name.to_owned(), paths: Paths::new(KEEP_PATHS) });
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

    /// Learns of a process; returns its row if it is new.
    pub fn define_process(&mut self, node: usize, process: &wire::Process) -> Option<ProcessRow> {
        if self.process_ids.contains_key(&(node, process.key)) {
            return None;
        }
        let id = self.next_process;
        self.next_process += 1;
        self.put_process(id, node, process.key, false);
        Some(ProcessRow::new(id, self.node_name(node), process))
    }

    /// Learns of a stream; returns its id, and its row if it is new. `None` if its process is unknown.
    pub fn define_stream(&mut self, node: usize, stream: &wire::Stream) -> Option<(u64, Option<ThreadRow>)> {
        if let Some(id) = self.stream_ids.get(&(node, stream.key)) {
            return Some((*id, None));
        }
        let process = *self.process_ids.get(&(node, stream.key.process))?;
        let id = self.next_stream;
        self.next_stream += 1;
        self.put_stream(id, node, process, stream.key, stream.tid);
        Some((id, Some(ThreadRow::new(id, process, self.node_name(node), stream))))
    }

    fn put_process(&mut self, id: u64, node: usize, key: ProcessKey, recovered: bool) {
        let handles = Handles::default();
        let process = Process { id, node, key, handles, streams: Vec::new(), recovered, settled: false };
        self.processes.insert(id, process);
        self.process_ids.insert((node, key), id);
    }

    fn put_stream(&mut self, id: u64, node: usize, process: u64, key: StreamKey, tid: u32) {
        self.streams.insert(id, Stream { process, key, tid, next: 0, beyond: Vec::new(), ended: false });
        self.stream_ids.insert((node, key), id);
        if let Some(process) = self.processes.get_mut(&process) {
            process.streams.push(id);
        }
    }

    /// The id of a process.
    #[must_use]
    pub fn process_id(&self, node: usize, key: ProcessKey) -> Option<u64> {
        self.process_ids.get(&(node, key)).copied()
    }

    /// True, once, for a process of an earlier server whose handles have not been read from the trace.
    pub fn wants_handles(&mut self, process: u64) -> bool {
        self.processes.get_mut(&process).is_some_and(|process| std::mem::take(&mut process.recovered))
    }

    /// True if the trace tells of this gap already.
    #[must_use]
    pub fn is_told(&self, gap: &Gap) -> bool {
        self.streams.get(&gap.stream).is_some_and(|stream| stream.beyond.contains(&(gap.first, gap.last)))
    }

    /// Attempt number with which a stream goes on that is not in the merge.
    #[must_use]
    pub fn next_of(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.next)
    }

    /// All of a stream is in the trace. False if that was known.
    pub fn stream_ended(&mut self, ended: &Ended) -> bool {
        let Some(stream) = self.streams.get_mut(&ended.stream) else { return false };
        stream.next = stream.next.max(ended.next);
        !std::mem::replace(&mut stream.ended, true)
    }

    /// All of a process is in the trace. Returns what is to be told of it, if that is news, and forgets
    /// its handles; forgets those that ended long ago altogether.
    pub fn process_ended(&mut self, id: u64) -> bool {
        let Some(process) = self.processes.get_mut(&id) else { return false };
        process.handles = Handles::default();
        process.recovered = false;
        if std::mem::replace(&mut process.settled, true) {
            return false;
        }
        self.ended.push_back(id);
        while self.ended.len() > KEEP_ENDED {
            if let Some(process) = self.ended.pop_front().and_then(|id| self.processes.remove(&id)) {
                self.process_ids.remove(&(process.node, process.key));
                for stream in process.streams.iter().filter_map(|id| self.streams.remove(id)) {
                    self.stream_ids.remove(&(process.node, stream.key));
                }
            }
        }
        true
    }

    /// Marks what the trace says already of ends, so that a repeated message does not say it twice.
    pub fn settle(&mut self, process: Option<u64>, stream: Option<u64>) {
        if let Some(stream) = stream.and_then(|id| self.streams.get_mut(&id)) {
            stream.ended = true;
        } else if let Some(process) = process.and_then(|id| self.processes.get_mut(&id)) {
            process.settled = true;
        }
    }
}

/// Places of losses of a process, with their counts, if there are any.
pub fn process_losses(lost: ProcessLoss) -> impl Iterator<Item = (&'static str, u64)> {
    [("no_lane", lost.no_lane), ("abi_violation", lost.abi_violations)].into_iter().filter(|(_, n)| *n > 0)
}
