//! `miot._miot`: the native part of the Python package `miot`. It converts arguments, releases the
//! interpreter while a trace is read, and returns Arrow data; `miot/*.py` has the interface for
//! people.
//!
//! | module | role |
//! |---|---|
//! | `trace` | a trace directory: events, side tables and analyses |
//! | `stream`, `batch` | Arrow data through the PyCapsule interface: streamed, or in memory |
//! | `values` | rows of results as Arrow columns, and Arrow values as Python objects |
//! | `query` | SQL, by the program `miot-query` |
//! | `follow` | events as they arrive, from a directory or a log-server |
//! | `region` | regions of the run of this program |
//! | `signals` | Ctrl-C while a trace is read |
//! | `errors` | exceptions |

mod batch;
mod errors;
mod follow;
mod query;
mod region;
mod signals;
mod stream;
mod trace;
mod values;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The native part of the package `miot`.
#[pyo3::pymodule]
mod _miot {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::follow::Follow;
    #[pymodule_export]
    use crate::query::query;
    #[pymodule_export]
    use crate::region::{Region, preloaded, recording};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::trace::Directory;

    /// Version of MIOT.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Returns the nanoseconds since 1970 of a time such as 2026-11-21T12:00:00Z, or of an age such
    /// as 10m.
    #[pyfunction]
    fn moment(text: &str) -> PyResult<i64> {
        let time = miot_trace_results::filter::moment(text);
        let time = time.map_err(|reason| crate::errors::option(&format!("{text}: {reason}")))?;
        Ok(miot_trace_results::filter::nanoseconds(time))
    }

    /// Returns the nanoseconds of a duration such as 1s or 100ms.
    #[pyfunction]
    fn interval(text: &str) -> PyResult<u64> {
        let parsed = miot_trace_results::show::interval(text);
        parsed.map_err(|reason| crate::errors::option(&format!("{text}: {reason}")))
    }

    /// Returns the class of each operation: read, write, copy, sync or meta. A name has the same
    /// class in all layers.
    #[pyfunction]
    fn operation_classes() -> std::collections::BTreeMap<&'static str, &'static str> {
        miot_proto::op::all_operations().map(|info| (info.name, info.class.name())).collect()
    }

    /// Returns the address if the text has the form host:port and is not a path.
    #[pyfunction]
    fn address(text: &str) -> Option<&str> {
        miot_trace_results::server::address(text)
    }
}
