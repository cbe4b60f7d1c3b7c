//! The ledger: counts of the rows of a trace and ends of the streams, in files apart from the rows.
//!
//! ```text
//! DIR/ledger/part-000001.live     live part: one line per commit, appended when its rows are
//!                                 durable
//! DIR/ledger/part-000001.sealed   sealed part: one line, durable before the events are renamed
//!                                 into place
//! ```
//!
//! Each line is a CRC-32C, a space, and JSON. A line of a live part is written after its rows are
//! synced and before they are acknowledged, so the ledger is never ahead of the trace. The file is
//! synced once a second, so after a power loss it may lack the last second; the next writer updates
//! it. A part gets its live file before its first row. So rows that the ledger counts and the trace
//! lacks are lost.
//!
//! | module | role |
//! |---|---|
//! | `counts` | counts of rows, ends of streams |
//! | `live_ledger` | the file of the live part |
//! | `sealed_entry` | the file of a sealed part |

mod counts;
mod live_ledger;
mod sealed_entry;

pub(crate) use counts::{Counts, Span};
pub(crate) use live_ledger::LiveLedger;
pub(crate) use sealed_entry::{FileEntry, SealedEntry, sum_of, write_durably};

use crate::error::Error;
use crate::layout::Layout;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The ledger of a trace.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) sealed: BTreeMap<u64, SealedEntry>,
    pub(crate) live: BTreeMap<u64, Counts>,
    /// Damaged files of the ledger, by part: path and reason.
    pub(crate) damaged: BTreeMap<u64, (PathBuf, String)>,
}

impl Ledger {
    /// Reads the files about the parts from `first` on.
    pub(crate) fn read(layout: &Layout, first: u64) -> Result<Ledger, Error> {
        let mut ledger = Ledger::default();
        let (live, sealed) = layout.ledger_parts()?;
        for part in live.into_iter().filter(|part| *part >= first) {
            let path = layout.ledger_live(part);
            let Some(text) = read(&path)? else { continue };
            let (counts, damage) = live_ledger::parse(&text);
            if let Some(damage) = damage {
                ledger.damaged.insert(part, (path, damage));
            }
            ledger.live.insert(part, counts);
        }
        for part in sealed.into_iter().filter(|part| *part >= first) {
            let path = layout.ledger_sealed(part);
            let Some(text) = read(&path)? else { continue };
            match SealedEntry::parse(&text) {
                Some(entry) => drop(ledger.sealed.insert(part, entry)),
                None => {
                    let damage = "it is not what was written".to_owned();
                    ledger.damaged.insert(part, (path, damage));
                }
            }
        }
        Ok(ledger)
    }

    /// Reads the counts of one live part.
    pub(crate) fn live(layout: &Layout, part: u64) -> Result<Option<Counts>, Error> {
        Ok(read(&layout.ledger_live(part))?.map(|text| live_ledger::parse(&text).0))
    }

    /// Returns the counts of a part: those of its seal, else those of the live part.
    pub(crate) fn counts(&self, part: u64) -> Option<&Counts> {
        self.sealed.get(&part).map(|entry| &entry.counts).or_else(|| self.live.get(&part))
    }

    /// Returns the counts of a part that is not sealed, or that a repair has made live again.
    pub(crate) fn counts_of_live(&self, part: u64) -> Option<&Counts> {
        self.live.get(&part).or_else(|| self.sealed.get(&part).map(|entry| &entry.counts))
    }

    /// Returns the parts in the ledger, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = u64> {
        let mut parts: Vec<u64> = self.sealed.keys().chain(self.live.keys()).copied().collect();
        parts.sort_unstable();
        parts.dedup();
        parts.into_iter()
    }
}

/// Reads the entry of a sealed part; `None` if there is none.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Io`].
pub(crate) fn read_sealed_entry(layout: &Layout, part: u64) -> Result<Option<SealedEntry>, Error> {
    let path = layout.ledger_sealed(part);
    let parse = |text: Vec<u8>| {
        SealedEntry::parse(&text).ok_or_else(|| Error::damaged(&path, "it is not what was written"))
    };
    read(&path)?.map(parse).transpose()
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", path)(e)),
    }
}

/// Returns the line for a JSON text.
fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// Returns the JSON of a line without its line feed; `None` if the checksum is wrong.
fn json(line: &[u8]) -> Option<&str> {
    let (crc, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (crc.len() == 8 && u32::from_str_radix(crc, 16).ok()? == crc32c::crc32c(json.as_bytes())).then_some(json)
}
