//! Names of the files of a trace directory, and the list of existing parts.

use crate::error::Error;
use crate::schema::Table;
use rustix::fs::{Access, access};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Folder of the live streams.
pub(crate) const LIVE: &str = "live";
/// Folder of the ledger.
pub(crate) const LEDGER: &str = "ledger";
/// Suffix of a file that is being written and not valid yet.
const TMP: &str = ".tmp";

/// The table whose carried file is renamed into place last: that removes the parts before it.
pub(crate) const COMMIT_TABLE: Table = Table::Threads;

/// Paths of a trace directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// The parts of a trace at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Parts whose events are in Parquet.
    pub(crate) sealed: BTreeSet<u64>,
    /// Parts that have live files and are not sealed.
    pub(crate) live: BTreeSet<u64>,
    /// Parts that have a sealed side table, also if the part is not sealed.
    pub(crate) sides: BTreeSet<u64>,
    /// The first part that retention has not removed. Rows kept from the parts before it are in
    /// carried files. 0: no part was removed.
    pub(crate) first: u64,
    /// Files that a writer removes: live files of sealed parts, files of removed parts, and files
    /// of interrupted writes.
    pub(crate) leftovers: Vec<PathBuf>,
}

impl Parts {
    /// Returns all parts, in order.
    pub(crate) fn all(&self) -> BTreeSet<u64> {
        self.sealed.union(&self.live).copied().collect()
    }
}

/// Number of parts of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Parts that are being appended to or being sealed.
    pub live: u64,
    /// Sealed parts.
    pub sealed: u64,
}

/// Content of a Parquet file in the folder of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFile {
    /// Rows of this sealed part.
    Part(u64),
    /// Rows of a side table that the parts from this one on need from removed parts.
    Carried(u64),
}

impl TableFile {
    /// Parses the name of a file; `None` if it is not a file of a trace.
    #[must_use]
    pub fn from_name(name: &str) -> Option<TableFile> {
        sealed_part(name).map(TableFile::Part).or_else(|| carried_first(name).map(TableFile::Carried))
    }
}

/// Counts the parts of a trace directory, also while it is written.
///
/// # Errors
/// [`Error::Io`].
pub fn count_parts(dir: &Path) -> Result<PartCounts, Error> {
    let parts = Layout::new(dir).parts()?;
    let live = parts.live.difference(&parts.sealed).count() as u64;
    Ok(PartCounts { live, sealed: parts.sealed.len() as u64 })
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Layout {
        Layout { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn live_folder(&self) -> PathBuf {
        self.root.join(LIVE)
    }

    pub(crate) fn ledger_folder(&self) -> PathBuf {
        self.root.join(LEDGER)
    }

    /// Ledger file of a live part.
    pub(crate) fn ledger_live(&self, part: u64) -> PathBuf {
        self.ledger_folder().join(format!("part-{part:06}.live"))
    }

    /// Ledger file of a sealed part.
    pub(crate) fn ledger_sealed(&self, part: u64) -> PathBuf {
        self.ledger_folder().join(format!("part-{part:06}.sealed"))
    }

    /// Mark of a part that an object store has.
    pub(crate) fn ledger_uploaded(&self, part: u64) -> PathBuf {
        self.ledger_folder().join(format!("part-{part:06}.uploaded"))
    }

    /// Returns the parts with a live ledger file and those with a sealed one.
    pub(crate) fn ledger_parts(&self) -> Result<(BTreeSet<u64>, BTreeSet<u64>), Error> {
        let names = names(&self.ledger_folder())?;
        let parts = |ending: &str| -> BTreeSet<u64> {
            names
                .iter()
                .filter_map(|name| number(name.strip_prefix("part-")?.strip_suffix(ending)?))
                .collect()
        };
        Ok((parts(".live"), parts(".sealed")))
    }

    /// Checks write permission for all folders, so that a missing one is reported before there are
    /// rows.
    ///
    /// # Errors
    /// [`Error::NotWritable`].
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        let folders = Table::ALL.map(|table| self.folder(table));
        let below = folders
            .into_iter()
            .chain([self.live_folder(), self.ledger_folder()])
            .filter(|folder| folder.exists());
        for dir in std::iter::once(self.root.clone()).chain(below) {
            if let Err(error) = access(&dir, Access::WRITE_OK | Access::EXEC_OK) {
                return Err(Error::NotWritable { dir, source: error.into() });
            }
        }
        Ok(())
    }

    pub(crate) fn folder(&self, table: Table) -> PathBuf {
        self.root.join(table.name())
    }

    pub(crate) fn sealed(&self, table: Table, part: u64) -> PathBuf {
        self.folder(table).join(format!("part-{part:06}.parquet"))
    }

    pub(crate) fn sealed_tmp(&self, table: Table, part: u64) -> PathBuf {
        tmp(&self.sealed(table, part))
    }

    /// File with the rows that the parts from `first` on need from removed parts.
    pub(crate) fn carried(&self, table: Table, first: u64) -> PathBuf {
        self.folder(table).join(format!("carried-{first:06}.parquet"))
    }

    pub(crate) fn live(&self, table: Table, part: u64) -> PathBuf {
        self.live_folder().join(format!("part-{part:06}.{}.arrows", table.name()))
    }

    /// Returns the first part that was not removed.
    pub(crate) fn first(&self) -> Result<u64, Error> {
        let names = names(&self.folder(COMMIT_TABLE))?;
        Ok(names.iter().filter_map(|name| carried_first(name)).max().unwrap_or(0))
    }

    /// Lists the existing parts. The live folder is read before the sealed ones: a part that is
    /// sealed in between is found in both or as sealed, never in neither. The folder of events is
    /// read before that of threads: a part that is removed in between is recognized as removed.
    pub(crate) fn parts(&self) -> Result<Parts, Error> {
        let (mut live, mut carried) = (Vec::new(), Vec::new());
        for name in names(&self.live_folder())? {
            if let Some(part) = live_part(&name) {
                live.push((part, self.live_folder().join(name)));
            }
        }
        let mut parts = Parts::default();
        let mut files = Vec::new();
        for table in Table::ALL {
            for name in names(&self.folder(table))? {
                let path = self.folder(table).join(&name);
                if name.ends_with(TMP) {
                    parts.leftovers.push(path);
                } else if let Some(part) = sealed_part(&name) {
                    files.push((table, part, path));
                } else if let Some(first) = carried_first(&name) {
                    if table == COMMIT_TABLE {
                        parts.first = parts.first.max(first);
                    }
                    carried.push((first, path));
                }
            }
        }
        for (table, part, path) in files {
            if part < parts.first {
                parts.leftovers.push(path);
            } else if table == Table::Events {
                parts.sealed.insert(part);
            } else {
                parts.sides.insert(part);
            }
        }
        // A carried file of a later part is a leftover if earlier parts exist. If none exists, the
        // file holds all that remains of them, and the carried file of threads is missing.
        let begin = parts.sealed.iter().chain(live.iter().map(|(part, _)| part)).min().copied();
        let is_leftover = |first: u64| first < parts.first || begin.is_some_and(|begin| begin < first);
        let carried = carried.into_iter().filter(|(first, _)| *first != parts.first && is_leftover(*first));
        parts.leftovers.extend(carried.map(|(_, path)| path));
        for (part, path) in live {
            if part < parts.first || parts.sealed.contains(&part) {
                parts.leftovers.push(path);
            } else {
                parts.live.insert(part);
            }
        }
        let (live, sealed) = self.ledger_parts()?;
        for part in live {
            if part < parts.first || (parts.sealed.contains(&part) && sealed.contains(&part)) {
                parts.leftovers.push(self.ledger_live(part));
            }
        }
        let removed = sealed.range(..parts.first).map(|part| self.ledger_sealed(*part));
        parts.leftovers.extend(removed);
        let ledger = names(&self.ledger_folder())?;
        let is_leftover =
            |name: &str| name.ends_with(TMP) || uploaded_part(name).is_some_and(|part| part < parts.first);
        let ledger = ledger.iter().filter(|name| is_leftover(name));
        parts.leftovers.extend(ledger.map(|name| self.ledger_folder().join(name)));
        Ok(parts)
    }
}

/// Path of a file while it is being written.
pub(crate) fn tmp(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TMP);
    name.into()
}

/// Creates a folder and its missing parents, and makes their names durable.
pub(crate) fn make_folder(folder: &Path) -> Result<(), Error> {
    let parent = folder.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    match (fs::create_dir(folder), parent) {
        (Err(e), _) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound => {
            make_folder(parent)?;
            fs::create_dir(folder).map_err(Error::io("create", folder))?;
        }
        (created, _) => created.map_err(Error::io("create", folder))?,
    }
    parent.map_or(Ok(()), sync_folder)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("sync the folder", folder))
}

/// Lists the names in a folder; none if the folder does not exist. Names that are not UTF-8 are
/// skipped: they are not files of a trace.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("list", folder)(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", folder))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

fn number(text: &str) -> Option<u64> {
    (text.len() >= 6 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn sealed_part(name: &str) -> Option<u64> {
    number(name.strip_prefix("part-")?.strip_suffix(".parquet")?)
}

/// Part of a ledger file of a sealed part.
pub(crate) fn sealed_ledger_part(name: &str) -> Option<u64> {
    number(name.strip_prefix("part-")?.strip_suffix(".sealed")?)
}

fn uploaded_part(name: &str) -> Option<u64> {
    number(name.strip_prefix("part-")?.strip_suffix(".uploaded")?)
}

fn carried_first(name: &str) -> Option<u64> {
    number(name.strip_prefix("carried-")?.strip_suffix(".parquet")?)
}

fn live_part(name: &str) -> Option<u64> {
    let (part, table) = name.strip_prefix("part-")?.strip_suffix(".arrows")?.split_once('.')?;
    Table::from_name(table)?;
    number(part)
}

#[cfg(test)]
mod tests {
    use super::{live_part, sealed_part};

    #[test]
    fn only_names_of_a_trace_are_parts() {
        assert_eq!(sealed_part("part-000012.parquet"), Some(12));
        assert_eq!(sealed_part("part-1234567.parquet"), Some(1_234_567));
        for name in
            ["part-12.parquet", "part-00001x.parquet", "part-000001.parquet.tmp", "part-+00001.parquet"]
        {
            assert_eq!(sealed_part(name), None, "{name}");
        }
        assert_eq!(live_part("part-000001.events.arrows"), Some(1));
        for name in ["part-000001.arrows", "part-000001.other.arrows", "part-000001.events.arrows.tmp"] {
            assert_eq!(live_part(name), None, "{name}");
        }
    }
}
