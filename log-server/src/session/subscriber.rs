//! The session of a remote reader.

use super::{End, Ending, HELLO_WITHIN, LAST_WORD_WITHIN, Shared, input, last_word};
use crate::budget::Budget;
use crate::error::Refusal;
use crate::frames::Frames;
use crate::input::What;
use crate::nodes::Pace;
use crate::tail::{Filter, Subscription};
use miot_proto::wire::{Message, VERSION};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Largest message of a subscriber.
const MAX_WISH: usize = 128 << 10;

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
    let budget = Budget::new(MAX_WISH);
    let filter = match wish(&mut frames, &budget).await {
        Ok(Some(filter)) => filter,
        Ok(None) => return Ok(()),
        Err(end) => {
            last_word(&mut writer, &end).await;
            return Err(end);
        }
    };
    let (queue, mut queued_frames) = mpsc::unbounded_channel::<Vec<u8>>();
    let queued = Arc::new(AtomicUsize::new(0));
    let (cut, mut cut_off) = oneshot::channel();
    let subscription = Subscription { filter, frames: queue, queued: Arc::clone(&queued), cut };
    let _ = shared.store.send(input(&shared, conn, What::Subscribe(subscription)));
    let (pace, mut may_be_cut) = (Pace::default(), true);
    // The frame being sent, and how much of it has been: one half sent must be completed before anything
    // else can be said.
    let (mut frame, mut sent) = (Vec::new(), 0);
    loop {
        tokio::select! {
            biased;
            reason = &mut cut_off, if may_be_cut => match reason {
                Ok(reason) => {
                    let rest = &frame[sent..];
                    return say(&mut writer, rest, &Message::Cut { reason }).await;
                }
                // The server ends; what is queued is still sent.
                Err(_) => may_be_cut = false,
            },
            written = writer.write(&frame[sent..]), if sent < frame.len() => {
                sent += written?;
                if sent == frame.len() {
                    queued.fetch_sub(sent, Ordering::Relaxed);
                }
            }
            next = queued_frames.recv(), if sent == frame.len() => match next {
                Some(next) => (frame, sent) = (next, 0),
                None => break,
            },
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

/// The subscriber's filter; `None` if it went without one.
async fn wish<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    budget: &Arc<Budget>,
) -> Result<Option<Filter>, End> {
    let pace = Pace::default();
    let message = timeout(HELLO_WITHIN, frames.next(MAX_WISH, budget, &pace)).await;
    match message.map_err(|_| Refusal::Slow(HELLO_WITHIN))?? {
        None => Ok(None),
        Some((Message::Subscribe { layers, ops, paths, pids, nodes }, _)) => {
            Ok(Some(Filter::new(layers, ops, &paths, pids, nodes).map_err(Refusal::Filter)?))
        }
        Some(_) => Err(Refusal::Rule("a subscriber first says what it wants").into()),
    }
}
