//! Appending to a trace.

use crate::carried::Removed;
use crate::error::Error;
use crate::layout::{Layout, make_folder, sync_folder};
use crate::ledger::{Counts, Ledger, Log};
use crate::linked;
use crate::live::LiveWriter;
use crate::manifest::{self, MANIFEST, Manifest};
use crate::recover::{Cut, Recovered, Recovery};
use crate::retain::{Known, Retain};
use crate::schema::{TABLES, Table};
use crate::seal::{self, Order};
use crate::sealer::Sealer;
use arrow_array::RecordBatch;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Encoded bytes that may wait for a commit. More are committed by the next append that does not follow path records or
/// losses without their events, so that a caller who never commits does not fill the memory.
const MAX_WAITING: usize = 16 << 20;

/// When the live part is sealed (whichever bound is met first), and how long sealed parts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Events in the live part. Default: 8 Mi.
    pub seal_rows: u64,
    /// Bytes of the live part's streams. Default: 1 GiB.
    pub seal_bytes: u64,
    /// Age of the live part, counted from its first row. Default: 15 minutes.
    pub seal_after: Duration,
    /// While the sealed parts take more bytes than this, the oldest is removed; the newest always stays. The live
    /// part, and parts being sealed, come on top. Default: nothing is removed.
    pub keep_bytes: Option<u64>,
    /// Sealed parts whose last event is older than this, by this machine's clock, are removed. Default: nothing is
    /// removed.
    pub keep_for: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seal_rows: 8 << 20,
            seal_bytes: 1 << 30,
            seal_after: Duration::from_secs(15 * 60),
            keep_bytes: None,
            keep_for: None,
        }
    }
}

/// Shortest and longest time between two looks for parts that are too old.
const RETAIN_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What is known for the removal of parts.
#[derive(Debug, Default)]
struct Retention {
    /// As of the begin of the live part.
    known: Option<Arc<Known>>,
    /// As of the begin of the next one.
    next: Option<Arc<Known>>,
    /// The live part has no rows of an earlier writer.
    ready: bool,
    /// When parts were last looked at.
    looked: Option<Instant>,
}

/// What was written, as [`Writer::finish`] tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Parts this writer sealed.
    pub parts: u64,
    /// Events in these parts.
    pub events: u64,
    /// Bytes of the Parquet files of these parts.
    pub bytes: u64,
}

/// Writes a trace directory. There is one per directory: it holds a lock.
///
/// Dropped without [`Writer::finish`] it leaves what was committed, as a crash would.
#[derive(Debug)]
pub struct Writer {
    layout: Layout,
    options: Options,
    part: u64,
    live: [LiveWriter; TABLES],
    /// Time of the latest event in the live part, and whether one was appended after a later one.
    latest: i64,
    late: bool,
    /// When the live part got its first row.
    begun: Option<Instant>,
    /// Numbers of streams were appended in side tables whose events have not been appended yet. They must not be
    /// committed alone: the ledger would count the events between as known.
    ahead: bool,
    /// A live file was made and its name is not durable yet.
    unsynced_names: bool,
    ledger: Log,
    sealer: Sealer,
    retention: Retention,
    /// Part 0 is sealed or being sealed, so that a trace without any event has files too.
    any_part: bool,
    lock: File,
}

impl Writer {
    /// Begins a trace in a directory that is absent, empty, or was left by a writer killed at its first step.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotWritable`], [`Error::Io`].
    pub fn create(dir: &Path, options: Options) -> Result<Writer, Error> {
        let not_writable = |source| Error::NotWritable { dir: dir.to_owned(), source };
        match manifest::is_free(dir) {
            Ok(true) => {}
            Ok(false) => {
                let found = if dir.join(MANIFEST).exists() {
                    "it holds a MIOT trace already".to_owned()
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
        Manifest::new().write(dir)?;
        let lock = lock(dir)?;
        let writer = Writer::start(layout, options, lock, 0)?;
        writer.ledger.create()?;
        Ok(writer)
    }

    /// Continues a trace: cuts torn ends of live streams, removes what a broken-off seal left, goes on with
    /// the live part and seals the ones before it.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::NotWritable`], [`Error::InUse`], [`Error::Damaged`],
    /// [`Error::Io`].
    pub fn open(dir: &Path, options: Options) -> Result<(Writer, Recovered), Error> {
        let mut manifest = Manifest::read(dir)?;
        let layout = Layout::new(dir);
        layout.check_writable()?;
        let mut lock = lock(dir)?;
        let parts = layout.parts()?;
        make_folder(&layout.live_folder())?;
        make_folder(&layout.ledger_folder())?;
        let ledger = Ledger::read(&layout, parts.first)?;
        let mut recovery = Recovery::default();
        recovery.carried(&layout, parts.first)?;
        for part in &parts.sealed {
            // A damaged part whose live files are still there is whole: a repair takes these, so they must stay.
            let is_whole = layout.live(Table::Events, *part).exists();
            let known = ledger.sealed.get(part).filter(|_| !is_whole).map(|entry| &entry.counts);
            recovery.sealed(&layout, *part, known)?;
        }
        // Of parts whose events are gone: without them, processes and streams would get other ids when they return.
        for part in
            parts.sides.iter().filter(|part| !parts.sealed.contains(part) && !parts.live.contains(part))
        {
            recovery.sealed_sides(&layout, *part)?;
        }
        for (part, entry) in &ledger.sealed {
            if !parts.live.contains(part) {
                recovery.known(&entry.counts);
            }
        }
        // Only now: what takes the place of these files can be read.
        for leftover in &parts.leftovers {
            seal::remove(leftover)?;
        }
        // Also those whose live files are gone altogether.
        let counted = ledger.live.iter().filter(|(part, counts)| {
            !counts.is_empty() && !parts.sealed.contains(part) && !ledger.sealed.contains_key(part)
        });
        let live: BTreeSet<u64> = parts.live.iter().copied().chain(counted.map(|(part, _)| *part)).collect();
        // The newest part goes on if it is live. If a later one is sealed, which no crash can bring
        // about, a new part is begun, and the live one is sealed too.
        let sealed = parts.sealed.iter().chain(ledger.sealed.keys().filter(|part| !live.contains(part)));
        let newest = live.iter().chain(sealed).max().copied();
        let current = match newest {
            Some(part) if live.contains(&part) => part,
            Some(part) => part + 1,
            None => parts.first,
        };
        if manifest.counted.is_none() {
            // What an earlier version wrote is not known to be all, and is in this part too.
            let from = if newest.is_some() { current + 1 } else { current };
            manifest.count_from(dir, from, manifest::before_ledger(), &mut lock)?;
        }
        let mut writer = Writer::start(layout, options, lock, current)?;
        writer.any_part = current > 0 || live.len() + parts.sealed.len() > 1;
        let mut unsealed = Vec::new();
        for part in &live {
            let order = writer.recover_part(*part, ledger.counts_of_live(*part), &mut recovery)?;
            if *part == current {
                writer.latest = order.1;
                writer.late = order.0.late;
            } else {
                unsealed.push(order.0);
            }
        }
        writer.begun = writer.live.iter().any(|l| l.rows() > 0).then(Instant::now);
        // What the rows of an earlier writer refer to is known when they are sealed.
        writer.retention.ready = writer.begun.is_none();
        recovery.found.unsealed = unsealed.iter().map(|order| order.part).collect();
        for order in unsealed {
            writer.sealer.give(order);
        }
        Ok((writer, recovery.finish()))
    }

    /// Takes in the live files of a part, tells of what is gone of them as losses, and brings the ledger up to date.
    fn recover_part(
        &mut self,
        part: u64,
        known: Option<&Counts>,
        recovery: &mut Recovery,
    ) -> Result<(Order, i64), Error> {
        let (mut latest, mut late) = (i64::MIN, false);
        let mut counts = Counts::default();
        let mut live = streams(&self.layout, part)?;
        for table in Table::ALL {
            let path = self.layout.live(table, part);
            let (recovered, bytes) = LiveWriter::recover(table, &path, |batch| {
                counts.see(table, batch);
                recovery.see_live(table, batch);
                late |= table == Table::Events && !seal::in_order(batch, &mut latest);
                Ok(())
            })?;
            if bytes > 0 {
                recovery.found.cut.push(Cut { path, bytes });
            }
            live[table as usize] = recovered;
        }
        recovery.cap(&mut counts);
        if let Some(known) = known {
            counts.gone = known.gone;
            counts.lose(known);
            recovery.known_ids(known.ids);
            if let Some(losses) = recovery.gone(known, &counts)? {
                counts.see(Table::Losses, &losses);
                recovery.see(Table::Losses, &losses);
                let live = &mut live[Table::Losses as usize];
                live.append(&losses)?;
                live.write_out()?;
                live.sync()?;
            }
        }
        recovery.end_of_part();
        sync_folder(&self.layout.live_folder())?;
        let mut log = Log::with(&self.layout, part, counts);
        if live.iter().any(|live| live.rows() > 0) {
            log.rewrite()?;
        }
        if part == self.part {
            (self.live, self.ledger) = (live, log);
        }
        Ok((Order { part, late }, latest))
    }

    /// When parts are sealed and removed, from now on.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    fn start(layout: Layout, options: Options, lock: File, part: u64) -> Result<Writer, Error> {
        Ok(Writer {
            live: streams(&layout, part)?,
            ledger: Log::new(&layout, part),
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

    /// Takes rows of a table. They are in memory, invisible and not durable, until the next [`Writer::commit`].
    /// Side-table rows may be given before or after the events that need them, within one commit.
    ///
    /// # Errors
    /// [`Error::Schema`] or [`Error::Encode`]: the batch is refused. [`Error::Io`]: too much was waiting for a
    /// commit and could not be written; the batch is not taken, give it again when the cause is gone.
    pub fn append(&mut self, table: Table, batch: &RecordBatch) -> Result<(), Error> {
        if !self.ahead && self.live.iter().map(LiveWriter::waiting).sum::<usize>() > MAX_WAITING {
            self.commit()?;
        }
        self.live[table as usize].append(batch)?;
        match table {
            Table::Events => self.ahead = false,
            Table::Files | Table::Losses => self.ahead = true,
            _ => {}
        }
        self.ledger.see(table, batch);
        if table == Table::Events {
            self.late |= !seal::in_order(batch, &mut self.latest);
        }
        if self.begun.is_none() && batch.num_rows() > 0 {
            self.begun = Some(Instant::now());
        }
        Ok(())
    }

    /// Makes durable what was appended: when it returns, it survives SIGKILL and power loss. Touches only
    /// files that have something new.
    ///
    /// # Errors
    /// [`Error::Io`] (see [`Error::is_disk_full`]): what was committed before stands, what was appended since
    /// is kept in memory; call again when the cause is gone. [`Error::Gone`]: only another writer can go on.
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
        self.ledger.commit()
    }

    /// Rows are durable only in files that have a name in the trace.
    fn check_linked(&self) -> Result<(), Error> {
        linked::check(&self.lock, &self.layout.root().join(MANIFEST), 1)?;
        self.live.iter().try_for_each(LiveWriter::check_linked)?;
        self.ledger.check_linked()
    }

    /// Makes durable what the ledger has, if that has been put off long enough: to be called now and then while there is
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

    /// True if [`Writer::seal`] should be called: a bound of the [`Options`] is met, or a part that could not
    /// be sealed has waited long enough.
    #[must_use]
    pub fn seal_due(&self) -> bool {
        self.part_due() || self.sealer.retry_due()
    }

    fn part_due(&self) -> bool {
        self.live[Table::Events as usize].rows() >= self.options.seal_rows
            || self.live.iter().map(LiveWriter::bytes).sum::<u64>() >= self.options.seal_bytes
            || self.begun.is_some_and(|at| at.elapsed() >= self.options.seal_after)
    }

    /// Commits, begins a new live part and seals the old one on a thread of its own. Does nothing if the live
    /// part has no rows. If only a retry is due, only that is done.
    ///
    /// # Errors
    /// [`Error::Io`] from the commit: nothing was done. [`Error::Seal`] about a part given to the thread
    /// earlier: it stays live and readable, is tried again, and the present call was carried out.
    pub fn seal(&mut self) -> Result<(), Error> {
        self.commit()?;
        let failed = self.sealer.error();
        let retried = self.sealer.retry();
        if self.part_due() || !retried {
            self.rotate(false)?;
        }
        failed.map_or(Ok(()), Err)
    }

    fn rotate(&mut self, even_empty: bool) -> Result<(), Error> {
        if self.begun.is_none() && !even_empty {
            return Ok(());
        }
        self.live = streams(&self.layout, self.part + 1)?;
        self.sealer.give(Order { part: self.part, late: self.late });
        self.part += 1;
        self.ledger = Log::new(&self.layout, self.part);
        self.retention.known = self.retention.next.take();
        (self.retention.ready, self.retention.looked) = (true, None);
        (self.latest, self.late) = (i64::MIN, false);
        self.begun = None;
        self.any_part = true;
        Ok(())
    }

    /// Says what the caller knows, to be called before a [`Writer::seal`] that begins a new part if anything is to be
    /// removed. Without it every process, stream and file that was ever defined is carried over.
    pub fn know(&mut self, known: Known) {
        self.retention.next = Some(Arc::new(known));
    }

    /// True if parts are removed some day: [`Writer::know`] and [`Writer::retain`] are wanted.
    #[must_use]
    pub fn retains(&self) -> bool {
        self.options.keep_bytes.is_some() || self.options.keep_for.is_some()
    }

    /// True if [`Writer::retain`] should be called.
    #[must_use]
    pub fn retain_due(&self) -> bool {
        let every = self.options.keep_for.map_or(RETAIN_EVERY.1, |keep| keep / 16);
        let every = every.clamp(RETAIN_EVERY.0, RETAIN_EVERY.1);
        self.retains()
            && self.retention.ready
            && self.retention.looked.is_none_or(|looked| looked.elapsed() >= every)
    }

    /// Has the thread that seals look for parts that are not to be kept any longer, and remove them.
    ///
    /// # Errors
    /// [`Error::Retain`] about an earlier call: what was to be removed stays, and is tried again.
    pub fn retain(&mut self) -> Result<(), Error> {
        let Options { keep_bytes, keep_for, .. } = self.options;
        let known = self.retention.known.clone();
        if self.sealer.retain(Retain { keep_bytes, keep_for, live: self.part, known }) {
            self.retention.looked = Some(Instant::now());
        }
        self.sealer.retain_error().map_or(Ok(()), Err)
    }

    /// What was removed since this was last asked, in all since the trace was begun.
    pub fn removed(&mut self) -> Option<Removed> {
        self.sealer.removed()
    }

    /// Seals everything and waits for it. A trace without events gets its empty tables.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Seal`]: what was committed is in the directory, and [`Writer::open`] goes on
    /// from there.
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.commit()?;
        // What failed before now gets another attempt, so that space freed just before the call counts.
        self.sealer.wait();
        drop(self.sealer.error());
        self.sealer.retry();
        self.rotate(!self.any_part)?;
        self.sealer.wait();
        if let Some(error) = self.sealer.error() {
            return Err(error);
        }
        let (parts, sealed) = self.sealer.total();
        Ok(Summary { parts, events: sealed.events, bytes: sealed.bytes })
    }

    /// Number of the live part.
    #[must_use]
    pub fn part(&self) -> u64 {
        self.part
    }

    /// Events in the live part, and bytes of all its streams; committed or not.
    #[must_use]
    pub fn live_size(&self) -> (u64, u64) {
        (self.live[Table::Events as usize].rows(), self.live.iter().map(LiveWriter::bytes).sum())
    }
}

fn streams(layout: &Layout, part: u64) -> Result<[LiveWriter; TABLES], Error> {
    let [a, b, c, d, e, f, g] = Table::ALL.map(|table| LiveWriter::new(table, layout.live(table, part)));
    Ok([a?, b?, c?, d?, e?, f?, g?])
}

/// Locks a trace, for as long as the file is open.
pub(crate) fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join(MANIFEST);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { dir: dir.to_owned() }),
        Err(e) => Err(Error::io("lock", &path)(e.into())),
    }
}
