//! Remote readers of the merged trace, served by a thread of their own.
//!
//! The store hands over what it writes while anybody listens, and never waits: if this thread falls behind, or
//! a subscriber's queue is full, the subscriber is cut off with a message. Names come from the trace
//! directory when the first subscriber comes, and from the side tables written since. Subscribers who want the same
//! share what is encoded for them.

use crate::config::Config;
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
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Reader, Table};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Batches that may wait for this thread.
const WAITING: usize = 256;
/// Patterns and names a subscriber may ask for, and their bytes in all.
const MAX_TERMS: usize = 1000;
/// See [`MAX_TERMS`].
const MAX_TERM_BYTES: usize = 64 << 10;
/// Files whose match with the globs is remembered.
const MAX_MATCHES: usize = 1 << 16;

/// What a subscriber asked for. Subscribers with the same wish get the same frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Only these layers; empty: all. The same for the others.
    pub layers: Vec<String>,
    /// Operations.
    pub ops: Vec<String>,
    /// Globs of paths.
    pub paths: Vec<String>,
    /// Process ids.
    pub pids: Vec<u32>,
    /// Nodes.
    pub nodes: Vec<String>,
    /// Nothing that completed before this, nanoseconds since 1970.
    pub since: Option<i64>,
}

/// Which rows a subscriber wants.
#[derive(Debug, Default)]
pub struct Filter {
    wish: Wish,
    layers: HashSet<String>,
    ops: HashSet<String>,
    nodes: HashSet<String>,
    pids: HashSet<u32>,
    paths: Option<GlobSet>,
    /// Files by whether their path matches.
    matches: HashMap<u64, bool>,
}

impl Filter {
    /// The filter of a [`Message::Subscribe`].
    ///
    /// # Errors
    /// A text for people, if a name is unknown, a glob is none, or there is too much of it.
    pub fn new(wish: Wish) -> Result<Filter, String> {
        let Wish { layers, ops, paths, pids, nodes, .. } = wish.clone();
        let terms = [layers.as_slice(), &ops, &paths, &nodes];
        let bytes: usize = terms.iter().flat_map(|t| t.iter()).map(String::len).sum();
        if terms.iter().map(|t| t.len()).sum::<usize>() + pids.len() > MAX_TERMS || bytes > MAX_TERM_BYTES {
            return Err(format!(
                "at most {MAX_TERMS} names, patterns and process ids of {MAX_TERM_BYTES} bytes"
            ));
        }
        if let Some(name) = layers.iter().find(|name| Layer::from_name(name).is_none()) {
            let known: Vec<&str> = Layer::ALL.iter().map(|l| l.name()).collect();
            return Err(format!("there is no layer `{name}`; there are {}", known.join(", ")));
        }
        if let Some(name) =
            ops.iter().find(|name| !name.contains(':') && !op::all().any(|row| row.name == **name))
        {
            return Err(format!("there is no operation `{name}`"));
        }
        let mut globs = GlobSetBuilder::new();
        for path in &paths {
            globs.add(GlobBuilder::new(path).literal_separator(true).build().map_err(|e| e.to_string())?);
        }
        let globs = globs.build().map_err(|e| e.to_string())?;
        Ok(Filter {
            wish,
            layers: layers.into_iter().collect(),
            ops: ops.into_iter().collect(),
            nodes: nodes.into_iter().collect(),
            pids: pids.into_iter().collect(),
            paths: (!paths.is_empty()).then_some(globs),
            matches: HashMap::new(),
        })
    }

    /// The rows it lets through; `None` if there is none.
    ///
    /// # Errors
    /// None that inputs can bring about.
    pub fn apply(&mut self, rows: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let mut keep = vec![true; rows.num_rows()];
        names(&self.layers, rows, "layer", &mut keep);
        names(&self.ops, rows, "op", &mut keep);
        names(&self.nodes, rows, "node", &mut keep);
        if !self.pids.is_empty()
            && let Some(pids) = rows.column_by_name("pid").and_then(|c| c.as_primitive_opt::<UInt32Type>())
        {
            keep.iter_mut().zip(pids.values()).for_each(|(keep, pid)| *keep &= self.pids.contains(pid));
        }
        if let Some(since) = self.wish.since
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
        if self.matches.len() > MAX_MATCHES {
            self.matches.clear();
        }
        let columns = [("file", "path"), ("file2", "path2")].map(|(id, path)| {
            let ids = rows.column_by_name(id).and_then(|c| c.as_primitive_opt::<UInt64Type>());
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

/// Keeps the rows whose name is wanted: one look-up per name, not per row.
fn names(wanted: &HashSet<String>, rows: &RecordBatch, column: &str, keep: &mut [bool]) {
    if wanted.is_empty() {
        return;
    }
    let Some(column) = rows.column_by_name(column).and_then(|c| c.as_dictionary_opt::<NameKey>()) else {
        return;
    };
    let Some(names) = column.values().as_string_opt::<i32>() else { return };
    let wanted: Vec<bool> = names.iter().map(|name| name.is_some_and(|name| wanted.contains(name))).collect();
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep &= column.key(row).and_then(|key| wanted.get(key)).copied().unwrap_or(false);
    }
}

/// A subscriber: what it wants, and where that goes.
#[derive(Debug)]
pub struct Subscription {
    /// What it wants.
    pub filter: Filter,
    /// Frames for it.
    pub frames: mpsc::UnboundedSender<Bytes>,
    /// Bytes of these frames that have not been sent. The session subtracts what it has sent.
    pub queued: Arc<AtomicUsize>,
    /// Used once, if it is cut off.
    pub cut: oneshot::Sender<String>,
}

enum Feed {
    Subscribe(Box<Subscription>),
    Rows(Table, RecordBatch),
}

/// The store's side.
#[derive(Debug)]
pub struct Tail {
    trace: PathBuf,
    memory: usize,
    feed: Option<Sender<Feed>>,
    /// Subscribers that the thread serves, or will.
    subscribers: Arc<AtomicUsize>,
    /// The thread fell behind: it gets nothing more, and cuts off all it has when it has come to the end.
    behind: Arc<AtomicBool>,
}

impl Tail {
    /// Nobody listens yet.
    #[must_use]
    pub fn new(config: &Config) -> Tail {
        Tail {
            trace: config.trace.clone(),
            memory: usize::try_from(config.tail_memory).unwrap_or(usize::MAX),
            feed: None,
            subscribers: Arc::default(),
            behind: Arc::default(),
        }
    }

    /// Serves a subscriber from the next batch on.
    pub fn subscribe(&mut self, subscription: Subscription) {
        if self.feed.is_none() {
            let (feed, feeds) = bounded(WAITING);
            (self.subscribers, self.behind) = Default::default();
            let thread = Thread {
                trace: self.trace.clone(),
                memory: self.memory,
                joiner: None,
                subscriptions: Vec::new(),
                subscribers: Arc::clone(&self.subscribers),
                behind: Arc::clone(&self.behind),
            };
            let spawned =
                std::thread::Builder::new().name("miot-tail".into()).spawn(move || thread.run(&feeds));
            if let Err(error) = spawned {
                let _ = subscription.cut.send(format!("the log-server cannot start a thread: {error}"));
                return;
            }
            self.feed = Some(feed);
        }
        if let Some(feed) = &self.feed {
            self.subscribers.fetch_add(1, Ordering::AcqRel);
            if let Err(
                TrySendError::Full(Feed::Subscribe(subscription))
                | TrySendError::Disconnected(Feed::Subscribe(subscription)),
            ) = feed.try_send(Feed::Subscribe(Box::new(subscription)))
            {
                self.subscribers.fetch_sub(1, Ordering::AcqRel);
                let _ = subscription.cut.send("the log-server is too busy for further subscribers".into());
            }
        }
    }

    /// Passes on rows, if anybody listens. Never waits.
    pub fn publish(&mut self, table: Table, batch: &RecordBatch) {
        let wanted = matches!(table, Table::Events | Table::Files | Table::Threads);
        if let Some(feed) = &self.feed
            && wanted
            && self.subscribers.load(Ordering::Acquire) > 0
            && feed.try_send(Feed::Rows(table, batch.clone())).is_err()
        {
            self.behind.store(true, Ordering::Release);
            self.feed = None;
        }
    }

    /// No more rows: subscribers get what is queued, then the end.
    pub fn end(&mut self) {
        self.feed = None;
    }
}

struct Thread {
    trace: PathBuf,
    memory: usize,
    joiner: Option<Joiner>,
    subscriptions: Vec<Subscription>,
    subscribers: Arc<AtomicUsize>,
    behind: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self, feeds: &Receiver<Feed>) {
        for feed in feeds {
            match feed {
                Feed::Subscribe(subscription) => self.subscribe(*subscription),
                Feed::Rows(Table::Events, batch) => self.events(&batch),
                Feed::Rows(table, batch) => {
                    if let Some(joiner) = &mut self.joiner {
                        joiner.see(table, &batch);
                    }
                }
            }
            if self.subscriptions.is_empty() {
                // Names may be missed from here on.
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
            match Reader::tolerant(&self.trace).and_then(|reader| Ok((reader.joiner()?, reader.notes()))) {
                Ok((joiner, notes)) => {
                    for unread in notes.all() {
                        tracing::warn!(%unread, "not all names can be given to subscribers: miot fsck tells more");
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

    fn events(&mut self, events: &RecordBatch) {
        let Some(joiner) = &self.joiner else { return };
        let rows = match joiner.join(events) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, "rows cannot be joined with their names");
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
                    let _ = subscription.cut.send(reason);
                    None
                }
            }
        });
        self.subscriptions = kept.collect();
        self.subscribers.fetch_sub(before - self.subscriptions.len(), Ordering::AcqRel);
    }
}

/// Queues rows for a subscriber; `encoded` is what was made for those before it. False if it has gone; an error if it
/// is to be cut off.
fn serve(
    subscription: &mut Subscription,
    rows: &RecordBatch,
    encoded: &mut Vec<(Wish, Vec<Bytes>)>,
    memory: usize,
) -> Result<bool, String> {
    let place = match encoded.iter().position(|(wish, _)| *wish == subscription.filter.wish) {
        Some(place) => place,
        None => {
            let mut frames = Vec::new();
            if let Some(rows) = subscription.filter.apply(rows).map_err(|e| e.to_string())? {
                encode(&rows, &mut frames).map_err(|e| e.to_string())?;
            }
            encoded.push((subscription.filter.wish.clone(), frames));
            encoded.len() - 1
        }
    };
    for frame in &encoded[place].1 {
        if subscription.queued.fetch_add(frame.len(), Ordering::Relaxed) + frame.len() > memory {
            return Err(
                "you read more slowly than events come; ask for fewer (filters), or read the trace directory"
                    .into(),
            );
        }
        if subscription.frames.send(frame.clone()).is_err() {
            return Ok(false);
        }
    }
    Ok(!subscription.frames.is_closed())
}

/// Rows as frames of [`Message::Rows`], each small enough for the protocol.
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
