//! The connection to the log-server, and the next one when it breaks.

use super::outbox::{Inbox, Outgoing};
use super::pending::Pending;
use crate::clock::NodeClock;
use crate::error::Error;
use crossbeam::channel::TryRecvError;
use miot_proto::wire::{FRAME_HEADER, GREETING, MAX_HELLO, Message, Role, VERSION, frame_header};
use rustix::net::sockopt;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Longest wait for a connection, and for the server's first answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits between two attempts: doubled from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Bytes gathered for one write: large enough that the system call does not count.
const WRITE: usize = 256 << 10;

/// Silence of the network after which a connection is given up.
const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Whom to talk to, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) server: String,
    pub(crate) node: String,
    pub(crate) session: u64,
}

/// How a connection ended.
enum End {
    /// Everything was acknowledged, and nothing more comes.
    Done,
    Broken(io::Error),
    Refused(String),
}

/// Number of messages that were not acknowledged, for whoever stops waiting.
pub(crate) type Left = AtomicU64;

/// Ships until everything is acknowledged after the outbox has ended.
///
/// # Errors
/// [`Error::Refused`] if the server refuses before it has ever welcomed this session. A later refusal is
/// tried again: what is held here is worth it, and the reason may be that the server has not noticed yet
/// that an earlier connection broke.
pub(crate) async fn ship(peer: Peer, inbox: Inbox, clock: NodeClock, left: Arc<Left>) -> Result<(), Error> {
    let pending = Mutex::new(Pending::new(Arc::clone(&inbox.link)));
    let shipper = Shipper { pending, fresh: Notify::new(), clock, left };
    tokio::select! {
        never = shipper.absorb(&inbox) => match never {},
        result = shipper.connect_and_ship(&peer) => result,
    }
}

struct Shipper {
    pending: Mutex<Pending>,
    /// There may be something to send.
    fresh: Notify,
    clock: NodeClock,
    left: Arc<Left>,
}

impl Shipper {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the sweeper sends, whether there is a connection or not: its memory is bounded elsewhere.
    async fn absorb(&self, inbox: &Inbox) -> Infallible {
        while self.take_in(inbox) {
            inbox.link.news.notified().await;
        }
        std::future::pending().await
    }

    /// Takes what is there. False: nothing more will come.
    fn take_in(&self, inbox: &Inbox) -> bool {
        let mut pending = self.pending();
        let open = loop {
            match inbox.receiver.try_recv() {
                Ok(outgoing) => pending.push(outgoing),
                Err(error) => break error == TryRecvError::Empty,
            }
        };
        if !open {
            pending.push(Outgoing::End);
        }
        self.left.store(pending.left(), Relaxed);
        drop(pending);
        self.fresh.notify_one();
        open
    }

    async fn connect_and_ship(&self, peer: &Peer) -> Result<(), Error> {
        let mut retry = Retry::new(peer.session);
        let mut welcomed = false;
        loop {
            let reason = match self.connect(peer, &mut welcomed, &mut retry).await {
                End::Done => return Ok(()),
                End::Refused(reason) if !welcomed => {
                    return Err(Error::Refused { server: peer.server.clone(), reason });
                }
                End::Refused(reason) => format!("refused: {reason}"),
                End::Broken(error) => error.to_string(),
            };
            let wait = retry.next();
            tracing::warn!(
                server = peer.server,
                reason,
                retry_ms = wait.as_millis() as u64,
                "no connection to the log-server"
            );
            sleep(wait).await;
        }
    }

    async fn connect(&self, peer: &Peer, welcomed: &mut bool, retry: &mut Retry) -> End {
        let (mut reader, mut writer, through) = match greet(peer).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(reason)) => return End::Refused(reason),
            Err(error) => return End::Broken(error),
        };
        let definitions = {
            let mut pending = self.pending();
            let definitions = pending.restart(through);
            tracing::info!(
                server = peer.server,
                through,
                to_send = pending.left(),
                "connected to the log-server"
            );
            definitions
        };
        *welcomed = true;
        retry.reset();
        self.fresh.notify_one();
        tokio::select! {
            end = self.read(&mut reader) => end,
            result = self.write(&mut writer, definitions) => match result {
                Ok(()) => End::Done,
                Err(error) => End::Broken(error),
            },
        }
    }

    /// Takes acknowledgements and questions until the connection ends.
    async fn read(&self, reader: &mut OwnedReadHalf) -> End {
        loop {
            match receive(reader).await {
                Ok(Message::Ack { through }) => {
                    let mut pending = self.pending();
                    pending.acknowledge(through);
                    self.left.store(pending.left(), Relaxed);
                }
                Ok(Message::Ping { sent }) => self.pending().ask(sent),
                Ok(Message::Refused { reason }) => return End::Refused(reason),
                // Of a higher minor version: nothing we need.
                Ok(_) => {}
                Err(error) => return End::Broken(error),
            }
            self.fresh.notify_one();
        }
    }

    /// Sends what there is to send until nothing more comes and all is acknowledged.
    async fn write(&self, writer: &mut OwnedWriteHalf, mut out: Vec<u8>) -> io::Result<()> {
        loop {
            let done = {
                let mut pending = self.pending();
                pending.take(&mut out, WRITE, || self.clock.now());
                pending.is_done()
            };
            if done {
                Message::Bye.put_frame(&mut out);
            }
            if out.is_empty() {
                self.fresh.notified().await;
                continue;
            }
            writer.write_all(&out).await?;
            out.clear();
            if done {
                // The last word: whether it arrives changes nothing that was acknowledged.
                let _ = writer.shutdown().await;
                return Ok(());
            }
        }
    }
}

/// A connection on which the server has said welcome, and how far it has this session; or its refusal.
type Greeted = Result<(OwnedReadHalf, OwnedWriteHalf, u64), String>;

async fn greet(peer: &Peer) -> io::Result<Greeted> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    let stream = timeout(PATIENCE, TcpStream::connect(&peer.server)).await.map_err(late)??;
    watch_over(&stream)?;
    let (mut reader, mut writer) = stream.into_split();
    let hello = Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role: Role::Node,
        node: peer.node.clone(),
        session: peer.session,
    };
    writer.write_all(&hello.frame()).await?;
    match timeout(PATIENCE, receive(&mut reader)).await.map_err(late)?? {
        Message::Welcome { version, .. } if version.major != VERSION.major => Ok(Err(format!(
            "it speaks version {}.{} of the protocol, this log-client {}.{}",
            version.major, version.minor, VERSION.major, VERSION.minor
        ))),
        Message::Welcome { through, .. } => Ok(Ok((reader, writer, through))),
        Message::Refused { reason } => Ok(Err(reason)),
        _ => Ok(Err("it is no log-server: it did not answer the greeting".into())),
    }
}

/// Makes a dead network show within [`DEAD_AFTER`].
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, DEAD_AFTER / 2)?;
    sockopt::set_tcp_keepintvl(stream, DEAD_AFTER / 8)?;
    sockopt::set_tcp_user_timeout(stream, DEAD_AFTER.as_millis() as u32)?;
    Ok(())
}

async fn receive(reader: &mut OwnedReadHalf) -> io::Result<Message> {
    let odd = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut header = [0; FRAME_HEADER];
    reader.read_exact(&mut header).await?;
    // The server has nothing long to say to a node.
    let (length, crc) = frame_header(header, MAX_HELLO).map_err(odd)?;
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await?;
    Message::from_payload(&payload, crc).map_err(odd)
}

/// Waits between attempts: doubling, and each shortened by up to a half at random, so that the nodes of a
/// cluster do not all return at once.
struct Retry {
    wait: Duration,
    random: u64,
}

impl Retry {
    fn new(seed: u64) -> Retry {
        Retry { wait: FIRST_RETRY, random: seed | 1 }
    }

    fn reset(&mut self) {
        self.wait = FIRST_RETRY;
    }

    fn next(&mut self) -> Duration {
        // Xorshift: good enough to spread nodes.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = 512 + (self.random % 512) as u32;
        let wait = self.wait * share / 1024;
        self.wait = (self.wait * 2).min(LAST_RETRY);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound_and_never_vanish() {
        let mut retry = Retry::new(42);
        let waits: Vec<_> = (0..40).map(|_| retry.next()).collect();
        assert!(waits.iter().all(|wait| (FIRST_RETRY / 2..=LAST_RETRY).contains(wait)));
        assert!(waits[30..].iter().all(|wait| *wait >= LAST_RETRY / 2));
        retry.reset();
        assert!(retry.next() <= FIRST_RETRY);
    }
}
