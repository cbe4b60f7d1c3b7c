//! Programs that confine themselves with seccomp work with the hook as without it, with and without
//! a log-client, and are recorded as far as possible.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod filters;
mod programs;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use miot_tests::node::Node;
use miot_tests::test_dir::fresh;
use miot_trace_store::{Reader, Table};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

struct SandboxDirs {
    /// Directory on disk.
    path: PathBuf,
    /// Directory in shared memory, removed with the test.
    shared: tempfile::TempDir,
}

impl SandboxDirs {
    fn new(name: &str) -> SandboxDirs {
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        SandboxDirs { path: fresh(&format!("sandboxed-{name}")), shared }
    }

    fn node(&self) -> Node {
        Node::start(&self.path, self.shared.path())
    }

    /// A MIOT directory that no log-client has created.
    fn nobody(&self) -> PathBuf {
        self.shared.path().join("nobody")
    }
}

/// Losses by place.
fn losses(trace: &Path) -> HashMap<String, u64> {
    let mut lost = HashMap::new();
    for batch in Reader::open(trace).unwrap().table(Table::Losses).unwrap() {
        let counts = miot_trace_store::schema::column::<UInt64Type>(&batch, "count").unwrap();
        let places = batch.column_by_name("place").unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            *lost.entry(places.value(row).to_owned()).or_default() += counts.value(row);
        }
    }
    lost
}
