//! Checks that side tables define the ids that the events of a live part use. A sealed part records
//! which side tables it has; a live part cannot, so a missing file of it can only be detected by
//! its undefined ids.

use crate::carried::RemovedParts;
use crate::error::Error;
use crate::ids;
use crate::layout::Layout;
use crate::live::LiveReader;
use crate::parquet_file;
use crate::schema::{Table, column};
use crate::unread_log::{UnreadItem, UnreadLog};
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, UInt64Array};
use parquet::file::statistics::Statistics;
use std::path::Path;

/// Column of events, id column and table that defines its ids. The id is the first column of each
/// table.
const ID_COLUMNS: [(&str, &str, Table); 3] = [
    ("process", "process", Table::Processes),
    ("stream", "stream", Table::Threads),
    ("file", "file", Table::Files),
];

/// The greatest ids that events use. Ids are assigned in order, so the newest side tables define
/// these.
#[derive(Debug, Default)]
pub(crate) struct UsedIds([u64; ID_COLUMNS.len()]);

impl UsedIds {
    pub(crate) fn add_batch(&mut self, events: &RecordBatch) {
        for (greatest, (name, ..)) in self.0.iter_mut().zip(ID_COLUMNS) {
            *greatest = (*greatest).max(column::<UInt64Type>(events, name).map_or(0, |ids| max(&ids)));
        }
    }

    /// Logs the ids that no side table defines. `events`: the live file that was read.
    pub(crate) fn check(&self, layout: &Layout, events: &Path, unread: &UnreadLog) -> Result<(), Error> {
        for (used, (_, id, table)) in self.0.iter().zip(ID_COLUMNS) {
            let defined = defined(layout, table, id, *used)?;
            if defined < *used {
                let name = events.file_name().unwrap_or_default().to_string_lossy();
                let side = events.with_file_name(name.replace(Table::Events.name(), table.name()));
                let first = ids::partition_of(*used).map_or(1, ids::first).max(defined + 1);
                let reason = format!("rows for {id} {first} to {used} are missing");
                unread.add(UnreadItem::new(layout, &side, reason));
            }
        }
        Ok(())
    }
}

fn max(ids: &UInt64Array) -> u64 {
    if ids.null_count() == 0 {
        return ids.values().iter().copied().max().unwrap_or(0);
    }
    ids.iter().flatten().max().unwrap_or(0)
}

/// Returns the greatest defined id, or one that is at least `enough`. Reads the newest side tables
/// first.
fn defined(layout: &Layout, table: Table, id: &str, enough: u64) -> Result<u64, Error> {
    let parts = layout.parts()?;
    let mut greatest = 0;
    for part in parts.live.iter().rev() {
        if let Some(mut live) = LiveReader::open(table, &layout.live(table, *part))? {
            while let Ok(Some(batch)) = live.next_batch() {
                greatest = greatest.max(column::<UInt64Type>(&batch, id).map_or(0, |ids| max(&ids)));
            }
        }
        if greatest >= enough {
            return Ok(greatest);
        }
    }
    let carried = (parts.first > 0).then(|| layout.carried(table, parts.first));
    let sealed = parts.sides.iter().rev().map(|part| layout.sealed(table, *part));
    for path in sealed.chain(carried) {
        let Ok(side) = parquet_file::open(table, &path) else { continue };
        let groups = side.metadata().row_groups().iter();
        let ids = groups.map(|group| match group.column(0).statistics() {
            Some(Statistics::Int64(ids)) => ids.max_opt().map_or(u64::MAX, |id| *id as u64),
            // Without statistics any id may be defined.
            _ => u64::MAX,
        });
        greatest = ids.fold(greatest, u64::max);
        if greatest >= enough {
            return Ok(greatest);
        }
    }
    // Smaller ids belong to rows that retention removed.
    let removed = RemovedParts::read(layout, parts.first).unwrap_or_default();
    let next = match table {
        Table::Processes => removed.next_process,
        Table::Threads => removed.next_stream,
        _ => removed.next_file,
    };
    Ok(greatest.max(next.saturating_sub(1)))
}
