//! Which plans a worker runs: those that read Parquet files and rows in the plan, within limits.
//! Plans come from other machines.

use datafusion::catalog::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties as _};
use datafusion_distributed::{WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse};
use std::sync::Arc;

/// Most streams of an operator.
const MAX_STREAMS: usize = 1 << 16;

/// Returns an error for a plan that a worker does not run, and any other plan unchanged.
pub(super) fn check(event: WorkerPlanRewriteEvent<'_>) -> Result<WorkerPlanRewriteEventResponse> {
    event.plan.apply(|node| {
        check_node(node)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(WorkerPlanRewriteEventResponse::new(event.plan))
}

fn check_node(node: &Arc<dyn ExecutionPlan>) -> Result<()> {
    let refused = |reason: String| Err(DataFusionError::Execution(format!("a worker does not {reason}")));
    let streams = node.output_partitioning().partition_count();
    if streams > MAX_STREAMS {
        return refused(format!("run {streams} streams of one operator, but {MAX_STREAMS} at most"));
    }
    if node.is::<DataSinkExec>() {
        return refused("write".to_owned());
    }
    let Some(source) = node.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source) else {
        return Ok(());
    };
    let is_parquet = |scan: &FileScanConfig| scan.file_source().downcast_ref::<ParquetSource>().is_some();
    if source.downcast_ref::<FileScanConfig>().is_some_and(is_parquet)
        || source.downcast_ref::<MemorySourceConfig>().is_some()
    {
        return Ok(());
    }
    refused("read other files than Parquet".to_owned())
}
