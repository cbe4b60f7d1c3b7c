//! The session of a remote reader.

#![expect(clippy::disallowed_types, reason = "bytes queued for a subscriber")]

use super::{FINAL_MESSAGE_WITHIN, HELLO_WITHIN, SessionEnd, Shutdown, send_final_message};
use crate::error::Refusal;
use crate::ids::ConnId;
use crate::live::past::{self, PastError};
use crate::live::tail::{RowFilter, Subscription, TailRequest};
use crate::net::frames::Frames;
use crate::shared::Shared;
use crate::store::budget::Budget;
use crate::store::input::{InputKind, ReaderInput};
use crate::store::watermarks::FlowControl;
use bytes::Bytes;
use miot_proto::wire::{Message, SETS_SINCE_MINOR, VERSION, Version};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Maximum size of a message of a subscriber, bytes.
const MAX_REQUEST: usize = 128 << 10;
/// Maximum number of frames of earlier rows that wait to be sent; each has at most some MiB.
const PAST_FRAMES: usize = 2;
/// A subscriber that reads earlier rows and takes no byte for this time is cut off.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Serves a subscriber to the end of its connection.
pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    mut writer: W,
    conn: ConnId,
    version: Version,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) -> Result<(), SessionEnd>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // The server does not wait for subscribers when it stops.
    drop(shutdown);
    writer.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame()).await?;
    writer.flush().await?;
    let budget = Budget::new(MAX_REQUEST);
    let [filter, past_filter] = match read_filters(&mut frames, &budget).await {
        Ok(Some(filters)) => filters,
        Ok(None) => return Ok(()),
        Err(end) => {
            send_final_message(&mut writer, &end).await;
            return Err(end);
        }
    };
    let _follower = shared.pace.follow();
    let (live_frames, live) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let (cut, cut_off) = oneshot::channel();
    let since = filter.since();
    let wants_final = version.minor >= SETS_SINCE_MINOR;
    let queue = Arc::clone(&queued);
    let subscription = Subscription { filter, frames: live_frames, queued: queue, wants_final, cut };
    let past = match since {
        Some(since) => Some(read_past(&shared, conn, since, past_filter, subscription)),
        None => {
            let input = InputKind::Reader(ReaderInput::Subscribe(Box::new(subscription)));
            let _ = shared.store.send(shared.input(conn, input));
            None
        }
    };
    let source = FrameSource { past, live, is_past: false };
    let end = send_rows(&mut frames, &mut writer, source, &queued, cut_off, &budget).await?;
    let (partial, reason) = match end {
        RowsEnd::Left => return Ok(()),
        RowsEnd::Stopped => (Bytes::new(), "the log-server stops".into()),
        RowsEnd::Cut { partial, reason } => {
            shared.monitor.subscribers_cut.fetch_add(1, Ordering::Relaxed);
            (partial, reason)
        }
        RowsEnd::Violation(refusal) => {
            let end = refusal.into();
            send_final_message(&mut writer, &end).await;
            return Err(end);
        }
    };
    finish(&mut writer, &partial, &Message::SubscriptionEnd { reason }).await
}

/// Reason why no more rows are sent.
enum RowsEnd {
    /// The subscriber closed the connection.
    Left,
    /// The server stops.
    Stopped,
    /// The subscriber is cut off. `partial`: the rest of a frame that was partly sent.
    Cut { partial: Bytes, reason: String },
    /// The subscriber violated the protocol.
    Violation(Refusal),
}

/// Sends the frames of `source` until one side ends. `queued` is the size of the live frames that
/// wait, bytes.
async fn send_rows<R, W>(
    frames: &mut Frames<R>,
    writer: &mut W,
    mut source: FrameSource,
    queued: &AtomicUsize,
    mut cut_off: oneshot::Receiver<String>,
    budget: &Arc<Budget>,
) -> Result<RowsEnd, SessionEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut stalled = Instant::now() + STALLED_AFTER;
    let (flow, mut may_be_cut) = (FlowControl::default(), true);
    // The current frame, and how much of it was sent: a partly sent frame must be completed before
    // another message can be sent.
    let (mut frame, mut sent, mut flushed) = (Bytes::new(), 0, true);
    loop {
        tokio::select! {
            biased;
            reason = &mut cut_off, if may_be_cut => match reason {
                Ok(reason) => return Ok(RowsEnd::Cut { partial: frame.slice(sent..), reason }),
                // The server stops; queued frames are still sent.
                Err(_) => may_be_cut = false,
            },
            written = write_some(writer, &frame[sent..]), if sent < frame.len() || !flushed => {
                let written = written?;
                (sent, flushed) = (sent + written, written == 0);
                stalled = Instant::now() + STALLED_AFTER;
                if written > 0 && sent == frame.len() && !source.is_past {
                    queued.fetch_sub(sent, Ordering::Relaxed);
                }
            }
            next = source.next(), if sent == frame.len() && flushed => match next {
                Some(Ok(next)) => {
                    (frame, sent) = (next, 0);
                    stalled = Instant::now() + STALLED_AFTER;
                }
                Some(Err(error)) => {
                    return Ok(RowsEnd::Cut { partial: Bytes::new(), reason: error.to_string() });
                }
                None => return Ok(RowsEnd::Stopped),
            },
            // A subscriber that does not read earlier rows keeps others from reading them.
            () = tokio::time::sleep_until(stalled), if sent < frame.len() && source.is_past => {
                let reason = format!("nothing was read for {STALLED_AFTER:?}");
                return Ok(RowsEnd::Cut { partial: frame.slice(sent..), reason });
            }
            message = frames.next(MAX_REQUEST, budget, &flow) => match message? {
                None => return Ok(RowsEnd::Left),
                Some(_) => {
                    let text = "a subscriber sent a message after its request";
                    return Ok(RowsEnd::Violation(Refusal::Rule(text)));
                }
            },
        }
    }
}

/// Sends a part of `rest`. Returns 0 once `rest` is empty and everything was flushed.
async fn write_some<W: AsyncWrite + Unpin>(writer: &mut W, rest: &[u8]) -> io::Result<usize> {
    if !rest.is_empty() {
        return writer.write(rest).await;
    }
    writer.flush().await?;
    Ok(0)
}

/// Frames of earlier rows, then of live rows.
struct FrameSource {
    past: Option<mpsc::Receiver<Result<Bytes, PastError>>>,
    live: mpsc::UnboundedReceiver<Bytes>,
    /// The last frame had earlier rows.
    is_past: bool,
}

impl FrameSource {
    /// Returns the next frame, or the reason why there is none. Cancelling a call loses no frame.
    async fn next(&mut self) -> Option<Result<Bytes, PastError>> {
        if let Some(past) = &mut self.past {
            if let Some(frame) = past.recv().await {
                self.is_past = true;
                return Some(frame);
            }
            self.past = None;
        }
        self.is_past = false;
        self.live.recv().await.map(Ok)
    }
}

/// Starts reading earlier rows. Once they were read, the subscription continues with live rows.
fn read_past(
    shared: &Arc<Shared>,
    conn: ConnId,
    since: i64,
    filter: RowFilter,
    subscription: Subscription,
) -> mpsc::Receiver<Result<Bytes, PastError>> {
    let (frames, past) = mpsc::channel(PAST_FRAMES);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let Ok(_permit) = Arc::clone(&shared.past_readers).acquire_owned().await else { return };
        if frames.is_closed() {
            return;
        }
        let reading = tokio::task::spawn_blocking(move || {
            let ask =
                |join| shared.store.send(shared.input(conn, InputKind::Reader(ReaderInput::Join(join)))).ok();
            let read = past::read(&shared.config.trace, since, filter, &frames, subscription, ask);
            if let Err(error) = read {
                let _ = frames.blocking_send(Err(error));
            }
        });
        let _ = reading.await;
    });
    past
}

/// Sends the rest of a frame and a final message to a peer that may not read.
async fn finish<W: AsyncWrite + Unpin>(
    writer: &mut W,
    rest: &[u8],
    message: &Message,
) -> Result<(), SessionEnd> {
    let mut bytes = rest.to_vec();
    message.append_frame(&mut bytes);
    let sending = async {
        writer.write_all(&bytes).await?;
        writer.shutdown().await
    };
    Ok(timeout(FINAL_MESSAGE_WITHIN, sending).await.map_err(io::Error::from)??)
}

/// Reads the request of the subscriber. Returns its filter twice: for live and for earlier rows.
/// `None` if the peer closed the connection before it.
async fn read_filters<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    budget: &Arc<Budget>,
) -> Result<Option<[RowFilter; 2]>, SessionEnd> {
    let flow = FlowControl::default();
    let message = timeout(HELLO_WITHIN, frames.next(MAX_REQUEST, budget, &flow)).await;
    match message.map_err(|_| Refusal::Slow(HELLO_WITHIN))?? {
        None => Ok(None),
        Some((Message::Subscribe { layers, ops, paths, pids, nodes, since }, _)) => {
            let request = TailRequest { layers, ops, paths, pids, nodes, since };
            let filter = || RowFilter::new(request.clone()).map_err(Refusal::Filter);
            Ok(Some([filter()?, filter()?]))
        }
        Some(_) => Err(Refusal::Rule("the first message of a subscriber was not a request").into()),
    }
}
