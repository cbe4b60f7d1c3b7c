//! The session of a probe: a client that checks whether a node would be served, and compares
//! clocks.

use super::{HELLO_WITHIN, SessionEnd};
use crate::net::frames::Frames;
use crate::now;
use crate::store::budget::Budget;
use crate::store::watermarks::FlowControl;
use miot_proto::wire::{MAX_HELLO, MemberIdentity, Message, VERSION};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum number of questions that are answered.
const QUESTIONS: usize = 64;

/// Serves a probe. `member`: what it gets of this server's identity.
pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    mut writer: W,
    member: Option<MemberIdentity>,
) -> Result<(), SessionEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut greeting = Message::Welcome { version: VERSION, through: 0 }.frame();
    if let Some(member) = member {
        Message::Member { member }.append_frame(&mut greeting);
    }
    writer.write_all(&greeting).await?;
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
