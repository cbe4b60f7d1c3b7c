//! The manifest: the file that identifies a directory as a trace.

use crate::error::Error;
use crate::ids;
use crate::layout::{LEDGER, LIVE, sync_folder};
use crate::schema;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Name of the manifest in the trace directory.
pub const MANIFEST: &str = "miot-trace.json";
const FORMAT: &str = "miot-trace";
/// The first schema version with a ledger.
pub(crate) const LEDGER_SCHEMA: u32 = 2;
/// Largest manifest, bytes. A manifest has a few lines, so a larger file is something else.
const MAX_BYTES: u64 = 64 << 10;

/// The parts that the ledger counts completely. Only for these can completeness be proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCoverage {
    /// First part that the ledger counts completely.
    pub from: u64,
    /// Why it does not count earlier parts: `before schema 2`, or what happened to the ledger.
    #[serde(rename = "because")]
    pub reason: String,
}

/// Why the ledger does not count parts of an earlier version.
pub(crate) fn before_ledger() -> String {
    format!("before schema {LEDGER_SCHEMA}")
}

/// Content of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `miot-trace`.
    pub format: String,
    /// Version of the columns: [`schema::VERSION`] of the last writer.
    pub schema: u32,
    /// Partition of the ids, see [`crate::ids`]. Traces before schema 3 are of partition 0.
    #[serde(default)]
    pub partition: u16,
    /// Name of the cluster; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Creation time of the trace, RFC 3339.
    pub created: String,
    /// Program that created the trace.
    pub writer: String,
    /// See [`LedgerCoverage`]; `None`: schema 1, which has no ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<LedgerCoverage>,
}

impl Manifest {
    pub(crate) fn new(partition: u16, cluster: String) -> Manifest {
        Manifest {
            cluster,
            format: FORMAT.to_owned(),
            schema: schema::VERSION,
            partition,
            created: jiff::Timestamp::now().to_string(),
            writer: concat!("miot ", env!("CARGO_PKG_VERSION")).to_owned(),
            counted: Some(LedgerCoverage { from: 0, reason: before_ledger() }),
        }
    }

    /// Writes a manifest in which the ledger counts the parts from `from` on. The lock moves to the
    /// new file.
    pub(crate) fn count_from(
        &mut self,
        dir: &Path,
        from: u64,
        reason: String,
        lock: &mut File,
    ) -> Result<(), Error> {
        self.schema = schema::VERSION;
        self.counted = Some(LedgerCoverage { from, reason });
        *lock = self.replace(dir)?;
        Ok(())
    }

    /// Writes a manifest with the name of the cluster, if the trace was begun without one. The lock
    /// moves to the new file.
    pub(crate) fn name_cluster(&mut self, dir: &Path, name: &str, lock: &mut File) -> Result<(), Error> {
        if self.cluster.is_empty() && !name.is_empty() {
            name.clone_into(&mut self.cluster);
            *lock = self.replace(dir)?;
        }
        Ok(())
    }

    /// Writes a manifest with the present schema version, unless it has that. The lock moves to the
    /// new file.
    pub(crate) fn raise_schema(&mut self, dir: &Path, lock: &mut File) -> Result<(), Error> {
        if self.schema < schema::VERSION {
            self.schema = schema::VERSION;
            *lock = self.replace(dir)?;
        }
        Ok(())
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        self.replace(dir).map(drop)
    }

    /// Writes the manifest and returns the file, locked.
    fn replace(&self, dir: &Path) -> Result<File, Error> {
        let (path, tmp) = (dir.join(MANIFEST), dir.join(format!("{MANIFEST}.tmp")));
        let text = serde_json::to_string(self).map_err(|e| Error::damaged(&path, e))?;
        let written = File::create(&tmp).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            fs::rename(&tmp, &path)?;
            Ok(file)
        });
        let file = written.map_err(|e| {
            let _ = fs::remove_file(&tmp);
            Error::io("write", &path)(e)
        })?;
        sync_folder(dir)?;
        Ok(file)
    }

    /// Reads and checks the manifest of a trace directory.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`] or [`Error::Io`].
    pub fn read(dir: &Path) -> Result<Manifest, Error> {
        let not_a_trace = |found: String| Error::NotATrace { dir: dir.to_owned(), found };
        let path = dir.join(MANIFEST);
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > MAX_BYTES => {
                return Err(not_a_trace(format!(
                    "its {MANIFEST} has {} bytes, a manifest has at most {MAX_BYTES}",
                    meta.len()
                )));
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(Error::io("read", &path)(e)),
            Err(_) => return Err(not_a_trace(describe(dir))),
        }
        Manifest::parse(dir, &fs::read(&path).map_err(Error::io("read", &path))?)
    }

    /// Parses and checks the text of the manifest of the trace at `dir`, which may be on another
    /// machine.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`].
    pub fn parse(dir: &Path, text: &[u8]) -> Result<Manifest, Error> {
        let not_a_trace = |found: String| Error::NotATrace { dir: dir.to_owned(), found };
        // The version first: a later version may have other fields.
        let value: serde_json::Value = serde_json::from_slice(text)
            .map_err(|e| not_a_trace(format!("its {MANIFEST} is not JSON ({e})")))?;
        if value.get("format").and_then(|v| v.as_str()) != Some(FORMAT) {
            return Err(not_a_trace(format!("its {MANIFEST} does not contain \"format\":\"{FORMAT}\"")));
        }
        let Some(found) = value.get("schema").and_then(serde_json::Value::as_u64) else {
            return Err(not_a_trace(format!("its {MANIFEST} has no schema version")));
        };
        if found > u64::from(schema::VERSION) {
            let found = u32::try_from(found).unwrap_or(u32::MAX);
            return Err(Error::NewerSchema { dir: dir.to_owned(), found, supported: schema::VERSION });
        }
        let manifest: Manifest = serde_json::from_value(value)
            .map_err(|e| not_a_trace(format!("its {MANIFEST} is incomplete ({e})")))?;
        if manifest.partition > ids::MAX_PARTITION {
            let found = format!(
                "its {MANIFEST} has partition {}, the greatest is {}",
                manifest.partition,
                ids::MAX_PARTITION
            );
            return Err(not_a_trace(found));
        }
        Ok(manifest)
    }
}

/// Returns true if a directory is empty, or contains only what a writer creates before the
/// manifest.
pub(crate) fn is_free(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let empty =
            || (name == LIVE || name == LEDGER) && fs::read_dir(&path).is_ok_and(|mut e| e.next().is_none());
        if name != format!("{MANIFEST}.tmp").as_str() && !empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Describes what is at a path that is not a trace, for error messages.
pub(crate) fn describe(dir: &Path) -> String {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => "there is no such directory".to_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            "it is a file; a trace is a directory".to_owned()
        }
        Err(e) => format!("it cannot be listed ({e})"),
        Ok(entries) => {
            let mut names: Vec<_> =
                entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            match names.len() {
                0 => "the directory is empty".to_owned(),
                n @ 1..=3 => format!("the directory contains {n} other files: {}", names.join(", ")),
                n => {
                    format!(
                        "the directory contains {} and {} more, but no {MANIFEST}",
                        names[..2].join(", "),
                        n - 2
                    )
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn errors_describe_what_is_not_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let error = |dir: &Path| Manifest::read(dir).unwrap_err().to_string();
        assert!(error(&dir.path().join("no")).contains("no such directory"));
        assert!(error(dir.path()).contains("empty"));
        let write = |text: &str| fs::write(dir.path().join(MANIFEST), text).unwrap();
        fs::write(dir.path().join("notes.txt"), "").unwrap();
        assert!(error(dir.path()).contains("notes.txt"));
        assert!(error(&dir.path().join("notes.txt")).contains("a trace is a directory"));
        write("hello");
        assert!(error(dir.path()).contains("not JSON"));
        write(r#"{"format":"other"}"#);
        assert!(error(dir.path()).contains("does not contain"));
        write(r#"{"format":"miot-trace","schema":7,"shape":"new"}"#);
        let newer = Manifest::read(dir.path()).unwrap_err();
        assert!(matches!(newer, Error::NewerSchema { found: 7, supported: schema::VERSION, .. }));
        assert!(newer.to_string().contains("upgrade"));
        write(r#"{"format":"miot-trace","schema":1}"#);
        assert!(error(dir.path()).contains("incomplete"));
        write(r#"{"format":"miot-trace","schema":3,"partition":1024,"created":"","writer":""}"#);
        assert!(error(dir.path()).contains("partition 1024"));
        let manifest = Manifest::new(7, "north".to_owned());
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);
    }
}
