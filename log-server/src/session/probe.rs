//! Somebody wants to know whether a node would be served, and what time it is here.

use super::{End, HELLO_WITHIN};
use crate::budget::Budget;
use crate::frames::Frames;
use crate::nodes::Pace;
use crate::now;
use miot_proto::wire::{MAX_HELLO, Message, VERSION};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Questions that are answered.
const QUESTIONS: usize = 64;

pub(super) async fn serve<R, W>(mut frames: Frames<R>, mut writer: W) -> Result<(), End>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    writer.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame()).await?;
    writer.flush().await?;
    let (budget, pace) = (Budget::new(MAX_HELLO), Pace::default());
    for _ in 0..QUESTIONS {
        let Ok(next) = timeout(HELLO_WITHIN, frames.next(MAX_HELLO, &budget, &pace)).await else { break };
        let Some((Message::Ping { sent }, _)) = next? else { break };
        let received = now();
        writer.write_all(&Message::Pong { sent, received, answered: now() }.frame()).await?;
        writer.flush().await?;
    }
    writer.shutdown().await?;
    Ok(())
}
