//! The error type of the crate.

use crate::schema::Table;
use std::io;
use std::path::{Path, PathBuf};

/// Why a trace directory could not be read or written. The text contains what was found and what to
/// do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A new trace cannot be created, because the directory is not empty.
    #[error("{} is not empty ({found}): a new trace needs an empty directory or a new name", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// Description of its content.
        found: String,
    },
    /// The directory cannot be created or written.
    #[error(
        "cannot write to {}: {source}; {}",
        dir.display(),
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => "mount its file system for writing, or choose another directory",
            _ => "choose another directory or get write permission for it",
        }
    )]
    NotWritable {
        /// The directory.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The directory is not a trace.
    #[error("{} is not a MIOT trace: {found}", dir.display())]
    NotATrace {
        /// The directory.
        dir: PathBuf,
        /// Description of what was found.
        found: String,
    },
    /// The trace was written by a later version of MIOT.
    #[error(
        "{} has trace schema {found}, this program reads schemas up to {supported}: upgrade MIOT, or open the Parquet files with any other tool",
        dir.display()
    )]
    NewerSchema {
        /// The directory.
        dir: PathBuf,
        /// Version in the manifest.
        found: u32,
        /// Latest version that this program reads.
        supported: u32,
    },
    /// The trace belongs to another log-server of a set.
    #[error(
        "{} is partition {found}, expected {expected}: set `partition = {found}` to continue it, or choose another directory",
        dir.display()
    )]
    OtherPartition {
        /// The directory.
        dir: PathBuf,
        /// Partition in the manifest.
        found: u16,
        /// Partition of the writer.
        expected: u16,
    },
    /// The trace belongs to another cluster.
    #[error(
        "{} belongs to cluster `{found}`, expected `{expected}`: set `cluster = \"{found}\"` to continue it, or choose another directory",
        dir.display()
    )]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// Name in the manifest.
        found: String,
        /// Name of the writer's cluster.
        expected: String,
    },
    /// Two traces cannot be read as one.
    #[error("{} and {} cannot be in one set: {reason}", one.display(), other.display())]
    Set {
        /// A directory.
        one: PathBuf,
        /// Another directory.
        other: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Another process writes to this directory.
    #[error("{} is being written by another process: stop that process first, or choose another directory", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is truncated or its content is wrong.
    #[error("{} is damaged: {reason}; `miot fsck` lists all damage", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// Another process deleted, renamed, replaced or truncated a file that is being written. Rows
    /// that were appended after the last successful [commit](crate::Writer::commit) are not in the
    /// trace.
    #[error("{} is no longer the file that is being written: {what}", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// What happened to it.
        what: String,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A batch does not have the columns of the table.
    #[error("rows for table {table} have the wrong columns: {reason}")]
    Schema {
        /// The table.
        table: Table,
        /// The first difference.
        reason: String,
    },
    /// A batch could not be encoded.
    #[error("rows for table {table} cannot be encoded: {reason}")]
    Encode {
        /// The table.
        table: Table,
        /// Error of Arrow.
        reason: String,
    },
    /// The oldest parts could not be removed. No data is lost, and the next
    /// [`crate::Writer::retain`] tries again.
    #[error("the oldest parts could not be removed and are kept until the next attempt: {source}")]
    Retain {
        /// The cause.
        source: Box<Error>,
    },
    /// A part could not be sealed. No data is lost: the part stays live, and the next seal tries
    /// again.
    #[error("part {part} could not be sealed and stays live until the next attempt: {source}")]
    Seal {
        /// Number of the part.
        part: u64,
        /// The cause.
        source: Box<Error>,
    },
}

impl Error {
    /// Returns true if the file system or the quota was full: free space and call again.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            Error::Io { source, .. } | Error::NotWritable { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Error::Seal { source, .. } | Error::Retain { source } => source.is_disk_full(),
            _ => false,
        }
    }

    /// Returns true if a file does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl std::fmt::Display) -> Error {
        Error::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }
}
