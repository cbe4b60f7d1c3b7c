//! Division of the files that a query reads among workers.

use datafusion::catalog::memory::DataSourceExec;
use datafusion::datasource::physical_plan::{FileGroup, FileGroupPartitioner, FileScanConfig};
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties as _};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, ScaleUpLeafNodeEvent,
    ScaleUpLeafNodeEventResponse,
};
use std::sync::Arc;

fn scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref()
}

/// Keeps files that are read as one stream with one worker: what is above them may need all of
/// their rows. `None` for others: their number of bytes decides.
pub(super) fn tasks(event: DesiredTaskCountEvent<'_>) -> Option<Result<DesiredTaskCountEventResponse>> {
    scan(event.plan)?;
    let is_one = event.plan.output_partitioning().partition_count() < 2;
    is_one.then(|| Ok(DesiredTaskCountEventResponse::maximum(1)))
}

/// Divides each stream of files into consecutive pieces, one for each task, so that rows in a
/// stream keep their order.
pub(super) fn divide(event: ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
    let scan = scan(event.plan)?;
    let mut of_task = scan.clone();
    of_task.file_groups.clear();
    let mut of_tasks = vec![of_task; event.task_count];
    for group in &scan.file_groups {
        let pieces = FileGroupPartitioner::new()
            .with_target_partitions(event.task_count)
            .with_repartition_file_min_size(0)
            .repartition_file_groups(std::slice::from_ref(group));
        let mut pieces = pieces.unwrap_or_else(|| vec![group.clone()]).into_iter();
        for of_task in &mut of_tasks {
            of_task.file_groups.push(pieces.next().unwrap_or_else(|| FileGroup::new(Vec::new())));
        }
    }
    let of_tasks =
        of_tasks.into_iter().map(|scan| DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>);
    let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), of_tasks);
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}
