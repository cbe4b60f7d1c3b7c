//! A log-server without sockets and threads, one step at a time: sessions over pipes in memory, and
//! the store. For the fuzz target of sessions. [`cluster`] has a store at simulated times.

pub mod cluster;

use crate::error::Error;
use crate::ids::ConnId;
use crate::session::{self, Peer, PeerAddress, Shutdown};
use crate::settings::config::Config;
use crate::shared::Shared;
use crate::store::{Extent, Store};
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use miot_tls::Certificate;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;

/// Capacity of a pipe in one direction, bytes.
const PIPE: usize = 64 << 10;
/// Number of rounds over all tasks in one go.
const ROUNDS: usize = 32;

/// The server's time, nanoseconds since 1970.
#[must_use]
pub fn now() -> i64 {
    crate::now()
}

/// The server, see the module.
pub struct TestServer {
    runtime: Runtime,
    shared: Arc<Shared>,
    store: Store,
    stop: watch::Sender<bool>,
    reading: mpsc::Sender<()>,
    peers: Vec<ClientEnd>,
}

impl std::fmt::Debug for TestServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestServer").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

/// The client end of a connection.
struct ClientEnd {
    /// `None` once the connection was closed.
    pipe: Option<DuplexStream>,
    /// Bytes to send that do not fit into the pipe yet.
    unsent: Vec<u8>,
    received: Vec<u8>,
    messages: Vec<Message>,
}

impl TestServer {
    /// Creates or continues a trace.
    ///
    /// # Errors
    /// Those of a log-server.
    pub fn new(config: Config) -> Result<TestServer, Error> {
        let (shared, store) = Shared::open(config, None)?;
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|source| Error::Start { what: "the runtime", source })?;
        // No shutdown waits for the sessions: they end with their pipes.
        let (reading, _) = mpsc::channel(1);
        let (stop, _) = watch::channel(false);
        Ok(TestServer { runtime, shared, store, stop, reading, peers: Vec::new() })
    }

    /// Adds a connection of a peer with this certificate. Returns its number, from 0.
    pub fn connect(&mut self, certificate: Option<Certificate>) -> usize {
        let (near, far) = tokio::io::duplex(PIPE);
        let (reader, writer) = tokio::io::split(far);
        let number = self.peers.len();
        let address = PeerAddress::Socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let evicted = self.shared.limits.add_unidentified(ConnId(number as u64 + 1));
        let (shared, peer) = (Arc::clone(&self.shared), Peer { address, certificate, through_broker: None });
        let shutdown = Shutdown { stop: self.stop.subscribe(), reading: self.reading.clone() };
        self.runtime.spawn(async move {
            let conn = ConnId(number as u64 + 1);
            tokio::select! {
                () = session::serve(reader, writer, peer, conn, Arc::clone(&shared), shutdown) => {}
                Err(_) = evicted => {}
            }
            shared.limits.identified(conn);
        });
        let (unsent, received, messages) = (Vec::new(), Vec::new(), Vec::new());
        self.peers.push(ClientEnd { pipe: Some(near), unsent, received, messages });
        number
    }

    /// Sends bytes on a connection, as soon as they fit.
    pub fn send(&mut self, number: usize, bytes: &[u8]) {
        if let Some(peer) = self.peers.get_mut(number).filter(|peer| peer.pipe.is_some()) {
            peer.unsent.extend_from_slice(bytes);
        }
    }

    /// Closes the client end of a connection.
    pub fn close(&mut self, number: usize) {
        if let Some(peer) = self.peers.get_mut(number) {
            peer.pipe = None;
            peer.unsent.clear();
        }
    }

    /// Takes the messages that the server sent on a connection.
    pub fn take_messages(&mut self, number: usize) -> Vec<Message> {
        self.peers.get_mut(number).map(|peer| std::mem::take(&mut peer.messages)).unwrap_or_default()
    }

    /// Runs sessions and store until they only wait.
    ///
    /// # Errors
    /// An error that would stop a log-server.
    pub fn run_until_idle(&mut self) -> Result<(), Error> {
        loop {
            let peers = &mut self.peers;
            let moved = self.runtime.block_on(async {
                let mut moved = false;
                for _ in 0..ROUNDS {
                    yield_now().await;
                    for peer in peers.iter_mut() {
                        moved |= peer.exchange();
                    }
                }
                moved
            });
            let taken = !self.shared.store.is_empty();
            self.store.run_once(Extent::Due)?;
            if !moved && !taken {
                return Ok(());
            }
        }
    }

    /// Memory reserved for everything that is not durable, bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shared.budget.used()
    }

    /// Closes all connections, and writes everything to the trace, which stays live. Returns the
    /// memory that is still reserved, bytes.
    ///
    /// # Errors
    /// An error that would stop a log-server.
    pub fn finish(mut self) -> Result<usize, Error> {
        (0..self.peers.len()).for_each(|number| self.close(number));
        self.run_until_idle()?;
        self.store.run_once(Extent::All)?;
        let used = self.shared.budget.used();
        drop(self.runtime);
        Ok(used)
    }
}

impl ClientEnd {
    /// Sends and receives what is possible without waiting. Returns false if that was nothing.
    fn exchange(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        let (mut moved, mut over) = (false, false);
        while !self.unsent.is_empty() {
            match now_or_never(pipe.write(&self.unsent)) {
                Some(Ok(n)) => {
                    moved = true;
                    self.unsent.drain(..n);
                }
                Some(Err(_)) => {
                    over = true;
                    break;
                }
                None => break,
            }
        }
        let mut bytes = [0; 4096];
        loop {
            match now_or_never(pipe.read(&mut bytes)) {
                Some(Ok(n @ 1..)) => {
                    moved = true;
                    self.received.extend_from_slice(bytes.get(..n).unwrap_or_default());
                }
                Some(_) => {
                    over = true;
                    break;
                }
                None => break,
            }
        }
        if over {
            (self.pipe, moved) = (None, true);
            self.unsent.clear();
        }
        self.decode_frames();
        moved
    }

    fn decode_frames(&mut self) {
        while let Some((header, rest)) = self.received.split_first_chunk::<FRAME_HEADER>() {
            let frame = frame_header(*header, MAX_FRAME).ok();
            let Some((length, crc)) = frame.filter(|(length, _)| *length <= rest.len()) else { return };
            let payload = rest.get(..length).unwrap_or_default();
            self.messages.extend(Message::from_payload(payload, crc));
            self.received.drain(..FRAME_HEADER + length);
        }
    }
}

/// Polls a future once.
fn now_or_never<T>(future: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}
