//! The counters of a file: those of Darshan, and some more.
//!
//! The rules are those of Darshan 3.5 (`darshan-runtime/lib/darshan-posix.c`), for the POSIX module; here they are applied to
//! every layer. Where MIOT sees calls that Darshan does not, they have counters of their own.

use super::common::Common;
use super::latencies::Latencies;
use std::sync::LazyLock;

/// Upper bounds of the bins of access sizes, bytes, inclusive; above the last one is the tenth bin.
pub const BINS: [u64; 9] =
    [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30];

/// Names of the ten bins, as in Darshan's counters.
pub const BIN_NAMES: [&str; 10] =
    ["0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS"];

/// The bin of an access of so many bytes.
#[must_use]
pub fn bin(bytes: u64) -> usize {
    BINS.partition_point(|bound| *bound < bytes)
}

/// From the first begin to the last end, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// `i64::MAX` if nothing was added.
    pub begin: i64,
    /// `i64::MIN` if nothing was added.
    pub end: i64,
}

impl Default for Span {
    fn default() -> Span {
        Span { begin: i64::MAX, end: i64::MIN }
    }
}

impl Span {
    /// Makes it cover this time too.
    pub fn add(&mut self, begin: i64, end: i64) {
        self.begin = self.begin.min(begin);
        self.end = self.end.max(end);
    }

    /// Nothing was added.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.begin > self.end
    }

    /// Nanoseconds from begin to end; 0 if empty.
    #[must_use]
    pub fn length(self) -> u64 {
        if self.is_empty() { 0 } else { self.end.abs_diff(self.begin) }
    }

    pub(super) fn merge(&mut self, other: Span) {
        self.add(other.begin, other.end);
    }
}

/// Time of requests, without what overlaps: of a request that began before the end of the last one counts what it adds.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// Nanoseconds.
    pub total: u64,
    last_end: i64,
}

impl Default for Timer {
    fn default() -> Timer {
        Timer { total: 0, last_end: i64::MIN }
    }
}

impl Timer {
    /// Takes in a request.
    pub(super) fn add(&mut self, begin: i64, end: i64) {
        if end > self.last_end {
            self.total = self.total.saturating_add(end.abs_diff(begin.max(self.last_end)));
            self.last_end = end;
        }
    }

    /// Times of two records are added, as Darshan's reduction does it.
    fn merge(&mut self, other: Timer) {
        self.total = self.total.saturating_add(other.total);
    }
}

/// One read or write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// Where in the file; `None` if the trace does not say, or it cannot be.
    pub(super) offset: Option<i64>,
    /// Its last byte in the file and the highest one, where they are not those that follow from its offset and size.
    pub(super) last: Option<(i64, i64)>,
    /// Bytes moved.
    pub(super) bytes: u64,
    pub(super) begin: i64,
    pub(super) end: i64,
    /// Its time counts here; that of a copy counts once, not for both files.
    pub(super) is_timed: bool,
    /// The buffer was not aligned to 8 bytes.
    pub(super) is_unaligned_in_memory: bool,
    /// Alignment of the file, bytes; not 0.
    pub(super) block: u64,
}

/// The reads, or the writes.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Successful requests (`READS`, `WRITES`).
    pub count: u64,
    /// Bytes moved (`BYTES_READ`).
    pub bytes: u64,
    /// Highest offset of a byte moved (`MAX_BYTE_READ`).
    pub max_byte: u64,
    /// At an offset right after the last byte of the one before (`CONSEC_READS`).
    pub consecutive: u64,
    /// At an offset above the last byte of the one before, which counts as 0 before the first (`SEQ_READS`).
    pub sequential: u64,
    /// Without a known offset: neither of the two.
    pub without_offset: u64,
    /// By size, see [`BINS`] (`SIZE_READ_*`).
    pub sizes: [u64; 10],
    /// Time (`F_READ_TIME`); of writes that of syncs as well.
    pub time: Timer,
    /// Duration of the slowest (`F_MAX_READ_TIME`), nanoseconds.
    pub longest: u64,
    /// Bytes that it moved (`MAX_READ_TIME_SIZE`).
    pub longest_size: u64,
    /// First begin and last end (`F_READ_START_TIMESTAMP`, `F_READ_END_TIMESTAMP`).
    pub span: Span,
    /// Durations.
    pub latencies: Latencies,
    last_byte: i64,
}

impl Side {
    /// Returns the stride, and by how many bytes it grew.
    fn add(&mut self, access: &Access) -> (u64, usize) {
        let mut stride = 0;
        if let Some(offset) = access.offset {
            let last = self.last_byte;
            self.sequential += u64::from(offset > last);
            self.consecutive += u64::from(last.checked_add(1) == Some(offset));
            if offset > 0 && offset > last && last != 0 {
                stride = offset.abs_diff(last) - 1;
            }
            let bytes = i64::try_from(access.bytes).unwrap_or(i64::MAX);
            let last = offset.saturating_add(bytes).saturating_sub(1);
            let (last, highest) = access.last.unwrap_or((last, last));
            self.last_byte = last;
            self.max_byte = self.max_byte.max(u64::try_from(highest).unwrap_or(0));
        } else {
            self.without_offset += 1;
        }
        self.count += 1;
        self.bytes = self.bytes.saturating_add(access.bytes);
        self.sizes[bin(access.bytes)] += 1;
        self.span.add(access.begin, access.end);
        if !access.is_timed {
            return (stride, 0);
        }
        let took = access.end.abs_diff(access.begin);
        if took > self.longest {
            (self.longest, self.longest_size) = (took, access.bytes);
        }
        self.time.add(access.begin, access.end);
        (stride, self.latencies.add(took))
    }

    fn merge(&mut self, other: &Side) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.max_byte = self.max_byte.max(other.max_byte);
        self.consecutive += other.consecutive;
        self.sequential += other.sequential;
        self.without_offset += other.without_offset;
        self.sizes.iter_mut().zip(other.sizes).for_each(|(size, other)| *size += other);
        self.time.merge(other.time);
        if other.longest > self.longest {
            (self.longest, self.longest_size) = (other.longest, other.longest_size);
        }
        self.span.merge(other.span);
        self.latencies.merge(&other.latencies);
    }
}

/// What only requests that move data have.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// A read after a write, or a write after a read (`RW_SWITCHES`).
    pub switches: u64,
    /// From or to memory that is not aligned to 8 bytes (`MEM_NOT_ALIGNED`).
    pub memory_not_aligned: u64,
    /// At an offset that is no multiple of the alignment of the file (`FILE_NOT_ALIGNED`).
    pub file_not_aligned: u64,
    /// Requests without a known offset: they are in no figure that needs one.
    pub without_offset: u64,
    /// Bytes written where the trace had seen bytes written before.
    pub overwritten: u64,
    /// Sizes of accesses (`ACCESS*`).
    pub access: Common,
    /// Gaps between accesses (`STRIDE*`).
    pub stride: Common,
    last: LastOperation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastOperation {
    #[default]
    Nothing,
    Read,
    Write,
}

/// How often metadata was asked for or changed. Successful requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Opens, duplicates of descriptors included (`OPENS`).
    pub opens: u64,
    /// Duplicates of descriptors (`DUPS`).
    pub dups: u64,
    /// Changes of the position (`SEEKS`).
    pub seeks: u64,
    /// Questions for attributes (`STATS`).
    pub stats: u64,
    /// Mappings (`MMAPS`).
    pub mmaps: u64,
    /// `fsync` and its like (`FSYNCS`).
    pub fsyncs: u64,
    /// `fdatasync` (`FDSYNCS`).
    pub fdsyncs: u64,
    /// Other syncs and flushes; Darshan has no counter for them.
    pub other_syncs: u64,
    /// Renamed from this name (`RENAME_SOURCES`).
    pub rename_sources: u64,
    /// Renamed to this name (`RENAME_TARGETS`).
    pub rename_targets: u64,
    /// Closes; Darshan has no counter for them.
    pub closes: u64,
    /// Other requests on metadata, which Darshan does not see.
    pub others: u64,
    /// Requests that failed. They are in no other figure.
    pub failed: u64,
}

impl Meta {
    fn merge(&mut self, other: &Meta) {
        self.opens += other.opens;
        self.dups += other.dups;
        self.seeks += other.seeks;
        self.stats += other.stats;
        self.mmaps += other.mmaps;
        self.fsyncs += other.fsyncs;
        self.fdsyncs += other.fdsyncs;
        self.other_syncs += other.other_syncs;
        self.rename_sources += other.rename_sources;
        self.rename_targets += other.rename_targets;
        self.closes += other.closes;
        self.others += other.others;
        self.failed += other.failed;
    }
}

/// The counters of one process and file, or of several merged, in one layer.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Counts of requests on metadata, and syncs.
    pub meta: Meta,
    /// Time of opens, closes, seeks, stats and renames (`F_META_TIME`).
    pub meta_time: Timer,
    /// Time of the other requests on metadata.
    pub other_time: Timer,
    /// Begin of the first open, end of the last (`F_OPEN_START_TIMESTAMP`, `F_OPEN_END_TIMESTAMP`).
    pub open: Span,
    /// The same of closes.
    pub close: Span,
    /// All requests, failed ones too.
    pub span: Span,
    pub(super) read: Option<Box<Side>>,
    pub(super) write: Option<Box<Side>>,
    pub(super) data: Option<Box<Data>>,
    /// Durations of syncs, and of requests on metadata.
    pub(super) sync_latencies: Option<Box<Latencies>>,
    pub(super) meta_latencies: Option<Box<Latencies>>,
}

/// The kinds of metadata requests that have counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaKind {
    Open,
    Dup,
    Close,
    Seek,
    Stat,
    Rename,
    Mmap,
    Other,
}

/// The kinds of syncs that have counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncKind {
    Fsync,
    Fdatasync,
    Other,
}

/// The part, made if it is not there.
fn made<'a, T: Default>(part: &'a mut Option<Box<T>>, grown: &mut usize) -> &'a mut T {
    *grown += if part.is_none() { size_of::<T>() } else { 0 };
    part.get_or_insert_default()
}

static NO_SIDE: LazyLock<Side> = LazyLock::new(Side::default);
static NO_DATA: LazyLock<Data> = LazyLock::new(Data::default);
static NO_LATENCIES: LazyLock<Latencies> = LazyLock::new(Latencies::default);

impl Counters {
    /// The reads.
    #[must_use]
    pub fn reads(&self) -> &Side {
        self.read.as_deref().unwrap_or(&NO_SIDE)
    }

    /// The writes.
    #[must_use]
    pub fn writes(&self) -> &Side {
        self.write.as_deref().unwrap_or(&NO_SIDE)
    }

    /// What reads and writes share.
    #[must_use]
    pub fn data(&self) -> &Data {
        self.data.as_deref().unwrap_or(&NO_DATA)
    }

    /// Durations of syncs.
    #[must_use]
    pub fn sync_latencies(&self) -> &Latencies {
        self.sync_latencies.as_deref().unwrap_or(&NO_LATENCIES)
    }

    /// Durations of requests on metadata.
    #[must_use]
    pub fn meta_latencies(&self) -> &Latencies {
        self.meta_latencies.as_deref().unwrap_or(&NO_LATENCIES)
    }

    /// Bytes read and written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.reads().bytes.saturating_add(self.writes().bytes)
    }

    /// Darshan's I/O time, nanoseconds: `READ_TIME + WRITE_TIME + META_TIME`.
    #[must_use]
    pub fn time(&self) -> u64 {
        let [read, write] = [self.reads(), self.writes()].map(|side| side.time.total);
        read.saturating_add(write).saturating_add(self.meta_time.total)
    }

    /// A process with these counters had the file open.
    #[must_use]
    pub fn is_opened(&self) -> bool {
        self.meta.opens + self.reads().count + self.writes().count > 0
    }

    /// Takes in a read or a write. Returns by how many bytes these counters grew, as the other functions here do.
    pub(super) fn access(&mut self, is_write: bool, access: &Access, overwritten: u64) -> usize {
        let mut grown = 0;
        let data = made(&mut self.data, &mut grown);
        let (side, this, other) = match is_write {
            false => (&mut self.read, LastOperation::Read, LastOperation::Write),
            true => (&mut self.write, LastOperation::Write, LastOperation::Read),
        };
        let (stride, more) = made(side, &mut grown).add(access);
        grown += more + data.access.add(access.bytes);
        match access.offset {
            None => data.without_offset += 1,
            Some(offset) => {
                grown += data.stride.add(stride);
                data.file_not_aligned += u64::from(!offset.unsigned_abs().is_multiple_of(access.block));
            }
        }
        data.memory_not_aligned += u64::from(access.is_unaligned_in_memory);
        data.switches += u64::from(data.last == other);
        data.last = this;
        data.overwritten = data.overwritten.saturating_add(overwritten);
        grown
    }

    /// Takes in a sync.
    pub(super) fn sync(&mut self, kind: SyncKind, begin: i64, end: i64) -> usize {
        match kind {
            SyncKind::Fsync => self.meta.fsyncs += 1,
            SyncKind::Fdatasync => self.meta.fdsyncs += 1,
            SyncKind::Other => self.meta.other_syncs += 1,
        }
        let mut grown = 0;
        made(&mut self.write, &mut grown).time.add(begin, end);
        let more = made(&mut self.sync_latencies, &mut grown).add(end.abs_diff(begin));
        grown + more
    }

    /// Takes in a request on metadata.
    pub(super) fn meta(&mut self, kind: MetaKind, begin: i64, end: i64) -> usize {
        let meta = &mut self.meta;
        match kind {
            MetaKind::Open => {
                meta.opens += 1;
                self.open.add(begin, end);
                // As Darshan does: the file is at its begin again.
                [&mut self.read, &mut self.write].into_iter().flatten().for_each(|side| side.last_byte = 0);
            }
            MetaKind::Dup => {
                meta.opens += 1;
                meta.dups += 1;
                self.open.add(begin, end);
            }
            MetaKind::Close => {
                meta.closes += 1;
                self.close.add(begin, end);
            }
            MetaKind::Seek => meta.seeks += 1,
            MetaKind::Stat => meta.stats += 1,
            MetaKind::Rename => meta.rename_sources += 1,
            MetaKind::Mmap => meta.mmaps += 1,
            MetaKind::Other => meta.others += 1,
        }
        let timer = match kind {
            MetaKind::Mmap | MetaKind::Other => &mut self.other_time,
            _ => &mut self.meta_time,
        };
        timer.add(begin, end);
        let mut grown = 0;
        let more = made(&mut self.meta_latencies, &mut grown).add(end.abs_diff(begin));
        grown + more
    }

    /// Adds up, as Darshan's reduction does: sums of counts and times, first begin, last end, the slowest request.
    pub(super) fn merge(&mut self, other: &Counters) {
        self.meta.merge(&other.meta);
        self.meta_time.merge(other.meta_time);
        self.other_time.merge(other.other_time);
        self.open.merge(other.open);
        self.close.merge(other.close);
        self.span.merge(other.span);
        for (side, other) in [(&mut self.read, &other.read), (&mut self.write, &other.write)] {
            if let Some(other) = other {
                side.get_or_insert_default().merge(other);
            }
        }
        if let Some(other) = &other.data {
            let data = self.data.get_or_insert_default();
            data.switches += other.switches;
            data.memory_not_aligned += other.memory_not_aligned;
            data.file_not_aligned += other.file_not_aligned;
            data.without_offset += other.without_offset;
            data.overwritten = data.overwritten.saturating_add(other.overwritten);
            data.access.merge(&other.access);
            data.stride.merge(&other.stride);
        }
        for (latencies, other) in [
            (&mut self.sync_latencies, &other.sync_latencies),
            (&mut self.meta_latencies, &other.meta_latencies),
        ] {
            if let Some(other) = other {
                latencies.get_or_insert_default().merge(other);
            }
        }
    }

    /// Bytes of memory that it takes, apart from itself.
    pub(super) fn memory(&self) -> usize {
        let side = |side: &Option<Box<Side>>| {
            side.as_ref().map_or(0, |side| size_of::<Side>() + side.latencies.memory())
        };
        let latencies = |latencies: &Option<Box<Latencies>>| {
            latencies.as_ref().map_or(0, |latencies| size_of::<Latencies>() + latencies.memory())
        };
        let data = self
            .data
            .as_ref()
            .map_or(0, |data| size_of::<Data>() + data.access.memory() + data.stride.memory());
        side(&self.read)
            + side(&self.write)
            + data
            + latencies(&self.sync_latencies)
            + latencies(&self.meta_latencies)
    }
}
