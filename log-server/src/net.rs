//! Listening, the limit on connections, and the orderly end.

use crate::config::{Config, DEFAULT_HTTP};
use crate::error::Error;
use crate::input::What;
use crate::monitor;
use crate::session::{self, Ending, Peer};
use crate::shared::Shared;
use crate::store::{Report, Store};
use crate::tls;
use crate::tuning::Tuning;
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

/// When a connection cannot be accepted for want of file descriptors, the next attempt comes after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Bytes read from a connection at a time.
const READ: usize = 64 << 10;
/// How long sessions have to pass on their last acknowledgement.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A log-server that listens and has its trace directory, and does not serve yet.
#[derive(Debug)]
pub struct LogServer {
    listener: TcpListener,
    address: SocketAddr,
    http: Option<Http>,
    store: Store,
    shared: Arc<Shared>,
}

/// A log-server that listens and has read its key, which is what may take a privileged user, and has no trace
/// directory yet.
#[derive(Debug)]
pub struct Listening {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<TlsServer>>,
    http: Option<Http>,
}

impl Listening {
    /// Begins or continues the trace directory.
    ///
    /// # Errors
    /// [`Error::Trace`], [`Error::Columns`], [`Error::Orders`], [`Error::Start`].
    pub fn open(self) -> Result<LogServer, Error> {
        let Listening { config, listener, address, tls, http } = self;
        let (shared, store) = Shared::open(config, tls)?;
        Ok(LogServer { listener, address, http, store, shared })
    }
}

impl LogServer {
    /// Listens. No thread is started, so that privileges can be given up after it.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Tls`], [`Error::Listen`], [`Error::Http`].
    pub async fn listen(config: Config) -> Result<Listening, Error> {
        config.check()?;
        let tls = config.tls()?.map(TlsServer::load).transpose()?.map(Arc::new);
        let cannot = |source| Error::Listen { address: config.listen.clone(), source };
        let addresses: Vec<SocketAddr> = config.listen.to_socket_addrs().map_err(cannot)?.collect();
        let listener = TcpListener::bind(&addresses[..]).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let http = Http::listen(config.http.as_deref(), DEFAULT_HTTP, tls.clone()).await?;
        Ok(Listening { config, listener, address, tls, http })
    }

    /// Listens, and begins or continues the trace directory.
    ///
    /// # Errors
    /// Those of [`LogServer::listen`] and [`Listening::open`].
    pub async fn bind(config: Config) -> Result<LogServer, Error> {
        LogServer::listen(config).await?.open()
    }

    /// Lets a watchdog know that what it received gets into the trace.
    #[must_use]
    pub fn watched_by(mut self, watchdog: &mut Watchdog) -> LogServer {
        self.store.give_heart(watchdog.register("store"));
        self
    }

    /// The same with a heart that is watched already.
    #[must_use]
    pub fn with_heart(mut self, heart: Liveness) -> LogServer {
        self.store.give_heart(heart);
        self
    }

    /// Certificate and key, to read them again while it runs; `None` without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsServer>> {
        self.shared.tls.clone()
    }

    /// The settings, to change them while it runs.
    #[must_use]
    pub fn tuning(&self) -> Arc<Tuning> {
        Arc::clone(&self.shared.tuning)
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers HTTP; `None` if it does not.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::local_addr)
    }

    /// Serves until `shutdown`; then stops accepting, reads what nodes have sent, puts everything in the
    /// trace, acknowledges it, and seals.
    ///
    /// # Errors
    /// [`Error::Trace`] at any time if the directory or a file that is being written was taken away, see
    /// [`Error::is_trace_gone`]: then nothing that is not in it was acknowledged, and another server can begin.
    /// [`Error::NotStored`], if the trace cannot be written at the end; [`Error::Trace`], if it cannot be
    /// sealed: then it is all there, and sealed by the next server.
    pub fn run<'a>(
        self,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, Result<Report, Error>> {
        self.boxed(Box::pin(shutdown))
    }

    // Generated here, and not once more in every program that runs it.
    fn boxed<'a>(self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<Report, Error>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'_, ()>) -> Result<Report, Error> {
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

        let mut looking = JoinSet::new();
        looking.spawn(Arc::clone(&shared.monitor).run());
        if let Some(http) = http {
            looking.spawn(http.serve(monitor::pages(&shared)));
        }
        let (stop, stopped) = watch::channel(false);
        let (reading, mut all_read) = mpsc::channel(1);
        let mut sessions = JoinSet::new();
        let accept = accept(listener, &shared, &mut sessions, stopped, reading);
        tokio::select! {
            () = accept => {}
            () = shutdown => {}
            // Only a fault ends the store before it is told to.
            _ = &mut ended => return join(thread).await,
        }
        tracing::info!("stopping: reading what nodes have sent");
        drop(looking);
        let _ = stop.send(true);
        // Every session drops its end when it has read what there is.
        let _ = all_read.recv().await;
        let _ = shared.store.send(shared.input(0, What::Finish));
        let result = join(thread).await;
        let closing = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, closing).await;
        result
    }
}

/// Accepts for ever.
async fn accept(
    listener: TcpListener,
    shared: &Arc<Shared>,
    sessions: &mut JoinSet<()>,
    stop: watch::Receiver<bool>,
    reading: mpsc::Sender<()>,
) {
    let mut number = 0u64;
    loop {
        while sessions.try_join_next().is_some() {}
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                // Perhaps for want of file descriptors.
                shared.limits.evict();
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        number += 1;
        let evicted = shared.limits.stranger(number);
        let (shared, number) = (Arc::clone(shared), number);
        let ending = Ending { stop: stop.clone(), reading: reading.clone() };
        sessions.spawn(async move {
            tokio::select! {
                () = serve(socket, peer, number, Arc::clone(&shared), ending) => {}
                Err(_) = evicted => tracing::debug!(%peer, "said nothing, and makes room for others"),
            }
            shared.limits.known(number);
        });
    }
}

async fn serve(socket: TcpStream, peer: SocketAddr, number: u64, shared: Arc<Shared>, ending: Ending) {
    // Acknowledgements are small and wanted at once.
    let _ = socket.set_nodelay(true);
    let Some(tls) = shared.tls.clone() else {
        let (reader, writer) = socket.into_split();
        let peer = Peer { address: peer, certificate: None };
        let reader = BufReader::with_capacity(READ, reader);
        return session::serve(reader, writer, peer, number, shared, ending).await;
    };
    let mut stop = ending.stop.clone();
    let admitted = tokio::select! {
        admitted = tls::admit(&tls, socket, peer, &shared) => admitted,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    if let Some((stream, certificate)) = admitted {
        let (reader, writer) = tokio::io::split(stream);
        let peer = Peer { address: peer, certificate: Some(certificate) };
        let reader = BufReader::with_capacity(READ, reader);
        session::serve(reader, writer, peer, number, shared, ending).await;
    }
}

async fn join(thread: JoinHandle<Result<Report, Error>>) -> Result<Report, Error> {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(result)) => result,
        _ => Err(Error::Thread("ended with a fault; what was acknowledged is in the trace")),
    }
}
