//! Upload of sealed parts to an object store: which files a store must get, in which order, and the
//! marks of the parts that it has.
//!
//! A store holds the files of a trace directory under the same names. The ledger file of a part is
//! uploaded last, so a part is whole if that file exists. Then `ledger/part-N.uploaded` is written
//! here, with the address of the store. A mark of another store does not count.
//!
//! This module only reads and marks; the program `miot-uploader` transfers.

use crate::error::Error;
use crate::layout::Layout;
use crate::ledger::{SealedEntry, read_sealed_entry, write_durably};
use crate::manifest::MANIFEST;
use crate::schema::Table;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file of a trace directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadFile {
    /// Name relative to the directory, with `/`.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Length in bytes and CRC-32C, if the ledger has them.
    pub expected: Option<(u64, u32)>,
}

/// A sealed part that a store does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartToUpload {
    /// Number of the part.
    pub part: u64,
    /// Side tables, then events.
    pub files: Vec<UploadFile>,
    /// The ledger file of the part, whose existence in the store says that the part is whole.
    /// `None` for a part of a version without a ledger.
    pub commit: Option<UploadFile>,
}

/// Parts that a store does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadBacklog {
    /// Number of parts.
    pub parts: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Time since the oldest of them was sealed.
    pub oldest: Duration,
}

#[derive(Serialize, Deserialize)]
struct Mark {
    store: String,
}

/// Returns the files that a store without this trace gets first: those with the rows kept from
/// removed parts. The manifest follows them.
///
/// # Errors
/// [`Error::Io`].
pub fn first_files(dir: &Path) -> Result<Vec<UploadFile>, Error> {
    let layout = Layout::new(dir);
    let first = layout.first()?;
    let carried = Table::SIDE.into_iter().map(|table| layout.carried(table, first));
    Ok(carried.filter(|path| path.exists()).filter_map(|path| file(dir, path, None)).collect())
}

/// Folder of the ledger files, below the trace's directory.
pub const LEDGER_FOLDER: &str = crate::layout::LEDGER;

/// Returns the number of the sealed part whose ledger file has this name.
#[must_use]
pub fn committed_part(name: &str) -> Option<u64> {
    crate::layout::sealed_ledger_part(name)
}

/// Returns the manifest of the trace.
#[must_use]
pub fn manifest_file(dir: &Path) -> UploadFile {
    UploadFile { name: MANIFEST.to_owned(), path: dir.join(MANIFEST), expected: None }
}

/// Returns the sealed parts that the store at this address does not have, oldest first.
///
/// # Errors
/// [`Error::Io`].
pub fn parts_to_upload(dir: &Path, store: &str) -> Result<Vec<PartToUpload>, Error> {
    let layout = Layout::new(dir);
    let mut parts = Vec::new();
    for part in layout.parts()?.sealed {
        if !is_uploaded(&layout, part, store) {
            parts.push(to_upload(&layout, part)?);
        }
    }
    Ok(parts)
}

/// Returns the number and size of the parts that the store at this address does not have.
///
/// # Errors
/// [`Error::Io`].
pub fn backlog(dir: &Path, store: &str) -> Result<UploadBacklog, Error> {
    let layout = Layout::new(dir);
    let mut backlog = UploadBacklog::default();
    for part in layout.parts()?.sealed {
        if is_uploaded(&layout, part, store) {
            continue;
        }
        backlog.parts += 1;
        let of = |table| fs::metadata(layout.sealed(table, part));
        backlog.bytes +=
            Table::ALL.into_iter().filter_map(|table| of(table).ok()).map(|f| f.len()).sum::<u64>();
        let sealed = of(Table::Events).and_then(|file| file.modified());
        let age = sealed.ok().and_then(|sealed| SystemTime::now().duration_since(sealed).ok());
        backlog.oldest = backlog.oldest.max(age.unwrap_or_default());
    }
    Ok(backlog)
}

/// Marks a part as uploaded to the store at this address, durably.
///
/// # Errors
/// [`Error::Io`].
pub fn mark_uploaded(dir: &Path, part: u64, store: &str) -> Result<(), Error> {
    let path = Layout::new(dir).ledger_uploaded(part);
    let mark = Mark { store: store.to_owned() };
    let text = serde_json::to_string(&mark).map_err(|e| Error::damaged(&path, e))?;
    write_durably(&path, format!("{text}\n").as_bytes())
}

/// True if the store at this address has the part. A mark that cannot be read does not count: the
/// part is uploaded once more.
pub(crate) fn is_uploaded(layout: &Layout, part: u64, store: &str) -> bool {
    let text = fs::read(layout.ledger_uploaded(part)).unwrap_or_default();
    serde_json::from_slice::<Mark>(&text).is_ok_and(|mark| mark.store == store)
}

fn to_upload(layout: &Layout, part: u64) -> Result<PartToUpload, Error> {
    let entry = read_sealed_entry(layout, part)?;
    let expected = |table: Table| {
        let file = entry.as_ref().and_then(|SealedEntry { files, .. }| files.get(&table));
        file.map(|file| (file.bytes, file.crc32c))
    };
    let of = |table: Table| {
        let path = layout.sealed(table, part);
        path.exists().then(|| file(layout.root(), path, expected(table)))?
    };
    let files = Table::SIDE.into_iter().chain([Table::Events]).filter_map(of).collect();
    let commit = entry.as_ref().and_then(|_| file(layout.root(), layout.ledger_sealed(part), None));
    Ok(PartToUpload { part, files, commit })
}

fn file(dir: &Path, path: PathBuf, expected: Option<(u64, u32)>) -> Option<UploadFile> {
    let name = path.strip_prefix(dir).ok()?.to_str()?.to_owned();
    Some(UploadFile { name, path, expected })
}
