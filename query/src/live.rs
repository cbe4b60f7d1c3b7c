//! Events of the part that is being written, as they are read.

use crate::convert;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use miot_trace_store::{Reader, Select};
use std::sync::Arc;

/// Batches that may be ready before they are asked for.
const AHEAD: usize = 2;

/// The events that were in live parts when the reader was opened.
#[derive(Debug)]
pub(crate) struct Live {
    reader: Arc<Reader>,
    columns: SchemaRef,
}

impl Live {
    pub(crate) fn new(reader: Arc<Reader>, columns: SchemaRef) -> Live {
        Live { reader, columns }
    }
}

impl PartitionStream for Live {
    fn schema(&self) -> &SchemaRef {
        &self.columns
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.columns), AHEAD);
        let (to, reader) = (builder.tx(), Arc::clone(&self.reader));
        builder.spawn_blocking(move || {
            let external = |error| DataFusionError::External(Box::new(error));
            for batch in reader.scan(&Select::all().live()).map_err(external)? {
                let batch = batch.map_err(external).and_then(|batch| convert::batch(&batch));
                // Nobody wants more.
                if to.blocking_send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}
