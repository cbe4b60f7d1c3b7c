//! Repair of the manifest.

use super::Repair;
use crate::error::Error;
use crate::ids;
use crate::layout::{LEDGER, LIVE};
use crate::live::LiveReader;
use crate::manifest::{LedgerCoverage, MANIFEST, Manifest};
use crate::parquet_file::{self, Batches};
use crate::quarantine;
use crate::schema::{Table, column};
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use std::fs;
use std::path::{Path, PathBuf};

impl Repair {
    /// Writes a new manifest if there is no valid one and the directory is recognizably a trace.
    pub(super) fn repair_manifest(&mut self, dir: &Path) -> Result<(), Error> {
        let error = match Manifest::read(dir) {
            Err(error @ Error::NotATrace { .. }) => error,
            read => return read.map(drop),
        };
        let Some(created) = self.creation_time(dir)? else { return Err(error) };
        let path = dir.join(MANIFEST);
        if path.exists() {
            self.quarantine(&path)?;
        }
        let created = created.to_string();
        let (live, sealed) = self.layout.ledger_parts()?;
        let counted = live.first().into_iter().chain(sealed.first()).min();
        let reason = "before its ledger begins".to_owned();
        let counted = counted.map(|from| LedgerCoverage { from: *from, reason });
        Manifest { created, counted, ..Manifest::new(self.partition()?, String::new()) }.write(dir)?;
        let text = format!("a new manifest was written, with the time of the oldest file: {error}");
        self.add(None, text, None);
        Ok(())
    }

    /// Returns the partition of the trace, which the ids of its processes have; 0 without
    /// processes.
    fn partition(&self) -> Result<u16, Error> {
        let parts = self.layout.parts()?;
        let carried = (parts.first > 0).then(|| self.layout.carried(Table::Processes, parts.first));
        let sealed = parts.sides.iter().map(|part| self.layout.sealed(Table::Processes, *part));
        for path in carried.into_iter().chain(sealed) {
            let Ok(mut batches) = Batches::all(Table::Processes, &path) else { continue };
            if let Some(partition) = batches.find_map(|batch| partition_of_rows(&batch.ok()?)) {
                return Ok(partition);
            }
        }
        for part in &parts.live {
            let path = self.layout.live(Table::Processes, *part);
            let Some(mut live) = LiveReader::open(Table::Processes, &path)? else { continue };
            while let Ok(Some(batch)) = live.next_batch() {
                if let Some(partition) = partition_of_rows(&batch) {
                    return Ok(partition);
                }
            }
        }
        Ok(0)
    }

    /// Returns the creation time of the trace, if all files in the directory belong to one.
    fn creation_time(&self, dir: &Path) -> Result<Option<jiff::Timestamp>, Error> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(None) };
        let is_of_trace = |name: &str| {
            Table::from_name(name).is_some()
                || [MANIFEST, quarantine::FOLDER, LIVE, LEDGER].contains(&name)
                || name == format!("{MANIFEST}.tmp")
        };
        for entry in entries {
            let name = entry.map_err(Error::io("list", dir))?.file_name();
            if !name.to_str().is_some_and(is_of_trace) {
                return Ok(None);
            }
        }
        let parts = self.layout.parts()?;
        let files = parts.sealed.iter().map(|part| self.layout.sealed(Table::Events, *part));
        let mut files: Vec<PathBuf> =
            files.filter(|f| parquet_file::open(Table::Events, f).is_ok()).collect();
        for part in &parts.live {
            for table in Table::ALL {
                let path = self.layout.live(table, *part);
                let first = LiveReader::open(table, &path)?.map(|mut reader| reader.next_batch());
                if matches!(first, Some(Ok(Some(_)))) {
                    files.push(path);
                }
            }
        }
        let times = files.iter().filter_map(|file| fs::metadata(file).ok()?.modified().ok());
        Ok(times.min().and_then(|time| jiff::Timestamp::try_from(time).ok()))
    }
}

fn partition_of_rows(processes: &RecordBatch) -> Option<u16> {
    let ids = column::<UInt64Type>(processes, "process")?;
    ids::partition_of(*ids.values().first()?)
}
