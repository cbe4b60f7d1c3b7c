//! The ledger file of a sealed part: one line.

use super::counts::{Counts, CountsJson};
use super::{json, line};
use crate::error::Error;
use crate::layout::{Layout, make_folder, sync_folder, tmp};
use crate::schema::Table;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// One file of a sealed part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// CRC-32C of these bytes.
    pub(crate) crc32c: u32,
}

/// The entry of a sealed part.
#[derive(Clone, Debug, Default)]
pub(crate) struct SealedEntry {
    pub(crate) counts: Counts,
    /// By table; a table without rows may have no file.
    pub(crate) files: BTreeMap<Table, FileEntry>,
}

#[derive(Serialize, Deserialize)]
struct Json {
    files: BTreeMap<String, FileEntry>,
    #[serde(flatten)]
    counts: CountsJson,
}

impl SealedEntry {
    pub(super) fn parse(bytes: &[u8]) -> Option<SealedEntry> {
        let json: Json = serde_json::from_str(json(bytes.strip_suffix(b"\n")?)?).ok()?;
        let mut entry = SealedEntry::default();
        for (name, file) in &json.files {
            entry.files.insert(Table::from_name(name)?, *file);
        }
        entry.counts.apply(&json.counts).then_some(entry)
    }

    /// Writes the entry and makes it durable.
    pub(crate) fn write(&self, layout: &Layout, part: u64) -> Result<(), Error> {
        let path = layout.ledger_sealed(part);
        let files = self.files.iter().map(|(table, file)| (table.name().to_owned(), *file)).collect();
        let json = serde_json::to_string(&Json { files, counts: self.counts.all() })
            .map_err(|e| Error::damaged(&path, e))?;
        make_folder(&layout.ledger_folder())?;
        write_durably(&path, line(&json).as_bytes())
    }
}

/// Writes a file, which replaces an existing one, and makes it durable.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let tmp = tmp(path);
    let written = File::create(&tmp)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&tmp, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&tmp);
        return Err(Error::io("write", path)(error));
    }
    path.parent().map_or(Ok(()), sync_folder)
}

/// Returns the length of a file in bytes and its CRC-32C.
pub(crate) fn sum_of(path: &Path) -> Result<(u64, u32), Error> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let (mut buffer, mut bytes, mut crc) = (vec![0; BUFFER], 0, 0);
    loop {
        let read = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if read == 0 {
            return Ok((bytes, crc));
        }
        crc = crc32c::crc32c_append(crc, &buffer[..read]);
        bytes += read as u64;
    }
}
