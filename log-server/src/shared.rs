//! State that sessions, HTTP pages and the store of one server share.

use crate::ServerClock;
use crate::error::Error;
use crate::ids::ConnId;
use crate::live::activity::LiveActivity;
use crate::monitor::Monitor;
use crate::net::limits::Limits;
use crate::session::ClusterPace;
use crate::settings::config::Config;
use crate::settings::tuning::Tuning;
use crate::steering::Steering;
use crate::store::Store;
use crate::store::batch_pool::BatchPool;
use crate::store::budget::{Budget, Charge};
use crate::store::input::{Input, InputKind};
use crossbeam::channel::Sender;
use miot_proto::status::ClusterStatus;
use miot_tls::TlsServer;
use miot_trace_store::{Error as StoreError, RecoveredTrace, Writer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::Semaphore;

/// Decoded batches in the queue to the store, bytes: a few batches of maximum size, many of the
/// usual size.
const QUEUE: usize = 16 << 20;
/// Maximum number of subscribers that read earlier rows at a time; others wait.
const PAST_READERS: usize = 8;

/// Shared state of one server, see the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The configuration at the start.
    pub(crate) config: Config,
    pub(crate) tuning: Arc<Tuning>,
    /// TLS configuration. Without it, peers are not authenticated.
    pub(crate) tls: Option<Arc<TlsServer>>,
    pub(crate) limits: Limits,
    /// Memory of everything that is not durable.
    pub(crate) budget: Arc<Budget>,
    /// Memory of inputs that the store has not taken: while the store is slow, no more is decoded,
    /// so that batches are merged while they are in the cache.
    pub(crate) queue: Arc<Budget>,
    pub(crate) store: Sender<Input>,
    pub(crate) batches: Arc<BatchPool>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) activity: LiveActivity,
    pub(crate) steering: Arc<Steering>,
    pub(crate) pace: ClusterPace,
    /// Limits subscribers that read earlier rows: each holds the names of all files in memory.
    pub(crate) past_readers: Arc<Semaphore>,
}

impl Shared {
    /// Creates or continues the trace directory.
    ///
    /// # Errors
    /// [`Error::Trace`], [`Error::Columns`], [`Error::Orders`], [`Error::Start`].
    pub(crate) fn open(config: Config, tls: Option<Arc<TlsServer>>) -> Result<(Arc<Shared>, Store), Error> {
        Shared::open_at(config, tls, (Instant::now(), ServerClock::of_process()))
    }

    /// [`Shared::open`] of a server that starts at this time, with this clock.
    pub(crate) fn open_at(
        config: Config,
        tls: Option<Arc<TlsServer>>,
        at: (Instant, ServerClock),
    ) -> Result<(Arc<Shared>, Store), Error> {
        let (writer, recovered) = open(&config)?;
        let (store, inputs) = crossbeam::channel::unbounded();
        let budget = Budget::new(usize::try_from(config.memory).unwrap_or(usize::MAX));
        let tuning = Tuning::new(config.clone());
        let start = |source| Error::Start { what: "the thread for live activity", source };
        let shared = Arc::new(Shared {
            tls,
            limits: Limits::new(Arc::clone(&tuning), Arc::clone(&budget)),
            queue: Budget::new(QUEUE),
            store,
            batches: Arc::new(BatchPool::new()),
            monitor: Monitor::new(&config, Arc::clone(&budget)),
            activity: LiveActivity::start(&config).map_err(start)?,
            steering: Steering::open(&config.trace)?,
            pace: ClusterPace::new(Arc::clone(&tuning)),
            past_readers: Arc::new(Semaphore::new(PAST_READERS)),
            budget,
            tuning,
            config,
        });
        let store = Store::new(&shared, writer, recovered.as_ref(), inputs, at)?;
        Ok((shared, store))
    }

    /// Current status of the server and its nodes.
    pub(crate) fn status(&self) -> ClusterStatus {
        ClusterStatus { orders: self.steering.orders(), ..self.monitor.status() }
    }

    /// Counts and logs a refused connection.
    pub(crate) fn connection_refused(&self, peer: impl fmt::Display, reason: &str) {
        self.monitor.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%peer, reason, "connection refused");
    }

    /// Creates an input of negligible size.
    pub(crate) fn input(&self, conn: ConnId, kind: InputKind) -> Input {
        Input { conn, charge: Charge::none(&self.budget), queued: Charge::none(&self.queue), kind }
    }
}

/// Creates the trace, or continues it.
fn open(config: &Config) -> Result<(Writer, Option<RecoveredTrace>), Error> {
    match Writer::create(&config.trace, config.store_options()) {
        Ok(writer) => Ok((writer, None)),
        Err(StoreError::NotEmpty { .. }) => {
            let (writer, recovered) = Writer::open(&config.trace, config.store_options())?;
            tracing::info!(
                trace = %config.trace.display(), processes = recovered.processes.len(),
                streams = recovered.streams.len(), cut = recovered.cut.len(), "continuing a trace"
            );
            for cut in &recovered.cut {
                tracing::info!(file = %cut.path.display(), bytes = cut.bytes, "torn tail truncated");
            }
            for damaged in &recovered.damaged {
                tracing::error!(
                    part = damaged.part,
                    error = damaged.error,
                    "sealed part damaged: its events are not readable; stop the log-server and run `miot fsck --repair`"
                );
            }
            if recovered.lost > 0 {
                tracing::warn!(
                    events = recovered.lost,
                    "live file damaged or missing: acknowledged events are lost, see place `damaged` in `losses`"
                );
            }
            Ok((writer, Some(recovered)))
        }
        Err(error) => Err(error.into()),
    }
}
