//! Queries on several machines, on the side of `miot query`: the query is planned here, and workers
//! (`worker`) read and aggregate the parts.

pub(crate) mod channels;
pub(crate) mod connection;
mod leaves;

use channels::Channels;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion_distributed::{
    ChannelResolver as _, DistributedExt as _, GetWorkerInfoRequest, SessionStateBuilderExt as _,
    WorkerResolver, display_plan_ascii,
};
use miot_query::cli::Options;
use miot_tls::{Files, Role, TlsClient};
use std::sync::Arc;
use std::thread;
use url::Url;

/// Compressed bytes of a part per thread of a worker, about 100 000 events. A smaller query uses
/// fewer workers.
const BYTES_PER_THREAD: usize = 1 << 20;
/// Least number of threads of a query on a worker: plans for one thread have no place where they
/// could be divided.
const LEAST_THREADS: usize = 2;

/// The workers of a query.
#[derive(Clone)]
pub(crate) struct Workers {
    addresses: Vec<Url>,
    channels: Channels,
    threads: usize,
}

impl Workers {
    /// Returns the workers of the command line; `None` if there are none.
    pub(crate) fn new(options: &Options) -> anyhow::Result<Option<Workers>> {
        if options.workers.is_empty() {
            return Ok(None);
        }
        let addresses: Result<_, _> = options.workers.iter().map(|worker| address(worker)).collect();
        let files = Files::new(
            options.tls_certificate.as_deref(),
            options.tls_key.as_deref(),
            options.tls_authority.as_deref(),
        )?;
        let tls = files.map(reader).transpose()?.map(Arc::new);
        let processors = || thread::available_parallelism().map_or(LEAST_THREADS, usize::from);
        let threads = options.worker_threads.map_or_else(processors, usize::from).max(LEAST_THREADS);
        Ok(Some(Workers { addresses: addresses?, channels: Channels::new(tls, false), threads }))
    }

    /// Lets a session plan its queries for these workers.
    pub(crate) fn distribute(&self, mut builder: SessionStateBuilder) -> Result<SessionStateBuilder> {
        let config = std::mem::take(builder.config()).unwrap_or_default();
        builder
            .with_config(config.with_target_partitions(self.threads))
            .with_distributed_worker_resolver(Addresses(self.addresses.clone()))
            .with_distributed_channel_resolver(self.channels.clone())
            .with_distributed_planner()
            .with_distributed_desired_task_count_handler(leaves::tasks)
            .with_distributed_scale_up_leaf_node_handler(leaves::divide)
            // A stage of one task runs here. With one worker it must have two.
            .with_distributed_max_tasks_per_stage(self.addresses.len().max(2))?
            .with_distributed_file_scan_config_bytes_per_partition(BYTES_PER_THREAD)
    }

    /// Checks that all workers answer, and understand the plans of this version.
    pub(crate) async fn check(&self) -> anyhow::Result<()> {
        for address in &self.addresses {
            self.check_one(address).await?;
        }
        Ok(())
    }

    async fn check_one(&self, address: &Url) -> anyhow::Result<()> {
        let own = version();
        let mut worker = self.channels.get_worker_client_for_url(address).await?;
        let found = worker.get_worker_info(GetWorkerInfoRequest {}).await?.version;
        anyhow::ensure!(
            found == own,
            "the worker at {} has version {found}, and this is {own}: install the same version on both",
            named(address)
        );
        Ok(())
    }

    /// Returns a line for each worker that can run queries, and one with the reason for each other.
    pub(crate) async fn report(&self) -> (Vec<String>, Vec<String>) {
        let (mut good, mut failed) = (Vec::new(), Vec::new());
        for address in &self.addresses {
            match self.check_one(address).await {
                Ok(()) => good.push(format!("the worker at {} has version {}", named(address), version())),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        (good, failed)
    }
}

/// Returns the plan of a query, with the tasks of the workers, as one row of text.
pub(crate) async fn explain(state: &SessionState, query: &LogicalPlan) -> Result<SendableRecordBatchStream> {
    let plan = state.create_physical_plan(query).await?;
    let text = display_plan_ascii(plan.as_ref(), false);
    let column: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let rows = RecordBatch::try_from_iter([("plan", column)])?;
    let rows = MemorySourceConfig::try_new_exec(&[vec![rows.clone()]], rows.schema(), None)?;
    execute_stream(rows, state.task_ctx())
}

/// Returns the version of plans, which have no stable encoding.
pub(crate) fn version() -> String {
    format!("{} with DataFusion {}", env!("CARGO_PKG_VERSION"), datafusion::DATAFUSION_VERSION)
}

/// Loads the certificate of a reader, or of an operator, which may read as well.
pub(crate) fn reader(files: Files) -> Result<TlsClient, miot_tls::Error> {
    let operator = TlsClient::load(files.clone(), Role::Operator);
    operator.or_else(|_| TlsClient::load(files, Role::Reader))
}

/// The engine identifies workers by URLs.
fn address(worker: &str) -> anyhow::Result<Url> {
    let url = Url::parse(&format!("http://{worker}")).ok();
    let is_address = |url: &Url| {
        url.port_or_known_default().is_some()
            && worker.contains(':')
            && !worker.contains(['/', '@', '?', '#'])
    };
    url.filter(is_address)
        .ok_or_else(|| anyhow::anyhow!("--workers: `{worker}` is not HOST:PORT, such as node1:4750"))
}

/// Returns `HOST:PORT` of a worker.
pub(crate) fn named(worker: &Url) -> String {
    format!(
        "{}:{}",
        worker.host_str().unwrap_or_default(),
        worker.port_or_known_default().unwrap_or_default()
    )
}

struct Addresses(Vec<Url>);

impl WorkerResolver for Addresses {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{address, named};

    #[test]
    fn workers_are_hosts_with_ports() {
        for worker in ["node1:4750", "10.0.0.1:80", "[::1]:4750"] {
            assert_eq!(named(&address(worker).unwrap()), worker);
        }
        for wrong in ["node1", "", "node1:x", "http://node1:4750", "node1:4750/x", "a b:1", "u@a:1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
