//! The oldest parts go, and what later parts need of them stays.
//!
//! Order, so that a crash between any two steps leaves a trace that is whole:
//!
//! 1. for each side table `carried-N.parquet`: write `.tmp`, sync, rename; `threads` last, once the others are durable
//! 2. sync the folder of `threads`: now the parts before N are removed
//! 3. remove their files, and what an earlier retention carried
//!
//! Before step 2 the carried files mean nothing, afterwards the parts before N do; the next writer removes either.
//!
//! What stays: the rows of processes, streams and files that a later part refers to, or that the writer's owner
//! knows ([`Known`]), so that they can still go on; losses of these that a node may repeat; the clock
//! corrections that hold for later events; and how far each of these streams got, so that nothing comes into the trace again.

mod needs;
mod rows;

use crate::carried::{self, Removed};
use crate::error::Error;
use crate::layout::{COMMITS, Layout, Parts, sync_folder};
use crate::parquet_file;
use crate::recover::{Recovery, StreamEnds};
use crate::schema::Table;
use crate::seal;
use needs::Needs;
use parquet::file::statistics::Statistics;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the owner of a writer knew when the live part was begun: what events from then on may refer to without
/// defining it again, and what nodes may still send once more. The rest is forgotten with the parts it stands in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Processes, and the handles that each has open with their files. `None`: the handles are not known, so those
    /// that were carried over before stay.
    pub processes: HashMap<u64, Option<Vec<(u64, u64)>>>,
    /// Files that have an id.
    pub files: HashSet<u64>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Retain {
    pub(crate) keep_bytes: Option<u64>,
    pub(crate) keep_for: Option<Duration>,
    /// The part that is being written.
    pub(crate) live: u64,
    /// `None`: everything is known.
    pub(crate) known: Option<Arc<Known>>,
}

/// Removes the oldest sealed parts that are not to be kept. Returns what was removed, in all, if anything was now.
pub(crate) fn retain(layout: &Layout, order: &Retain, stop: &AtomicBool) -> Result<Option<Removed>, Error> {
    let parts = layout.parts()?;
    // What a part refers to is known once it is sealed.
    if parts.live.iter().any(|part| *part < order.live) {
        return Ok(None);
    }
    let Some(last) = last_to_go(layout, order, &parts)? else { return Ok(None) };
    let first = last + 1;
    let gone: Vec<u64> = parts.sealed.range(..first).copied().collect();

    let before = Removed::read(layout, parts.first)?;
    let mut recovery = Recovery::default();
    recovery.carried(layout, parts.first)?;
    let mut removed = Removed { parts: first, ..before };
    for part in &gone {
        recovery.sealed(layout, *part, None)?;
        let events = parquet_file::open(Table::Events, &layout.sealed(Table::Events, *part))?;
        removed.events += events.metadata().file_metadata().num_rows().max(0) as u64;
        removed.bytes += bytes_of(layout, *part);
    }
    let found = recovery.finish();
    removed.until = found.last_time;
    (removed.next_process, removed.next_stream, removed.next_file) =
        (found.next_process, found.next_stream, found.next_file);

    let mut needs = Needs::new(order.known.clone(), &found);
    for part in parts.sealed.range(first..) {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        needs.see(layout, *part)?;
    }
    needs.close();
    let mut ends = StreamEnds::default();
    for stream in found.streams.iter().filter(|stream| needs.stream(stream.stream)) {
        ends.put(stream.stream, stream.next_seq);
    }
    let sources = rows::Sources { layout, first: parts.first, gone: &gone };
    let mut threads = Vec::new();
    for table in Table::SIDE {
        let kept = rows::kept(&sources, table, &needs, &mut removed)?;
        if table == COMMITS {
            threads = kept;
        } else {
            carried::write(table, &layout.carried(table, first), &kept, Vec::new())?;
        }
    }
    for table in Table::SIDE.into_iter().filter(|table| *table != COMMITS) {
        sync_folder(&layout.folder(table))?;
    }
    carried::write(COMMITS, &layout.carried(COMMITS, first), &threads, removed.metadata(ends.to_text()))?;
    sync_folder(&layout.folder(COMMITS))?;

    for part in gone {
        for table in Table::ALL {
            seal::remove(&layout.sealed(table, part))?;
        }
        seal::remove(&layout.ledger_sealed(part))?;
    }
    for table in Table::SIDE.into_iter().filter(|_| parts.first > 0) {
        seal::remove(&layout.carried(table, parts.first))?;
    }
    Ok(Some(removed))
}

/// The last of the oldest parts that are to go. The newest sealed part stays, however large it is.
fn last_to_go(layout: &Layout, order: &Retain, parts: &Parts) -> Result<Option<u64>, Error> {
    let carried = |table| length(&layout.carried(table, parts.first));
    let mut bytes: u64 = Table::SIDE.into_iter().map(carried).sum();
    bytes += parts.sealed.iter().map(|part| bytes_of(layout, *part)).sum::<u64>();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let oldest = order.keep_for.map(|keep| now.saturating_sub(keep).as_nanos() as i64);
    let mut last = None;
    for part in &parts.sealed {
        let too_much = order.keep_bytes.is_some_and(|keep| bytes > keep) && parts.sealed.last() != Some(part);
        let too_old = match oldest {
            Some(oldest) if !too_much => latest(layout, *part)? < oldest,
            _ => false,
        };
        if !too_much && !too_old {
            break;
        }
        bytes = bytes.saturating_sub(bytes_of(layout, *part));
        last = Some(*part);
    }
    Ok(last)
}

/// Time of the last event of a sealed part, as its statistics tell.
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
