//! A log-server without sockets and threads, one step at a time: sessions over pipes in memory, and the store between
//! them. For the fuzz target of sessions.

use crate::config::Config;
use crate::error::Error;
use crate::session::{self, Ending, Peer};
use crate::shared::Shared;
use crate::store::Store;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use miot_tls::Certificate;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;

/// Bytes on the way in one direction.
const PIPE: usize = 64 << 10;
/// Looks at every task in one go.
const TURNS: usize = 32;

/// The server's clock, nanoseconds since 1970.
#[must_use]
pub fn now() -> i64 {
    crate::now()
}

/// See the module.
pub struct Stage {
    runtime: Runtime,
    shared: Arc<Shared>,
    store: Store,
    stop: watch::Sender<bool>,
    reading: mpsc::Sender<()>,
    peers: Vec<Other>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

/// The far end of a connection.
struct Other {
    /// None once it was closed.
    pipe: Option<DuplexStream>,
    /// Bytes to send for which there was no room.
    unsent: Vec<u8>,
    received: Vec<u8>,
    said: Vec<Message>,
}

impl Stage {
    /// Begins or continues a trace.
    ///
    /// # Errors
    /// As a log-server.
    pub fn new(config: Config) -> Result<Stage, Error> {
        let (shared, store) = Shared::open(config, None)?;
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|source| Error::Start { what: "the runtime", source })?;
        // Nobody waits for the sessions to stop reading: they end with their pipes.
        let (reading, _) = mpsc::channel(1);
        let (stop, _) = watch::channel(false);
        Ok(Stage { runtime, shared, store, stop, reading, peers: Vec::new() })
    }

    /// A connection of somebody with this certificate. Returns its number, from 0.
    pub fn connect(&mut self, certificate: Option<Certificate>) -> usize {
        let (near, far) = tokio::io::duplex(PIPE);
        let (reader, writer) = tokio::io::split(far);
        let number = self.peers.len();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let evicted = self.shared.limits.stranger(number as u64 + 1);
        let (shared, peer) = (Arc::clone(&self.shared), Peer { address, certificate });
        let ending = Ending { stop: self.stop.subscribe(), reading: self.reading.clone() };
        self.runtime.spawn(async move {
            let conn = number as u64 + 1;
            tokio::select! {
                () = session::serve(reader, writer, peer, conn, Arc::clone(&shared), ending) => {}
                Err(_) = evicted => {}
            }
            shared.limits.known(conn);
        });
        let (unsent, received, said) = (Vec::new(), Vec::new(), Vec::new());
        self.peers.push(Other { pipe: Some(near), unsent, received, said });
        number
    }

    /// Sends bytes on a connection, as soon as they fit.
    pub fn send(&mut self, number: usize, bytes: &[u8]) {
        if let Some(peer) = self.peers.get_mut(number).filter(|peer| peer.pipe.is_some()) {
            peer.unsent.extend_from_slice(bytes);
        }
    }

    /// The far end is gone.
    pub fn close(&mut self, number: usize) {
        if let Some(peer) = self.peers.get_mut(number) {
            peer.pipe = None;
            peer.unsent.clear();
        }
    }

    /// Takes what the server said on a connection.
    pub fn said(&mut self, number: usize) -> Vec<Message> {
        self.peers.get_mut(number).map(|peer| std::mem::take(&mut peer.said)).unwrap_or_default()
    }

    /// Lets sessions and store work until there is nothing to do but wait.
    ///
    /// # Errors
    /// What would stop a log-server.
    pub fn settle(&mut self) -> Result<(), Error> {
        loop {
            let peers = &mut self.peers;
            let moved = self.runtime.block_on(async {
                let mut moved = false;
                for _ in 0..TURNS {
                    yield_now().await;
                    for peer in peers.iter_mut() {
                        moved |= peer.exchange();
                    }
                }
                moved
            });
            let taken = !self.shared.store.is_empty();
            self.store.turn(false)?;
            if !moved && !taken {
                return Ok(());
            }
        }
    }

    /// Memory reserved for what is not durable, bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shared.budget.used()
    }

    /// Closes all connections, and puts everything in the trace, which stays live. Returns the memory that is still
    /// reserved.
    ///
    /// # Errors
    /// What would stop a log-server.
    pub fn finish(mut self) -> Result<usize, Error> {
        (0..self.peers.len()).for_each(|number| self.close(number));
        self.settle()?;
        self.store.turn(true)?;
        let used = self.shared.budget.used();
        drop(self.runtime);
        Ok(used)
    }
}

impl Other {
    /// Sends and receives what goes without waiting; false if that was nothing.
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
        self.take_apart();
        moved
    }

    fn take_apart(&mut self) {
        while let Some((header, rest)) = self.received.split_first_chunk::<FRAME_HEADER>() {
            let frame = frame_header(*header, MAX_FRAME).ok();
            let Some((length, crc)) = frame.filter(|(length, _)| *length <= rest.len()) else { return };
            let payload = rest.get(..length).unwrap_or_default();
            self.said.extend(Message::from_payload(payload, crc));
            self.received.drain(..FRAME_HEADER + length);
        }
    }
}

/// What a future says when it is asked once.
fn now_or_never<T>(future: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}
