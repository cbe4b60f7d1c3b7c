//! Runs SQL, with limits, on the state of the traces at the start of a statement.

use crate::catalog::{CATALOG, SCHEMA, Tables};
use crate::statement::Failure;
use crate::temporary;
use crate::trace::{Location, Trace};
use datafusion::catalog::{CatalogProvider as _, MemoryCatalogProvider};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
use miot_query::cli::Options;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Number of memory consumers named in an out-of-memory error.
const NAMED: NonZeroUsize = NonZeroUsize::new(3).unwrap();

pub(crate) struct Session {
    pub(crate) options: Options,
    context: SessionContext,
    locations: Vec<Location>,
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
        let pool = TrackConsumersPool::new(FairSpillPool::new(options.memory_limit), NAMED);
        let spill = match &options.spill_dir {
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
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(pool))
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(spill));
        let context = SessionContext::new_with_config_rt(config, runtime.build_arc()?);
        Ok(Session { options, context, locations })
    }

    /// Opens the current state of the traces. Queries read this state until the next call.
    pub(crate) async fn open(&self) -> anyhow::Result<Arc<Tables>> {
        let mut traces = Vec::new();
        for location in &self.locations {
            traces.push(Trace::open(&self.context, location, !self.options.no_verify).await?);
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
        self.context.execute_logical_plan(plan).await?.execute_stream().await
    }
}

/// Parses the statements of a text.
pub(crate) fn statements(sql: &str) -> Result<Vec<Statement>> {
    DFParser::parse_sql(sql).map(Vec::from)
}
