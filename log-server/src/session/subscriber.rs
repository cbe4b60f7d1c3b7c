//! The session of a remote reader.

use super::{End, Ending, HELLO_WITHIN, LAST_WORD_WITHIN, last_word};
use crate::budget::Budget;
use crate::error::Refusal;
use crate::frames::Frames;
use crate::input::What;
use crate::nodes::Pace;
use crate::past;
use crate::shared::Shared;
use crate::tail::{Filter, Subscription, Wish};
use bytes::Bytes;
use miot_proto::wire::{Message, VERSION};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Largest message of a subscriber.
const MAX_WISH: usize = 128 << 10;
/// Frames of the past that may wait to be sent, of some MiB at most.
const PAST_FRAMES: usize = 2;
/// A subscriber to the past that takes nothing for so long is cut off.
const STALLED_AFTER: Duration = Duration::from_secs(30);

pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    mut writer: W,
    conn: u64,
    shared: Arc<Shared>,
    ending: Ending,
) -> Result<(), End>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // A server that stops does not wait for subscribers.
    drop(ending);
    writer.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame()).await?;
    writer.flush().await?;
    let budget = Budget::new(MAX_WISH);
    let wish = match wish(&mut frames, &budget).await {
        Ok(Some(wish)) => wish,
        Ok(None) => return Ok(()),
        Err(end) => {
            last_word(&mut writer, &end).await;
            return Err(end);
        }
    };
    let filter = || Filter::new(wish.clone()).map_err(Refusal::Filter);
    let (filter, past_filter) = match filter().and_then(|one| Ok((one, filter()?))) {
        Ok(filters) => filters,
        Err(refusal) => {
            let end = refusal.into();
            last_word(&mut writer, &end).await;
            return Err(end);
        }
    };
    let (queue, queued_frames) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let (cut, mut cut_off) = oneshot::channel();
    let subscription = Subscription { filter, frames: queue, queued: Arc::clone(&queued), cut };
    let past = match wish.since {
        Some(since) => Some(past(&shared, conn, since, past_filter, subscription)),
        None => {
            let _ = shared.store.send(shared.input(conn, What::Subscribe(subscription)));
            None
        }
    };
    let cut = |reason| {
        shared.monitor.subscribers_cut.fetch_add(1, Ordering::Relaxed);
        Message::Cut { reason }
    };
    let mut rows = Rows { past, live: queued_frames, of_the_past: false };
    let mut stalled = Instant::now() + STALLED_AFTER;
    let (pace, mut may_be_cut) = (Pace::default(), true);
    // The frame being sent, and how much of it has been: one half sent must be completed before anything
    // else can be said.
    let (mut frame, mut sent, mut flushed) = (Bytes::new(), 0, true);
    loop {
        tokio::select! {
            biased;
            reason = &mut cut_off, if may_be_cut => match reason {
                Ok(reason) => return say(&mut writer, &frame[sent..], &cut(reason)).await,
                // The server ends; what is queued is still sent.
                Err(_) => may_be_cut = false,
            },
            written = push(&mut writer, &frame[sent..]), if sent < frame.len() || !flushed => {
                let written = written?;
                (sent, flushed) = (sent + written, written == 0);
                stalled = Instant::now() + STALLED_AFTER;
                if written > 0 && sent == frame.len() && !rows.of_the_past {
                    queued.fetch_sub(sent, Ordering::Relaxed);
                }
            }
            next = rows.next(), if sent == frame.len() && flushed => match next {
                Some(Ok(next)) => {
                    (frame, sent) = (next, 0);
                    stalled = Instant::now() + STALLED_AFTER;
                }
                Some(Err(reason)) => return say(&mut writer, &[], &cut(reason)).await,
                None => break,
            },
            // Who does not read the past keeps others from reading it.
            () = tokio::time::sleep_until(stalled), if sent < frame.len() && rows.of_the_past => {
                let reason = format!("you have read nothing for {STALLED_AFTER:?}");
                return say(&mut writer, &frame[sent..], &cut(reason)).await;
            }
            message = frames.next(MAX_WISH, &budget, &pace) => match message? {
                None => return Ok(()),
                Some(_) => {
                    let end = Refusal::Rule("a subscriber says nothing after its subscription").into();
                    last_word(&mut writer, &end).await;
                    return Err(end);
                }
            },
        }
    }
    say(&mut writer, &[], &Message::Cut { reason: "the log-server stops".into() }).await
}

/// Sends some of what is left; 0 once nothing is left and all of it is on its way.
async fn push<W: AsyncWrite + Unpin>(writer: &mut W, rest: &[u8]) -> io::Result<usize> {
    if !rest.is_empty() {
        return writer.write(rest).await;
    }
    writer.flush().await?;
    Ok(0)
}

/// First what was, then what comes.
struct Rows {
    past: Option<mpsc::Receiver<Result<Bytes, String>>>,
    live: mpsc::UnboundedReceiver<Bytes>,
    /// The last frame was.
    of_the_past: bool,
}

impl Rows {
    /// The next frame, or why there is none. A call that is cancelled loses nothing.
    async fn next(&mut self) -> Option<Result<Bytes, String>> {
        if let Some(past) = &mut self.past {
            if let Some(frame) = past.recv().await {
                self.of_the_past = true;
                return Some(frame);
            }
            self.past = None;
        }
        self.of_the_past = false;
        self.live.recv().await.map(Ok)
    }
}

/// Frames of what was; the subscription is joined to what comes when that has been read.
fn past(
    shared: &Arc<Shared>,
    conn: u64,
    since: i64,
    filter: Filter,
    subscription: Subscription,
) -> mpsc::Receiver<Result<Bytes, String>> {
    let (frames, past) = mpsc::channel(PAST_FRAMES);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let Ok(_turn) = Arc::clone(&shared.pasts).acquire_owned().await else { return };
        if frames.is_closed() {
            return;
        }
        let reading = tokio::task::spawn_blocking(move || {
            let ask = |join| shared.store.send(shared.input(conn, What::Join(join))).ok();
            let read = past::read(&shared.config.trace, since, filter, &frames, subscription, ask);
            if let Err(reason) = read {
                let _ = frames.blocking_send(Err(reason));
            }
        });
        let _ = reading.await;
    });
    past
}

/// Sends the rest of a frame and a last message to somebody who may not read.
async fn say<W: AsyncWrite + Unpin>(writer: &mut W, rest: &[u8], message: &Message) -> Result<(), End> {
    let mut bytes = rest.to_vec();
    message.put_frame(&mut bytes);
    let sending = async {
        writer.write_all(&bytes).await?;
        writer.shutdown().await
    };
    Ok(timeout(LAST_WORD_WITHIN, sending).await.map_err(io::Error::from)??)
}

/// The subscriber's wish; `None` if it went without one.
async fn wish<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    budget: &Arc<Budget>,
) -> Result<Option<Wish>, End> {
    let pace = Pace::default();
    let message = timeout(HELLO_WITHIN, frames.next(MAX_WISH, budget, &pace)).await;
    match message.map_err(|_| Refusal::Slow(HELLO_WITHIN))?? {
        None => Ok(None),
        Some((Message::Subscribe { layers, ops, paths, pids, nodes, since }, _)) => {
            Ok(Some(Wish { layers, ops, paths, pids, nodes, since }))
        }
        Some(_) => Err(Refusal::Rule("a subscriber first says what it wants").into()),
    }
}
