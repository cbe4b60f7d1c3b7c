//! Repair of a trace directory. A repair invents no rows, and it removes only files that are known
//! to be useless: a damaged file is moved to `DIR/damaged/` after its readable part has replaced
//! it.
//!
//! | damage | repair |
//! |---|---|
//! | the manifest is missing or damaged, in a directory with files of a trace only | a new manifest |
//! | files of interrupted writes, live files of sealed parts, files of removed parts | removed |
//! | a live stream ends within a message | truncated after its last whole message |
//! | a live stream has a damaged message | the same; the rest is kept in `damaged/` |
//! | a sealed file is damaged, its live files still exist | the part is live again |
//! | a sealed or carried file is damaged | a new file with the intact row groups |
//! | the events of a part are missing | an empty file, so that its side tables are read and parts are numbered |
//!
//! An intact file that this version cannot decode stays: other versions may decode it.
//!
//! Then attempt numbers that are missing, by the ledger or by the parts that were damaged, get rows
//! in `losses` with place `damaged`, and the ledger is updated.
//!
//! | module | role |
//! |---|---|
//! | `manifest` | the manifest |
//! | `files` | sealed, carried and live files |
//! | `accounting` | losses and ledger |

mod accounting;
mod files;
mod manifest;

use crate::error::Error;
use crate::fsck::{self, CheckReport};
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::manifest::Manifest;
use crate::quarantine;
use crate::writer::lock;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One damage that was repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairedDamage {
    /// Part with the damage, if it is in one.
    pub part: Option<u64>,
    /// Description for people.
    pub text: String,
    /// Rows that the damage cost; `None` if it cost none.
    pub lost: Option<LostRows>,
}

/// Number of lost rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostRows {
    /// This number.
    Rows(u64),
    /// An unknown number.
    Unknown,
}

/// Result of a repair.
#[derive(Clone, Debug, Serialize)]
pub struct RepairOutcome {
    /// The repaired damage, in order of the repair.
    #[serde(rename = "mended")]
    pub repaired: Vec<RepairedDamage>,
    /// Report of a check after the repair.
    pub report: CheckReport,
}

impl RepairOutcome {
    /// Returns true if the damage cost rows.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.repaired.iter().any(|damage| damage.lost.is_some())
    }
}

/// Repairs a trace directory that is not being written. An interrupted repair can be repeated.
///
/// # Errors
/// [`Error::InUse`]; [`Error::NotATrace`], [`Error::NewerSchema`]; [`Error::Io`]: repairs up to the
/// error are kept.
pub fn repair(dir: impl AsRef<Path>) -> Result<RepairOutcome, Error> {
    let dir = dir.as_ref();
    let layout = Layout::new(dir);
    let mut repair =
        Repair { layout, repaired: Vec::new(), incomplete: BTreeSet::new(), ledger: Ledger::default() };
    repair.repair_manifest(dir)?;
    let mut lock = lock(dir)?;
    // Files that replace damaged ones have the columns of this version.
    Manifest::read(dir)?.raise_schema(dir, &mut lock)?;
    repair.ledger = Ledger::read(&repair.layout, repair.layout.first()?)?;
    repair.repair_carried_files()?;
    // First, so that the side tables of a part without events are repaired too.
    repair.replace_missing_parts()?;
    repair.repair_sealed_files()?;
    repair.repair_live_streams()?;
    repair.remove_leftovers()?;
    repair.account(dir, &mut lock)?;
    Ok(RepairOutcome { repaired: repair.repaired, report: fsck::check(dir) })
}

/// A repair in progress.
struct Repair {
    layout: Layout,
    repaired: Vec<RepairedDamage>,
    /// Parts that have lost events.
    incomplete: BTreeSet<u64>,
    /// The ledger before the repair.
    ledger: Ledger,
}

impl Repair {
    fn add(&mut self, part: Option<u64>, text: String, lost: Option<LostRows>) {
        self.repaired.push(RepairedDamage { part, text, lost });
    }

    /// Moves a damaged file to `damaged/` and returns its new path.
    fn quarantine(&self, path: &Path) -> Result<PathBuf, Error> {
        let to = quarantine::unused_path(path)?;
        fs::rename(path, &to).map_err(Error::io("move to the folder of damaged files", path))?;
        quarantine::sync(&to, path)?;
        Ok(to)
    }

    /// Gives a damaged file a second name in `damaged/`, so that another file can replace it.
    /// Returns that name.
    fn keep(&self, path: &Path) -> Result<PathBuf, Error> {
        let to = quarantine::unused_path(path)?;
        fs::hard_link(path, &to).map_err(Error::io("link to the folder of damaged files", path))?;
        quarantine::sync(&to, path)?;
        Ok(to)
    }
}
