//! The latest events for a browser: at most some hundred a second, the rest is counted.

use crate::input::What;
use crate::monitor::Monitor;
use crate::shared::Shared;
use crate::tail::{Filter, Subscription, Wish};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use arrow_ipc::reader::StreamReader;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_core::Stream;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Events that a browser is told of at a time; of more the latest.
const AT_A_TIME: usize = 100;
/// Time between two messages.
const EVERY: Duration = Duration::from_millis(250);
/// A sign of life, so that a browser that is gone is noticed.
const ALIVE_EVERY: u32 = 40;

/// The filters of `miot tail`, each a list with commas.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Filters {
    layer: String,
    op: String,
    path: String,
    pid: String,
    node: String,
}

/// An event as the page shows it.
#[derive(Debug, Serialize)]
struct Row {
    time: i64,
    duration: i64,
    node: String,
    pid: u32,
    comm: String,
    op: String,
    path: String,
    offset: Option<i64>,
    length: Option<i64>,
    result: i64,
}

#[derive(Debug, Serialize)]
struct News<'a> {
    rows: &'a VecDeque<Row>,
    /// Events between these and the ones before that are not told.
    skipped: u64,
}

/// Server-sent events, each with some rows.
pub(super) async fn events(State(shared): State<Arc<Shared>>, Query(filters): Query<Filters>) -> Response {
    let filter = match wish(&filters).and_then(Filter::new) {
        Ok(filter) => filter,
        Err(reason) => return (StatusCode::BAD_REQUEST, reason + "\n").into_response(),
    };
    let place = match shared.limits.subscriber() {
        Ok(place) => place,
        Err(refusal) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")).into_response(),
    };
    let (frames, queued_frames) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let (cut, cut_off) = oneshot::channel();
    let subscription = Subscription { filter, frames, queued: Arc::clone(&queued), cut };
    // No connection of a node has this number.
    let _ = shared.store.send(shared.input(u64::MAX, What::Subscribe(subscription)));
    let (lines, body) = mpsc::channel(1);
    tokio::spawn(async move {
        let monitor = &shared.monitor;
        monitor.subscribers.fetch_add(1, Ordering::Relaxed);
        pass_on(queued_frames, &queued, cut_off, &lines, monitor).await;
        monitor.subscribers.fetch_sub(1, Ordering::Relaxed);
        drop(place);
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(Lines(body))).into_response()
}

fn wish(filters: &Filters) -> Result<Wish, String> {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let pids = list(&filters.pid)
        .into_iter()
        .map(|pid| pid.parse().map_err(|_| format!("pid: `{pid}` is no number")));
    Ok(Wish {
        layers: list(&filters.layer),
        ops: list(&filters.op),
        paths: list(&filters.path),
        pids: pids.collect::<Result<_, _>>()?,
        nodes: list(&filters.node),
        since: None,
    })
}

/// Until the browser or the server goes. What a slow browser has no room for is dropped here, not queued.
async fn pass_on(
    mut frames: mpsc::UnboundedReceiver<Bytes>,
    queued: &AtomicUsize,
    mut cut_off: oneshot::Receiver<String>,
    lines: &mpsc::Sender<Bytes>,
    monitor: &Monitor,
) {
    let (mut rows, mut skipped, mut silent) = (VecDeque::new(), 0u64, 0);
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let Some(frame) = frame else { break };
                queued.fetch_sub(frame.len(), Ordering::Relaxed);
                for batch in batches(&frame) {
                    take(&batch, &mut rows, &mut skipped);
                }
            }
            _ = ticks.tick() => {
                silent += 1;
                let text = match serde_json::to_string(&News { rows: &rows, skipped }) {
                    Ok(news) if !rows.is_empty() || silent == 1 => format!("data: {news}\n\n"),
                    _ if silent % ALIVE_EVERY == 0 => ":\n\n".to_owned(),
                    _ => continue,
                };
                match lines.try_send(text.into()) {
                    Ok(()) => {
                        rows.clear();
                        skipped = 0;
                    }
                    Err(mpsc::error::TrySendError::Full(_)) => {}
                    Err(mpsc::error::TrySendError::Closed(_)) => return,
                }
            }
            () = lines.closed() => return,
        }
    }
    // Without a reason the server stops, and the browser calls the next one.
    if let Ok(reason) = cut_off.try_recv() {
        monitor.subscribers_cut.fetch_add(1, Ordering::Relaxed);
        let reason = serde_json::to_string(&reason).unwrap_or_default();
        let _ = lines.send(format!("event: cut\ndata: {reason}\n\n").into()).await;
    }
}

fn batches(frame: &[u8]) -> Vec<RecordBatch> {
    let read = || {
        let (header, payload) = frame.split_first_chunk::<FRAME_HEADER>()?;
        let (_, crc) = frame_header(*header, MAX_FRAME).ok()?;
        let Message::Rows { arrow } = Message::from_payload(payload, crc).ok()? else { return None };
        StreamReader::try_new(arrow.as_slice(), None).ok()?.collect::<Result<Vec<_>, _>>().ok()
    };
    read().unwrap_or_default()
}

/// Keeps the last rows.
fn take(batch: &RecordBatch, rows: &mut VecDeque<Row>, skipped: &mut u64) {
    let first = batch.num_rows().saturating_sub(AT_A_TIME);
    let new = batch.num_rows() - first;
    let gone = (rows.len() + new).saturating_sub(AT_A_TIME);
    rows.drain(..gone);
    *skipped += (gone + first) as u64;
    let batch = batch.slice(first, new);
    rows.extend((0..new).filter_map(|row| self::row(&batch, row)));
}

fn row(batch: &RecordBatch, row: usize) -> Option<Row> {
    let i64s =
        |name: &str| -> Option<&PrimitiveArray<Int64Type>> { batch.column_by_name(name)?.as_primitive_opt() };
    let optional =
        |name: &str| i64s(name).filter(|column| column.is_valid(row)).map(|column| column.value(row));
    let name = |name: &str| {
        let column = batch.column_by_name(name)?;
        let (values, at) = match column.as_any_dictionary_opt() {
            Some(names) => (names.values(), *names.normalized_keys().get(row)?),
            None => (column, row),
        };
        let values = values.as_string_opt::<i32>()?;
        (at < values.len() && values.is_valid(at)).then(|| values.value(at).to_owned())
    };
    Some(Row {
        time: batch.column_by_name("time")?.as_primitive_opt::<TimestampNanosecondType>()?.value(row),
        duration: optional("duration")?,
        node: name("node").unwrap_or_default(),
        pid: batch.column_by_name("pid")?.as_primitive_opt::<UInt32Type>()?.value(row),
        comm: name("comm").unwrap_or_default(),
        op: format!("{}.{}", name("layer").unwrap_or_default(), name("op").unwrap_or_default()),
        path: name("path").unwrap_or_default(),
        offset: optional("offset"),
        length: optional("length"),
        result: optional("result")?,
    })
}

struct Lines(mpsc::Receiver<Bytes>);

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}
