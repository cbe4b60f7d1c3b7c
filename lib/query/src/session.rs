//! Runs SQL, with limits, on the state of the traces at the start of a statement.

use crate::catalog::{CATALOG, SCHEMA, Tables};
use crate::statement::Failure;
use crate::temporary;
use crate::trace::local::KEPT_FILES;
use crate::trace::{Location, Trace};
#[cfg(feature = "workers")]
use crate::workers;
use datafusion::catalog::{CatalogProvider as _, MemoryCatalogProvider};
use datafusion::error::Result;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
#[cfg(feature = "workers")]
use datafusion::{error::DataFusionError, logical_expr::LogicalPlan};
use miot_query::cli::{Limits, Options};
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

#[cfg(not(feature = "workers"))]
pub(crate) const WITHOUT_WORKERS: &str =
    "this miot-query was built without the feature `workers`, which --workers requires";

/// Number of memory consumers named in an out-of-memory error.
const NAMED: NonZeroUsize = NonZeroUsize::new(3).unwrap();

pub(crate) struct Session {
    pub(crate) options: Options,
    context: SessionContext,
    locations: Vec<Location>,
    #[cfg(feature = "workers")]
    workers: Option<workers::Workers>,
}

impl Session {
    /// Creates a session for traces given on the command line.
    pub(crate) fn new(options: Options, traces: &[String]) -> Result<Session, Failure> {
        let locations: anyhow::Result<Vec<_>> = traces.iter().map(|text| Location::parse(text)).collect();
        let locations = locations?;
        let mut names = HashSet::new();
        for location in &locations {
            let name = location.name();
            if !names.insert(name.clone()) {
                return Err(Failure::usage(format!(
                    "two of the traces have the name `{name}`, which distinguishes rows: rename one, or use a symbolic link"
                )));
            }
        }
        let mut config = SessionConfig::new()
            .with_default_catalog_and_schema(CATALOG, SCHEMA)
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(true);
        let settings = config.options_mut();
        settings.execution.parquet.schema_force_view_types = false;
        settings.execution.split_file_groups_by_statistics = true;
        let runtime = limits(&options.limits)?.build_arc()?;
        let state =
            SessionStateBuilder::new_with_default_features().with_config(config).with_runtime_env(runtime);
        #[cfg(feature = "workers")]
        let workers =
            workers::Workers::new(&options).map_err(|error| Failure::usage(format!("{error:#}")))?;
        #[cfg(feature = "workers")]
        let (state, locations) = match &workers {
            Some(workers) => {
                locations.iter().for_each(Location::report_unsealed);
                let shared: anyhow::Result<_> = locations.iter().map(Location::shared).collect();
                (workers.distribute(state)?, shared?)
            }
            None => (state, locations),
        };
        #[cfg(not(feature = "workers"))]
        if !options.workers.is_empty() {
            return Err(Failure::usage(WITHOUT_WORKERS));
        }
        let context = SessionContext::new_with_state(state.build());
        Ok(Session {
            options,
            context,
            locations,
            #[cfg(feature = "workers")]
            workers,
        })
    }

    /// Opens the current state of the traces. Queries read this state until the next call.
    pub(crate) async fn open(&self) -> anyhow::Result<Arc<Tables>> {
        #[cfg(feature = "workers")]
        if let Some(workers) = &self.workers {
            workers.check().await?;
        }
        if self.locations.iter().any(|location| matches!(location, Location::Dir(_))) {
            // The path of a file that stays open was that of another file in an earlier statement.
            let caches = Arc::clone(&self.context.runtime_env().cache_manager);
            caches.get_file_metadata_cache().clear();
            caches.get_file_statistic_cache().inspect(|cache| cache.clear());
        }
        let mut traces = Vec::new();
        let (verify, kept_files) = (!self.options.no_verify, KEPT_FILES / self.locations.len().max(1));
        for location in &self.locations {
            traces.push(Trace::open(&self.context, location, verify, kept_files).await?);
        }
        let tables = Arc::new(Tables::new(self.context.clone(), traces));
        let catalog = MemoryCatalogProvider::new();
        catalog.register_schema(SCHEMA, Arc::clone(&tables) as _)?;
        self.context.register_catalog(CATALOG, Arc::new(catalog));
        Ok(tables)
    }

    /// Runs a statement and returns its rows as a stream.
    pub(crate) async fn rows(&self, statement: Statement) -> Result<SendableRecordBatchStream> {
        let plan = self.context.state().statement_to_plan(statement).await?;
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).verify_plan(&plan)?;
        #[cfg(feature = "workers")]
        if self.workers.is_some() {
            if let LogicalPlan::Explain(explain) = &plan {
                return workers::explain(&self.context.state(), &explain.plan).await;
            }
            if let LogicalPlan::Statement(_) = &plan {
                return Err(DataFusionError::Plan("with --workers, settings cannot be changed".to_owned()));
            }
        }
        self.context.execute_logical_plan(plan).await?.execute_stream().await
    }
}

/// Limits the memory of queries, and puts what does not fit into temporary files.
pub(crate) fn limits(limits: &Limits) -> Result<RuntimeEnvBuilder, Failure> {
    let pool = TrackConsumersPool::new(FairSpillPool::new(limits.memory_limit), NAMED);
    let spill = match &limits.spill_dir {
        Some(dir) => temporary::folder(dir).map(Some).map_err(|error| {
            Failure::usage(format!(
                "--spill-dir {}: cannot create temporary files there: {error}",
                dir.display()
            ))
        })?,
        // Queries that need no temporary files run without the directory.
        None => temporary::folder(&std::env::temp_dir()).ok(),
    };
    let spill = spill.map_or(DiskManagerMode::Disabled, |dir| DiskManagerMode::Directories(vec![dir]));
    Ok(RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(spill)))
}

/// Parses the statements of a text.
pub(crate) fn statements(sql: &str) -> Result<Vec<Statement>> {
    DFParser::parse_sql(sql).map(Vec::from)
}
