//! Listening, accepting connections, and the orderly shutdown.
//!
//! | module | role |
//! |---|---|
//! | `tls` | handshakes |
//! | `broker` | connections of nodes through a broker |
//! | `frames` | frames of a connection |
//! | `limits` | limits on connections, memory and rates |

mod broker;
pub(crate) mod frames;
pub(crate) mod limits;
mod tls;

use self::broker::BrokerListener;
use crate::error::Error;
use crate::ids::ConnId;
use crate::monitor;
use crate::session::{self, Peer, PeerAddress, Shutdown};
use crate::settings::config::{Config, DEFAULT_HTTP};
use crate::settings::tuning::Tuning;
use crate::shared::Shared;
use crate::store::input::InputKind;
use crate::store::{RunSummary, Store};
use futures_core::future::BoxFuture;
use miot_daemon::Http;
use miot_daemon::{Liveness, Watchdog};
use miot_tls::TlsServer;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Time between two attempts to accept a connection, e.g. when there are no file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Size of the read buffer of a connection, bytes.
const READ_BUFFER: usize = 64 << 10;
/// The same with TLS, which gives at most one record at a time.
const TLS_READ_BUFFER: usize = 16 << 10;
/// Maximum time for sessions to send their last acknowledgment.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A log-server that listens and has opened its trace directory, and does not serve yet.
#[derive(Debug)]
pub struct LogServer {
    listener: TcpListener,
    address: SocketAddr,
    http: Option<Http>,
    store: Store,
    shared: Arc<Shared>,
}

/// A log-server that listens and has read its key, which may need a privileged user. It has not
/// opened its trace directory yet.
#[derive(Debug)]
pub struct ListeningServer {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<TlsServer>>,
    http: Option<Http>,
}

impl ListeningServer {
    /// Creates or continues the trace directory.
    ///
    /// # Errors
    /// [`Error::Trace`], [`Error::Columns`], [`Error::Orders`], [`Error::Start`].
    pub fn open(self) -> Result<LogServer, Error> {
        let ListeningServer { config, listener, address, tls, http } = self;
        let (shared, store) = Shared::open(config, tls)?;
        Ok(LogServer { listener, address, http, store, shared })
    }
}

impl LogServer {
    /// Listens. It starts no thread, so that privileges can be dropped afterwards.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Tls`], [`Error::Listen`], [`Error::Http`].
    pub async fn listen(config: Config) -> Result<ListeningServer, Error> {
        config.check()?;
        let tls = config.tls()?.map(TlsServer::load).transpose()?.map(Arc::new);
        let cannot = |source| Error::Listen { address: config.listen.clone(), source };
        let addresses: Vec<SocketAddr> = config.listen.to_socket_addrs().map_err(cannot)?.collect();
        let listener = TcpListener::bind(&addresses[..]).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let http = Http::listen(config.http.as_deref(), DEFAULT_HTTP, tls.clone()).await?;
        Ok(ListeningServer { config, listener, address, tls, http })
    }

    /// Listens, and creates or continues the trace directory.
    ///
    /// # Errors
    /// Those of [`LogServer::listen`] and [`ListeningServer::open`].
    pub async fn bind(config: Config) -> Result<LogServer, Error> {
        LogServer::listen(config).await?.open()
    }

    /// Registers the thread that writes the trace with a watchdog.
    #[must_use]
    pub fn watched_by(mut self, watchdog: &mut Watchdog) -> LogServer {
        self.store.set_liveness(watchdog.register("store"));
        self
    }

    /// Uses a liveness signal that is already registered.
    #[must_use]
    pub fn with_liveness(mut self, liveness: Liveness) -> LogServer {
        self.store.set_liveness(liveness);
        self
    }

    /// Certificate and key, for a reload while the server runs; `None` without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsServer>> {
        self.shared.tls.clone()
    }

    /// The settings, for changes while the server runs.
    #[must_use]
    pub fn tuning(&self) -> Arc<Tuning> {
        Arc::clone(&self.shared.tuning)
    }

    /// Address that the server listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Address for HTTP; `None` without HTTP.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::local_addr)
    }

    /// Serves until `shutdown`. Then the server stops accepting, reads what nodes have already
    /// sent, writes everything to the trace, acknowledges it, and seals the trace.
    ///
    /// # Errors
    /// [`Error::Trace`] at any time if the directory or a file that is being written was deleted,
    /// renamed or replaced, see [`Error::is_trace_gone`]: events that are not in it were not
    /// acknowledged, and another server can start. [`Error::NotStored`] if the trace cannot be
    /// written at the end. [`Error::Trace`] at the end if it cannot be sealed: it is complete then,
    /// and the next server seals it.
    pub fn run<'a>(
        self,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, Result<RunSummary, Error>> {
        self.boxed(Box::pin(shutdown))
    }

    // Compiled here, and not again in each program that calls it.
    fn boxed<'a>(self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<RunSummary, Error>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'_, ()>) -> Result<RunSummary, Error> {
        let LogServer { listener, address, http, store, shared } = self;
        let (done, mut ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("miot-store".into())
            .spawn(move || {
                let result = store.run();
                let _ = done.send(());
                result
            })
            .map_err(|source| Error::Start { what: "the thread that writes the trace", source })?;
        let answers = http.as_ref().map(|http| http.local_addr().to_string());
        let (trace, tls) = (shared.config.trace.display(), shared.tls.is_some());
        tracing::info!(%address, %trace, tls, http = answers, "log-server is ready");

        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&shared.monitor).run());
        let paced = Arc::clone(&shared);
        background.spawn(async move { paced.pace.run().await });
        if let Some(http) = http {
            background.spawn(http.serve(monitor::pages(&shared)));
        }
        let (stop, stopped) = watch::channel(false);
        let (reading, mut all_read) = mpsc::channel(1);
        let mut sessions = JoinSet::new();
        // Lives until the sessions have sent their last acknowledgments.
        let mut broker = BrokerListener::start(&shared);
        let shutdown_of = Shutdown { stop: stopped, reading };
        let accept = accept(listener, &mut broker, &shared, &mut sessions, shutdown_of);
        tokio::select! {
            () = accept => {}
            () = shutdown => {}
            // Before `Finish`, the store ends only with an error.
            _ = &mut ended => return join(thread).await,
        }
        tracing::info!("stopping, reading the messages already sent by nodes");
        drop(background);
        let _ = stop.send(true);
        // Each session drops its sender when it has read everything.
        let _ = all_read.recv().await;
        let _ = shared.store.send(shared.input(ConnId::SERVER, InputKind::Finish));
        let result = join(thread).await;
        let closing = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, closing).await;
        result
    }
}

/// Accepts connections, forever.
async fn accept(
    listener: TcpListener,
    broker: &mut BrokerListener,
    shared: &Arc<Shared>,
    sessions: &mut JoinSet<()>,
    shutdown_of: Shutdown,
) {
    let mut count = 0u64;
    loop {
        while sessions.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            (stream, peer) = broker.accept() => {
                count += 1;
                let (conn, shared, shutdown) = (ConnId(count), Arc::clone(shared), shutdown_of.clone());
                let (reader, writer) = tokio::io::split(stream);
                sessions.spawn(session::serve(reader, writer, peer, conn, shared, shutdown));
                continue;
            }
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // File descriptors may be short.
                shared.limits.evict_oldest();
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        count += 1;
        let conn = ConnId(count);
        let evicted = shared.limits.add_unidentified(conn);
        let shared = Arc::clone(shared);
        let shutdown = shutdown_of.clone();
        sessions.spawn(async move {
            tokio::select! {
                () = serve(socket, peer, conn, Arc::clone(&shared), shutdown) => {}
                Err(_) = evicted => tracing::debug!(%peer, "closed before its greeting in favor of a newer connection"),
            }
            shared.limits.identified(conn);
        });
    }
}

async fn serve(socket: TcpStream, peer: SocketAddr, conn: ConnId, shared: Arc<Shared>, shutdown: Shutdown) {
    // Acknowledgments are small and urgent.
    let _ = socket.set_nodelay(true);
    let Some(tls) = shared.tls.clone() else {
        let (reader, writer) = socket.into_split();
        let peer = Peer { address: PeerAddress::Socket(peer), certificate: None, through_broker: None };
        let reader = BufReader::with_capacity(READ_BUFFER, reader);
        return session::serve(reader, writer, peer, conn, shared, shutdown).await;
    };
    let mut stop = shutdown.stop.clone();
    let admitted = tokio::select! {
        admitted = tls::admit(&tls, socket, peer, &shared) => admitted,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    if let Some((stream, certificate)) = admitted {
        let (reader, writer) = tokio::io::split(stream);
        let peer =
            Peer { address: PeerAddress::Socket(peer), certificate: Some(certificate), through_broker: None };
        let reader = BufReader::with_capacity(TLS_READ_BUFFER, reader);
        session::serve(reader, writer, peer, conn, shared, shutdown).await;
    }
}

async fn join(thread: JoinHandle<Result<RunSummary, Error>>) -> Result<RunSummary, Error> {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(result)) => result,
        _ => Err(Error::Thread("panicked; all acknowledged events are in the trace")),
    }
}
