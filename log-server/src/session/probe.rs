//! The session of a probe: a client that checks whether a node would be served, and compares
//! clocks.

use super::{HELLO_WITHIN, SessionEnd};
use crate::net::frames::Frames;
use crate::now;
use crate::store::budget::Budget;
use crate::store::watermarks::FlowControl;
use miot_proto::wire::{MAX_HELLO, Message, VERSION};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum number of questions that are answered.
const QUESTIONS: usize = 64;

pub(super) async fn serve<R, W>(mut frames: Frames<R>, mut writer: W) -> Result<(), SessionEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    writer.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame()).await?;
    writer.flush().await?;
    let (budget, flow) = (Budget::new(MAX_HELLO), FlowControl::default());
    for _ in 0..QUESTIONS {
        let Ok(next) = timeout(HELLO_WITHIN, frames.next(MAX_HELLO, &budget, &flow)).await else { break };
        let Some((Message::Ping { sent }, _)) = next? else { break };
        let received = now();
        writer.write_all(&Message::Pong { sent, received, answered: now() }.frame()).await?;
        writer.flush().await?;
    }
    writer.shutdown().await?;
    Ok(())
}
