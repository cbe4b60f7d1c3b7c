//! Names and paths that are left out.

use super::node::Node;
use anyhow::Context as _;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Patterns with a `/` are of paths from the directory of the walk, others of names.
#[derive(Debug)]
pub(crate) struct Excludes {
    names: GlobSet,
    paths: GlobSet,
}

impl Excludes {
    pub(crate) fn new(patterns: &[String]) -> anyhow::Result<Excludes> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let set = if pattern.contains('/') { &mut paths } else { &mut names };
            let relative = pattern.trim_start_matches('/').trim_end_matches('/');
            let glob = GlobBuilder::new(relative).literal_separator(true).build();
            set.add(glob.with_context(|| format!("--exclude {pattern}"))?);
        }
        Ok(Excludes { names: names.build()?, paths: paths.build()? })
    }

    pub(crate) fn matches(&self, parent: &Node, name: &[u8]) -> bool {
        let matches = |set: &GlobSet, path: &[u8]| set.is_match(Path::new(OsStr::from_bytes(path)));
        !self.names.is_empty() && matches(&self.names, name)
            || !self.paths.is_empty() && matches(&self.paths, &self.path(parent, name))
    }

    /// Path of an entry from the directory of the walk.
    pub(crate) fn path(&self, parent: &Node, name: &[u8]) -> Vec<u8> {
        let mut path = parent.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}
