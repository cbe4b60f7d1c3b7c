//! A stream of Arrow batches, through the PyCapsule interface: consumers get the buffers without a
//! copy.

use crate::batch::Batch;
use crate::errors;
use crate::signals::Failure;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use miot_trace_results::Error;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Batches of a trace, as a reader of Arrow.
pub(crate) struct Batches<I> {
    batches: I,
    schema: SchemaRef,
    failure: Failure,
}

impl<I> Batches<I> {
    pub(crate) fn new(batches: I, schema: SchemaRef, failure: Failure) -> Batches<I> {
        Batches { batches, schema, failure }
    }
}

impl<I: Iterator<Item = Result<RecordBatch, Error>>> Iterator for Batches<I> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        // A panic must not unwind into the consumer, which may be C.
        let next = catch_unwind(AssertUnwindSafe(|| self.batches.next()));
        let next = next.unwrap_or_else(|_| Some(Err(Error::Failed("internal error of MIOT".to_owned()))));
        next.map(|batch| {
            batch.map_err(|error| {
                // An exception of a signal handler is stored already.
                if !matches!(error, Error::Interrupted) {
                    self.failure.set(errors::exception(&error));
                }
                ArrowError::ExternalError(Box::new(error))
            })
        })
    }
}

impl<I: Iterator<Item = Result<RecordBatch, Error>>> RecordBatchReader for Batches<I> {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }
}

/// A stream of batches, which can be consumed once.
#[pyclass(module = "miot._miot", frozen)]
pub(crate) struct Stream {
    reader: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
    schema: SchemaRef,
    failure: Failure,
    notes: Notes,
}

/// Returns notes on the accuracy of a stream, complete at its end.
pub(crate) type Notes = Box<dyn Fn() -> Vec<String> + Send + Sync>;

impl Stream {
    pub(crate) fn new(reader: Box<dyn RecordBatchReader + Send>, failure: Failure, notes: Notes) -> Stream {
        Stream { schema: reader.schema(), reader: Mutex::new(Some(reader)), failure, notes }
    }
}

/// Returns the capsule of a stream.
pub(crate) fn stream_capsule(
    py: Python<'_>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
}

/// Returns the capsule of a schema.
pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(|e| errors::failed(&e.to_string()))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

#[pymethods]
impl Stream {
    /// Returns the stream as a capsule, once. The requested schema is ignored, as the interface
    /// permits.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reader = reader.ok_or_else(|| errors::failed("the stream was consumed already"))?;
        stream_capsule(py, reader)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// Returns the next batch; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let next = py.detach(|| {
            let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.as_mut().and_then(Iterator::next)
        });
        match next {
            Some(Ok(batch)) => Ok(Some(Batch(batch))),
            Some(Err(error)) => {
                Err(self.failure.take().unwrap_or_else(|| errors::failed(&error.to_string())))
            }
            None => Ok(None),
        }
    }

    /// Raises the exception that ended the stream, if any: consumers only have its text.
    fn raise_failure(&self) -> PyResult<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Returns notes on the accuracy of the rows read so far.
    fn notes(&self) -> Vec<String> {
        (self.notes)()
    }
}
