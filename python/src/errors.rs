//! Exceptions: the classes of `miot._errors`, with the texts of the tool.

use miot_trace_results::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

fn class(py: Python<'_>, name: &'static str) -> PyResult<Py<PyType>> {
    static FAILED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static OPTION: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let cell = if name == "OptionError" { &OPTION } else { &FAILED };
    cell.import(py, "miot._errors", name).map(|class| class.clone().unbind())
}

fn of(name: &'static str, text: &str) -> PyErr {
    Python::attach(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class.into_bound(py), text.to_owned()),
        Err(error) => error,
    })
}

/// Returns the exception for an option with a value that is not possible.
pub(crate) fn option(text: &str) -> PyErr {
    of("OptionError", text)
}

/// Returns the exception for anything else.
pub(crate) fn failed(text: &str) -> PyErr {
    of("Error", text)
}

/// Converts an error to an exception.
pub(crate) fn exception(error: &Error) -> PyErr {
    match error {
        Error::Option(text) => option(text),
        error => failed(&error.to_string()),
    }
}
