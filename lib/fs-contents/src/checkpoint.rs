//! State of a walk in a file, to continue after an interruption.
//!
//! ```text
//! "MIOTFSS1"   8 bytes
//! CRC-32C of the rest, 4 bytes, little endian
//! Checkpoint, as postcard writes it
//! ```
//!
//! A new file is written beside the old one, synced, and renamed over it.

use crate::contents::Contents;
use crate::errors::Errors;
use crate::node::{FileSystemId, Node};
use crate::read::DirectoryTask;
use crate::walk::{Figures, SeenInodes};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"MIOTFSS1";

/// Error of writing or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be written.
    #[error("cannot write the checkpoint {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the checkpoint {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The state cannot be encoded.
    #[error(transparent)]
    Encode(#[from] postcard::Error),
    /// The file is not a checkpoint of this version.
    #[error("{} is not a checkpoint of miot fsstats (of this version)", .0.display())]
    Foreign(PathBuf),
    /// The checksum or the content is wrong.
    #[error("the checkpoint {} is damaged: remove it and start again", .0.display())]
    Damaged(PathBuf),
}

/// Properties of a walk that must be the same to continue it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Canonical path of the root, escaped.
    pub directory: String,
    /// Device number of the root.
    pub device: u64,
    /// Inode number of the root.
    pub inode: u64,
    /// True if other file systems and mounts are entered.
    pub cross: bool,
    /// Exclude patterns.
    pub exclude: Vec<String>,
}

/// State of a walk.
#[derive(Debug)]
pub struct WalkState {
    pub(crate) figures: Figures,
    pub(crate) waiting: Waiting,
    pub(crate) known: SeenInodes,
}

/// Directories that wait to be read, and their parents. Each directory occurs once, after its
/// parent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// Index of the parent, name, file system.
    nodes: Vec<(Option<u32>, Vec<u8>, FileSystemId)>,
    /// Index of the directory, position in it, entries before the position.
    tasks: Vec<(u32, u64, u64)>,
}

impl Waiting {
    pub(crate) fn of<'a>(tasks: impl Iterator<Item = &'a DirectoryTask>) -> Waiting {
        let (mut waiting, mut numbers) = (Waiting::default(), HashMap::new());
        for task in tasks {
            let mut unnumbered = vec![&task.directory];
            while let Some(parent) = unnumbered.last().and_then(|node| node.parent.as_ref())
                && !numbers.contains_key(&Arc::as_ptr(parent))
            {
                unnumbered.push(parent);
            }
            for node in unnumbered.into_iter().rev() {
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

    pub(crate) fn into_tasks(self) -> Vec<DirectoryTask> {
        let mut nodes: Vec<Arc<Node>> = Vec::with_capacity(self.nodes.len());
        for (parent, name, place) in self.nodes {
            let parent = parent.and_then(|parent| nodes.get(parent as usize).cloned());
            nodes.push(Arc::new(Node { parent, name: name.into(), place }));
        }
        let task = |(node, cursor, entries)| {
            let directory = nodes.get(node as usize)?.clone();
            Some(DirectoryTask { directory, cursor, entries })
        };
        self.tasks.into_iter().filter_map(task).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct CheckpointContent {
    identity: Identity,
    /// Time to which ages are counted, seconds since 1970.
    now: i64,
    /// Duration of the walk so far, nanoseconds.
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

/// A checkpoint of a walk.
#[derive(Debug)]
pub struct Checkpoint {
    /// The walk.
    pub identity: Identity,
    /// Time to which ages are counted, seconds since 1970.
    pub now: i64,
    /// Duration of the walk so far, nanoseconds.
    pub took: u64,
    /// State of the walk.
    pub state: WalkState,
}

/// Writes a checkpoint.
///
/// # Errors
/// [`Error::Write`].
pub fn write(path: &Path, checkpoint: Checkpoint) -> Result<(), Error> {
    let Checkpoint { identity, now, took, state } = checkpoint;
    let Figures { contents, errors, excluded, mounts, mounts_named } = state.figures;
    let stored = CheckpointContent {
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
    let written = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&crc32c::crc32c(&bytes).to_le_bytes())?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    written().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Reads a checkpoint; `None` if the file does not exist.
///
/// # Errors
/// [`Error::Read`], [`Error::Foreign`], [`Error::Damaged`].
pub fn read(path: &Path) -> Result<Option<Checkpoint>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    };
    let body = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(4));
    let Some((sum, body)) = body else {
        return Err(Error::Foreign(path.to_owned()));
    };
    let stored = (crc32c::crc32c(body).to_le_bytes() == sum)
        .then(|| postcard::from_bytes::<CheckpointContent>(body).ok());
    let Some(Some(stored)) = stored else {
        return Err(Error::Damaged(path.to_owned()));
    };
    let figures = Figures {
        contents: stored.contents,
        errors: stored.errors,
        excluded: stored.excluded,
        mounts: stored.mounts,
        mounts_named: stored.mounts_named,
    };
    let known = SeenInodes {
        links: stored.links.into_iter().collect(),
        directories: stored.directories.into_iter().collect(),
    };
    let state = WalkState { figures, waiting: stored.waiting, known };
    Ok(Some(Checkpoint { identity: stored.identity, now: stored.now, took: stored.took, state }))
}
