//! Names and paths that a walk skips.

use crate::node::Node;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A pattern that is not a glob.
#[derive(Debug, thiserror::Error)]
#[error("--exclude {pattern}")]
pub struct InvalidPattern {
    pattern: String,
    source: globset::Error,
}

/// Exclude patterns. Those with a `/` match paths from the root of the walk, others match names.
#[derive(Debug)]
pub struct Excludes {
    names: GlobSet,
    paths: GlobSet,
}

impl Excludes {
    /// Parses patterns.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn new(patterns: &[String]) -> Result<Excludes, InvalidPattern> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let set = if pattern.contains('/') { &mut paths } else { &mut names };
            let relative = pattern.trim_start_matches('/').trim_end_matches('/');
            let glob = GlobBuilder::new(relative).literal_separator(true).build();
            set.add(glob.map_err(|source| InvalidPattern { pattern: pattern.clone(), source })?);
        }
        let built = |set: GlobSetBuilder| {
            set.build().map_err(|source| InvalidPattern { pattern: patterns.join(" "), source })
        };
        Ok(Excludes { names: built(names)?, paths: built(paths)? })
    }

    pub(crate) fn matches(&self, parent: &Node, name: &[u8]) -> bool {
        let matches = |set: &GlobSet, path: &[u8]| set.is_match(Path::new(OsStr::from_bytes(path)));
        !self.names.is_empty() && matches(&self.names, name)
            || !self.paths.is_empty() && matches(&self.paths, &self.path(parent, name))
    }

    /// Returns the path of an entry from the root of the walk.
    pub(crate) fn path(&self, parent: &Node, name: &[u8]) -> Vec<u8> {
        let mut path = parent.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}
