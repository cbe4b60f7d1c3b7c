//! A trace directory of this machine, which may be open for writing.

use crate::live::Live;
use crate::trace::sealed::{self, SealedFile};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use miot_trace_store::{Error, Reader, Table, UnreadItem};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;
use tokio::task::spawn_blocking;
use url::Url;

/// Maximum number of files that all traces of a statement together keep open: half of the open
/// files that a process may usually have.
pub(crate) const KEPT_FILES: usize = 512;

/// The query engine reads the events of undamaged sealed parts, the trace store reads everything
/// else.
#[derive(Debug)]
pub(crate) struct Local {
    dir: PathBuf,
    reader: Arc<Reader>,
    /// Number of parts that retention had removed.
    removed: u64,
    verify: bool,
}

impl Local {
    /// Opens a trace. With `verify`, the checksums of sealed events are verified before reading.
    /// At most `kept_files` files that retention may remove meanwhile stay open.
    pub(crate) fn open(dir: &Path, verify: bool, kept_files: usize) -> anyhow::Result<Local> {
        let dir = std::path::absolute(dir)?;
        let reader = Reader::tolerant_with_kept_files(&dir, kept_files)?;
        let removed = reader.removed().map_or(0, |removed| removed.parts);
        Ok(Local { dir, reader: Arc::new(reader), removed, verify })
    }

    /// Returns everything that could not be read so far.
    pub(crate) fn unread(&self) -> Vec<UnreadItem> {
        self.reader.unread().all()
    }

    /// Returns whether retention has removed parts before they were read.
    pub(crate) fn missed(&self) -> bool {
        self.reader.missed() > 0
    }

    pub(crate) fn overtaken(&self) -> bool {
        let now = Reader::open(&self.dir).and_then(|reader| reader.removed());
        now.is_ok_and(|now| now.parts > self.removed)
    }

    pub(crate) async fn rows(
        &self,
        context: &SessionContext,
        table: Table,
        columns: SchemaRef,
    ) -> Result<Vec<Arc<dyn TableProvider>>> {
        if table != Table::Events {
            return Ok(vec![self.side(table, columns).await?]);
        }
        let mut rows: Vec<Arc<dyn TableProvider>> = Vec::new();
        let damaged = if self.verify { self.blocking(damaged).await? } else { BTreeSet::new() };
        let whole = self.reader.sealed().filter(|(part, _)| !damaged.contains(part));
        let files: Result<Vec<SealedFile>> = whole.map(|(_, path)| self.file(path)).collect();
        let files = files?;
        if !files.is_empty() {
            rows.push(sealed::table(context, table, files, Arc::clone(&columns)).await?);
        }
        if rows.is_empty() || !damaged.is_empty() || self.reader.parts().any(|(_, sealed)| !sealed) {
            let live = Arc::new(Live::new(Arc::clone(&self.reader), damaged, Arc::clone(&columns)));
            rows.push(Arc::new(StreamingTable::try_new(columns, vec![live])?));
        }
        Ok(rows)
    }

    fn file(&self, path: PathBuf) -> Result<SealedFile> {
        let name = path.display().to_string();
        let path = self.reader.readable_path(path);
        let url = Url::from_file_path(&path).map_err(|()| {
            DataFusionError::Plan(format!("{} cannot be expressed as a URL", path.display()))
        })?;
        Ok(SealedFile { url, name })
    }

    async fn side(&self, table: Table, columns: SchemaRef) -> Result<Arc<dyn TableProvider>> {
        let rows = self.blocking(move |reader| reader.table(table)).await?;
        Ok(Arc::new(MemTable::try_new(columns, vec![rows])?))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let reader = Arc::clone(&self.reader);
        let ended = spawn_blocking(move || read(&reader)).await;
        let ended = ended.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        ended.map_err(|error| DataFusionError::External(Box::new(error)))
    }
}

/// Returns sealed parts whose events have a wrong checksum. The trace store reads the readable rest
/// of them. An unchanged file is verified once. Uses all processors, like the query that waits for
/// it.
fn damaged(reader: &Reader) -> Result<BTreeSet<u64>, Error> {
    static WHOLE: Mutex<BTreeSet<(PathBuf, u64, Option<SystemTime>)>> = Mutex::new(BTreeSet::new());
    let whole = || WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
    let parts = Mutex::new(reader.sealed());
    let verify = || {
        let mut damaged = BTreeSet::new();
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((part, path)) = next() {
            let found = std::fs::metadata(&path).ok();
            let key = found.map(|found| (path, found.len(), found.modified().ok()));
            if key.as_ref().is_some_and(|key| whole().contains(key)) {
                continue;
            }
            if reader.is_whole(part)? {
                whole().extend(key);
            } else {
                damaged.insert(part);
            }
        }
        Ok(damaged)
    };
    thread::scope(|scope| {
        let others = thread::available_parallelism().map_or(0, |all| all.get() - 1);
        let spawn = |_| thread::Builder::new().name("miot-verify".into()).spawn_scoped(scope, verify);
        // Without further threads this one verifies all parts.
        let others: Vec<_> = (0..others).map_while(|other| spawn(other).ok()).collect();
        let mut damaged = verify()?;
        for other in others {
            damaged.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(damaged)
    })
}
