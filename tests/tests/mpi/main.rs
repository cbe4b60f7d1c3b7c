//! MPI-IO of real programs on MPICH, in C and Fortran: the recorded requests, and the POSIX calls
//! within them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod communication;
mod errors;
mod every;
mod forms;
mod hangs;
mod layers;
mod loading;
mod views;
mod waits;

use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use std::path::{Path, PathBuf};

fn place(name: &str) -> PathBuf {
    fresh(&format!("mpi-{name}"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn of_layer<'a>(rows: &'a [PrintedEvent], layer: &str) -> Vec<&'a PrintedEvent> {
    rows.iter().filter(|row| row.layer == layer).collect()
}

/// Requests of a layer that were made within this one. They are not selected by stream, because a
/// thread's lane may be replaced meanwhile.
fn within<'a>(rows: &'a [PrintedEvent], outer: &PrintedEvent, layer: &str) -> Vec<&'a PrintedEvent> {
    let inner = |row: &&PrintedEvent| {
        row.layer == layer
            && row.process == outer.process
            && row.tid == outer.tid
            && row.enclosing == Some(outer.request)
    };
    rows.iter().filter(inner).collect()
}
