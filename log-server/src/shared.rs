//! What sessions, pages and the store of one server have in common.

use crate::budget::{Budget, Charge};
use crate::config::Config;
use crate::error::Error;
use crate::input::{Input, What};
use crate::limits::Limits;
use crate::monitor::Monitor;
use crate::steer::Steering;
use crate::store::Store;
use crate::tuning::Tuning;
use crate::watch::Watch;
use crossbeam::channel::Sender;
use miot_proto::status::ClusterStatus;
use miot_tls::TlsServer;
use miot_trace_store::{Error as StoreError, Recovered, Writer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Semaphore;

/// Decoded batches on their way to the store, bytes: a few of the largest, many of the usual size.
const QUEUE: usize = 16 << 20;
/// Subscribers that read the past at a time; others wait.
const PASTS: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// As it was at the start.
    pub(crate) config: Config,
    pub(crate) tuning: Arc<Tuning>,
    /// Without it nobody proves who they are.
    pub(crate) tls: Option<Arc<TlsServer>>,
    pub(crate) limits: Limits,
    /// For all that is not durable.
    pub(crate) budget: Arc<Budget>,
    /// For what the store has not taken yet: if it is slow nothing more is decoded, so that batches are merged
    /// while they are in the cache.
    pub(crate) queue: Arc<Budget>,
    pub(crate) store: Sender<Input>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) watch: Watch,
    pub(crate) steering: Arc<Steering>,
    /// Subscribers that read the past at a time: each holds the names of all files in memory.
    pub(crate) pasts: Arc<Semaphore>,
}

impl Shared {
    /// Begins or continues the trace directory.
    ///
    /// # Errors
    /// [`Error::Trace`], [`Error::Columns`], [`Error::Orders`], [`Error::Start`].
    pub(crate) fn open(config: Config, tls: Option<Arc<TlsServer>>) -> Result<(Arc<Shared>, Store), Error> {
        let (writer, recovered) = open(&config)?;
        let (store, inputs) = crossbeam::channel::unbounded();
        let budget = Budget::new(usize::try_from(config.memory).unwrap_or(usize::MAX));
        let tuning = Tuning::new(config.clone());
        let start = |source| Error::Start { what: "the thread that watches what happens", source };
        let shared = Arc::new(Shared {
            tls,
            limits: Limits::new(Arc::clone(&tuning), Arc::clone(&budget)),
            queue: Budget::new(QUEUE),
            store,
            monitor: Monitor::new(&config, Arc::clone(&budget)),
            watch: Watch::start(&config).map_err(start)?,
            steering: Steering::open(&config.trace)?,
            pasts: Arc::new(Semaphore::new(PASTS)),
            budget,
            tuning,
            config,
        });
        let store = Store::new(&shared, writer, recovered.as_ref(), inputs)?;
        Ok((shared, store))
    }

    /// Everything that is known now.
    pub(crate) fn status(&self) -> ClusterStatus {
        ClusterStatus { orders: self.steering.orders(), ..self.monitor.status() }
    }

    /// A connection is not served.
    pub(crate) fn turned_away(&self, peer: SocketAddr, reason: &str) {
        self.monitor.turned_away.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%peer, reason, "connection turned away");
    }

    /// A message to the store that takes no memory to speak of.
    pub(crate) fn input(&self, conn: u64, what: What) -> Input {
        Input { conn, charge: Charge::none(&self.budget), queued: Charge::none(&self.queue), what }
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
            for cut in &recovered.cut {
                tracing::info!(file = %cut.path.display(), bytes = cut.bytes, "a torn end was cut off");
            }
            for damaged in &recovered.damaged {
                tracing::error!(
                    part = damaged.part,
                    error = damaged.error,
                    "a sealed part is damaged: its events are not readable, stop the log-server and run `miot fsck --repair`"
                );
            }
            if recovered.lost > 0 {
                tracing::warn!(
                    events = recovered.lost,
                    "a live file was damaged or is gone: events that were acknowledged are lost, `losses` tells which (`damaged`)"
                );
            }
            Ok((writer, Some(recovered)))
        }
        Err(error) => Err(error.into()),
    }
}
