//! Retention: removes the oldest parts and keeps the rows of them that later parts need.
//!
//! The order of the steps ensures that a crash between any two leaves a valid trace:
//!
//! 1. for each side table `carried-N.parquet`: write `.tmp`, sync, rename; `threads` last, once the
//!    others are durable
//! 2. sync the folder of `threads`: now the parts before N are removed
//! 3. remove their files, and the carried files of an earlier retention
//!
//! Before step 2 the carried files are ignored, afterwards the parts before N are; the next writer
//! removes what is ignored.
//!
//! These rows are kept:
//!
//! - processes, streams and files that a later part uses, or that the owner of the writer knows
//!   ([`KnownIds`]), so that they can continue;
//! - losses of these that a node may report again;
//! - clock corrections that apply to later events;
//! - the ends of these streams, so that no event is added twice.

#![expect(clippy::disallowed_types, reason = "stop flag of the sealing thread")]

mod needed_ids;
mod rows;

use crate::carried::{self, RemovedParts};
use crate::error::Error;
use crate::layout::{COMMIT_TABLE, Layout, Parts, sync_folder};
use crate::parquet_file;
use crate::recover::{Recovery, StreamEnds};
use crate::schema::Table;
use crate::seal;
use crate::upload;
use needed_ids::NeededIds;
use parquet::file::statistics::Statistics;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ids that the owner of a writer knew when the live part began: later events may use them without
/// defining them again, and nodes may send rows of them again. Other ids are removed with their
/// parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownIds {
    /// By process: its open handles with their files. `None`: the handles are unknown, so those
    /// that were carried over before are kept.
    pub processes: HashMap<u64, Option<Vec<(u64, u64)>>>,
    /// Ids of files.
    pub files: HashSet<u64>,
}

/// Limits for the removal of parts; see [`crate::Options`].
#[derive(Clone, Debug)]
pub(crate) struct RetainRequest {
    pub(crate) keep_bytes: Option<u64>,
    pub(crate) keep_for: Option<Duration>,
    pub(crate) store: Option<String>,
    /// Number of the live part.
    pub(crate) live: u64,
    /// `None`: all ids may be used.
    pub(crate) known: Option<Arc<KnownIds>>,
}

/// Removes the oldest sealed parts beyond the limits. Returns what was removed since the trace was
/// created, or `None` if this call removed nothing.
pub(crate) fn retain(
    layout: &Layout,
    request: &RetainRequest,
    stop: &AtomicBool,
) -> Result<Option<RemovedParts>, Error> {
    let parts = layout.parts()?;
    // The ids that a part uses are known when it is sealed.
    if parts.live.iter().any(|part| *part < request.live) {
        return Ok(None);
    }
    let Some(last) = last_to_remove(layout, request, &parts)? else { return Ok(None) };
    let first = last + 1;
    let removed_parts: Vec<u64> = parts.sealed.range(..first).copied().collect();

    let before = RemovedParts::read(layout, parts.first)?;
    let mut recovery = Recovery::default();
    recovery.carried(layout, parts.first)?;
    let mut removed = RemovedParts { parts: first, ..before };
    for part in &removed_parts {
        recovery.sealed(layout, *part, None)?;
        let events = parquet_file::open(Table::Events, &layout.sealed(Table::Events, *part))?;
        removed.events += events.metadata().file_metadata().num_rows().max(0) as u64;
        removed.bytes += bytes_of(layout, *part);
    }
    let found = recovery.finish();
    removed.until = found.last_time;
    (removed.next_process, removed.next_stream, removed.next_file) =
        (found.next_process, found.next_stream, found.next_file);

    let mut needs = NeededIds::new(request.known.clone(), &found);
    for part in parts.sealed.range(first..) {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        needs.add_part(layout, *part)?;
    }
    needs.finish();
    let mut ends = StreamEnds::default();
    for stream in found.streams.iter().filter(|stream| needs.stream(stream.stream)) {
        ends.raise(stream.stream, stream.next_seq);
    }
    let sources = rows::Sources { layout, first: parts.first, removed: &removed_parts };
    let mut threads = Vec::new();
    for table in Table::SIDE {
        let kept = rows::kept(&sources, table, &needs, &mut removed)?;
        if table == COMMIT_TABLE {
            threads = kept;
        } else {
            carried::write(table, &layout.carried(table, first), &kept, Vec::new())?;
        }
    }
    for table in Table::SIDE.into_iter().filter(|table| *table != COMMIT_TABLE) {
        sync_folder(&layout.folder(table))?;
    }
    carried::write(
        COMMIT_TABLE,
        &layout.carried(COMMIT_TABLE, first),
        &threads,
        removed.metadata(ends.to_text()),
    )?;
    sync_folder(&layout.folder(COMMIT_TABLE))?;

    for part in removed_parts {
        for table in Table::ALL {
            seal::remove(&layout.sealed(table, part))?;
        }
        seal::remove(&layout.ledger_sealed(part))?;
        seal::remove(&layout.ledger_uploaded(part))?;
    }
    for table in Table::SIDE.into_iter().filter(|_| parts.first > 0) {
        seal::remove(&layout.carried(table, parts.first))?;
    }
    Ok(Some(removed))
}

/// Returns the last part to remove. The newest sealed part is kept, however large it is.
fn last_to_remove(layout: &Layout, request: &RetainRequest, parts: &Parts) -> Result<Option<u64>, Error> {
    let carried = |table| length(&layout.carried(table, parts.first));
    let mut bytes: u64 = Table::SIDE.into_iter().map(carried).sum();
    bytes += parts.sealed.iter().map(|part| bytes_of(layout, *part)).sum::<u64>();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let oldest = request.keep_for.map(|keep| now.saturating_sub(keep).as_nanos() as i64);
    let mut last = None;
    for part in &parts.sealed {
        let too_much =
            request.keep_bytes.is_some_and(|keep| bytes > keep) && parts.sealed.last() != Some(part);
        let too_old = match oldest {
            Some(oldest) if !too_much => latest(layout, *part)? < oldest,
            _ => false,
        };
        let is_missing_there = |store: &String| !upload::is_uploaded(layout, *part, store);
        if !too_much && !too_old || request.store.as_ref().is_some_and(is_missing_there) {
            break;
        }
        bytes = bytes.saturating_sub(bytes_of(layout, *part));
        last = Some(*part);
    }
    Ok(last)
}

/// Returns the time of the last event of a sealed part, by its statistics.
fn latest(layout: &Layout, part: u64) -> Result<i64, Error> {
    let events = parquet_file::open(Table::Events, &layout.sealed(Table::Events, part))?;
    let times = events.metadata().row_groups().iter().map(|group| match group.column(0).statistics() {
        Some(Statistics::Int64(times)) => times.max_opt().copied().unwrap_or(i64::MAX),
        _ => i64::MAX,
    });
    Ok(times.max().unwrap_or(i64::MIN))
}

fn bytes_of(layout: &Layout, part: u64) -> u64 {
    Table::ALL.into_iter().map(|table| length(&layout.sealed(table, part))).sum()
}

fn length(path: &std::path::Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}
