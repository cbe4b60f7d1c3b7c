//! The latest events for a browser: at most some hundred per second; the others are only counted.

#![expect(clippy::disallowed_types, reason = "bytes queued for a subscriber")]

use crate::ids::ConnId;
use crate::live::tail::{FilterError, RowFilter, Subscription, TailRequest};
use crate::monitor::Monitor;
use crate::shared::Shared;
use crate::store::input::{InputKind, ReaderInput};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_core::Stream;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use miot_trace_store::arrow_stream;
use miot_trace_store::schema::column;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of events in a message: the latest ones.
const MAX_EVENTS: usize = 100;
/// Time between two messages.
const MESSAGE_EVERY: Duration = Duration::from_millis(250);
/// A comment is sent after this number of intervals without a message, so that a closed connection
/// is detected.
const COMMENT_EVERY: u32 = 40;

/// The filters of `miot tail`, as comma-separated lists.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventFilters {
    layer: String,
    op: String,
    path: String,
    pid: String,
    node: String,
}

/// An event on the page.
#[derive(Debug, Serialize)]
struct PageEvent {
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
struct EventMessage<'a> {
    rows: &'a VecDeque<PageEvent>,
    /// Number of events since the previous message that are left out.
    skipped: u64,
}

/// Serves server-sent events, each with some rows.
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    Query(filters): Query<EventFilters>,
) -> Response {
    let filter = match tail_request(&filters).and_then(RowFilter::new) {
        Ok(filter) => filter,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let permit = match shared.limits.subscriber() {
        Ok(permit) => permit,
        Err(refusal) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")).into_response(),
    };
    let (frames, queued_frames) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let (cut, cut_off) = oneshot::channel();
    let subscription = Subscription { filter, frames, queued: Arc::clone(&queued), wants_final: false, cut };
    // No connection has this number.
    let _ = shared.store.send(
        shared.input(ConnId::BROWSER, InputKind::Reader(ReaderInput::Subscribe(Box::new(subscription)))),
    );
    let (lines, body) = mpsc::channel(1);
    tokio::spawn(async move {
        let monitor = &shared.monitor;
        monitor.subscribers.fetch_add(1, Ordering::Relaxed);
        forward_events(queued_frames, &queued, cut_off, &lines, monitor).await;
        monitor.subscribers.fetch_sub(1, Ordering::Relaxed);
        drop(permit);
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(LineStream(body))).into_response()
}

fn tail_request(filters: &EventFilters) -> Result<TailRequest, FilterError> {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let pids =
        list(&filters.pid).into_iter().map(|pid| pid.parse().map_err(|_| FilterError::Pid(pid.clone())));
    Ok(TailRequest {
        layers: list(&filters.layer),
        ops: list(&filters.op),
        paths: list(&filters.path),
        pids: pids.collect::<Result<_, _>>()?,
        nodes: list(&filters.node),
        since: None,
    })
}

/// Forwards events until the browser or the server ends. Events that a slow browser does not take
/// are dropped, not queued.
async fn forward_events(
    mut frames: mpsc::UnboundedReceiver<Bytes>,
    queued: &AtomicUsize,
    mut cut_off: oneshot::Receiver<String>,
    lines: &mpsc::Sender<Bytes>,
    monitor: &Monitor,
) {
    let (mut rows, mut skipped, mut silent) = (VecDeque::new(), 0u64, 0);
    let mut ticks = tokio::time::interval(MESSAGE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let Some(frame) = frame else { break };
                queued.fetch_sub(frame.len(), Ordering::Relaxed);
                for batch in decode_frame(&frame) {
                    keep_latest(&batch, &mut rows, &mut skipped);
                }
            }
            _ = ticks.tick() => {
                silent += 1;
                let text = match serde_json::to_string(&EventMessage { rows: &rows, skipped }) {
                    Ok(message) if !rows.is_empty() || silent == 1 => format!("data: {message}\n\n"),
                    _ if silent % COMMENT_EVERY == 0 => ":\n\n".to_owned(),
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
    // Without a reason, the server stops, and the browser reconnects later.
    if let Ok(reason) = cut_off.try_recv() {
        monitor.subscribers_cut.fetch_add(1, Ordering::Relaxed);
        let reason = serde_json::to_string(&reason).unwrap_or_default();
        let _ = lines.send(format!("event: cut\ndata: {reason}\n\n").into()).await;
    }
}

fn decode_frame(frame: &[u8]) -> Vec<RecordBatch> {
    let read = || {
        let (header, payload) = frame.split_first_chunk::<FRAME_HEADER>()?;
        let (_, crc) = frame_header(*header, MAX_FRAME).ok()?;
        let Message::Rows { arrow } = Message::from_payload(payload, crc).ok()? else { return None };
        arrow_stream::read(&arrow).ok()
    };
    read().unwrap_or_default()
}

/// Adds the rows of a batch, and keeps the latest.
fn keep_latest(batch: &RecordBatch, rows: &mut VecDeque<PageEvent>, skipped: &mut u64) {
    let first = batch.num_rows().saturating_sub(MAX_EVENTS);
    let new = batch.num_rows() - first;
    let gone = (rows.len() + new).saturating_sub(MAX_EVENTS);
    rows.drain(..gone);
    *skipped += (gone + first) as u64;
    let batch = batch.slice(first, new);
    rows.extend((0..new).filter_map(|row| event_row(&batch, row)));
}

fn event_row(batch: &RecordBatch, row: usize) -> Option<PageEvent> {
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
    Some(PageEvent {
        time: batch.column_by_name("time")?.as_primitive_opt::<TimestampNanosecondType>()?.value(row),
        duration: optional("duration")?,
        node: name("node").unwrap_or_default(),
        pid: column::<UInt32Type>(batch, "pid")?.value(row),
        comm: name("comm").unwrap_or_default(),
        op: format!("{}.{}", name("layer").unwrap_or_default(), name("op").unwrap_or_default()),
        path: name("path").unwrap_or_default(),
        offset: optional("offset"),
        length: optional("length"),
        result: optional("result")?,
    })
}

struct LineStream(mpsc::Receiver<Bytes>);

impl Stream for LineStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}
