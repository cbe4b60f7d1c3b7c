//! The last device samples of a trace.

use super::Reader;
use crate::carried;
use crate::error::Error;
use crate::kept_files;
use crate::parquet_file::Batches;
use crate::schema::{Table, column, text};
use arrow_array::RecordBatch;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use std::collections::HashMap;

/// Boots of one node whose last sample is kept: a spool on disk may deliver samples of earlier
/// boots.
pub const SAMPLED_BOOTS: usize = 16;

/// By node and boot: `uptime` and latest `time`, nanoseconds. See [`Reader::last_samples`].
pub type LastSamples = HashMap<(String, String), (u64, i64)>;

/// Consecutive samples of one node and boot: node and boot, greatest `uptime` and `time`.
type SampleRun<'a> = ((&'a str, &'a str), (u64, i64));

impl Reader {
    /// Returns the last sample in `devices` of each node and boot: its `uptime`, and the latest
    /// `time`. Reads only the needed columns of sealed parts.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn last_samples(&self) -> Result<LastSamples, Error> {
        let mut last = LastSamples::new();
        let mut add = |batch: &RecordBatch| {
            let (nodes, boots) = (text(batch, "node"), text(batch, "boot"));
            let (uptimes, times) =
                (column::<UInt64Type>(batch, "uptime"), column::<TimestampNanosecondType>(batch, "time"));
            let (Some(nodes), Some(boots), Some(uptimes), Some(times)) = (nodes, boots, uptimes, times)
            else {
                return;
            };
            let mut run: Option<SampleRun<'_>> = None;
            let mut finish = |((node, boot), (uptime, time)): SampleRun<'_>| {
                let last = last.entry((node.to_owned(), boot.to_owned())).or_insert((uptime, time));
                *last = (last.0.max(uptime), last.1.max(time));
            };
            for row in 0..batch.num_rows() {
                let (uptime, time) = (uptimes.value(row), times.value(row));
                let key = (nodes.value(row), boots.value(row));
                match &mut run {
                    Some((of, latest)) if *of == key => {
                        *latest = (latest.0.max(uptime), latest.1.max(time));
                    }
                    _ => {
                        run.replace((key, (uptime, time))).into_iter().for_each(&mut finish);
                    }
                }
            }
            run.into_iter().for_each(&mut finish);
        };
        carried::read(&self.layout, Table::Devices, self.first)?.iter().for_each(&mut add);
        for part in &self.parts {
            let path = self.layout.sealed(Table::Devices, part.number);
            if part.live.is_some() {
                for batch in self.part_rows(part, Table::Devices)? {
                    add(&batch?);
                }
            } else if kept_files::exists(&path) {
                for batch in
                    Batches::some(Table::Devices, &path, &["time", "node", "boot", "uptime"], |_| true)?
                {
                    add(&batch?);
                }
            }
        }
        Ok(last)
    }
}
