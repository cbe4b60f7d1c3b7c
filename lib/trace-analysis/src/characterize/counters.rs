//! Counters of a file: those of Darshan, and further ones.
//!
//! The rules are those of Darshan 3.5 (`darshan-runtime/lib/darshan-posix.c`) for the POSIX module;
//! here they apply to every layer. Calls that MIOT records and Darshan does not have separate
//! counters.

use super::common::Common;
use super::latencies::Latencies;
use std::sync::LazyLock;

/// Inclusive upper bounds of the bins of access sizes in bytes. Larger accesses are in the tenth
/// bin.
pub const BINS: [u64; 9] =
    [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30];

/// Names of the ten bins, as in Darshan's counters.
pub const BIN_NAMES: [&str; 10] =
    ["0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS"];

/// Returns the bin of an access of this many bytes.
#[must_use]
pub fn bin(bytes: u64) -> usize {
    BINS.partition_point(|bound| *bound < bytes)
}

/// Time from the first begin to the last end, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin; `i64::MAX` if nothing was added.
    pub begin: i64,
    /// End; `i64::MIN` if nothing was added.
    pub end: i64,
}

impl Default for Span {
    fn default() -> Span {
        Span { begin: i64::MAX, end: i64::MIN }
    }
}

impl Span {
    /// Extends the span by this time.
    pub fn add(&mut self, begin: i64, end: i64) {
        self.begin = self.begin.min(begin);
        self.end = self.end.max(end);
    }

    /// Returns true if nothing was added.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.begin > self.end
    }

    /// Returns the nanoseconds from begin to end; 0 if empty.
    #[must_use]
    pub fn length(self) -> u64 {
        if self.is_empty() { 0 } else { self.end.abs_diff(self.begin) }
    }

    pub(super) fn merge(&mut self, other: Span) {
        self.add(other.begin, other.end);
    }
}

/// Time of requests without overlaps: a request that began before the end of the last one counts
/// only with its additional time.
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
    /// Adds a request.
    pub(super) fn add(&mut self, begin: i64, end: i64) {
        if end > self.last_end {
            self.total = self.total.saturating_add(end.abs_diff(begin.max(self.last_end)));
            self.last_end = end;
        }
    }

    /// Adds the times of two records, as Darshan's reduction does.
    fn merge(&mut self, other: Timer) {
        self.total = self.total.saturating_add(other.total);
    }
}

/// A read or write, apart from its begin and end.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// Offset in the file; `None` if the trace does not contain it, or it is impossible.
    pub(super) offset: Option<i64>,
    /// Last byte and highest byte in the file, if they do not follow from offset and size.
    pub(super) last: Option<Box<(i64, i64)>>,
    /// Bytes moved.
    pub(super) bytes: u64,
    /// True if the time counts here; the time of a copy counts once, not for both files.
    pub(super) is_timed: bool,
    /// True if the buffer was not aligned to 8 bytes.
    pub(super) is_unaligned_in_memory: bool,
    /// Alignment of the file in bytes; not 0.
    pub(super) block: u32,
}

/// Counters of the reads, or of the writes.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Successful requests (`READS`, `WRITES`).
    pub count: u64,
    /// Bytes moved (`BYTES_READ`).
    pub bytes: u64,
    /// Highest offset of a byte moved (`MAX_BYTE_READ`).
    pub max_byte: u64,
    /// Requests at the offset right after the last byte of the previous one (`CONSEC_READS`).
    pub consecutive: u64,
    /// Requests at an offset above the last byte of the previous one, which counts as 0 before the
    /// first (`SEQ_READS`).
    pub sequential: u64,
    /// Requests without a known offset: neither consecutive nor sequential.
    pub without_offset: u64,
    /// Requests by size, see [`BINS`] (`SIZE_READ_*`).
    pub sizes: [u64; 10],
    /// Time (`F_READ_TIME`); for writes including syncs.
    pub time: Timer,
    /// Duration of the slowest request (`F_MAX_READ_TIME`), nanoseconds.
    pub longest: u64,
    /// Bytes moved by the slowest request (`MAX_READ_TIME_SIZE`).
    pub longest_size: u64,
    /// First begin and last end (`F_READ_START_TIMESTAMP`, `F_READ_END_TIMESTAMP`).
    pub span: Span,
    /// Durations.
    pub latencies: Latencies,
    last_byte: i64,
}

impl Side {
    /// Adds an access. Returns the stride, and the number of bytes by which the counters grew.
    fn add(&mut self, access: &Access, begin: i64, end: i64) -> (u64, usize) {
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
            let (last, highest) = access.last.as_deref().copied().unwrap_or((last, last));
            self.last_byte = last;
            self.max_byte = self.max_byte.max(u64::try_from(highest).unwrap_or(0));
        } else {
            self.without_offset += 1;
        }
        self.count += 1;
        self.bytes = self.bytes.saturating_add(access.bytes);
        self.sizes[bin(access.bytes)] += 1;
        self.span.add(begin, end);
        if !access.is_timed {
            return (stride, 0);
        }
        let took = end.abs_diff(begin);
        if took > self.longest {
            (self.longest, self.longest_size) = (took, access.bytes);
        }
        self.time.add(begin, end);
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

/// Counters that only requests that move data have.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Number of reads after a write, and of writes after a read (`RW_SWITCHES`).
    pub switches: u64,
    /// Requests with memory that is not aligned to 8 bytes (`MEM_NOT_ALIGNED`).
    pub memory_not_aligned: u64,
    /// Requests at an offset that is not a multiple of the alignment of the file
    /// (`FILE_NOT_ALIGNED`).
    pub file_not_aligned: u64,
    /// Requests without a known offset; counters that need an offset omit them.
    pub without_offset: u64,
    /// Bytes that overwrite bytes written earlier in the trace.
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

/// Numbers of successful requests that read or change metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Opens, including duplicates of descriptors (`OPENS`).
    pub opens: u64,
    /// Duplicates of descriptors (`DUPS`).
    pub dups: u64,
    /// Changes of the position (`SEEKS`).
    pub seeks: u64,
    /// Requests for attributes (`STATS`).
    pub stats: u64,
    /// Mappings (`MMAPS`).
    pub mmaps: u64,
    /// `fsync` and similar calls (`FSYNCS`).
    pub fsyncs: u64,
    /// `fdatasync` (`FDSYNCS`).
    pub fdsyncs: u64,
    /// Other syncs and flushes; Darshan has no counter for them.
    pub other_syncs: u64,
    /// Renames from this name (`RENAME_SOURCES`).
    pub rename_sources: u64,
    /// Renames to this name (`RENAME_TARGETS`).
    pub rename_targets: u64,
    /// Closes; Darshan has no counter for them.
    pub closes: u64,
    /// Other metadata requests, which Darshan does not record.
    pub others: u64,
    /// Failed requests. No other counter includes them.
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

/// Counters of one process and file, or of several merged, in one layer.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Numbers of metadata requests and syncs.
    pub meta: Meta,
    /// Time of opens, closes, seeks, stats and renames (`F_META_TIME`).
    pub meta_time: Timer,
    /// Time of the other metadata requests.
    pub other_time: Timer,
    /// Begin of the first open, end of the last (`F_OPEN_START_TIMESTAMP`, `F_OPEN_END_TIMESTAMP`).
    pub open: Span,
    /// Begin of the first close, end of the last.
    pub close: Span,
    /// First begin and last end of all requests, including failed ones.
    pub span: Span,
    pub(super) read: Option<Box<Side>>,
    pub(super) write: Option<Box<Side>>,
    pub(super) data: Option<Box<Data>>,
    /// Durations of syncs and of metadata requests.
    pub(super) sync_latencies: Option<Box<Latencies>>,
    pub(super) meta_latencies: Option<Box<Latencies>>,
}

/// Kinds of metadata requests with counters.
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

/// Kinds of syncs with counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncKind {
    Fsync,
    Fdatasync,
    Other,
}

/// Returns the part, created if it does not exist.
fn get_or_create<'a, T: Default>(part: &'a mut Option<Box<T>>, grown: &mut usize) -> &'a mut T {
    *grown += if part.is_none() { size_of::<T>() } else { 0 };
    part.get_or_insert_default()
}

static NO_SIDE: LazyLock<Side> = LazyLock::new(Side::default);
static NO_DATA: LazyLock<Data> = LazyLock::new(Data::default);
static NO_LATENCIES: LazyLock<Latencies> = LazyLock::new(Latencies::default);

impl Counters {
    /// Returns the counters of reads.
    #[must_use]
    pub fn reads(&self) -> &Side {
        self.read.as_deref().unwrap_or(&NO_SIDE)
    }

    /// Returns the counters of writes.
    #[must_use]
    pub fn writes(&self) -> &Side {
        self.write.as_deref().unwrap_or(&NO_SIDE)
    }

    /// Returns the counters that reads and writes share.
    #[must_use]
    pub fn data(&self) -> &Data {
        self.data.as_deref().unwrap_or(&NO_DATA)
    }

    /// Returns the durations of syncs.
    #[must_use]
    pub fn sync_latencies(&self) -> &Latencies {
        self.sync_latencies.as_deref().unwrap_or(&NO_LATENCIES)
    }

    /// Returns the durations of metadata requests.
    #[must_use]
    pub fn meta_latencies(&self) -> &Latencies {
        self.meta_latencies.as_deref().unwrap_or(&NO_LATENCIES)
    }

    /// Returns the bytes read and written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.reads().bytes.saturating_add(self.writes().bytes)
    }

    /// Returns Darshan's I/O time in nanoseconds: `READ_TIME + WRITE_TIME + META_TIME`.
    #[must_use]
    pub fn time(&self) -> u64 {
        let [read, write] = [self.reads(), self.writes()].map(|side| side.time.total);
        read.saturating_add(write).saturating_add(self.meta_time.total)
    }

    /// Returns true if a process with these counters had the file open.
    #[must_use]
    pub fn is_opened(&self) -> bool {
        self.meta.opens + self.reads().count + self.writes().count > 0
    }

    /// Adds a read or a write. Returns the number of bytes by which these counters grew, as the
    /// following functions do.
    pub(super) fn access(
        &mut self,
        is_write: bool,
        access: &Access,
        overwritten: u64,
        begin: i64,
        end: i64,
    ) -> usize {
        let mut grown = 0;
        let data = get_or_create(&mut self.data, &mut grown);
        let (side, this, other) = match is_write {
            false => (&mut self.read, LastOperation::Read, LastOperation::Write),
            true => (&mut self.write, LastOperation::Write, LastOperation::Read),
        };
        let (stride, more) = get_or_create(side, &mut grown).add(access, begin, end);
        grown += more + data.access.add(access.bytes);
        match access.offset {
            None => data.without_offset += 1,
            Some(offset) => {
                grown += data.stride.add(stride);
                data.file_not_aligned +=
                    u64::from(!offset.unsigned_abs().is_multiple_of(u64::from(access.block)));
            }
        }
        data.memory_not_aligned += u64::from(access.is_unaligned_in_memory);
        data.switches += u64::from(data.last == other);
        data.last = this;
        data.overwritten = data.overwritten.saturating_add(overwritten);
        grown
    }

    /// Adds a sync.
    pub(super) fn sync(&mut self, kind: SyncKind, begin: i64, end: i64) -> usize {
        match kind {
            SyncKind::Fsync => self.meta.fsyncs += 1,
            SyncKind::Fdatasync => self.meta.fdsyncs += 1,
            SyncKind::Other => self.meta.other_syncs += 1,
        }
        let mut grown = 0;
        get_or_create(&mut self.write, &mut grown).time.add(begin, end);
        let more = get_or_create(&mut self.sync_latencies, &mut grown).add(end.abs_diff(begin));
        grown + more
    }

    /// Adds a metadata request.
    pub(super) fn meta(&mut self, kind: MetaKind, begin: i64, end: i64) -> usize {
        let meta = &mut self.meta;
        match kind {
            MetaKind::Open => {
                meta.opens += 1;
                self.open.add(begin, end);
                // As in Darshan: the position is at the begin of the file again.
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
        let more = get_or_create(&mut self.meta_latencies, &mut grown).add(end.abs_diff(begin));
        grown + more
    }

    /// Merges other counters, as Darshan's reduction does: sums of counts and times, first begin,
    /// last end, the slowest request.
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

    /// Returns the memory of the counters in bytes, apart from the struct itself.
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
