//! The ledger: how many rows the trace has had, and how far each stream got, apart from the files that hold them.
//!
//! ```text
//! DIR/ledger/part-000001.live      of a live part: a line for each commit, appended when its rows are durable
//! DIR/ledger/part-000001.sealed    of a sealed part: one line, durable before its events are renamed into place
//! ```
//!
//! Each line is a CRC-32C, a space, and JSON. A line of a live part is written after the rows that it counts were
//! synced, and before they are acknowledged, so the ledger is never ahead of the trace. It is synced once a second, so
//! after a power loss it may be behind by as much, and the next writer brings it up to date. A part has its live
//! file before it has a row. So whatever the ledger counts and the trace does not have is gone.
//!
//! | module | role |
//! |---|---|
//! | `counts` | what rows add up to |
//! | `log` | the file of the live part |
//! | `entry` | the file of a sealed part |

mod counts;
mod entry;
mod log;

pub(crate) use counts::{Counts, Span};
pub(crate) use entry::{Entry, FileEntry, sum_of};
pub(crate) use log::Log;

use crate::error::Error;
use crate::layout::Layout;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// All that the ledger of a trace says.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) sealed: BTreeMap<u64, Entry>,
    pub(crate) live: BTreeMap<u64, Counts>,
    /// Files of it that are damaged, and the parts they are about.
    pub(crate) damaged: BTreeMap<u64, (PathBuf, String)>,
}

impl Ledger {
    /// Reads what is there about the parts from `first` on.
    pub(crate) fn read(layout: &Layout, first: u64) -> Result<Ledger, Error> {
        let mut ledger = Ledger::default();
        let (live, sealed) = layout.ledger_parts()?;
        for part in live.into_iter().filter(|part| *part >= first) {
            let path = layout.ledger_live(part);
            let Some(text) = read(&path)? else { continue };
            let (counts, damage) = log::parse(&text);
            if let Some(damage) = damage {
                ledger.damaged.insert(part, (path, damage));
            }
            ledger.live.insert(part, counts);
        }
        for part in sealed.into_iter().filter(|part| *part >= first) {
            let path = layout.ledger_sealed(part);
            let Some(text) = read(&path)? else { continue };
            match Entry::parse(&text) {
                Some(entry) => drop(ledger.sealed.insert(part, entry)),
                None => {
                    let damage = "it is not what was written".to_owned();
                    ledger.damaged.insert(part, (path, damage));
                }
            }
        }
        Ok(ledger)
    }

    /// What is known of one live part.
    pub(crate) fn live(layout: &Layout, part: u64) -> Result<Option<Counts>, Error> {
        Ok(read(&layout.ledger_live(part))?.map(|text| log::parse(&text).0))
    }

    /// What is known of a part: as it was sealed, else as it was live.
    pub(crate) fn counts(&self, part: u64) -> Option<&Counts> {
        self.sealed.get(&part).map(|entry| &entry.counts).or_else(|| self.live.get(&part))
    }

    /// What is known of a part that is not sealed, or was made live again.
    pub(crate) fn counts_of_live(&self, part: u64) -> Option<&Counts> {
        self.live.get(&part).or_else(|| self.sealed.get(&part).map(|entry| &entry.counts))
    }

    /// The parts of which something is known, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = u64> {
        let mut parts: Vec<u64> = self.sealed.keys().chain(self.live.keys()).copied().collect();
        parts.sort_unstable();
        parts.dedup();
        parts.into_iter()
    }
}

/// The bytes of a file; `None` if it is not there.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", path)(e)),
    }
}

/// A line of the ledger.
fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// The JSON of a line, without its end; `None` if it is not what was written.
fn json(line: &[u8]) -> Option<&str> {
    let (crc, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (crc.len() == 8 && u32::from_str_radix(crc, 16).ok()? == crc32c::crc32c(json.as_bytes())).then_some(json)
}
