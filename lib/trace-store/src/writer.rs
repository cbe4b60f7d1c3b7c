//! Appending to a trace.

use crate::carried::RemovedParts;
use crate::error::Error;
use crate::file_identity;
use crate::layout::{Layout, make_folder, sync_folder};
use crate::ledger::{Counts, Ledger, LiveLedger};
use crate::live::LiveWriter;
use crate::manifest::{self, MANIFEST, Manifest};
use crate::recover::{RecoveredTrace, Recovery, TornTail};
use crate::retain::{KnownIds, RetainRequest};
use crate::schema::{TABLES, Table, column};
use crate::seal::early::NewEvents;
use crate::seal::{self, SealRequest};
use crate::sealer::Sealer;
use crate::stream_spans::spans_of;
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Encoded bytes that may wait for a commit, so that a caller that never commits does not fill the
/// memory. Beyond that, the next append commits, unless path records or losses still wait for their
/// events.
const MAX_UNCOMMITTED_BYTES: usize = 16 << 20;

/// When the live part is sealed (at the first bound that is reached), and how long sealed parts are
/// kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Events in the live part. Default: 8 Mi.
    pub seal_rows: u64,
    /// Bytes of the live part's streams. Default: 1 GiB.
    pub seal_bytes: u64,
    /// Age of the live part, counted from its first row. Default: 15 minutes.
    pub seal_after: Duration,
    /// Maximum bytes of the sealed parts: beyond it the oldest are removed, but never the newest.
    /// The live part and parts being sealed are not included. Default: none, nothing is removed.
    pub keep_bytes: Option<u64>,
    /// Maximum age of the last event of a sealed part, by the clock of this machine: older parts
    /// are removed. Default: none, nothing is removed.
    pub keep_for: Option<Duration>,
    /// Address of an object store: no part is removed before the store has it, see
    /// [`crate::upload`]. Default: none.
    pub store: Option<String>,
    /// Partition of the ids that the owner assigns, see [`crate::ids`]; at most
    /// [`MAX_PARTITION`](crate::ids::MAX_PARTITION). A trace is continued only with its own.
    /// Default: 0.
    pub partition: u16,
    /// Name of the cluster, see [`Manifest::cluster`]. A trace is continued only with its own; one
    /// without a name gets it. Default: empty, none.
    pub cluster: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seal_rows: 8 << 20,
            seal_bytes: 1 << 30,
            seal_after: Duration::from_secs(15 * 60),
            keep_bytes: None,
            keep_for: None,
            store: None,
            partition: 0,
            cluster: String::new(),
        }
    }
}

/// Minimum and maximum time between two checks for parts that are too old.
const RETAIN_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// State of the removal of parts.
#[derive(Debug, Default)]
struct Retention {
    /// Ids that the owner knew when the live part began.
    known: Option<Arc<KnownIds>>,
    /// Ids that the owner knows for the next live part.
    next: Option<Arc<KnownIds>>,
    /// True if the live part has no rows of an earlier writer.
    ready: bool,
    /// Time of the last check for parts to remove.
    checked: Option<Instant>,
}

/// What a writer has sealed; returned by [`Writer::finish`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Parts that this writer sealed.
    pub parts: u64,
    /// Events in these parts.
    pub events: u64,
    /// Bytes of the Parquet files of these parts.
    pub bytes: u64,
}

/// Writes a trace directory. Only one writer per directory exists at a time: it holds a lock.
///
/// A drop without [`Writer::finish`] leaves the committed rows, as a crash does.
#[derive(Debug)]
pub struct Writer {
    layout: Layout,
    options: Options,
    part: u64,
    live: [LiveWriter; TABLES],
    /// Time of the latest event in the live part.
    latest: i64,
    /// True if an event was appended after a later one.
    late: bool,
    /// Time of the first row of the live part.
    begun: Option<Instant>,
    /// True if side-table rows with attempt numbers were appended, but not yet their events. They
    /// must not be committed alone: the ledger would count the events before them as present.
    ahead: bool,
    /// True if a live file was created whose name is not durable yet.
    unsynced_names: bool,
    ledger: LiveLedger,
    /// Rows that the sealer has not got yet, committed or not.
    unsealed: NewEvents,
    sealer: Sealer,
    retention: Retention,
    /// True if a part is sealed or being sealed. If not, `finish` seals an empty one, so that a
    /// trace without events has its files.
    any_part: bool,
    lock: File,
}

impl Writer {
    /// Creates a trace in a directory that does not exist, is empty, or was left by a writer that
    /// was killed before it wrote the manifest.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotWritable`], [`Error::Io`].
    pub fn create(dir: &Path, options: Options) -> Result<Writer, Error> {
        let not_writable = |source| Error::NotWritable { dir: dir.to_owned(), source };
        match manifest::is_free(dir) {
            Ok(true) => {}
            Ok(false) => {
                let found = if dir.join(MANIFEST).exists() {
                    "it already contains a MIOT trace".to_owned()
                } else {
                    manifest::describe(dir)
                };
                return Err(Error::NotEmpty { dir: dir.to_owned(), found });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_folder(dir).map_err(|error| match error {
                    Error::Io { source, .. } => not_writable(source),
                    other => other,
                })?
            }
            Err(e) => return Err(not_writable(e)),
        }
        let layout = Layout::new(dir);
        layout.check_writable()?;
        make_folder(&layout.live_folder())?;
        make_folder(&layout.ledger_folder())?;
        Manifest::new(options.partition, options.cluster.clone()).write(dir)?;
        let lock = lock(dir)?;
        let writer = Writer::start(layout, options, lock, 0)?;
        writer.ledger.create()?;
        Ok(writer)
    }

    /// Continues a trace: truncates torn tails of live streams, removes leftovers of an interrupted
    /// seal, continues the live part, and seals earlier ones.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::OtherPartition`],
    /// [`Error::OtherCluster`], [`Error::NotWritable`], [`Error::InUse`], [`Error::Damaged`],
    /// [`Error::Io`].
    pub fn open(dir: &Path, options: Options) -> Result<(Writer, RecoveredTrace), Error> {
        let mut manifest = Manifest::read(dir)?;
        if manifest.partition != options.partition {
            let (found, expected) = (manifest.partition, options.partition);
            return Err(Error::OtherPartition { dir: dir.to_owned(), found, expected });
        }
        if !manifest.cluster.is_empty() && manifest.cluster != options.cluster {
            let (found, expected) = (manifest.cluster, options.cluster);
            return Err(Error::OtherCluster { dir: dir.to_owned(), found, expected });
        }
        let layout = Layout::new(dir);
        layout.check_writable()?;
        let mut lock = lock(dir)?;
        manifest.name_cluster(dir, &options.cluster, &mut lock)?;
        let parts = layout.parts()?;
        make_folder(&layout.live_folder())?;
        make_folder(&layout.ledger_folder())?;
        let ledger = Ledger::read(&layout, parts.first)?;
        let mut recovery = Recovery::new(manifest.partition);
        recovery.carried(&layout, parts.first)?;
        for part in &parts.sealed {
            // A damaged part whose live files are still there is whole: a repair takes these, so
            // they must stay.
            let is_whole = layout.live(Table::Events, *part).exists();
            let known = ledger.sealed.get(part).filter(|_| !is_whole).map(|entry| &entry.counts);
            recovery.sealed(&layout, *part, known)?;
        }
        // Side tables of parts without events: otherwise processes and streams of these would get
        // new ids.
        for part in
            parts.sides.iter().filter(|part| !parts.sealed.contains(part) && !parts.live.contains(part))
        {
            recovery.sealed_sides(&layout, *part)?;
        }
        for (part, entry) in &ledger.sealed {
            if !parts.live.contains(part) {
                recovery.add_counts(&entry.counts);
            }
        }
        // Only now, because the files that replace the leftovers were read successfully.
        for leftover in &parts.leftovers {
            seal::remove(leftover)?;
        }
        // Including parts whose live files are all missing.
        let counted = ledger.live.iter().filter(|(part, counts)| {
            !counts.is_empty() && !parts.sealed.contains(part) && !ledger.sealed.contains_key(part)
        });
        let live: BTreeSet<u64> = parts.live.iter().copied().chain(counted.map(|(part, _)| *part)).collect();
        // The newest part is continued if it is live. If a later one is sealed, which no crash can
        // cause, a new part begins, and the live one is sealed.
        let sealed = parts.sealed.iter().chain(ledger.sealed.keys().filter(|part| !live.contains(part)));
        let newest = live.iter().chain(sealed).max().copied();
        let current = match newest {
            Some(part) if live.contains(&part) => part,
            Some(part) => part + 1,
            None => parts.first,
        };
        if manifest.counted.is_none() {
            // Rows of an earlier version, which the ledger does not count, are in this part too.
            let from = if newest.is_some() { current + 1 } else { current };
            manifest.count_from(dir, from, manifest::before_ledger(), &mut lock)?;
        }
        // Before the first file with columns that programs of earlier versions misread.
        manifest.raise_schema(dir, &mut lock)?;
        let mut writer = Writer::start(layout, options, lock, current)?;
        writer.any_part = current > 0 || live.len() + parts.sealed.len() > 1;
        let mut unsealed = Vec::new();
        for part in &live {
            let (request, latest) =
                writer.recover_part(*part, ledger.counts_of_live(*part), &mut recovery)?;
            if *part == current {
                writer.latest = latest;
                writer.late = request.late;
            } else {
                unsealed.push(request);
            }
        }
        writer.begun = writer.live.iter().any(|l| l.rows() > 0).then(Instant::now);
        // The ids that rows of an earlier writer use are known when these rows are sealed.
        writer.retention.ready = writer.begun.is_none();
        recovery.found.unsealed = unsealed.iter().map(|request| request.part).collect();
        for request in unsealed {
            writer.sealer.seal(request);
        }
        Ok((writer, recovery.finish()))
    }

    /// Reads the live files of a part, records missing rows in `losses`, and updates the ledger.
    /// Returns the request to seal the part, and the time of its latest event.
    fn recover_part(
        &mut self,
        part: u64,
        known: Option<&Counts>,
        recovery: &mut Recovery,
    ) -> Result<(SealRequest, i64), Error> {
        let (mut latest, mut late) = (i64::MIN, false);
        let mut counts = Counts::default();
        let mut live = streams(&self.layout, part)?;
        for table in Table::ALL {
            let path = self.layout.live(table, part);
            let (recovered, bytes) = LiveWriter::recover(table, &path, |batch| {
                if table == Table::Events {
                    let spans = spans_of(batch);
                    counts.add_events(batch, &spans);
                    recovery.add_live_events(batch, &spans);
                    late |= !seal::in_order(batch, &mut latest);
                } else {
                    counts.add_batch(table, batch);
                    recovery.add_batch(table, batch);
                }
                Ok(())
            })?;
            if bytes > 0 {
                recovery.found.cut.push(TornTail { path, bytes });
            }
            live[table as usize] = recovered;
        }
        recovery.limit_to_contiguous(&mut counts);
        if let Some(known) = known {
            counts.gone = known.gone;
            counts.add_missing_rows(known);
            recovery.raise_ids(known.ids);
            if let Some(losses) = recovery.losses_of(known, &counts)? {
                counts.add_batch(Table::Losses, &losses);
                recovery.add_batch(Table::Losses, &losses);
                let live = &mut live[Table::Losses as usize];
                live.append(&losses)?;
                live.write_out()?;
                live.sync()?;
            }
        }
        recovery.end_of_part();
        sync_folder(&self.layout.live_folder())?;
        let mut log = LiveLedger::with(&self.layout, part, counts);
        if live.iter().any(|live| live.rows() > 0) {
            log.rewrite()?;
        }
        if part == self.part {
            (self.live, self.ledger) = (live, log);
        }
        Ok((SealRequest { part, late }, latest))
    }

    /// Changes when parts are sealed and removed.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    fn start(layout: Layout, options: Options, lock: File, part: u64) -> Result<Writer, Error> {
        Ok(Writer {
            live: streams(&layout, part)?,
            ledger: LiveLedger::new(&layout, part),
            unsealed: NewEvents::new(part),
            sealer: Sealer::new(layout.clone()),
            retention: Retention { ready: true, ..Retention::default() },
            layout,
            options,
            part,
            latest: i64::MIN,
            late: false,
            begun: None,
            ahead: false,
            unsynced_names: false,
            any_part: false,
            lock,
        })
    }

    /// Appends rows of a table. They stay in memory, invisible to readers and not durable, until
    /// the next [`Writer::commit`]. Side-table rows may come before or after the events that need
    /// them, within one commit.
    ///
    /// # Errors
    /// [`Error::Schema`] or [`Error::Encode`]: the batch is refused. [`Error::Io`]: too many bytes
    /// waited for a commit and could not be written; the batch is not appended. Append it again
    /// when the cause is removed.
    pub fn append(&mut self, table: Table, batch: &RecordBatch) -> Result<(), Error> {
        if !self.ahead && self.live.iter().map(LiveWriter::waiting).sum::<usize>() > MAX_UNCOMMITTED_BYTES {
            self.commit()?;
        }
        let begin = self.live[table as usize].bytes();
        self.live[table as usize].append(batch)?;
        match table {
            Table::Events => {
                self.ahead = false;
                self.unsealed.add(batch, begin, self.live[Table::Events as usize].bytes());
            }
            Table::Files => {
                self.ahead = true;
                let ids = column::<UInt64Type>(batch, "file");
                self.unsealed.files.extend(ids.iter().flat_map(|ids| ids.values()));
            }
            Table::Losses => self.ahead = true,
            _ => {}
        }
        self.ledger.add_batch(table, batch);
        if table == Table::Events {
            self.late |= !seal::in_order(batch, &mut self.latest);
        }
        if self.begun.is_none() && batch.num_rows() > 0 {
            self.begun = Some(Instant::now());
        }
        Ok(())
    }

    /// Makes the appended rows durable: they survive SIGKILL and power loss. Writes only files with
    /// new rows.
    ///
    /// # Errors
    /// [`Error::Io`] (see [`Error::is_disk_full`]): earlier commits stay durable, and the rows
    /// appended since stay in memory; call again when the cause is removed. [`Error::Replaced`]:
    /// only another writer can continue.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.check_linked()?;
        self.ledger.begin()?;
        // Side tables first: they are durable before the first byte of an event that may need them.
        for table in Table::SIDE {
            self.unsynced_names |= self.live[table as usize].write_out()?;
        }
        for table in Table::SIDE {
            self.live[table as usize].sync()?;
        }
        self.sync_names()?;
        let events = &mut self.live[Table::Events as usize];
        self.unsynced_names |= events.write_out()?;
        events.sync()?;
        self.sync_names()?;
        self.check_linked()?;
        self.ledger.commit()?;
        if self.unsealed.rows() >= seal::JOIN_ROWS {
            self.encode_early();
        }
        Ok(())
    }

    /// Passes the committed rows to the sealer. A part with late rows is sealed from its live
    /// stream.
    fn encode_early(&mut self) {
        let events = std::mem::replace(&mut self.unsealed, NewEvents::new(self.part));
        if !self.late {
            self.sealer.encode(events);
        }
    }

    /// Checks that the files are still in the trace. Rows in other files would not be durable.
    fn check_linked(&self) -> Result<(), Error> {
        file_identity::check(&self.lock, &self.layout.root().join(MANIFEST), 1)?;
        self.live.iter().try_for_each(LiveWriter::check_linked)?;
        self.ledger.check_linked()
    }

    /// Syncs the ledger if its last sync is long enough ago. Call this regularly while there is
    /// nothing to commit.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_ledger_if_due(&mut self) -> Result<(), Error> {
        self.ledger.sync_if_due()
    }

    fn sync_names(&mut self) -> Result<(), Error> {
        if self.unsynced_names {
            sync_folder(&self.layout.live_folder())?;
            self.unsynced_names = false;
        }
        Ok(())
    }

    /// Returns true if [`Writer::seal`] should be called: a bound of the [`Options`] is reached, or
    /// a part that could not be sealed has waited long enough for a retry.
    #[must_use]
    pub fn seal_due(&self) -> bool {
        self.part_due() || self.sealer.retry_due()
    }

    fn part_due(&self) -> bool {
        self.live[Table::Events as usize].rows() >= self.options.seal_rows
            || self.live.iter().map(LiveWriter::bytes).sum::<u64>() >= self.options.seal_bytes
            || self.begun.is_some_and(|at| at.elapsed() >= self.options.seal_after)
    }

    /// Commits, begins a new live part, and seals the old one in another thread. If the live part
    /// has no rows, it only commits. If only a retry is due, it only retries.
    ///
    /// # Errors
    /// [`Error::Io`] of the commit: no part was sealed. [`Error::Seal`]: a part of an earlier call
    /// could not be sealed; it stays live and readable and is retried. The present call succeeded.
    pub fn seal(&mut self) -> Result<(), Error> {
        self.commit()?;
        let failed = self.sealer.error();
        let retried = self.sealer.retry();
        if self.part_due() || !retried {
            self.rotate(WhenEmpty::Keep)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Begins a new live part and gives the old one to the sealer.
    fn rotate(&mut self, when_empty: WhenEmpty) -> Result<(), Error> {
        if self.begun.is_none() && when_empty == WhenEmpty::Keep {
            return Ok(());
        }
        let live = streams(&self.layout, self.part + 1)?;
        let old = std::mem::replace(&mut self.live, live);
        self.live.iter_mut().zip(old).for_each(|(new, old)| new.reuse_buffers_of(old));
        if self.unsealed.rows() > 0 {
            self.encode_early();
        }
        self.sealer.seal(SealRequest { part: self.part, late: self.late });
        self.part += 1;
        self.ledger = LiveLedger::new(&self.layout, self.part);
        self.unsealed = NewEvents::new(self.part);
        self.retention.known = self.retention.next.take();
        (self.retention.ready, self.retention.checked) = (true, None);
        (self.latest, self.late) = (i64::MIN, false);
        self.begun = None;
        self.any_part = true;
        Ok(())
    }

    /// Sets the ids that the caller knows, for the removal of parts. Call it before a
    /// [`Writer::seal`] that begins a new part. Without it every process, stream and file that was
    /// ever defined is carried over.
    pub fn set_known_ids(&mut self, known: KnownIds) {
        self.retention.next = Some(Arc::new(known));
    }

    /// Returns true if parts are removed at some time. Then [`Writer::set_known_ids`] and
    /// [`Writer::retain`] must be called.
    #[must_use]
    pub fn retains(&self) -> bool {
        self.options.keep_bytes.is_some() || self.options.keep_for.is_some()
    }

    /// Returns true if [`Writer::retain`] should be called.
    #[must_use]
    pub fn retain_due(&self) -> bool {
        let every = self.options.keep_for.map_or(RETAIN_EVERY.1, |keep| keep / 16);
        let every = every.clamp(RETAIN_EVERY.0, RETAIN_EVERY.1);
        self.retains()
            && self.retention.ready
            && self.retention.checked.is_none_or(|checked| checked.elapsed() >= every)
    }

    /// Starts the removal of parts beyond the limits, in the thread that seals.
    ///
    /// # Errors
    /// [`Error::Retain`]: an earlier call failed; its parts stay, and their removal is retried.
    pub fn retain(&mut self) -> Result<(), Error> {
        let Options { keep_bytes, keep_for, .. } = self.options;
        let store = self.options.store.clone();
        let known = self.retention.known.clone();
        if self.sealer.retain(RetainRequest { keep_bytes, keep_for, store, live: self.part, known }) {
            self.retention.checked = Some(Instant::now());
        }
        self.sealer.retain_error().map_or(Ok(()), Err)
    }

    /// Returns what was removed since the trace was created, if parts were removed since the last
    /// call.
    pub fn removed(&mut self) -> Option<RemovedParts> {
        self.sealer.removed()
    }

    /// Seals all parts and waits for the end. A trace without events gets empty tables.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Seal`]: the committed rows are in the directory, and
    /// [`Writer::open`] continues there.
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.commit()?;
        // Failed parts are retried, because space may have been freed before the call.
        self.sealer.wait();
        drop(self.sealer.error());
        self.sealer.retry();
        self.rotate(if self.any_part { WhenEmpty::Keep } else { WhenEmpty::Seal })?;
        self.sealer.wait();
        if let Some(error) = self.sealer.error() {
            return Err(error);
        }
        let (parts, sealed) = self.sealer.total();
        Ok(Summary { parts, events: sealed.events, bytes: sealed.bytes })
    }

    /// Returns the number of the live part.
    #[must_use]
    pub fn part(&self) -> u64 {
        self.part
    }

    /// Returns the number of events in the live part and the bytes of its streams, committed or
    /// not.
    #[must_use]
    pub fn live_size(&self) -> (u64, u64) {
        (self.live[Table::Events as usize].rows(), self.live.iter().map(LiveWriter::bytes).sum())
    }
}

/// What to do with a live part without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenEmpty {
    Keep,
    Seal,
}

fn streams(layout: &Layout, part: u64) -> Result<[LiveWriter; TABLES], Error> {
    let [a, b, c, d, e, f, g] = Table::ALL.map(|table| LiveWriter::new(table, layout.live(table, part)));
    Ok([a?, b?, c?, d?, e?, f?, g?])
}

/// Locks a trace, until the returned file is closed.
pub(crate) fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join(MANIFEST);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { dir: dir.to_owned() }),
        Err(e) => Err(Error::io("lock", &path)(e.into())),
    }
}
