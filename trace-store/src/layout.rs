//! Names of the files of a trace directory, and which of them are there.

use crate::error::Error;
use crate::schema::Table;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Folder of the live streams.
const LIVE: &str = "live";
/// Ending of a file that is being written and means nothing yet.
const TMP: &str = ".tmp";

/// Where things are.
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
    /// Live files of sealed parts, and files that were being written: for the writer to remove.
    pub(crate) leftovers: Vec<PathBuf>,
}

impl Parts {
    /// All parts, in order.
    pub(crate) fn all(&self) -> BTreeSet<u64> {
        self.sealed.union(&self.live).copied().collect()
    }
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

    pub(crate) fn folder(&self, table: Table) -> PathBuf {
        self.root.join(table.name())
    }

    pub(crate) fn sealed(&self, table: Table, part: u64) -> PathBuf {
        self.folder(table).join(format!("part-{part:06}.parquet"))
    }

    pub(crate) fn sealed_tmp(&self, table: Table, part: u64) -> PathBuf {
        self.folder(table).join(format!("part-{part:06}.parquet{TMP}"))
    }

    pub(crate) fn live(&self, table: Table, part: u64) -> PathBuf {
        self.live_folder().join(format!("part-{part:06}.{}.arrows", table.name()))
    }

    /// What is there now. Live folders are read before sealed ones: a part that is sealed meanwhile is
    /// found in both or in the sealed one, never in none.
    pub(crate) fn parts(&self) -> Result<Parts, Error> {
        let mut live = Vec::new();
        for name in names(&self.live_folder())? {
            if let Some(part) = live_part(&name) {
                live.push((part, self.live_folder().join(name)));
            }
        }
        let mut parts = Parts::default();
        for table in Table::ALL {
            for name in names(&self.folder(table))? {
                if name.ends_with(TMP) {
                    parts.leftovers.push(self.folder(table).join(name));
                } else if table == Table::Events
                    && let Some(part) = sealed_part(&name)
                {
                    parts.sealed.insert(part);
                }
            }
        }
        for (part, path) in live {
            if parts.sealed.contains(&part) {
                parts.leftovers.push(path);
            } else {
                parts.live.insert(part);
            }
        }
        Ok(parts)
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("sync the folder", folder))
}

/// Names in a folder; none if there is no such folder. Names that are not UTF-8 are not ours.
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

fn live_part(name: &str) -> Option<u64> {
    let (part, table) = name.strip_prefix("part-")?.strip_suffix(".arrows")?.split_once('.')?;
    Table::from_name(table)?;
    number(part)
}

#[cfg(test)]
mod tests {
    use super::{live_part, sealed_part};

    #[test]
    fn only_our_names_are_parts() {
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
