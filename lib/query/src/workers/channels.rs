//! Open connections to workers.

use super::connection::{self, Connection, KEEP_ALIVE};
use super::named;
use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::HeaderMap;
use hyper_util::rt::TokioIo;
use miot_tls::{TlsClient, is_loopback};
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;
use tonic::transport::Endpoint;
use url::Url;

/// Bytes of rows that a worker sends before they are read: of one stream, and of a connection,
/// which queries share. A query that pauses must not hold back others.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Connects to each worker once. A connection that breaks is opened again by the next request.
#[derive(Clone)]
pub(crate) struct Channels {
    tls: Option<Arc<TlsClient>>,
    /// True if other machines must not be reached.
    is_local: bool,
    open: Arc<Mutex<HashMap<Url, Arc<OnceCell<BoxCloneSyncChannel>>>>>,
}

impl Channels {
    pub(crate) fn new(tls: Option<Arc<TlsClient>>, is_local: bool) -> Channels {
        Channels { tls, is_local, open: Arc::default() }
    }

    async fn channel(&self, worker: &Url) -> io::Result<BoxCloneSyncChannel> {
        if self.is_local && !is_loopback(worker.host_str().unwrap_or_default()) {
            return Err(io::Error::other("this worker serves its own machine only"));
        }
        let cell = Arc::clone(
            self.open.lock().unwrap_or_else(PoisonError::into_inner).entry(worker.clone()).or_default(),
        );
        let channel = cell.get_or_try_init(|| self.open(worker)).await.cloned();
        if channel.is_err() {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
        }
        channel
    }

    async fn open(&self, worker: &Url) -> io::Result<BoxCloneSyncChannel> {
        let (address, tls) = (named(worker), self.tls.clone());
        let connect = tower::service_fn(move |_| {
            let (address, tls) = (address.clone(), tls.clone());
            async move { connection::open(&address, tls.as_deref()).await.map(TokioIo::<Connection>::new) }
        });
        let endpoint = Endpoint::from_shared(worker.to_string())
            .map_err(io::Error::other)?
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector(connect).await.map_err(|error| cause(&error))?;
        Ok(BoxCloneSyncChannel::new(channel))
    }
}

/// Returns the innermost reason of an error, which has the words for the user.
fn cause(error: &dyn std::error::Error) -> io::Error {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    io::Error::other(cause.to_string())
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, worker: &Url) -> Result<Box<dyn WorkerChannel>> {
        let address = named(worker);
        let channel = self.channel(worker).await;
        let channel = channel.map_err(|error| failed(&address, "cannot be reached", error))?;
        Ok(Box::new(NamedWorker { address, channel: create_worker_client(channel) }))
    }
}

fn failed(address: &str, what: &str, reason: impl Display) -> DataFusionError {
    DataFusionError::External(format!("the worker at {address} {what}: {reason}").into())
}

/// A worker whose name is in the errors of its connection. Errors of queries are unchanged.
struct NamedWorker {
    address: String,
    channel: Box<dyn WorkerChannel>,
}

/// Names a worker in an error of its connection.
fn name_in(address: &str, error: DataFusionError) -> DataFusionError {
    match error.find_root() {
        DataFusionError::External(reason) if !reason.to_string().starts_with("the worker at ") => {
            failed(address, "has failed", reason)
        }
        _ => error,
    }
}

#[async_trait]
impl WorkerChannel for NamedWorker {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let address = self.address.clone();
        let opened = self.channel.coordinator_channel(headers, request, messages, metrics, context).await;
        let answers = opened.map_err(|error| name_in(&address, error))?;
        Ok(answers.map(move |answer| answer.map_err(|error| name_in(&address, error))).boxed())
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let opened = self.channel.execute_task(headers, request, metrics, context).await;
        let streams = opened.map_err(|error| name_in(&self.address, error))?;
        let name = |stream: BoxStream<'static, Result<RecordBatch>>| {
            let address = self.address.clone();
            stream.map(move |rows| rows.map_err(|error| name_in(&address, error))).boxed()
        };
        Ok(streams.into_iter().map(name).collect())
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        let answer = self.channel.get_worker_info(request).await;
        answer.map_err(|error| name_in(&self.address, error))
    }
}
