//! What can go wrong, and what to do about it.

use crate::schema::Table;
use std::io;
use std::path::{Path, PathBuf};

/// Why a trace directory could not be read or written. The text says what was found and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A new trace was to be made in a directory that holds something.
    #[error("{} is not empty ({found}): a new trace needs an empty directory or a new name", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// What is in it.
        found: String,
    },
    /// The directory cannot be made or written.
    #[error(
        "cannot write to {}: {source}; {}",
        dir.display(),
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => "mount its file system for writing, or choose another directory",
            _ => "choose another directory or ask for the right to write there",
        }
    )]
    NotWritable {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no trace at this place.
    #[error("{} is not a MIOT trace: {found}", dir.display())]
    NotATrace {
        /// The directory.
        dir: PathBuf,
        /// What was found instead.
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
        /// Latest version this program knows.
        supported: u32,
    },
    /// Another process writes to this directory.
    #[error("{} is being written by another process: stop that one first, or choose another directory", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is cut short or holds something else than it should.
    #[error("{} is damaged: {reason}; `miot fsck` says what else is wrong", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that is being written was deleted, renamed, replaced or cut by somebody else. What was committed since the
    /// last [commit](crate::Writer::commit) that succeeded is not in the trace.
    #[error("{} is not the file any more that is being written: {what}", path.display())]
    Gone {
        /// The file.
        path: PathBuf,
        /// What happened to it.
        what: String,
    },
    /// The system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system says.
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
        /// What Arrow says.
        reason: String,
    },
    /// The oldest parts could not be removed. Nothing is lost, and it is tried again.
    #[error("the oldest parts could not be removed, they stay until the next attempt: {source}")]
    Retain {
        /// Why.
        source: Box<Error>,
    },
    /// Sealing a part failed. Nothing is lost: the part stays live and the next seal tries again.
    #[error("part {part} could not be sealed, it stays as it is until the next attempt: {source}")]
    Seal {
        /// The part's number.
        part: u64,
        /// Why.
        source: Box<Error>,
    },
}

impl Error {
    /// True if the file system (or the quota) was full: free some space and call again.
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

    /// True if a file is not there.
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
