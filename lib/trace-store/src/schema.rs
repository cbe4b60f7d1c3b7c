//! The columns of every table of a trace.
//!
//! Ids (`process`, `stream`, `file`) are given by the log-server, count from 1 and are unique in a trace
//! directory. Times are nanoseconds since 1970, UTC, in the server's clock. A column may be null only
//! where it says so. Columns are append-only within a schema version.
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
//! | `length` | bytes asked for; null if none |
//! | `arg` | the operation's own argument (flags of open, mode of chmod, whence of seek); null if none |
//! | `result` | bytes moved or another value; negative = −errno |
//! | `flags` | bits of `miot_proto::event::flag` |
//! | `stream` | see `threads` |
//! | `seq` | attempt number in the stream: strictly increasing; a gap is a row in `losses`, or the record of a row in `files` |
//! | `request` | number of the request in its stream, given at its begin |
//! | `enclosing` | `request` of the request of the same thread within which this one ran; null if none |
//! | `cpu_time` | CPU time of the thread at completion, nanoseconds; null if not recorded |
//! | `caller_tid`, `caller_uid` | thread (as the kernel tells it) and user on whose behalf a file-system client served the request; null if unknown |
//! | `mpi_rank`, `mpi_size` | rank in the communicator that the file was opened with, and its size; null where there is none |
//! | `etypes` | MPI-IO: the offset as the program gave it, in elementary types of the view; null if none |
//! | `type_size`, `type_extent` | MPI-IO: bytes and extent of the datatype of one element, of the file type where a view is set; null if none |
//!
//! **processes**: one row per process image that made a traced request.
//!
//! | column | meaning |
//! |---|---|
//! | `process` | id |
//! | `node`, `pid`, `ppid`, `uid` | where and whose |
//! | `rank` | MPI rank; null if none was found |
//! | `job` | id of the job, of the batch system or of what `job_system` says; null if none was found |
//! | `exe`, `cmdline`, `cwd` | executable, arguments (joined by a space, quoted for the shell where needed), working directory |
//! | `started` | time of the first traced request |
//! | `boot`, `nonce` | with `pid` the identity of the process image for ever: boot id of the node (32 hexadecimal digits) and a number of its own; null if the process was imported |
//! | `job_system` | whose id `job` is: `slurm`, `pbs`, `flux`, `lsf`, `sge`, `cobalt`; `systemd`: a unit, where there is no batch system; `miot`: `MIOT_JOB`; `darshan`: imported, as Darshan tells it; null without a job |
//! | `job_step` | step of the job (Slurm), or the name that the launcher of a parallel program gives its run (`PMIX_NAMESPACE`, `PALS_APID`); null if none was found |
//! | `user` | name of the user `uid`, as the node knows it; null if it does not, or did not say within 20 ms |
//! | `cgroup` | path of the control group when the process was found; null if it had ended by then, or is in another process id namespace |
//! | `block_sizes` | block sizes of the file systems that the process saw: lines of bytes, a space and where it is mounted; a path has that of the longest place it is in. Of a process that had ended by then it is what its parent sees, or the log-client; null if it is in another process id namespace, or a server did not answer |
//!
//! **threads**: one row per stream: a thread, or the part of its life in which it used one lane.
//!
//! | column | meaning |
//! |---|---|
//! | `stream` | id |
//! | `process`, `node`, `pid`, `tid` | whose |
//! | `lane`, `incarnation` | which lane of the segment, and how often it had been claimed, from 1 |
//! | `comm` | thread name |
//!
//! **files**: one row per path and node; and one more for each record (not an event) that says that a
//! handle stands for a path, so that its number in the stream is accounted for. Rows of the same `file`
//! have the same path.
//!
//! | column | meaning |
//! |---|---|
//! | `file` | id |
//! | `node` | where |
//! | `path` | absolute path; each byte that is not UTF-8 stands as `\xHH` |
//! | `path_raw` | the bytes of the path; null if `path` says it all |
//! | `stream`, `seq`, `handle` | the record that named the handle; null if an event did |
//!
//! **losses**: one row per place and time at which events were lost, or left out by the filter.
//!
//! | column | meaning |
//! |---|---|
//! | `time` | when it was noticed |
//! | `node`, `process`, `stream` | whose; process and stream are null if unknown |
//! | `place` | `lane_full`, `spool_full`, `spool_damaged`, `nested`, `no_lane`, `abi_violation`; [`FILTERED`], which is no loss |
//! | `count` | how many |
//! | `first_seq`, `last_seq` | the gap in the stream; null if the loss left none |
//!
//! **clocks**: what was applied to the times of a node, one row per straight piece of it; see [`crate::clocks`].
//!
//! | column | meaning |
//! |---|---|
//! | `time`, `node` | from when on, in merged time, and whose |
//! | `offset` | nanoseconds added to the node's time at that moment |
//! | `uncertainty` | nanoseconds: while the piece holds, merged times are at most this wrong |
//! | `round_trip` | nanoseconds: the shortest exchange that the piece rests on |
//! | `drift` | nanoseconds that the offset gains per second of the node's time |
//! | `reason` | why a new piece was begun: `first`, `exchange`, `gap`, `step` |
//! | `estimated_error` | nanoseconds: while the piece holds, the standard error of merged times, if the fastest way there takes as long as the fastest way back; null in parts that an earlier version wrote |
//!
//! **devices**: what the block devices and the mounted network file systems of a node did in an interval, by the counters of its
//! kernel; one row per device and interval. A counter is null where the kernel does not offer it. See `docs/guide/devices.md`.
//!
//! | column | meaning |
//! |---|---|
//! | `time`, `node` | end of the interval, in merged time, and whose |
//! | `interval` | nanoseconds that the counters are about |
//! | `kind` | `block`; `nfs`, `lustre`, `fuse`: a mounted file system of that kind |
//! | `device` | name of the block device, or of what is mounted |
//! | `mount` | where it is mounted; null for a block device |
//! | `reads`, `writes`, `others` | requests completed; others: discards and flushes, or requests that move no data |
//! | `read_bytes`, `write_bytes` | bytes moved |
//! | `read_time`, `write_time`, `other_time` | nanoseconds that these requests took, summed up |
//! | `reads_merged`, `writes_merged` | requests that were joined with others before they were served |
//! | `busy` | nanoseconds in which at least one request was under way |
//! | `queue_time` | integral of the number of requests under way over time, nanoseconds |
//! | `in_flight` | requests under way at `time` |
//! | `retransmits` | requests that were sent again |
//! | `boot`, `uptime` | identity of the sample: boot id of the node, and nanoseconds since that boot at `time` |

use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowDictionaryKeyType, ArrowPrimitiveType, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{
    Array as _, ArrayRef, DictionaryArray, PrimitiveArray, RecordBatch, StringArray, new_null_array,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Place of the rows of `losses` that count requests which were left out on purpose: too short, or not in the sample.
pub const FILTERED: &str = "filtered";

/// Place of the rows of `losses` that [`crate::repair`] adds: numbers that stood in files that were damaged.
pub const DAMAGED: &str = "damaged";

/// Version of the trace directory, in the manifest and in every sealed file. 2: there is a ledger; the columns are those
/// of 1.
pub const VERSION: u32 = 2;

/// How many tables there are.
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
    /// What is missing.
    Losses,
    /// Clock corrections.
    Clocks,
    /// Block devices and mounts, by interval.
    Devices,
}

impl Table {
    /// All of them, events first.
    pub const ALL: [Table; TABLES] = [
        Table::Events,
        Table::Processes,
        Table::Threads,
        Table::Files,
        Table::Losses,
        Table::Clocks,
        Table::Devices,
    ];
    /// All but events: what events refer to, written before them.
    pub const SIDE: [Table; TABLES - 1] =
        [Table::Processes, Table::Threads, Table::Files, Table::Losses, Table::Clocks, Table::Devices];

    /// The name of its folder.
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

    /// The table of this name.
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

/// Type of every time column.
#[must_use]
pub fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// Keys of the columns of names: `node`, `layer`, `op`. Wide enough for as many names as there may be events in memory; earlier
/// versions had narrower keys, and a part with more names than these could be read by nobody.
pub type NameKey = UInt32Type;

/// Columns of a table.
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

/// Names of the columns of events.
pub(crate) fn event_columns() -> impl Iterator<Item = &'static str> {
    all()[Table::Events as usize].fields().iter().map(|field| field.name().as_str())
}

/// A column of numbers, if the batch has it.
#[must_use]
pub fn column<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> Option<&'a PrimitiveArray<T>> {
    batch.column_by_name(name)?.as_primitive_opt::<T>()
}

/// A column of text, if the batch has it.
#[must_use]
pub fn text<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a StringArray> {
    batch.column_by_name(name)?.as_string_opt::<i32>()
}

/// Columns of `events`, then `path`, `path2` (null where the event has no such file) and `comm`.
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

/// Names and types of the columns of [`rows`].
pub fn row_columns() -> impl Iterator<Item = (&'static str, &'static DataType)> {
    all_rows().fields().iter().map(|field| (field.name().as_str(), field.data_type()))
}

use DataType::{Binary, Int64, UInt16, UInt32, UInt64, Utf8};

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
        col("process", UInt64),
        col("pid", UInt32),
        col("tid", UInt32),
        col("layer", name()),
        col("op", name()),
        null("file", UInt64),
        null("file2", UInt64),
        null("handle", UInt64),
        null("offset", Int64),
        null("offset2", Int64),
        null("length", Int64),
        null("arg", Int64),
        col("result", Int64),
        col("flags", UInt16),
        col("stream", UInt64),
        col("seq", UInt64),
        col("request", UInt32),
        null("enclosing", UInt32),
        null("cpu_time", Int64),
        null("caller_tid", UInt32),
        null("caller_uid", UInt32),
        null("mpi_rank", UInt32),
        null("mpi_size", UInt32),
        null("etypes", Int64),
        null("type_size", Int64),
        null("type_extent", Int64),
    ]
}

fn processes() -> Vec<Field> {
    vec![
        col("process", UInt64),
        col("node", Utf8),
        col("pid", UInt32),
        col("ppid", UInt32),
        col("uid", UInt32),
        null("rank", UInt32),
        null("job", Utf8),
        col("exe", Utf8),
        col("cmdline", Utf8),
        col("cwd", Utf8),
        col("started", time_type()),
        null("boot", Utf8),
        null("nonce", UInt64),
        null("job_system", Utf8),
        null("job_step", Utf8),
        null("user", Utf8),
        null("cgroup", Utf8),
        null("block_sizes", Utf8),
    ]
}

fn threads() -> Vec<Field> {
    vec![
        col("stream", UInt64),
        col("process", UInt64),
        col("node", Utf8),
        col("pid", UInt32),
        col("tid", UInt32),
        col("lane", UInt32),
        col("incarnation", UInt32),
        col("comm", Utf8),
    ]
}

fn files() -> Vec<Field> {
    vec![
        col("file", UInt64),
        col("node", Utf8),
        col("path", Utf8),
        null("path_raw", Binary),
        null("stream", UInt64),
        null("seq", UInt64),
        null("handle", UInt64),
    ]
}

fn losses() -> Vec<Field> {
    vec![
        col("time", time_type()),
        col("node", Utf8),
        null("process", UInt64),
        null("stream", UInt64),
        col("place", Utf8),
        col("count", UInt64),
        null("first_seq", UInt64),
        null("last_seq", UInt64),
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
        null("reads", UInt64),
        null("writes", UInt64),
        null("others", UInt64),
        null("read_bytes", UInt64),
        null("write_bytes", UInt64),
        null("read_time", UInt64),
        null("write_time", UInt64),
        null("other_time", UInt64),
        null("reads_merged", UInt64),
        null("writes_merged", UInt64),
        null("busy", UInt64),
        null("queue_time", UInt64),
        null("in_flight", UInt64),
        null("retransmits", UInt64),
        col("boot", Utf8),
        col("uptime", UInt64),
    ]
}

/// True if a table with these columns is one of this version, or of an earlier one that had fewer: columns are only
/// appended, and those that are missing may be null.
pub(crate) fn fits(table: Table, found: &Fields) -> bool {
    let all = of(table);
    let columns = all.fields().iter();
    found.len() <= columns.len()
        && columns.enumerate().all(|(at, column)| match found.get(at) {
            Some(found) => {
                found.name() == column.name()
                    && found.is_nullable() == column.is_nullable()
                    && (found.data_type() == column.data_type()
                        || (is_name(found.data_type()) && is_name(column.data_type())))
            }
            None => column.is_nullable(),
        })
}

/// True if the columns are those of this version, in all that [`complete`] would change.
pub(crate) fn is_present(table: Table, found: &Fields) -> bool {
    let all = of(table);
    let same = |(found, column): (&FieldRef, &FieldRef)| found.data_type() == column.data_type();
    found.len() == all.fields().len() && found.iter().zip(all.fields()).all(same)
}

/// Names out of a dictionary, whatever its keys.
fn is_name(found: &DataType) -> bool {
    let is_key = |key: &DataType| matches!(key, DataType::UInt8 | UInt16 | UInt32);
    matches!(found, DataType::Dictionary(key, value) if is_key(key) && **value == Utf8)
}

/// A column of names with keys as wide as they are now; any other column as it is.
fn widened(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn keys<K: ArrowDictionaryKeyType>(column: &ArrayRef) -> Option<Result<ArrayRef, ArrowError>>
    where
        K::Native: Into<u32>,
    {
        let names = column.as_dictionary_opt::<K>()?;
        let keys = names.keys();
        let wide = keys.values().iter().map(|key| (*key).into()).collect::<Vec<u32>>();
        let wide = PrimitiveArray::<NameKey>::try_new(wide.into(), keys.nulls().cloned());
        let wide = wide.and_then(|keys| DictionaryArray::try_new(keys, Arc::clone(names.values())));
        Some(wide.map(|names| Arc::new(names) as ArrayRef))
    }
    keys::<UInt8Type>(column).or_else(|| keys::<UInt16Type>(column)).unwrap_or_else(|| Ok(Arc::clone(column)))
}

/// Rows of a table with the columns that this version has: those that are missing are null, keys of names are as wide as now.
pub(crate) fn complete(table: Table, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let all = of(table);
    let rows = batch.num_rows();
    let mut columns = batch.columns().iter().map(widened).collect::<Result<Vec<_>, _>>()?;
    let missing = all.fields().iter().skip(columns.len());
    columns.extend(missing.map(|column| new_null_array(column.data_type(), rows)));
    RecordBatch::try_new(all, columns)
}

/// These columns of a batch; those that it does not have are null.
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
    use arrow_array::{ArrayRef, DictionaryArray, UInt64Array};

    #[test]
    fn tables_are_found_by_name_and_number() {
        for table in Table::ALL {
            assert_eq!(Table::from_name(table.name()), Some(table));
            assert_eq!(Table::ALL[table as usize], table);
        }
        let events = of(Table::Events);
        assert_eq!(events.fields().len(), 29);
        assert_eq!(rows().fields()[..29], events.fields()[..]);
    }

    /// Earlier versions had keys of 8 and 16 bits.
    #[test]
    fn names_with_narrower_keys_are_names() {
        let narrow = |name: &str| match name {
            "layer" => DataType::Dictionary(Box::new(DataType::UInt8), Box::new(Utf8)),
            _ => DataType::Dictionary(Box::new(UInt16), Box::new(Utf8)),
        };
        let now = of(Table::Events);
        let fields: Vec<Field> = now
            .fields()
            .iter()
            .map(|field| match is_name(field.data_type()) {
                true => field.as_ref().clone().with_data_type(narrow(field.name())),
                false => field.as_ref().clone(),
            })
            .collect();
        let fields = Fields::from(fields);
        assert!(fits(Table::Events, &fields) && !is_present(Table::Events, &fields));
        assert!(is_present(Table::Events, now.fields()));
        let other = DataType::Dictionary(Box::new(Int64), Box::new(Utf8));
        let other =
            Fields::from(vec![fields[0].as_ref().clone(), fields[1].as_ref().clone(), col("node", other)]);
        assert!(!fits(Table::Events, &other));

        let layers: ArrayRef =
            Arc::new(vec!["posix", "stdio", "posix"].into_iter().collect::<DictionaryArray<UInt8Type>>());
        let wide = widened(&layers).unwrap();
        assert_eq!(wide.data_type(), &name());
        let wide = wide.as_dictionary::<NameKey>().downcast_dict::<StringArray>().unwrap();
        assert_eq!(wide.into_iter().flatten().collect::<Vec<_>>(), ["posix", "stdio", "posix"]);
        let numbers: ArrayRef = Arc::new(UInt64Array::from(vec![1]));
        assert_eq!(widened(&numbers).unwrap().data_type(), &UInt64);
    }
}
