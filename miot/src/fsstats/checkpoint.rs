//! What a walk needs to go on after it was killed, in a file.
//!
//! ```text
//! "MIOTFSS1"   8 bytes
//! CRC-32C of what follows, 4 bytes, little endian
//! Checkpoint, as postcard writes it
//! ```
//!
//! A new one is written beside the old one, synced, and renamed over it.

use super::errors::Errors;
use super::node::{Node, Place};
use super::read::Task;
use super::walk::{Figures, Known};
use anyhow::{Context as _, bail};
use miot_trace_analysis::contents::Contents;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"MIOTFSS1";

/// What must be the same for a walk to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Canonical path, escaped.
    pub(crate) directory: String,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) cross: bool,
    pub(crate) exclude: Vec<String>,
}

/// State of a walk.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) figures: Figures,
    pub(crate) waiting: Waiting,
    pub(crate) known: Known,
}

/// Directories to be read, with those they are in, each once, and after that.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// Parent, which stands before; name.
    nodes: Vec<(Option<u32>, Vec<u8>, Place)>,
    tasks: Vec<(u32, u64, u64)>,
}

impl Waiting {
    pub(crate) fn of<'a>(tasks: impl Iterator<Item = &'a Task>) -> Waiting {
        let (mut waiting, mut numbers) = (Waiting::default(), HashMap::new());
        for task in tasks {
            let mut unknown = vec![&task.directory];
            while let Some(parent) = unknown.last().and_then(|node| node.parent.as_ref())
                && !numbers.contains_key(&Arc::as_ptr(parent))
            {
                unknown.push(parent);
            }
            for node in unknown.into_iter().rev() {
                let parent = node.parent.as_ref().map(|parent| numbers[&Arc::as_ptr(parent)]);
                let nodes = &mut waiting.nodes;
                numbers.entry(Arc::as_ptr(node)).or_insert_with(|| {
                    nodes.push((parent, node.name.to_vec(), node.place));
                    nodes.len() as u32 - 1
                });
            }
            waiting.tasks.push((numbers[&Arc::as_ptr(&task.directory)], task.cursor, task.entries));
        }
        waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn into_tasks(self) -> Vec<Task> {
        let mut nodes: Vec<Arc<Node>> = Vec::with_capacity(self.nodes.len());
        for (parent, name, place) in self.nodes {
            let parent = parent.and_then(|parent| nodes.get(parent as usize).cloned());
            nodes.push(Arc::new(Node { parent, name: name.into(), place }));
        }
        let task = |(node, cursor, entries)| {
            let directory = nodes.get(node as usize)?.clone();
            Some(Task { directory, cursor, entries })
        };
        self.tasks.into_iter().filter_map(task).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    identity: Identity,
    /// Seconds since 1970 to which ages are counted.
    now: i64,
    /// Nanoseconds that the walk took so far.
    took: u64,
    contents: Contents,
    errors: Errors,
    excluded: u64,
    mounts: u64,
    mounts_named: Vec<String>,
    waiting: Waiting,
    links: Vec<((u64, u64), u64)>,
    directories: Vec<(u64, u64)>,
}

/// A checkpoint that was read.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) identity: Identity,
    pub(crate) now: i64,
    pub(crate) took: u64,
    pub(crate) state: State,
}

/// Writes a checkpoint.
pub(crate) fn write(path: &Path, checkpoint: Checkpoint) -> anyhow::Result<()> {
    let Checkpoint { identity, now, took, state } = checkpoint;
    let Figures { contents, errors, excluded, mounts, mounts_named } = state.figures;
    let stored = Stored {
        identity,
        now,
        took,
        contents,
        errors,
        excluded,
        mounts,
        mounts_named,
        waiting: state.waiting,
        links: state.known.links.into_iter().collect(),
        directories: state.known.directories.into_iter().collect(),
    };
    let bytes = postcard::to_stdvec(&stored)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&crc32c::crc32c(&bytes).to_le_bytes())?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    written().with_context(|| format!("cannot write the checkpoint {}", path.display()))
}

/// Reads a checkpoint; `None` if there is none.
pub(crate) fn read(path: &Path) -> anyhow::Result<Option<Checkpoint>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the checkpoint {}", path.display()));
        }
    };
    let body = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(4));
    let Some((sum, body)) = body else {
        bail!("{} is not a checkpoint of miot fsstats (of this version)", path.display());
    };
    let stored =
        (crc32c::crc32c(body).to_le_bytes() == sum).then(|| postcard::from_bytes::<Stored>(body).ok());
    let Some(Some(stored)) = stored else {
        bail!("the checkpoint {} is damaged: remove it and begin anew", path.display());
    };
    let figures = Figures {
        contents: stored.contents,
        errors: stored.errors,
        excluded: stored.excluded,
        mounts: stored.mounts,
        mounts_named: stored.mounts_named,
    };
    let known = Known {
        links: stored.links.into_iter().collect(),
        directories: stored.directories.into_iter().collect(),
    };
    let state = State { figures, waiting: stored.waiting, known };
    Ok(Some(Checkpoint { identity: stored.identity, now: stored.now, took: stored.took, state }))
}
