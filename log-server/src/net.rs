//! Listening, the limit on connections, and the orderly end.

use crate::budget::Budget;
use crate::budget::Charge;
use crate::config::Config;
use crate::error::Error;
use crate::input::{Input, What};
use crate::session::{self, Ending, Shared};
use crate::store::{Report, Store};
use miot_trace_store::{Error as StoreError, Recovered, Writer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// When a connection cannot be accepted for want of file descriptors, the next attempt comes after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections beyond the limit that are told so at a time; further ones are just closed.
const TURNED_AWAY: usize = 64;
/// Decoded batches on their way to the store, bytes: a few of the largest, many of the usual size.
const QUEUE: usize = 16 << 20;
/// How long sessions have to pass on their last acknowledgement.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A log-server that listens and has its trace directory, and does not serve yet.
#[derive(Debug)]
pub struct LogServer {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    writer: Writer,
    recovered: Option<Recovered>,
}

impl LogServer {
    /// Listens, and begins or continues the trace directory.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Listen`], [`Error::Trace`].
    pub async fn bind(config: Config) -> Result<LogServer, Error> {
        config.check()?;
        let cannot = |source| Error::Listen { address: config.listen.clone(), source };
        let listener = TcpListener::bind(&config.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let (writer, recovered) = open(&config)?;
        Ok(LogServer { config, listener, address, writer, recovered })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`; then stops accepting, reads what nodes have sent, puts everything in the
    /// trace, acknowledges it, and seals.
    ///
    /// # Errors
    /// [`Error::NotStored`], if the trace cannot be written at the end; [`Error::Trace`], if it cannot be
    /// sealed: then it is all there, and sealed by the next server.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Report, Error> {
        let (inputs, from_sessions) = crossbeam::channel::unbounded();
        let budget = Budget::new(usize::try_from(self.config.memory).unwrap_or(usize::MAX));
        let queue = Budget::new(QUEUE);
        let store = Store::new(
            &self.config,
            self.writer,
            self.recovered.as_ref(),
            from_sessions,
            Arc::clone(&budget),
            Arc::clone(&queue),
        )?;
        drop(self.recovered);
        let (done, mut ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("miot-store".into())
            .spawn(move || {
                let result = store.run();
                let _ = done.send(());
                result
            })
            .map_err(|error| Error::Thread(format!("cannot be started: {error}")))?;
        tracing::info!(address = %self.address, trace = %self.config.trace.display(), "log-server is ready");

        let shared = Arc::new(Shared {
            config: self.config,
            budget: Arc::clone(&budget),
            queue: Arc::clone(&queue),
            store: inputs.clone(),
        });
        let (stop, stopped) = watch::channel(false);
        let (reading, mut all_read) = mpsc::channel(1);
        let mut sessions = JoinSet::new();
        let accept = accept(self.listener, &shared, &mut sessions, stopped, reading);
        tokio::select! {
            () = accept => {}
            () = shutdown => {}
            // Only a fault ends the store before it is told to.
            _ = &mut ended => return join(thread).await,
        }
        tracing::info!("stopping: reading what nodes have sent");
        let _ = stop.send(true);
        // Every session drops its end when it has read what there is.
        let _ = all_read.recv().await;
        let _ = inputs.send(Input {
            conn: 0,
            charge: Charge::none(&budget),
            queued: Charge::none(&queue),
            what: What::Finish,
        });
        let result = join(thread).await;
        let closing = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, closing).await;
        result
    }
}

/// Begins the trace, or continues it.
fn open(config: &Config) -> Result<(Writer, Option<Recovered>), Error> {
    match Writer::create(&config.trace, config.store_options()) {
        Ok(writer) => Ok((writer, None)),
        Err(StoreError::NotEmpty { .. }) => {
            let (writer, recovered) = Writer::open(&config.trace, config.store_options())?;
            tracing::info!(
                trace = %config.trace.display(), processes = recovered.processes.len(),
                streams = recovered.streams.len(), cut = recovered.cut.len(), "continuing a trace"
            );
            Ok((writer, Some(recovered)))
        }
        Err(error) => Err(error.into()),
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
    let limit = shared.config.connections;
    let room = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
    let room_to_refuse = Arc::new(Semaphore::new(TURNED_AWAY));
    let mut number = 0u64;
    loop {
        while sessions.try_join_next().is_some() {}
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        number += 1;
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!(%peer, limit, "connection turned away: too many (`connections`)");
            if let Ok(place) = Arc::clone(&room_to_refuse).try_acquire_owned() {
                sessions.spawn(async move {
                    session::turn_away(socket, limit).await;
                    drop(place);
                });
            }
            continue;
        };
        let (shared, number) = (Arc::clone(shared), number);
        let ending = Ending { stop: stop.clone(), reading: reading.clone() };
        sessions.spawn(async move {
            serve(socket, peer, number, shared, ending).await;
            drop(place);
        });
    }
}

async fn serve(socket: TcpStream, peer: SocketAddr, number: u64, shared: Arc<Shared>, ending: Ending) {
    // Acknowledgements are small and wanted at once.
    let _ = socket.set_nodelay(true);
    let (reader, writer) = socket.into_split();
    let reader = tokio::io::BufReader::with_capacity(64 << 10, reader);
    session::serve(reader, writer, peer, number, shared, ending).await;
}

async fn join(thread: JoinHandle<Result<Report, Error>>) -> Result<Report, Error> {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(result)) => result,
        _ => Err(Error::Thread("ended with a fault; what was acknowledged is in the trace".into())),
    }
}
