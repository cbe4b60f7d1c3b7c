//! Names available in SQL: tables of all traces together, with a column `trace`, and views. A table
//! is read when a query names it.

use crate::trace::Trace;
use crate::views;
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::datasource::ViewTable;
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::prelude::{SessionContext, ident, lit};
use miot_trace_store::Table;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Catalog and schema in which names are resolved.
pub(crate) const CATALOG: &str = "miot";
pub(crate) const SCHEMA: &str = "trace";

/// Tables and views of traces, as they were opened.
pub(crate) struct Tables {
    context: SessionContext,
    traces: Vec<Trace>,
    read: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").field("traces", &self.traces).finish_non_exhaustive()
    }
}

/// Returns all names, tables first.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Table::ALL.into_iter().map(Table::name).chain(views::NAMES)
}

impl Tables {
    pub(crate) fn new(context: SessionContext, traces: Vec<Trace>) -> Tables {
        Tables { context, traces, read: Mutex::default() }
    }

    pub(crate) fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// Returns whether retention has removed parts before they were read.
    pub(crate) fn missed(&self) -> bool {
        self.traces.iter().any(Trace::missed)
    }

    /// Returns whether retention has removed parts since the traces were opened.
    pub(crate) fn overtaken(&self) -> bool {
        self.traces.iter().any(Trace::overtaken)
    }

    async fn rows(&self, table: Table) -> Result<Arc<dyn TableProvider>> {
        let mut all: Option<LogicalPlanBuilder> = None;
        for trace in &self.traces {
            for rows in trace.rows(&self.context, table).await? {
                let mut columns: Vec<Expr> =
                    rows.schema().fields().iter().map(|field| ident(field.name())).collect();
                columns.push(lit(trace.name.as_str()).alias("trace"));
                let plan = LogicalPlanBuilder::scan(table.name(), provider_as_source(rows), None)?;
                let plan = plan.project(columns)?;
                all = Some(match all {
                    None => plan,
                    Some(all) => all.union(plan.build()?)?,
                });
            }
        }
        let Some(all) = all else { return Err(DataFusionError::Internal("no trace".to_owned())) };
        Ok(Arc::new(ViewTable::new(all.build()?, None)))
    }

    async fn view(&self, sql: String) -> Result<Arc<dyn TableProvider>> {
        let plan = self.context.state().create_logical_plan(&sql).await?;
        Ok(Arc::new(ViewTable::new(plan, Some(sql))))
    }
}

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        names().map(str::to_owned).collect()
    }

    fn table_exist(&self, name: &str) -> bool {
        names().any(|known| known == name)
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(read) = self.read.lock().await.get(name) {
            return Ok(Some(Arc::clone(read)));
        }
        let provider = match (Table::from_name(name), views::sql(name)) {
            (Some(table), _) => self.rows(table).await?,
            (None, Some(sql)) => self.view(sql).await?,
            (None, None) => return Ok(None),
        };
        self.read.lock().await.insert(name.to_owned(), Arc::clone(&provider));
        Ok(Some(provider))
    }
}
