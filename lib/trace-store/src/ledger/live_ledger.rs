//! The ledger file of the live part: it grows by one line with each commit.
//!
//! The totals of a line replace earlier ones. It has the streams with new numbers, each with its
//! whole range. It also has the number of bytes of the file that were synced before: damage after
//! that position may be the result of a power loss while lines were written, damage before it is
//! not.

use super::counts::{Counts, CountsJson};
use super::sealed_entry::write_durably;
use super::{json, line};
use crate::error::Error;
use crate::file_identity;
use crate::layout::{Layout, make_folder};
use crate::schema::Table;
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval of syncs. It limits what a power loss costs; a crash of the process costs nothing.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// A file above this size, bytes, is rewritten with one line if it has also grown by
/// [`COMPACT_GROWTH`].
const COMPACT_BYTES: u64 = 1 << 20;
/// Growth of a file since it was last rewritten, as a factor.
const COMPACT_GROWTH: u64 = 16;

#[derive(Default, Serialize, Deserialize)]
struct Json {
    /// Bytes of the file that were durable before this line.
    synced: u64,
    #[serde(flatten)]
    counts: CountsJson,
}

/// Parses a file. Returns its counts and its damage, if it has any.
pub(super) fn parse(bytes: &[u8]) -> (Counts, Option<String>) {
    let (mut counts, mut at, mut bad, mut synced) = (Counts::default(), 0u64, None, 0);
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = text.strip_suffix(b"\n").and_then(json);
        let parsed = whole.and_then(|json| serde_json::from_str::<Json>(json).ok());
        match parsed.filter(|json| counts.apply(&json.counts)) {
            Some(json) => synced = synced.max(json.synced),
            None => bad = bad.or(Some(at)),
        }
        at += text.len() as u64;
    }
    let damage = match bad {
        _ if bytes.is_empty() => Some("it is empty".to_owned()),
        Some(bad) if bad < synced || bad == 0 => Some(format!("no whole line at byte {bad}")),
        _ if at < synced => Some(format!("it has {at} of at least {synced} bytes")),
        _ => None,
    };
    (counts, damage)
}

/// Writer of the ledger file of the live part.
#[derive(Debug)]
pub(crate) struct LiveLedger {
    layout: Layout,
    path: PathBuf,
    counts: Counts,
    /// `None`: the next commit writes the whole file.
    file: Option<File>,
    bytes: u64,
    synced: u64,
    synced_at: Instant,
    /// Size when the file was last written as a whole, bytes.
    compact: u64,
    /// True if rows were counted that are not in the file.
    dirty: bool,
}

impl LiveLedger {
    pub(crate) fn new(layout: &Layout, part: u64) -> LiveLedger {
        LiveLedger::with(layout, part, Counts::default())
    }

    /// Continues with these counts, which the next commit writes.
    pub(crate) fn with(layout: &Layout, part: u64, counts: Counts) -> LiveLedger {
        LiveLedger {
            layout: layout.clone(),
            path: layout.ledger_live(part),
            dirty: !counts.is_empty(),
            counts,
            file: None,
            bytes: 0,
            synced: 0,
            synced_at: Instant::now(),
            compact: 0,
        }
    }

    /// Counts rows of the next commit.
    pub(crate) fn add_batch(&mut self, table: Table, batch: &RecordBatch) {
        self.counts.add_batch(table, batch);
        self.dirty |= batch.num_rows() > 0;
    }

    /// Ensures that the file exists before the first row is written.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.file.is_none() && self.dirty && !self.path.exists() { self.create() } else { Ok(()) }
    }

    /// Creates the file, with counts of zero.
    pub(crate) fn create(&self) -> Result<(), Error> {
        make_folder(&self.layout.ledger_folder())?;
        write_durably(&self.path, self.text(Counts::default().all())?.as_bytes())
    }

    /// Writes the counts. Call this when the rows are durable.
    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        if !self.dirty {
            return Ok(());
        }
        if self.file.is_none() || self.bytes > COMPACT_BYTES.max(self.compact.saturating_mul(COMPACT_GROWTH))
        {
            return self.rewrite();
        }
        let text = self.text(self.counts.unrecorded())?;
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.write_all_at(text.as_bytes(), self.bytes) {
            let _ = file.set_len(self.bytes);
            return Err(Error::io("write to", &self.path)(error));
        }
        self.bytes += text.len() as u64;
        self.counts.set_recorded();
        self.dirty = false;
        self.sync_if_due()
    }

    /// Syncs the file if the last sync is long enough ago.
    pub(crate) fn sync_if_due(&mut self) -> Result<(), Error> {
        if self.synced == self.bytes || self.synced_at.elapsed() < SYNC_INTERVAL {
            return Ok(());
        }
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.sync_data() {
            // The kernel may have dropped the pages that it could not write.
            (self.file, self.dirty) = (None, true);
            return Err(Error::io("sync", &self.path)(error));
        }
        (self.synced, self.synced_at) = (self.bytes, Instant::now());
        Ok(())
    }

    /// Writes the whole file and makes it durable.
    pub(crate) fn rewrite(&mut self) -> Result<(), Error> {
        self.file = None;
        make_folder(&self.layout.ledger_folder())?;
        let text = self.text(self.counts.all())?;
        write_durably(&self.path, text.as_bytes())?;
        let file = OpenOptions::new().write(true).open(&self.path);
        self.file = Some(file.map_err(Error::io("open", &self.path))?);
        self.bytes = text.len() as u64;
        (self.synced, self.compact, self.synced_at) = (self.bytes, self.bytes, Instant::now());
        self.counts.set_recorded();
        self.dirty = false;
        Ok(())
    }

    /// Checks that the file is still at its path.
    pub(crate) fn check_linked(&self) -> Result<(), Error> {
        self.file.as_ref().map_or(Ok(()), |file| file_identity::check(file, &self.path, self.bytes))
    }

    fn text(&self, counts: CountsJson) -> Result<String, Error> {
        let synced = if self.file.is_some() { self.synced } else { 0 };
        let json = serde_json::to_string(&Json { synced, counts });
        json.map(|json| line(&json)).map_err(|e| Error::damaged(&self.path, e))
    }
}
