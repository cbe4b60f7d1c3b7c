//! A log-client alone, for log-servers that a benchmark has started.

use crate::daemons;
use crate::process;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Child;

/// A running log-client, stopped when dropped.
pub(crate) struct Node {
    child: Option<Child>,
    dir: PathBuf,
}

impl Node {
    /// Starts the log-client of a node with these log-servers. Its configuration and log are in
    /// `dir`, its lanes in `lanes`.
    pub(crate) fn start(dir: &Path, lanes: &Path, name: &str, servers: &[String]) -> Result<Node> {
        std::fs::create_dir_all(dir)?;
        std::fs::create_dir_all(lanes)?;
        let settings = format!(
            "dir = {lanes:?}\nnode = {name:?}\nservers = {servers:?}\nhttp = \"off\"\nwhen_full = \"drop-newest\"\nstop = \"60s\"\n"
        );
        let page = lanes.join(miot_proto::control::FILE);
        ensure!(!page.exists(), "{page:?} is of an earlier log-client");
        let node = Node { child: Some(daemons::spawn("log-client", dir, &settings)?), dir: lanes.into() };
        daemons::wait_until("log-client", dir, || page.exists())?;
        Ok(node)
    }

    /// Value of `MIOT_DIR`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops the log-client, which delivers its records.
    pub(crate) fn stop(mut self) -> Result<()> {
        let usage = self.child.take().map(|mut child| process::terminate(&mut child)).unwrap_or_default();
        ensure!(usage.success, "the log-client ended with an error: {usage:?}");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            process::terminate(child);
        }
    }
}
