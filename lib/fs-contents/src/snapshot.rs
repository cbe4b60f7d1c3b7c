//! Contents of a file system at a point in time, as a JSON file.

use crate::contents::Contents;
use crate::errors::ErrorRow;
use crate::histogram::Amount;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const FORMAT: &str = "miot-fsstats";
/// Version of the format. It is incremented when an older `miot` would misread newer snapshots.
const VERSION: u32 = 1;

/// Error of writing or reading a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The snapshot cannot be encoded.
    #[error(transparent)]
    Encode(serde_json::Error),
    /// The file is not a snapshot.
    #[error("{} is not a snapshot: expected a file written by `miot fsstats DIR -o FILE`", .0.display())]
    Foreign(PathBuf),
    /// The file is of a later version.
    #[error("{} is a snapshot of version {version}, this program reads up to {VERSION}: upgrade MIOT", path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The content is wrong.
    #[error("the snapshot {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Name of the format.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Name and version of the program.
    pub made_by: String,
    /// Path of the directory.
    pub directory: String,
    /// Time to which ages are counted.
    #[serde(with = "text")]
    pub as_of: Timestamp,
    /// Duration of the walk, without interruptions.
    pub took_seconds: f64,
    /// True if other file systems and mounts were entered.
    pub cross: bool,
    /// Exclude patterns.
    pub exclude: Vec<String>,
    /// Names that an exclude pattern left out.
    pub excluded: u64,
    /// Mount points that were not entered.
    pub mounts: u64,
    /// Paths of some of them.
    pub mounts_named: Vec<String>,
    /// Totals of all files.
    pub totals: Amount,
    /// Failures.
    pub errors: Vec<ErrorRow>,
    /// Distributions of attributes.
    pub contents: Contents,
}

impl Snapshot {
    /// Returns the values of the fields `format`, `version` and `made_by`.
    #[must_use]
    pub fn format() -> (String, u32, String) {
        (FORMAT.to_owned(), VERSION, concat!("miot ", env!("CARGO_PKG_VERSION")).to_owned())
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Foreign`], [`Error::Later`], [`Error::Damaged`].
    pub fn read(path: &Path) -> Result<Snapshot, Error> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let text = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let head = serde_json::from_slice(&text).ok().filter(|head: &Head| head.format == FORMAT);
        match head {
            None => return Err(Error::Foreign(path.to_owned())),
            Some(Head { version, .. }) if version > VERSION => {
                return Err(Error::Later { path: path.to_owned(), version });
            }
            Some(_) => {}
        }
        serde_json::from_slice(&text).map_err(|source| Error::Damaged { path: path.to_owned(), source })
    }

    /// Writes the snapshot to a file.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut text = serde_json::to_vec_pretty(self).map_err(Error::Encode)?;
        text.push(b'\n');
        std::fs::write(path, text).map_err(|source| Error::Write { path: path.to_owned(), source })
    }
}

/// Serializes a time as text.
mod text {
    use jiff::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
