//! One ordered trace of the traces of several log-servers.
//!
//! The rows are written to a directory beside the result, which is renamed when it is complete. The
//! order of the rows depends only on the traces, so a run that was killed is continued after its
//! last sealed part: the rows in sealed parts are skipped. Side tables are in the first part. Live
//! parts of the killed run are removed: their ledger counts losses and records whose events were
//! not written yet. A file in the directory has the traces and the number of their events; if these
//! differ, the run is not continued.

use crate::error::Error;
use crate::final_time;
use crate::layout::{self, Layout, sync_folder};
use crate::manifest::MANIFEST;
use crate::reader::Reader;
use crate::schema::Table;
use crate::set::SetState;
use crate::writer::{Options, Writer};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// File with the traces that are compacted.
const SOURCES: &str = "compact.json";
/// Events of a part: at most so many are written again after a kill.
const PART_ROWS: u64 = 2 << 20;

/// The traces, and the number of their events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sources {
    traces: Vec<(PathBuf, u64)>,
}

/// Result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Compacted {
    /// Events in the result.
    pub events: u64,
    /// Of these, events that an earlier run, which was killed, had written.
    pub continued: u64,
}

/// Writes the traces of a set as one trace to `to`, which must not exist. `progress` gets the
/// number of events that were written so far.
///
/// # Errors
/// [`Error::Set`] for traces that cannot be in one set, [`Error::InUse`] if a log-server writes to
/// one, [`Error::NotEmpty`] if `to` exists, or its unfinished directory is of other traces; errors
/// of reading and writing.
pub fn compact(dirs: &[PathBuf], to: &Path, mut progress: impl FnMut(u64)) -> Result<Compacted, Error> {
    let state = SetState::examine(dirs)?;
    for member in &state.members {
        if let Some(found) = &member.missing {
            return Err(Error::NotATrace { dir: member.dir.clone(), found: found.clone() });
        }
        if final_time::has_writer(&member.dir)? {
            return Err(Error::InUse { dir: member.dir.clone() });
        }
    }
    let exists = |found: &str| Error::NotEmpty { dir: to.to_owned(), found: found.to_owned() };
    if to.exists() {
        return Err(exists("it exists"));
    }
    let sources = Sources::of(&state)?;
    let partial = layout::tmp(to);
    let is_continued = continues(&partial, &sources).map_err(|error| match error {
        Error::NotEmpty { found, .. } => exists(&found),
        error => error,
    })?;
    let reader = Reader::of_set(&state, |dir| Reader::open(dir))?;
    let options = Options {
        seal_rows: PART_ROWS,
        partition: reader.manifest().partition,
        cluster: reader.manifest().cluster.clone(),
        ..Options::default()
    };
    let mut writer = match is_continued {
        true => Writer::open(&partial, options)?.0,
        false => Writer::create(&partial, options)?,
    };
    sources.write(&partial)?;
    let mut continued = 0;
    if is_continued {
        continued = Reader::open(&partial)?.count(Table::Events)?.values().sum();
    } else {
        for table in Table::SIDE {
            for batch in reader.batches(table) {
                writer.append(table, &batch?)?;
            }
        }
    }
    let (mut events, mut skip) = (continued, continued);
    for batch in reader.batches(Table::Events) {
        let batch = batch?;
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(batch.num_rows());
        skip -= skipped as u64;
        if skipped == batch.num_rows() {
            continue;
        }
        let batch = batch.slice(skipped, batch.num_rows() - skipped);
        writer.append(Table::Events, &batch)?;
        events += batch.num_rows() as u64;
        if writer.seal_due() {
            writer.seal()?;
            progress(events);
        }
    }
    writer.finish()?;
    let path = partial.join(SOURCES);
    fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    fs::rename(&partial, to).map_err(Error::io("rename", &partial))?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_folder(parent)?;
    }
    Ok(Compacted { events, continued })
}

/// Returns true if an unfinished directory is continued after its sealed parts. Live parts are
/// removed; a directory without sealed parts is removed as a whole.
fn continues(partial: &Path, sources: &Sources) -> Result<bool, Error> {
    if !partial.exists() {
        return Ok(false);
    }
    let path = partial.join(SOURCES);
    let found = match fs::read(&path) {
        Ok(text) => serde_json::from_slice::<Sources>(&text).ok(),
        // Killed before the first row, or after the last one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(sources.clone()),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    if found.as_ref() != Some(sources) {
        let found = format!("{} is an unfinished result of other traces: remove it", partial.display());
        return Err(Error::NotEmpty { dir: partial.to_owned(), found });
    }
    let layout = Layout::new(partial);
    let parts = layout.parts()?;
    let remove = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    };
    // Parts are sealed in their order.
    if parts.sealed.is_empty() || !partial.join(MANIFEST).exists() {
        fs::remove_dir_all(partial).map_err(Error::io("remove", partial))?;
        return Ok(false);
    }
    for part in parts.live.difference(&parts.sealed) {
        for table in Table::ALL {
            remove(&layout.live(table, *part))?;
        }
        remove(&layout.ledger_live(*part))?;
    }
    Ok(true)
}

impl Sources {
    fn of(state: &SetState) -> Result<Sources, Error> {
        let mut traces = Vec::new();
        for dir in state.readable() {
            let events = Reader::open(dir)?.count(Table::Events)?.values().sum();
            traces.push((fs::canonicalize(dir).map_err(Error::io("open", dir))?, events));
        }
        Ok(Sources { traces })
    }

    fn write(&self, dir: &Path) -> Result<(), Error> {
        let (path, new) = (dir.join(SOURCES), dir.join(format!("{SOURCES}.tmp")));
        let text = serde_json::to_string(self).map_err(|error| Error::damaged(&path, error))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(Error::io("write", &path))
    }
}
