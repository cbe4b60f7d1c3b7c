//! Introduction of a node to the store, the task that writes to the node, and the end of the
//! session.

#![expect(clippy::disallowed_types, reason = "time of the last ping, shared by both halves of a session")]

use super::clock::{ClockSync, NOT_SENT};
use super::limits::{DEAD_AFTER, OpenDefinitions};
use super::{ReadEnd, Session};
use crate::clock::NodeClock;
use crate::ids::{ConnId, Seq};
use crate::net::frames::Frames;
use crate::net::limits::NodePermit;
use crate::now;
use crate::session::{FINAL_MESSAGE_WITHIN, PeerAddress, SessionEnd, Shutdown, final_message};
use crate::shared::Shared;
use crate::store::input::{ConnectRequest, InputKind, NodeInput};
use crate::store::watermarks::FlowControl;
use miot_proto::wire::{ACK_AT_ONCE_SINCE_MINOR, Message, PACE_SINCE_MINOR, Pace, VERSION, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// A node after its greeting.
#[derive(Debug)]
pub(in crate::session) struct Introduction {
    pub(in crate::session) node: String,
    /// Random number of the log-client process.
    pub(in crate::session) session: u64,
    pub(in crate::session) permit: NodePermit,
    pub(in crate::session) address: PeerAddress,
    pub(in crate::session) version: Version,
}

/// The task that writes to the node.
pub(super) type WriterTask = tokio::task::JoinHandle<std::io::Result<()>>;

/// Serves a node to the end of its connection.
pub(in crate::session) async fn serve<R, W>(
    mut frames: Frames<R>,
    writer: W,
    conn: ConnId,
    Introduction { node, session, permit, address, version }: Introduction,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) -> Result<(), SessionEnd>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let flow = Arc::new(FlowControl { memory: Some(Arc::clone(permit.memory())), ..FlowControl::default() });
    let (acks_in, acks) = watch::channel(Seq(0));
    let (out, out_queue) = mpsc::unbounded_channel();
    let (reply, connected) = oneshot::channel();
    let name = node.clone();
    let request = ConnectRequest {
        node,
        session,
        flow: Arc::clone(&flow),
        acks: acks_in,
        ack_at_once: version.minor < ACK_AT_ONCE_SINCE_MINOR,
        out: out.clone(),
        reply,
    };
    let request = shared.input(conn, InputKind::Connect(request));
    shared.store.send(request).map_err(|_| SessionEnd::Closed)?;
    let ping_sent = Arc::new(AtomicI64::new(NOT_SENT));
    let mut writing = tokio::spawn(write(writer, acks, out_queue, Arc::clone(&ping_sent)));
    let Ok(connected) = connected.await else {
        // The store refused the node, and has sent the reason.
        drop(out);
        let _ = timeout(FINAL_MESSAGE_WITHIN, writing).await;
        return Err(SessionEnd::Closed);
    };
    let _ = out.send(Message::Welcome { version: VERSION, through: connected.through.0 });
    let pace = (version.minor >= PACE_SINCE_MINOR).then(|| {
        let mut pace = shared.pace.watch();
        if *pace.borrow_and_update() != Pace::default() {
            pace.mark_changed();
        }
        pace
    });
    let traffic = shared.monitor.connected(&name, conn, address);
    shared.steering.connected(&name, conn, version, out.clone());
    let mut session = Session {
        conn,
        node: name,
        traffic,
        shared: Arc::clone(&shared),
        out,
        definitions: OpenDefinitions::new(shared.config.node_streams),
        permit,
        flow,
        readable_at: None,
        clock: ClockSync::new(NodeClock::new(&connected.corrections, connected.reached), ping_sent),
        minor: version.minor,
        held: Vec::new(),
        held_bytes: 0,
        warned: false,
        future_events: 0,
    };
    let result = session.run(&mut frames, shutdown.stop, pace, &mut writing).await;
    session.finish(&result);
    let patience = match result {
        Ok(ReadEnd::Stopping) => DEAD_AFTER,
        _ => {
            let _ = shared.store.send(shared.input(conn, InputKind::Node(NodeInput::Closed)));
            FINAL_MESSAGE_WITHIN
        }
    };
    drop(shutdown.reading);
    // The task ends when the store has nothing more to acknowledge: when the server stops, once
    // everything is durable.
    let closed_by_store = matches!(result, Err(SessionEnd::Closed));
    if !closed_by_store && timeout(patience, &mut writing).await.is_err() {
        writing.abort();
    }
    result.map(|_| ())
}

impl Session {
    /// Ends the session: forwards the messages held back, and sends the final message.
    fn finish(mut self, result: &Result<ReadEnd, SessionEnd>) {
        self.shared.monitor.disconnected(&self.node, self.conn);
        self.shared.steering.disconnected(&self.node, self.conn);
        // Messages held back count as received.
        if !self.clock.known {
            let _ = self.clock_known();
        }
        if let Err(Some(message)) = result.as_ref().map_err(final_message) {
            let _ = self.out.send(message);
        }
        if self.future_events > 0 {
            tracing::warn!(node = self.node, events = self.future_events, "node sent times in the future");
        }
    }
}

/// Sends acknowledgments and other messages, until neither the store nor the session has more. The
/// first message answers the greeting: the store may acknowledge batches of an earlier connection
/// before that. An acknowledgment that the store has not announced goes with the next message.
async fn write<W>(
    mut writer: W,
    mut acks: watch::Receiver<Seq>,
    mut queue: mpsc::UnboundedReceiver<Message>,
    ping_sent: Arc<AtomicI64>,
) -> std::io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let (mut more_messages, mut more_acks, mut has_answered, mut frame) = (true, true, false, Vec::new());
    let mut acknowledged = Seq(0);
    while more_messages || more_acks && has_answered {
        frame.clear();
        let mut is_refusal = false;
        tokio::select! {
            biased;
            message = queue.recv(), if more_messages => match message {
                Some(mut message) => {
                    if let Message::Ping { sent: at } = &mut message {
                        *at = now();
                        ping_sent.store(*at, Ordering::Relaxed);
                    }
                    message.append_frame(&mut frame);
                    has_answered = true;
                    is_refusal = matches!(message, Message::Refused { .. });
                }
                None => more_messages = false,
            },
            changed = acks.changed(), if more_acks && has_answered => more_acks = changed.is_ok(),
        }
        if is_refusal {
            (more_messages, more_acks) = (false, false);
        } else if has_answered {
            let through = *acks.borrow_and_update();
            if through > acknowledged {
                acknowledged = through;
                Message::Ack { through: through.0 }.append_frame(&mut frame);
            }
        }
        if !frame.is_empty() {
            writer.write_all(&frame).await?;
            writer.flush().await?;
        }
    }
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn greeting_is_answered_before_anything_is_acknowledged() {
        let (server, mut node) = tokio::io::duplex(1 << 10);
        let (acks_in, acks) = watch::channel(Seq(0));
        let (out, queue) = mpsc::unbounded_channel();
        acks_in.send_replace(Seq(7));
        let writing = tokio::spawn(write(server, acks, queue, Arc::default()));
        // The acknowledgment waits for the answer.
        tokio::task::yield_now().await;
        out.send(Message::Welcome { version: VERSION, through: 3 }).unwrap();
        drop((out, acks_in));
        writing.await.unwrap().unwrap();
        let mut sent = Vec::new();
        node.read_to_end(&mut sent).await.unwrap();
        let answer = Message::Welcome { version: VERSION, through: 3 }.frame();
        assert_eq!(sent, [answer, Message::Ack { through: 7 }.frame()].concat());
    }

    #[tokio::test]
    async fn unannounced_acknowledgment_goes_with_the_next_message_or_the_end() {
        let (server, mut node) = tokio::io::duplex(1 << 10);
        let (acks_in, acks) = watch::channel(Seq(0));
        let (out, queue) = mpsc::unbounded_channel();
        let writing = tokio::spawn(write(server, acks, queue, Arc::default()));
        let set_silently = |through| {
            acks_in.send_if_modified(|now| {
                *now = Seq(through);
                false
            })
        };
        let welcome = Message::Welcome { version: VERSION, through: 0 };
        let expected = |messages: &[Message]| messages.iter().flat_map(Message::frame).collect::<Vec<_>>();
        let mut sent = vec![0; welcome.frame().len()];
        out.send(welcome).unwrap();
        node.read_exact(&mut sent).await.unwrap();
        set_silently(7);
        tokio::task::yield_now().await;
        let pace = Message::Pace { pace: Pace::Crowded };
        out.send(pace.clone()).unwrap();
        let both = expected(&[pace, Message::Ack { through: 7 }]);
        let mut sent = vec![0; both.len()];
        node.read_exact(&mut sent).await.unwrap();
        assert_eq!(sent, both);
        set_silently(8);
        drop((out, acks_in));
        writing.await.unwrap().unwrap();
        let mut sent = Vec::new();
        node.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, expected(&[Message::Ack { through: 8 }]));
    }

    #[tokio::test]
    async fn connection_without_an_answer_ends() {
        let (server, mut node) = tokio::io::duplex(1 << 10);
        let (acks_in, acks) = watch::channel(Seq(0));
        let (out, queue) = mpsc::unbounded_channel();
        acks_in.send_replace(Seq(7));
        drop(out);
        write(server, acks, queue, Arc::default()).await.unwrap();
        let mut sent = Vec::new();
        node.read_to_end(&mut sent).await.unwrap();
        assert!(sent.is_empty(), "{sent:?}");
    }
}
