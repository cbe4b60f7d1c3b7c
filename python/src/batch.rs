//! A batch of rows in memory.

use crate::stream::{schema_capsule, stream_capsule};
use crate::{errors, values};
use arrow_array::{RecordBatch, RecordBatchIterator};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};

/// Rows in memory, as Arrow columns.
#[pyclass(module = "miot._miot", frozen)]
pub(crate) struct Batch(pub(crate) RecordBatch);

#[pymethods]
impl Batch {
    /// Returns the rows as a capsule of a stream.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let reader = RecordBatchIterator::new([Ok(self.0.clone())], self.0.schema());
        stream_capsule(py, Box::new(reader))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.0.schema())
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    /// Returns the names of the columns.
    fn columns(&self) -> Vec<String> {
        self.0.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Returns the first rows.
    fn first(&self, rows: usize) -> Batch {
        Batch(self.0.slice(0, rows.min(self.0.num_rows())))
    }

    /// Returns the values of a column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let column = self.0.column_by_name(name).ok_or_else(|| {
            errors::option(&format!("no column `{name}`; there are {}", self.columns().join(", ")))
        })?;
        let values = (0..self.0.num_rows()).map(|row| values::to_python(py, column, row));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the values of a row by column. Negative numbers count from the end.
    fn row<'py>(&self, py: Python<'py>, row: isize) -> PyResult<Bound<'py, PyDict>> {
        let rows = self.0.num_rows();
        let at = if row < 0 { rows.checked_sub(row.unsigned_abs()) } else { usize::try_from(row).ok() };
        let at = at.filter(|at| *at < rows).ok_or_else(|| {
            pyo3::exceptions::PyIndexError::new_err(format!("no row {row}: there are {rows}"))
        })?;
        let dict = PyDict::new(py);
        for (field, column) in self.0.schema_ref().fields().iter().zip(self.0.columns()) {
            dict.set_item(field.name(), values::to_python(py, column, at)?)?;
        }
        Ok(dict)
    }
}
