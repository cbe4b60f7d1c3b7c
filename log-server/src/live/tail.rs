//! Remote readers of merged rows, served by a thread of their own.
//!
//! While there are subscribers, the store passes on what it writes, and never waits: if this thread
//! falls behind, or the queue of a subscriber is full, the subscriber is cut off with a message.
//! Names come from the trace directory, which is read when the first subscriber connects, and from
//! the side tables written since. Subscribers with equal requests share the encoded frames.

#![expect(clippy::disallowed_types, reason = "bytes queued for subscribers, and their number")]

use crate::settings::config::Config;
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use miot_proto::op::{self, Layer};
use miot_proto::wire::{MAX_FRAME, Message};
use miot_trace_store::rows::Joiner;
use miot_trace_store::schema::{NameKey, column};
use miot_trace_store::{Reader, Table};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of batches that wait for the thread.
const MAX_WAITING: usize = 256;
/// Maximum number of names, patterns and process ids in a request.
const MAX_TERMS: usize = 1000;
/// Maximum size of all names and patterns in a request, bytes.
const MAX_TERM_BYTES: usize = 64 << 10;
/// Number of files whose match with the globs is cached.
const MAX_CACHED_MATCHES: usize = 1 << 16;

/// Request of a subscriber. Subscribers with equal requests get the same frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailRequest {
    /// Layers; an empty list means all, as in the other lists.
    pub layers: Vec<String>,
    /// Operations.
    pub ops: Vec<String>,
    /// Globs of paths.
    pub paths: Vec<String>,
    /// Process ids.
    pub pids: Vec<u32>,
    /// Nodes.
    pub nodes: Vec<String>,
    /// Only rows that completed at or after this time, nanoseconds since 1970.
    pub since: Option<i64>,
}

/// Reason why a request is not valid. The subscriber displays the text.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The lists of the request are too long.
    #[error("at most {MAX_TERMS} names, patterns and process ids of {MAX_TERM_BYTES} bytes")]
    TooLarge,
    /// An unknown layer.
    #[error("there is no layer `{name}`; there are {known}")]
    Layer {
        /// Name in the request.
        name: String,
        /// All layers.
        known: String,
    },
    /// An unknown operation.
    #[error("there is no operation `{0}`")]
    Operation(String),
    /// An invalid pattern of paths.
    #[error(transparent)]
    Glob(#[from] globset::Error),
    /// A process id that is not a number.
    #[error("pid: `{0}` is not a number")]
    Pid(String),
}

/// Selects the rows of a subscriber.
#[derive(Debug, Default)]
pub struct RowFilter {
    request: TailRequest,
    layers: HashSet<String>,
    ops: HashSet<String>,
    nodes: HashSet<String>,
    pids: HashSet<u32>,
    paths: Option<GlobSet>,
    /// Whether the path of each file matches.
    matches: HashMap<u64, bool>,
}

impl RowFilter {
    /// Creates the filter of a [`Message::Subscribe`].
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn new(request: TailRequest) -> Result<RowFilter, FilterError> {
        let TailRequest { layers, ops, paths, pids, nodes, .. } = request.clone();
        let terms = [layers.as_slice(), &ops, &paths, &nodes];
        let bytes: usize = terms.iter().flat_map(|t| t.iter()).map(String::len).sum();
        if terms.iter().map(|t| t.len()).sum::<usize>() + pids.len() > MAX_TERMS || bytes > MAX_TERM_BYTES {
            return Err(FilterError::TooLarge);
        }
        if let Some(name) = layers.iter().find(|name| Layer::from_name(name).is_none()) {
            let known: Vec<&str> = Layer::ALL.iter().map(|l| l.name()).collect();
            return Err(FilterError::Layer { name: name.clone(), known: known.join(", ") });
        }
        if let Some(name) =
            ops.iter().find(|name| !name.contains(':') && !op::all_operations().any(|row| row.name == **name))
        {
            return Err(FilterError::Operation(name.clone()));
        }
        let mut globs = GlobSetBuilder::new();
        for path in &paths {
            globs.add(GlobBuilder::new(path).literal_separator(true).build()?);
        }
        let globs = globs.build()?;
        Ok(RowFilter {
            request,
            layers: layers.into_iter().collect(),
            ops: ops.into_iter().collect(),
            nodes: nodes.into_iter().collect(),
            pids: pids.into_iter().collect(),
            paths: (!paths.is_empty()).then_some(globs),
            matches: HashMap::new(),
        })
    }

    /// Time from which on rows are requested, nanoseconds since 1970; `None`: only live rows.
    #[must_use]
    pub fn since(&self) -> Option<i64> {
        self.request.since
    }

    /// Returns the matching rows; `None` if no row matches.
    ///
    /// # Errors
    /// Never for valid input.
    pub fn apply(&mut self, rows: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let mut keep = vec![true; rows.num_rows()];
        keep_named(&self.layers, rows, "layer", &mut keep);
        keep_named(&self.ops, rows, "op", &mut keep);
        keep_named(&self.nodes, rows, "node", &mut keep);
        if !self.pids.is_empty()
            && let Some(pids) = column::<UInt32Type>(rows, "pid")
        {
            keep.iter_mut().zip(pids.values()).for_each(|(keep, pid)| *keep &= self.pids.contains(pid));
        }
        if let Some(since) = self.request.since
            && let Some(times) =
                rows.column_by_name("time").and_then(|c| c.as_primitive_opt::<TimestampNanosecondType>())
        {
            keep.iter_mut().zip(times.values()).for_each(|(keep, time)| *keep &= *time >= since);
        }
        self.paths(rows, &mut keep);
        match keep.iter().filter(|k| **k).count() {
            0 => Ok(None),
            all if all == keep.len() => Ok(Some(rows.clone())),
            _ => filter_record_batch(rows, &BooleanArray::from(keep)).map(Some),
        }
    }

    fn paths(&mut self, rows: &RecordBatch, keep: &mut [bool]) {
        let Some(globs) = &self.paths else { return };
        if self.matches.len() > MAX_CACHED_MATCHES {
            self.matches.clear();
        }
        let columns = [("file", "path"), ("file2", "path2")].map(|(id, path)| {
            let ids = column::<UInt64Type>(rows, id);
            ids.zip(rows.column_by_name(path).and_then(|c| c.as_string_opt::<i32>()))
        });
        for (row, keep) in keep.iter_mut().enumerate().filter(|(_, keep)| **keep) {
            *keep = columns.iter().flatten().any(|(ids, paths)| {
                ids.is_valid(row)
                    && paths.is_valid(row)
                    && *self
                        .matches
                        .entry(ids.value(row))
                        .or_insert_with(|| globs.is_match(Path::new(paths.value(row))))
            });
        }
    }
}

/// Keeps the rows whose name is in `wanted`: one look-up per name, not per row.
fn keep_named(wanted: &HashSet<String>, rows: &RecordBatch, column: &str, keep: &mut [bool]) {
    if wanted.is_empty() {
        return;
    }
    let Some(column) = rows.column_by_name(column).and_then(|c| c.as_dictionary_opt::<NameKey>()) else {
        return;
    };
    let Some(keep_named) = column.values().as_string_opt::<i32>() else { return };
    let wanted: Vec<bool> =
        keep_named.iter().map(|name| name.is_some_and(|name| wanted.contains(name))).collect();
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep &= column.key(row).and_then(|key| wanted.get(key)).copied().unwrap_or(false);
    }
}

/// A subscriber: its rows, and their destination.
#[derive(Debug)]
pub struct Subscription {
    /// Selects its rows.
    pub filter: RowFilter,
    /// Receives its frames.
    pub frames: mpsc::UnboundedSender<Bytes>,
    /// Size of the frames that were not sent, bytes. The session subtracts what it has sent.
    pub queued: Arc<AtomicUsize>,
    /// The subscriber understands [`Message::Final`].
    pub wants_final: bool,
    /// Receives the reason if the subscriber is cut off.
    pub cut: oneshot::Sender<String>,
}

enum TailInput {
    Subscribe(Box<Subscription>),
    Rows(Table, RecordBatch),
    Final(i64),
}

/// The store's side of the thread for subscribers.
#[derive(Debug)]
pub struct Tail {
    trace: PathBuf,
    memory: usize,
    inputs: Option<Sender<TailInput>>,
    /// Number of subscribers that the thread serves, or will serve.
    subscribers: Arc<AtomicUsize>,
    /// The thread fell behind: it gets no more batches, and cuts off all subscribers when its queue
    /// is empty.
    behind: Arc<AtomicBool>,
}

impl Tail {
    /// Creates a tail without subscribers.
    #[must_use]
    pub fn new(config: &Config) -> Tail {
        Tail {
            trace: config.trace.clone(),
            memory: usize::try_from(config.tail_memory).unwrap_or(usize::MAX),
            inputs: None,
            subscribers: Arc::default(),
            behind: Arc::default(),
        }
    }

    /// Serves a subscriber from the next batch on.
    pub fn subscribe(&mut self, subscription: Subscription) {
        if self.inputs.is_none() {
            let (inputs, received) = bounded(MAX_WAITING);
            (self.subscribers, self.behind) = Default::default();
            let thread = TailThread {
                trace: self.trace.clone(),
                memory: self.memory,
                joiner: None,
                subscriptions: Vec::new(),
                subscribers: Arc::clone(&self.subscribers),
                behind: Arc::clone(&self.behind),
            };
            let spawned =
                std::thread::Builder::new().name("miot-tail".into()).spawn(move || thread.run(&received));
            if let Err(error) = spawned {
                let _ = subscription.cut.send(format!("the log-server cannot start a thread: {error}"));
                return;
            }
            self.inputs = Some(inputs);
        }
        if let Some(inputs) = &self.inputs {
            self.subscribers.fetch_add(1, Ordering::AcqRel);
            if let Err(
                TrySendError::Full(TailInput::Subscribe(subscription))
                | TrySendError::Disconnected(TailInput::Subscribe(subscription)),
            ) = inputs.try_send(TailInput::Subscribe(Box::new(subscription)))
            {
                self.subscribers.fetch_sub(1, Ordering::AcqRel);
                let _ = subscription.cut.send("the log-server is too busy for more subscribers".into());
            }
        }
    }

    /// Passes on rows if there are subscribers. Never waits.
    pub fn publish(&mut self, table: Table, batch: &RecordBatch) {
        let wanted = matches!(table, Table::Events | Table::Files | Table::Threads);
        if let Some(inputs) = &self.inputs
            && wanted
            && self.subscribers.load(Ordering::Acquire) > 0
            && inputs.try_send(TailInput::Rows(table, batch.clone())).is_err()
        {
            self.behind.store(true, Ordering::Release);
            self.inputs = None;
        }
    }

    /// True if somebody follows the trace.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        self.inputs.is_some() && self.subscribers.load(Ordering::Acquire) > 0
    }

    /// Passes on the time before which all events were published. Never waits.
    pub fn publish_final(&mut self, time: i64) {
        if self.has_subscribers()
            && let Some(inputs) = &self.inputs
        {
            // If the queue is full, a later time follows.
            let _ = inputs.try_send(TailInput::Final(time));
        }
    }

    /// Ends the rows: subscribers get what is queued, then the end.
    pub fn end(&mut self) {
        self.inputs = None;
    }
}

struct TailThread {
    trace: PathBuf,
    memory: usize,
    joiner: Option<Joiner>,
    subscriptions: Vec<Subscription>,
    subscribers: Arc<AtomicUsize>,
    behind: Arc<AtomicBool>,
}

impl TailThread {
    fn run(mut self, received: &Receiver<TailInput>) {
        for inputs in received {
            match inputs {
                TailInput::Subscribe(subscription) => self.subscribe(*subscription),
                TailInput::Rows(Table::Events, batch) => self.events(&batch),
                TailInput::Final(time) => self.publish_final(time),
                TailInput::Rows(table, batch) => {
                    if let Some(joiner) = &mut self.joiner {
                        joiner.add_batch(table, &batch);
                    }
                }
            }
            if self.subscriptions.is_empty() {
                // Names are not collected from here on.
                self.joiner = None;
            }
        }
        if self.behind.load(Ordering::Acquire) {
            for subscription in self.subscriptions.drain(..) {
                let _ = subscription
                    .cut
                    .send("the log-server merges faster than it can serve subscribers".into());
            }
        }
    }

    fn subscribe(&mut self, subscription: Subscription) {
        if self.joiner.is_none() {
            match Reader::tolerant(&self.trace).and_then(|reader| Ok((reader.joiner()?, reader.unread()))) {
                Ok((joiner, notes)) => {
                    for unread in notes.all() {
                        tracing::warn!(%unread, "some names are missing for subscribers, run miot fsck for details");
                    }
                    self.joiner = Some(joiner);
                }
                Err(error) => {
                    self.subscribers.fetch_sub(1, Ordering::AcqRel);
                    let _ = subscription.cut.send(format!("the log-server cannot read its trace: {error}"));
                    return;
                }
            }
        }
        self.subscriptions.push(subscription);
    }

    fn publish_final(&self, time: i64) {
        let frame = Bytes::from(Message::Final { time }.frame());
        for subscription in self.subscriptions.iter().filter(|subscription| subscription.wants_final) {
            subscription.queued.fetch_add(frame.len(), Ordering::Relaxed);
            // A subscriber that has left is removed with the next rows.
            let _ = subscription.frames.send(frame.clone());
        }
    }

    fn events(&mut self, events: &RecordBatch) {
        let Some(joiner) = &self.joiner else { return };
        let rows = match joiner.join(events) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, "cannot join rows with their names");
                return;
            }
        };
        let (memory, before) = (self.memory, self.subscriptions.len());
        let mut encoded = Vec::new();
        let kept = self.subscriptions.drain(..).filter_map(|mut subscription| {
            match serve(&mut subscription, &rows, &mut encoded, memory) {
                Ok(true) => Some(subscription),
                Ok(false) => None,
                Err(reason) => {
                    let _ = subscription.cut.send(reason.to_string());
                    None
                }
            }
        });
        self.subscriptions = kept.collect();
        self.subscribers.fetch_sub(before - self.subscriptions.len(), Ordering::AcqRel);
    }
}

/// Reason why a subscriber is cut off. The subscriber displays the text.
#[derive(Debug, thiserror::Error)]
enum CutReason {
    #[error(
        "you read more slowly than events arrive; request fewer events (filters), or read the trace directory"
    )]
    Slow,
    #[error(transparent)]
    Columns(#[from] ArrowError),
}

/// Queues rows for a subscriber. `encoded` holds the frames of the subscribers before it. Returns
/// false if the subscriber has left.
fn serve(
    subscription: &mut Subscription,
    rows: &RecordBatch,
    encoded: &mut Vec<(TailRequest, Vec<Bytes>)>,
    memory: usize,
) -> Result<bool, CutReason> {
    let index = match encoded.iter().position(|(request, _)| *request == subscription.filter.request) {
        Some(index) => index,
        None => {
            let mut frames = Vec::new();
            if let Some(rows) = subscription.filter.apply(rows)? {
                encode(&rows, &mut frames)?;
            }
            encoded.push((subscription.filter.request.clone(), frames));
            encoded.len() - 1
        }
    };
    for frame in &encoded[index].1 {
        if subscription.queued.fetch_add(frame.len(), Ordering::Relaxed) + frame.len() > memory {
            return Err(CutReason::Slow);
        }
        if subscription.frames.send(frame.clone()).is_err() {
            return Ok(false);
        }
    }
    Ok(!subscription.frames.is_closed())
}

/// Encodes rows as frames of [`Message::Rows`], each small enough for the protocol.
pub(crate) fn encode(rows: &RecordBatch, frames: &mut Vec<Bytes>) -> Result<(), ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())?;
    writer.write(rows)?;
    let arrow = writer.into_inner()?;
    let half = rows.num_rows() / 2;
    if arrow.len() > MAX_FRAME / 2 && half > 0 {
        encode(&rows.slice(0, half), frames)?;
        return encode(&rows.slice(half, rows.num_rows() - half), frames);
    }
    frames.push(Message::Rows { arrow }.frame().into());
    Ok(())
}
