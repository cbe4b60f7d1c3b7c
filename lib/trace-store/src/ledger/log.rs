//! What the ledger says of the live part: a file that grows by a line with each commit.
//!
//! Totals in a line replace earlier ones; of the streams it has those that got further, with all of their numbers. A
//! line also says how many bytes of the file were synced before it was written: what is damaged behind that may be
//! what a power loss has left of lines that were being written.

use super::counts::{Counts, Written};
use super::entry::replace;
use super::{json, line};
use crate::error::Error;
use crate::layout::{Layout, make_folder};
use crate::linked;
use crate::schema::Table;
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How far the disk may be behind, which matters after a power loss only.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// A file that is larger than this, and so many times as large as it would be if it were written now, is written
/// from the start.
const COMPACT: (u64, u64) = (1 << 20, 16);

#[derive(Default, Serialize, Deserialize)]
struct Json {
    /// Bytes of the file that were durable.
    synced: u64,
    #[serde(flatten)]
    counts: Written,
}

/// What the lines of a file add up to, and what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> (Counts, Option<String>) {
    let (mut counts, mut at, mut bad, mut synced) = (Counts::default(), 0u64, None, 0);
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = text.strip_suffix(b"\n").and_then(json);
        let parsed = whole.and_then(|json| serde_json::from_str::<Json>(json).ok());
        match parsed.filter(|json| counts.take(&json.counts)) {
            Some(json) => synced = synced.max(json.synced),
            None => bad = bad.or(Some(at)),
        }
        at += text.len() as u64;
    }
    let damage = match bad {
        _ if bytes.is_empty() => Some("it is empty".to_owned()),
        Some(bad) if bad < synced || bad == 0 => Some(format!("no whole line at byte {bad}")),
        _ if at < synced => Some(format!("it has {at} bytes of {synced} at least")),
        _ => None,
    };
    (counts, damage)
}

/// The ledger of the part that is being written.
#[derive(Debug)]
pub(crate) struct Log {
    layout: Layout,
    path: PathBuf,
    counts: Counts,
    /// `None`: it is to be written from its start.
    file: Option<File>,
    bytes: u64,
    synced: u64,
    synced_at: Instant,
    /// Its size when it was last written from its start.
    compact: u64,
    /// Rows were counted that it does not have.
    dirty: bool,
}

impl Log {
    pub(crate) fn new(layout: &Layout, part: u64) -> Log {
        Log::with(layout, part, Counts::default())
    }

    /// Goes on with these counts, which are to be written.
    pub(crate) fn with(layout: &Layout, part: u64, counts: Counts) -> Log {
        Log {
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

    /// Counts rows that are to be committed.
    pub(crate) fn see(&mut self, table: Table, batch: &RecordBatch) {
        self.counts.see(table, batch);
        self.dirty |= batch.num_rows() > 0;
    }

    /// Makes sure that there is a file before there is a row.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.file.is_none() && self.dirty && !self.path.exists() { self.create() } else { Ok(()) }
    }

    /// Makes a file that counts nothing yet.
    pub(crate) fn create(&self) -> Result<(), Error> {
        make_folder(&self.layout.ledger_folder())?;
        replace(&self.path, self.text(Counts::default().all())?.as_bytes())
    }

    /// Notes what was counted. To be called when the rows are durable.
    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        if !self.dirty {
            return Ok(());
        }
        if self.file.is_none() || self.bytes > COMPACT.0.max(self.compact.saturating_mul(COMPACT.1)) {
            return self.rewrite();
        }
        let text = self.text(self.counts.news())?;
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.write_all_at(text.as_bytes(), self.bytes) {
            let _ = file.set_len(self.bytes);
            return Err(Error::io("write to", &self.path)(error));
        }
        self.bytes += text.len() as u64;
        self.counts.told();
        self.dirty = false;
        self.sync_if_due()
    }

    /// Makes durable what was noted, if that has been put off long enough.
    pub(crate) fn sync_if_due(&mut self) -> Result<(), Error> {
        if self.synced == self.bytes || self.synced_at.elapsed() < SYNC_EVERY {
            return Ok(());
        }
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.sync_data() {
            // The pages that could not be written may be gone.
            (self.file, self.dirty) = (None, true);
            return Err(Error::io("sync", &self.path)(error));
        }
        (self.synced, self.synced_at) = (self.bytes, Instant::now());
        Ok(())
    }

    /// Writes it from its start, durable.
    pub(crate) fn rewrite(&mut self) -> Result<(), Error> {
        self.file = None;
        make_folder(&self.layout.ledger_folder())?;
        let text = self.text(self.counts.all())?;
        replace(&self.path, text.as_bytes())?;
        let file = OpenOptions::new().write(true).open(&self.path);
        self.file = Some(file.map_err(Error::io("open", &self.path))?);
        self.bytes = text.len() as u64;
        (self.synced, self.compact, self.synced_at) = (self.bytes, self.bytes, Instant::now());
        self.counts.told();
        self.dirty = false;
        Ok(())
    }

    /// The file is still in its place.
    pub(crate) fn check_linked(&self) -> Result<(), Error> {
        self.file.as_ref().map_or(Ok(()), |file| linked::check(file, &self.path, self.bytes))
    }

    fn text(&self, counts: Written) -> Result<String, Error> {
        let synced = if self.file.is_some() { self.synced } else { 0 };
        let json = serde_json::to_string(&Json { synced, counts });
        json.map(|json| line(&json)).map_err(|e| Error::damaged(&self.path, e))
    }
}
