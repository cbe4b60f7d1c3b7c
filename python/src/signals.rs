//! Ctrl-C while a trace is read: the handlers of Python run in its main thread only, so reading in
//! that thread asks for them now and then.

use miot_trace_results::{Error, Watch};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two questions.
const EVERY: Duration = Duration::from_millis(20);

/// The exception that ended a reading, shared with the code that waits for its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    pub(crate) fn set(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Ends a reading when a handler of a signal raises an exception.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) failure: Failure,
    last: Cell<Instant>,
}

impl Signals {
    pub(crate) fn new(failure: Failure) -> Signals {
        Signals { failure, last: Cell::new(Instant::now()) }
    }

    /// Runs the handlers of signals that arrived.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // The main thread has the number of its process.
        if rustix::thread::gettid() != rustix::process::getpid() || self.last.get().elapsed() < EVERY {
            return Ok(());
        }
        self.last.set(Instant::now());
        Python::attach(|py| py.check_signals()).map_err(|error| {
            self.failure.set(error);
            Error::Interrupted
        })
    }
}

impl Watch for Signals {
    fn read(&self, _: u64) -> Result<(), Error> {
        self.check()
    }
}

/// Runs `f` without holding the interpreter. The exception of a signal handler replaces the result.
pub(crate) fn reading<T: Send>(
    py: Python<'_>,
    f: impl FnOnce(&Signals) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let failure = Failure::default();
    let result = py.detach(|| f(&Signals::new(failure.clone())));
    match (failure.take(), result) {
        (Some(error), _) => Err(error),
        (None, result) => result.map_err(|error| crate::errors::exception(&error)),
    }
}
