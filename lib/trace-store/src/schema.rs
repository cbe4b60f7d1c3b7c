//! The columns of every table of a trace.
//!
//! The log-server assigns ids (`process`, `stream`, `file`), which count from 1 and are unique in a
//! trace directory. Times are nanoseconds since 1970, UTC, by the clock of the server. A column is
//! null only where its description allows it. Columns are append-only within a schema version.
//!
//! **events**: one row per completed request, ordered by time.
//!
//! | column | meaning |
//! |---|---|
//! | `time` | completion |
//! | `duration` | nanoseconds from begin to completion |
//! | `node` | name of the node |
//! | `process` | see `processes` |
//! | `pid`, `tid` | process and thread id on the node |
//! | `layer`, `op` | names from `miot_proto::op`; an operation unknown to the writer is `layer:number` |
//! | `file` | see `files`; null if the request has none or it is unknown |
//! | `file2` | the other file: source of a copy, new name of a rename; null if none |
//! | `handle` | number of the open file in its process, a new one per open; null if none |
//! | `offset` | byte offset in the file; null if none or unknown |
//! | `offset2` | byte offset in the other file; null if none |
//! | `length` | requested bytes; null if none |
//! | `arg` | the operation's own argument (flags of open, mode of chmod, whence of seek); null if none |
//! | `result` | bytes moved or another value; negative = −errno |
//! | `flags` | bits of `miot_proto::event::flag` |
//! | `stream` | see `threads` |
//! | `seq` | attempt number in the stream: strictly increasing; a gap is a row in `losses`, or the record of a row in `files` |
//! | `request` | number of the request in its stream, assigned at its start |
//! | `enclosing` | `request` of the parent: the request of the same thread during which this one was made; null if none |
//! | `cpu_time` | CPU time of the thread at completion, nanoseconds; null if not recorded |
//! | `caller_tid`, `caller_uid` | thread (by the kernel) and user for which a file-system client served the request; null if unknown |
//! | `mpi_rank`, `mpi_size` | rank in the communicator that opened the file, and its size; null if none |
//! | `etypes` | MPI-IO: the offset as the program gave it, in elementary types of the view; null if none |
//! | `type_size`, `type_extent` | MPI-IO: bytes and extent of the datatype of one element, of the file type where a view is set; null if none |
//!
//! **processes**: one row per process image that made a traced request.
//!
//! | column | meaning |
//! |---|---|
//! | `process` | id |
//! | `node`, `pid`, `ppid`, `uid` | node, process id, parent process id, user id |
//! | `rank` | rank in a parallel program; null if none was found |
//! | `job` | id of the job in the system `job_system`; null if none was found |
//! | `exe`, `cmdline`, `cwd` | executable, arguments (joined by a space, quoted for the shell where needed), working directory |
//! | `started` | time of the first traced request |
//! | `boot`, `nonce` | with `pid` the permanent identity of the process image: boot id of the node (32 hexadecimal digits) and a unique number; null if the process was imported |
//! | `job_system` | system of the id `job`: `slurm`, `pbs`, `flux`, `lsf`, `sge`, `cobalt`; `systemd`: a unit, without a batch system; `miot`: `MIOT_JOB`; `darshan`: imported from Darshan; null without a job |
//! | `job_step` | step of the job (Slurm), or the name that the launcher of a parallel program gives its run (`PMIX_NAMESPACE`, `PALS_APID`, `TORCHELASTIC_RUN_ID`); null if none was found |
//! | `user` | name of the user `uid` on the node; null if it has none, or if the look-up took more than 20 ms |
//! | `cgroup` | path of the control group when the process was found; null if it had ended before, or is in another process id namespace |
//! | `block_sizes` | block sizes of the file systems of the process: lines of bytes, a space and the mount point; a path has the block size of its longest mount point. For a process that had ended before, those of its parent or the log-client; null if it is in another process id namespace, or a server did not answer |
//! | `world_size` | number of ranks of the parallel program; null if its launcher does not pass it |
//!
//! **threads**: one row per stream: a thread, or the part of its life in which it used one lane.
//!
//! | column | meaning |
//! |---|---|
//! | `stream` | id |
//! | `process`, `node`, `pid`, `tid` | process, node, process id and thread id |
//! | `lane`, `incarnation` | number of the lane in the segment, and its incarnation, from 1 |
//! | `comm` | thread name |
//!
//! **files**: one row per path and node; and one row for each handle record (not an event), which
//! assigns a path to a handle and takes an attempt number of the stream. Rows of the same `file`
//! have the same path.
//!
//! | column | meaning |
//! |---|---|
//! | `file` | id |
//! | `node` | name of the node |
//! | `path` | absolute path; each byte that is not UTF-8 is `\xHH` |
//! | `path_raw` | the bytes of the path; null if `path` is exact |
//! | `stream`, `seq`, `handle` | the record that named the handle; null if an event did |
//!
//! **losses**: one row per place and time at which events were lost or filtered out.
//!
//! | column | meaning |
//! |---|---|
//! | `time` | when the loss was detected |
//! | `node`, `process`, `stream` | source of the events; process and stream are null if unknown |
//! | `place` | `lane_full`, `spool_full`, `spool_damaged`, `nested`, `no_lane`, `abi_violation`; [`FILTERED`] and [`ELSEWHERE`], which are not losses |
//! | `count` | number of events |
//! | `first_seq`, `last_seq` | the gap in the stream; null if the loss left no gap |
//!
//! **clocks**: the conversion of the times of a node, one row per linear piece; see
//! [`crate::clocks`].
//!
//! | column | meaning |
//! |---|---|
//! | `time`, `node` | merged time from which the piece applies; name of the node |
//! | `offset` | difference between merged time and node time at that point, nanoseconds |
//! | `uncertainty` | maximum error of merged times while the piece applies, nanoseconds |
//! | `round_trip` | shortest exchange on which the piece is based, nanoseconds |
//! | `drift` | change of the offset, nanoseconds per second of node time |
//! | `reason` | why the piece began: `first`, `exchange`, `gap`, `step` |
//! | `estimated_error` | standard error of merged times while the piece applies, nanoseconds, assuming that the fastest messages take equally long in both directions; null in parts of an earlier version |
//!
//! **devices**: activity of the block devices and mounted network file systems of a node, by the
//! counters of its kernel; one row per device and interval. A counter is null if the kernel does
//! not have it. See `docs/guide/devices.md`.
//!
//! | column | meaning |
//! |---|---|
//! | `time`, `node` | end of the interval, in merged time; name of the node |
//! | `interval` | length of the interval, nanoseconds |
//! | `kind` | `block`; `nfs`, `lustre`, `fuse`: a mounted file system of that kind |
//! | `device` | name of the block device, or source of the mount |
//! | `mount` | mount point; null for a block device |
//! | `reads`, `writes`, `others` | requests completed; others: discards and flushes, or requests that move no data |
//! | `read_bytes`, `write_bytes` | bytes moved |
//! | `read_time`, `write_time`, `other_time` | sum of the durations of these requests, nanoseconds |
//! | `reads_merged`, `writes_merged` | requests that were merged with others before they were served |
//! | `busy` | time with at least one request in flight, nanoseconds |
//! | `queue_time` | integral of the number of requests in flight over time, nanoseconds |
//! | `in_flight` | requests in flight at `time` |
//! | `retransmits` | requests that were sent again |
//! | `boot`, `uptime` | identity of the sample: boot id of the node, and nanoseconds since that boot at `time` |

mod conversion;

pub use conversion::{batch, is_earlier_name};
pub(crate) use conversion::{complete, in_present_types, is_name};

use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type};
use arrow_array::{Array as _, ArrayRef, PrimitiveArray, RecordBatch, StringArray, new_null_array};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Place of the rows of `losses` that count filtered requests: too short, or not in the sample.
pub const FILTERED: &str = "filtered";

/// Place of the rows of `losses` whose attempt numbers another log-server of the set has. Rows
/// without a range have the place of the count after it, see [`elsewhere`].
pub const ELSEWHERE: &str = "elsewhere";

/// Places of the totals of `nested`, `filtered` and `no_lane` that another log-server has.
const ELSEWHERE_TOTALS: [(&str, &str); 3] =
    [("nested", "elsewhere_nested"), ("filtered", "elsewhere_filtered"), ("no_lane", "elsewhere_no_lane")];

/// Returns the place of the part of a total that another log-server has; `None` if a total of that
/// place is never moved.
#[must_use]
pub fn elsewhere(place: &str) -> Option<&'static str> {
    ELSEWHERE_TOTALS.iter().find(|(own, _)| *own == place).map(|(_, elsewhere)| *elsewhere)
}

/// Returns the place of a total, also of the part of it that another log-server has.
#[must_use]
pub fn place_of_total(place: &str) -> &str {
    ELSEWHERE_TOTALS.iter().find(|(_, elsewhere)| *elsewhere == place).map_or(place, |(own, _)| own)
}

/// Returns true if the rows of `losses` with this place count lost events.
#[must_use]
pub fn is_loss(place: &str) -> bool {
    place != FILTERED && !is_elsewhere(place)
}

/// Returns true if the rows of `losses` with this place count what another log-server has.
#[must_use]
pub fn is_elsewhere(place: &str) -> bool {
    place == ELSEWHERE || place_of_total(place) != place
}

/// Place of the rows of `losses` that [`crate::repair`] adds: events that were in damaged files.
pub const DAMAGED: &str = "damaged";

/// Version of the trace directory, in the manifest and in the metadata of every file with rows.
/// Version 2 adds the ledger; it has the columns of version 1. Version 3 has signed numbers only,
/// and ids with the [partition](crate::ids).
pub const VERSION: u32 = 3;

/// Number of tables.
pub(crate) const TABLES: usize = 7;

/// The tables of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// Completed requests.
    Events,
    /// Process images.
    Processes,
    /// Threads, by stream.
    Threads,
    /// Paths.
    Files,
    /// Lost events.
    Losses,
    /// Clock corrections.
    Clocks,
    /// Block devices and mounts, by interval.
    Devices,
}

impl Table {
    /// All tables, events first.
    pub const ALL: [Table; TABLES] = [
        Table::Events,
        Table::Processes,
        Table::Threads,
        Table::Files,
        Table::Losses,
        Table::Clocks,
        Table::Devices,
    ];
    /// All tables except events: events refer to their rows, which are written before them.
    pub const SIDE: [Table; TABLES - 1] =
        [Table::Processes, Table::Threads, Table::Files, Table::Losses, Table::Clocks, Table::Devices];

    /// Returns the name of its folder.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Table::Events => "events",
            Table::Processes => "processes",
            Table::Threads => "threads",
            Table::Files => "files",
            Table::Losses => "losses",
            Table::Clocks => "clocks",
            Table::Devices => "devices",
        }
    }

    /// Returns the table of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|t| t.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the type of all time columns.
#[must_use]
pub fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// Keys of the columns of names: `node`, `layer`, `op`. They are wide enough for as many names as
/// events fit in memory. Earlier versions had narrower keys, and a part with more names could not
/// be read, or unsigned ones, which pandas does not read.
pub type NameKey = Int32Type;

/// Returns the columns of a table.
#[must_use]
pub fn of(table: Table) -> SchemaRef {
    Arc::clone(&all()[table as usize])
}

fn all() -> &'static [SchemaRef; TABLES] {
    static ALL: OnceLock<[SchemaRef; TABLES]> = OnceLock::new();
    ALL.get_or_init(|| {
        [events(), processes(), threads(), files(), losses(), clocks(), devices()]
            .map(|f| Arc::new(Schema::new(f)))
    })
}

/// Returns the names of the columns of events.
pub(crate) fn event_columns() -> impl Iterator<Item = &'static str> {
    all()[Table::Events as usize].fields().iter().map(|field| field.name().as_str())
}

/// Returns a column of numbers, if the batch has it. Nothing is copied. Columns of ids, counts and
/// other numbers that are never negative may be read as unsigned ones.
#[must_use]
pub fn column<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> Option<PrimitiveArray<T>> {
    let column = batch.column_by_name(name)?;
    let values = values::<T>(column)?;
    Some(PrimitiveArray::new(ScalarBuffer::new(values.clone(), 0, column.len()), column.nulls().cloned()))
}

/// Returns the values of a column of numbers, see [`column`].
#[must_use]
pub fn values<T: ArrowPrimitiveType>(column: &ArrayRef) -> Option<&Buffer> {
    if let Some(same) = column.as_primitive_opt::<T>() {
        return Some(same.values().inner());
    }
    match (column.data_type(), T::DATA_TYPE) {
        (Int64, UInt64) => Some(column.as_primitive::<Int64Type>().values().inner()),
        (Int32, UInt32) => Some(column.as_primitive::<Int32Type>().values().inner()),
        _ => None,
    }
}

/// Returns a column of text, if the batch has it.
#[must_use]
pub fn text<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a StringArray> {
    batch.column_by_name(name)?.as_string_opt::<i32>()
}

/// Returns the columns of `events`, then `path`, `path2` (null if the event has no such file) and
/// `comm`.
#[must_use]
pub fn rows() -> SchemaRef {
    Arc::clone(all_rows())
}

fn all_rows() -> &'static SchemaRef {
    static ROWS: OnceLock<SchemaRef> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut fields = events();
        fields.extend([null("path", Utf8), null("path2", Utf8), col("comm", Utf8)]);
        Arc::new(Schema::new(fields))
    })
}

/// Returns the names and types of the columns of [`rows`].
pub fn row_columns() -> impl Iterator<Item = (&'static str, &'static DataType)> {
    all_rows().fields().iter().map(|field| (field.name().as_str(), field.data_type()))
}

use DataType::{Binary, Int32, Int64, UInt32, UInt64, Utf8};

fn col(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, false)
}

fn null(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn name() -> DataType {
    DataType::Dictionary(Box::new(NameKey::DATA_TYPE), Box::new(Utf8))
}

fn events() -> Vec<Field> {
    vec![
        col("time", time_type()),
        col("duration", Int64),
        col("node", name()),
        col("process", Int64),
        col("pid", Int32),
        col("tid", Int32),
        col("layer", name()),
        col("op", name()),
        null("file", Int64),
        null("file2", Int64),
        null("handle", Int64),
        null("offset", Int64),
        null("offset2", Int64),
        null("length", Int64),
        null("arg", Int64),
        col("result", Int64),
        col("flags", Int32),
        col("stream", Int64),
        col("seq", Int64),
        col("request", Int64),
        null("enclosing", Int64),
        null("cpu_time", Int64),
        null("caller_tid", Int32),
        null("caller_uid", Int64),
        null("mpi_rank", Int32),
        null("mpi_size", Int32),
        null("etypes", Int64),
        null("type_size", Int64),
        null("type_extent", Int64),
    ]
}

fn processes() -> Vec<Field> {
    vec![
        col("process", Int64),
        col("node", Utf8),
        col("pid", Int32),
        col("ppid", Int32),
        col("uid", Int64),
        null("rank", Int32),
        null("job", Utf8),
        col("exe", Utf8),
        col("cmdline", Utf8),
        col("cwd", Utf8),
        col("started", time_type()),
        null("boot", Utf8),
        null("nonce", Utf8),
        null("job_system", Utf8),
        null("job_step", Utf8),
        null("user", Utf8),
        null("cgroup", Utf8),
        null("block_sizes", Utf8),
        null("world_size", Int32),
    ]
}

fn threads() -> Vec<Field> {
    vec![
        col("stream", Int64),
        col("process", Int64),
        col("node", Utf8),
        col("pid", Int32),
        col("tid", Int32),
        col("lane", Int64),
        col("incarnation", Int64),
        col("comm", Utf8),
    ]
}

fn files() -> Vec<Field> {
    vec![
        col("file", Int64),
        col("node", Utf8),
        col("path", Utf8),
        null("path_raw", Binary),
        null("stream", Int64),
        null("seq", Int64),
        null("handle", Int64),
    ]
}

fn losses() -> Vec<Field> {
    vec![
        col("time", time_type()),
        col("node", Utf8),
        null("process", Int64),
        null("stream", Int64),
        col("place", Utf8),
        col("count", Int64),
        null("first_seq", Int64),
        null("last_seq", Int64),
    ]
}

fn clocks() -> Vec<Field> {
    vec![
        col("time", time_type()),
        col("node", Utf8),
        col("offset", Int64),
        col("uncertainty", Int64),
        col("round_trip", Int64),
        col("drift", Int64),
        col("reason", Utf8),
        null("estimated_error", Int64),
    ]
}

fn devices() -> Vec<Field> {
    vec![
        col("time", time_type()),
        col("node", Utf8),
        col("interval", Int64),
        col("kind", Utf8),
        col("device", Utf8),
        null("mount", Utf8),
        null("reads", Int64),
        null("writes", Int64),
        null("others", Int64),
        null("read_bytes", Int64),
        null("write_bytes", Int64),
        null("read_time", Int64),
        null("write_time", Int64),
        null("other_time", Int64),
        null("reads_merged", Int64),
        null("writes_merged", Int64),
        null("busy", Int64),
        null("queue_time", Int64),
        null("in_flight", Int64),
        null("retransmits", Int64),
        col("boot", Utf8),
        col("uptime", Int64),
    ]
}

/// Returns true if the columns are those of this version, or of an earlier one, which had fewer
/// columns and other types: columns are only appended, and missing ones must be nullable.
pub(crate) fn fits(table: Table, found: &Fields) -> bool {
    let all = of(table);
    let columns = all.fields().iter();
    found.len() <= columns.len()
        && columns.enumerate().all(|(at, column)| match found.get(at) {
            Some(found) => {
                found.name() == column.name()
                    && found.is_nullable() == column.is_nullable()
                    && (found.data_type() == column.data_type()
                        || is_earlier_name(&found.data_type().to_string(), &column.data_type().to_string()))
            }
            None => column.is_nullable(),
        })
}

/// Returns the columns of a Parquet file, which has strings in columns of names, as they are read:
/// with the keys of this version, because there may be more names than the keys of the version that
/// wrote the file can count.
pub(crate) fn with_names(table: Table, found: &Fields) -> Fields {
    let all = of(table);
    let column = |(at, found): (usize, &FieldRef)| match all.fields().get(at) {
        Some(now) if is_name(now.data_type()) && *found.data_type() == Utf8 => {
            Arc::new(found.as_ref().clone().with_data_type(now.data_type().clone()))
        }
        _ => Arc::clone(found),
    };
    found.iter().enumerate().map(column).collect()
}

/// Returns true for one or more columns of [`rows`], of this version, an earlier one, or a later
/// one, which may have further columns of the same types.
pub(crate) fn are_of_rows(found: &Fields) -> bool {
    let is_one = |found: &FieldRef| match all_rows().field_with_name(found.name()) {
        Ok(column) => {
            found.data_type() == column.data_type()
                || is_earlier_name(&found.data_type().to_string(), &column.data_type().to_string())
        }
        Err(_) => row_columns().any(|(_, data_type)| found.data_type() == data_type),
    };
    !found.is_empty() && found.iter().all(is_one)
}

/// Returns true if the columns are those of this version, so that [`complete`] changes nothing.
pub(crate) fn is_present(table: Table, found: &Fields) -> bool {
    let all = of(table);
    let same = |(found, column): (&FieldRef, &FieldRef)| found.data_type() == column.data_type();
    found.len() == all.fields().len() && found.iter().zip(all.fields()).all(same)
}

/// Returns these columns of a batch; missing ones are null.
pub(crate) fn project(to: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = to.fields().iter().map(|field| match batch.column_by_name(field.name()) {
        Some(column) => Arc::clone(column),
        None => new_null_array(field.data_type(), batch.num_rows()),
    });
    RecordBatch::try_new(Arc::clone(to), columns.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use arrow_array::types::{UInt32Type, UInt64Type};
    use arrow_array::{Int32Array, Int64Array, UInt32Array, UInt64Array};
    use arrow_schema::DataType::{UInt8, UInt16};

    #[test]
    fn tables_are_found_by_name_and_index() {
        for table in Table::ALL {
            assert_eq!(Table::from_name(table.name()), Some(table));
            assert_eq!(Table::ALL[table as usize], table);
        }
        let events = of(Table::Events);
        assert_eq!(events.fields().len(), 29);
        assert_eq!(rows().fields()[..29], events.fields()[..]);
    }

    /// Returns the columns of an earlier version with narrow keys.
    fn earlier(table: Table) -> Vec<Field> {
        let ids = [
            "process",
            "file",
            "file2",
            "handle",
            "stream",
            "seq",
            "nonce",
            "count",
            "first_seq",
            "last_seq",
        ];
        let wide = ["request", "enclosing", "caller_uid", "uid", "lane", "incarnation"];
        let now = of(table);
        let fields = now.fields().iter().map(|field| {
            let before = match (field.name().as_str(), field.data_type()) {
                ("layer", _) => DataType::Dictionary(Box::new(UInt8), Box::new(Utf8)),
                (_, found) if is_name(found) => DataType::Dictionary(Box::new(UInt16), Box::new(Utf8)),
                ("flags", _) => UInt16,
                (_, Int32) => UInt32,
                (name, _) if ids.contains(&name) => UInt64,
                (name, _) if wide.contains(&name) => UInt32,
                (name, Int64) if table == Table::Devices && name != "interval" => UInt64,
                (_, found) => found.clone(),
            };
            field.as_ref().clone().with_data_type(before)
        });
        fields.collect()
    }

    #[test]
    fn columns_of_earlier_versions_are_accepted() {
        for table in Table::ALL {
            let fields = Fields::from(earlier(table));
            assert!(fits(table, &fields), "{table}");
            assert_eq!(is_present(table, &fields), table == Table::Clocks, "{table}");
            assert!(is_present(table, of(table).fields()));
            for (before, now) in fields.iter().zip(of(table).fields()) {
                let (before, now) = (before.data_type(), now.data_type());
                let is_same = before == now;
                assert!(is_same || is_earlier_name(&before.to_string(), &now.to_string()), "{before} {now}");
            }
            let now = of(table);
            let unsigned = now.fields().iter().find(|field| {
                matches!(field.data_type(), UInt8 | UInt16 | UInt32 | UInt64 | DataType::Timestamp(_, None))
            });
            assert_eq!(unsigned, None, "readers without unsigned numbers");
        }
        let other = DataType::Dictionary(Box::new(Int64), Box::new(Utf8));
        assert!(
            !is_earlier_name(&other.to_string(), &name().to_string()) && !is_earlier_name("Int64", "Int32")
        );
        let mut fields = earlier(Table::Events);
        fields[2] = col("node", other);
        assert!(!fits(Table::Events, &fields.into()));
    }

    #[test]
    fn signed_numbers_are_read_as_unsigned_ones() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(9), None]).slice(0, 2));
        let pids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]).slice(1, 2));
        let batch = RecordBatch::try_from_iter([("file", ids), ("pid", pids)]).unwrap();
        assert_eq!(column::<UInt64Type>(&batch, "file"), Some(UInt64Array::from(vec![Some(9), None])));
        assert_eq!(column::<UInt32Type>(&batch, "pid"), Some(UInt32Array::from(vec![2, 3])));
        assert_eq!(column::<Int64Type>(&batch, "file"), Some(Int64Array::from(vec![Some(9), None])));
        assert!(
            column::<UInt64Type>(&batch, "pid").is_none() && column::<UInt64Type>(&batch, "no").is_none()
        );
    }
}
