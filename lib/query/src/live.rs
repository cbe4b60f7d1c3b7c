//! Events of the live part and of damaged parts, read by the trace store.

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use miot_trace_store::{Reader, Select};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Number of batches that are read ahead.
const AHEAD: usize = 2;

/// Events of the live parts at the time when the reader was opened, and of some sealed parts.
#[derive(Debug)]
pub(crate) struct Live {
    reader: Arc<Reader>,
    sealed: BTreeSet<u64>,
    columns: SchemaRef,
}

impl Live {
    pub(crate) fn new(reader: Arc<Reader>, sealed: BTreeSet<u64>, columns: SchemaRef) -> Live {
        Live { reader, sealed, columns }
    }
}

impl PartitionStream for Live {
    fn schema(&self) -> &SchemaRef {
        &self.columns
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.columns), AHEAD);
        let (to, reader) = (builder.tx(), Arc::clone(&self.reader));
        let select = Select::all().sealed(self.sealed.clone());
        builder.spawn_blocking(move || {
            let external = |error| DataFusionError::External(Box::new(error));
            for batch in reader.scan(&select).map_err(external)? {
                // The receiver was dropped.
                if to.blocking_send(batch.map_err(external)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}
