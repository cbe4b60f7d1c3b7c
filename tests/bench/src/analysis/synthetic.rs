//! A long synthetic trace of a cluster: six jobs of 24 ranks on eight nodes, each with its own way
//! of I/O, active in turns. The trace depends only on its length.

use anyhow::Result;
use arrow_array::{
    ArrayRef, DictionaryArray, Int64Array, PrimitiveArray, RecordBatch, StringArray,
    TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array, new_null_array,
};
use miot_proto::event::flag;
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Options, Table, Writer, schema};
use std::path::Path;
use std::sync::Arc;

/// Approximate minimum number of parts.
const PARTS: u64 = 60;
/// Maximum rows of a batch.
const BATCH: usize = 1 << 16;
const NODES: u64 = 8;
const JOBS: u64 = 6;
const RANKS: u64 = 24;
/// Files of each rank, and shared files of each job.
const OWN_FILES: u64 = 200;
/// 2026-01-01, nanoseconds.
const BEGIN: i64 = 1_767_225_600_000_000_000;

const LAYERS: [&str; 2] = ["posix", "mpi-io"];
const OPS: [&str; 12] = [
    "open", "close", "read", "write", "pread", "pwrite", "fsync", "stat", "unlink", "lseek", "read_at",
    "write_at",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Open,
    Close,
    Read,
    Write,
    Pread,
    Pwrite,
    Fsync,
    Stat,
    Unlink,
    Seek,
    MpiRead,
    MpiWrite,
}

/// State of a rank.
#[derive(Clone, Default)]
struct Rank {
    /// End of its last request.
    busy: i64,
    seq: u64,
    handle: u64,
    step: u64,
    offset: i64,
    file: u64,
}

struct SyntheticEvent {
    time: i64,
    duration: i64,
    rank: u64,
    op: Op,
    file: Option<u64>,
    handle: Option<u64>,
    offset: Option<i64>,
    length: Option<i64>,
    result: i64,
    seq: u64,
    enclosing: Option<u32>,
}

/// Random numbers, the same on every machine.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// Returns a duration in nanoseconds: mostly about `typical`, one in a thousand a hundred times
    /// as long.
    fn duration(&mut self, typical: u64) -> i64 {
        let spread = typical / 2 + self.below(typical) * (1 + self.below(3));
        let slow = if self.below(1000) == 0 { 100 } else { 1 };
        (spread * slow) as i64
    }
}

/// Figures of a trace that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) events: u64,
    /// Bytes moved by outermost requests.
    pub(crate) bytes: u64,
    /// Reads of the job that reads at random.
    pub(crate) random_reads: u64,
    /// First begin and last end, nanoseconds since 1970.
    begin: i64,
    end: i64,
}

impl Written {
    fn add(&mut self, row: &SyntheticEvent) {
        self.events += 1;
        self.begin = self.begin.min(row.time - row.duration);
        self.end = self.end.max(row.time);
        if row.length.is_some() && row.enclosing.is_none() {
            self.bytes += row.result.unsigned_abs();
            self.random_reads += u64::from(row.op == Op::Pread);
        }
    }

    /// Returns the nanoseconds from the first begin to the last end.
    pub(crate) fn time(&self) -> u64 {
        self.end.abs_diff(self.begin)
    }
}

/// Writes a trace with this number of events, or one more.
pub(crate) fn write(dir: &Path, events: u64) -> Result<Written> {
    let rows = events.div_ceil(PARTS);
    let options = Options { seal_rows: u64::MAX, seal_bytes: u64::MAX, ..Options::default() };
    let mut writer = Writer::create(dir, options)?;
    writer.append(Table::Processes, &processes()?)?;
    writer.append(Table::Threads, &threads()?)?;
    writer.append(Table::Files, &files()?)?;
    let mut cluster = Cluster::new();
    let (mut batch, mut sealed) = (Vec::with_capacity(BATCH), 0);
    let mut written = Written { events: 0, bytes: 0, random_reads: 0, begin: i64::MAX, end: i64::MIN };
    while written.events < events {
        let wanted = usize::try_from(rows.min(events - written.events))?.min(BATCH);
        while batch.len() < wanted {
            cluster.step(&mut batch);
        }
        writer.append(Table::Events, &columns(&batch)?)?;
        batch.drain(..).for_each(|row| written.add(&row));
        if written.events - sealed >= rows {
            writer.seal()?;
            sealed = written.events;
        }
    }
    writer.finish()?;
    Ok(written)
}

struct Cluster {
    random: Random,
    time: i64,
    ranks: Vec<Rank>,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            random: Random(fastrand::Rng::with_seed(0x6d69_6f74)),
            time: BEGIN,
            ranks: vec![Rank::default(); (JOBS * RANKS) as usize],
        }
    }

    /// Appends the next requests, in order of completion.
    #[expect(clippy::too_many_lines, reason = "one branch per kind of program, one push per column")]
    fn step(&mut self, rows: &mut Vec<SyntheticEvent>) {
        self.time += 500 + self.random.below(9_000) as i64;
        let minute = (self.time - BEGIN) / 60_000_000_000;
        // Every job is idle in some minutes.
        let mut job = self.random.below(JOBS);
        while (minute as u64 + job * 5) % 7 < job {
            job = (job + 1) % JOBS;
        }
        let within = match job {
            // Mostly the first rank of the job.
            5 if self.random.below(10) > 0 => 0,
            _ => self.random.below(RANKS),
        };
        let number = job * RANKS + within;
        let state = &mut self.ranks[number as usize];
        let own = 1 + number * OWN_FILES;
        let shared = 1 + JOBS * RANKS * OWN_FILES + job;
        let step = state.step;
        state.step += 1;
        let (op, typical, length) = match (job, step % 70) {
            // Metadata of many small files.
            (3, _) => match step % 6 {
                0 => (Op::Stat, 4_000, 0),
                1 => (Op::Open, 20_000, 0),
                2 => (Op::Read, 15_000, 512),
                3 => (Op::Close, 2_000, 0),
                4 => (Op::Stat, 3_000, 0),
                _ => (Op::Unlink, 40_000, 0),
            },
            (_, 0) => (Op::Open, 60_000, 0),
            (_, 69) => (Op::Close, 10_000, 0),
            // A file per process, sequential.
            (0, 68) => (Op::Fsync, 5_000_000, 0),
            (0, _) => (Op::Write, 400_000, 1 << 20),
            // A shared file, strided by rank, through MPI-IO.
            (1, _) => (Op::MpiWrite, 60_000, 64 << 10),
            // A shared file at random.
            (2, _) => (Op::Pread, 80_000, 4096),
            (4, n) if n % 10 == 1 => (Op::Seek, 500, 0),
            (4, _) => (Op::Read, 50_000, 128 << 10),
            // Records of varying sizes.
            (_, _) => (Op::Write, 8_000, 100 + self.random.below(400) as i64),
        };
        let another = if job == 3 { step.is_multiple_of(6) } else { op == Op::Open };
        if another {
            state.file = match job {
                1 | 2 => shared,
                _ => own + self.random.below(OWN_FILES),
            };
        }
        if op == Op::Open {
            state.handle += 1;
            state.offset = 0;
        }
        let offset = match job {
            1 => (step * RANKS + within) as i64 * length,
            2 => (self.random.below(1 << 20) * 4096) as i64,
            _ => state.offset,
        };
        let data = length > 0;
        // The last read of a file is short.
        let moved = if op == Op::Read && step % 70 == 67 { length / 3 } else { length };
        state.offset += moved;
        let (time, idle) = (self.time, (self.time - state.busy).max(1));
        let duration = self.random.duration(typical).min(idle);
        let mut row = SyntheticEvent {
            time,
            duration,
            rank: number,
            op,
            file: Some(state.file),
            handle: Some(state.handle).filter(|_| !matches!(op, Op::Stat | Op::Unlink)),
            offset: Some(offset).filter(|_| data),
            length: Some(length).filter(|_| data),
            result: if op == Op::Open { 5 } else { moved },
            seq: state.seq,
            enclosing: None,
        };
        // One in five hundred fails.
        if matches!(op, Op::Stat | Op::Unlink) && self.random.below(500) == 0 {
            row.result = -2;
        }
        state.seq += 1;
        if matches!(op, Op::MpiRead | Op::MpiWrite) {
            let inner = if op == Op::MpiRead { Op::Pread } else { Op::Pwrite };
            let within = SyntheticEvent {
                op: inner,
                seq: state.seq,
                enclosing: Some(row.seq as u32 + 1),
                time: time - 1,
                duration: duration * 9 / 10,
                ..row
            };
            state.seq += 1;
            rows.push(within);
        }
        state.busy = time;
        rows.push(row);
    }
}

fn of_rank(rank: u64) -> (u64, u64, u64) {
    (rank / RANKS, rank % RANKS, rank % NODES)
}

/// Creates a batch whose columns come from `of` by name and type, or are null.
fn batch(table: Table, rows: usize, of: impl Fn(&str) -> Option<ArrayRef>) -> Result<RecordBatch> {
    let schema = schema::of(table);
    let columns = schema.fields().iter();
    let columns =
        columns.map(|field| of(field.name()).unwrap_or_else(|| new_null_array(field.data_type(), rows)));
    Ok(schema::batch(table, columns.collect())?)
}

fn text(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn processes() -> Result<RecordBatch> {
    let ranks = 0..JOBS * RANKS;
    let numbers =
        |of: fn(u64) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(ranks.clone().map(of))) };
    batch(Table::Processes, ranks.clone().count(), |name| {
        let words = |of: fn(u64) -> String| Some(text(ranks.clone().map(of)));
        match name {
            "process" => Some(Arc::new(UInt64Array::from_iter_values(ranks.clone().map(|rank| rank + 1)))),
            "node" => words(|rank| format!("node{}", of_rank(rank).2)),
            "pid" => Some(numbers(|rank| 1000 + rank as u32)),
            "ppid" => Some(numbers(|_| 1)),
            "uid" => Some(numbers(|rank| 1000 + of_rank(rank).0 as u32)),
            "rank" => Some(numbers(|rank| of_rank(rank).1 as u32)),
            "job" => words(|rank| format!("{}", 4700 + of_rank(rank).0)),
            "job_system" => words(|_| "slurm".into()),
            "user" => words(|rank| format!("user{}", of_rank(rank).0)),
            "exe" => words(|rank| format!("/opt/apps/app{}", of_rank(rank).0)),
            "cmdline" => words(|rank| format!("app{} -i input", of_rank(rank).0)),
            "cwd" => words(|_| "/scratch".into()),
            "started" => {
                let times = ranks.clone().map(|_| BEGIN);
                Some(Arc::new(TimestampNanosecondArray::from_iter_values(times).with_timezone("UTC")))
            }
            _ => None,
        }
    })
}

fn threads() -> Result<RecordBatch> {
    let ranks = 0..JOBS * RANKS;
    batch(Table::Threads, ranks.clone().count(), |name| {
        let numbers = |of: fn(u64) -> u32| -> Option<ArrayRef> {
            Some(Arc::new(UInt32Array::from_iter_values(ranks.clone().map(of))))
        };
        match name {
            "stream" | "process" => {
                Some(Arc::new(UInt64Array::from_iter_values(ranks.clone().map(|rank| rank + 1))))
            }
            "node" => Some(text(ranks.clone().map(|rank| format!("node{}", of_rank(rank).2)))),
            "pid" | "tid" => numbers(|rank| 1000 + rank as u32),
            "lane" => numbers(|_| 0),
            "incarnation" => numbers(|_| 1),
            "comm" => Some(text(ranks.clone().map(|rank| format!("app{}", of_rank(rank).0)))),
            _ => None,
        }
    })
}

fn files() -> Result<RecordBatch> {
    let own = JOBS * RANKS * OWN_FILES;
    let all = 0..own + JOBS;
    batch(Table::Files, all.clone().count(), |name| match name {
        "file" => Some(Arc::new(UInt64Array::from_iter_values(all.clone().map(|file| file + 1)))),
        "node" => Some(text(all.clone().map(|file| format!("node{}", of_rank(file / OWN_FILES).2)))),
        "path" => Some(text(all.clone().map(|file| match file.checked_sub(own) {
            Some(job) => format!("/scratch/job{job}/shared"),
            None => {
                let (job, rank, _) = of_rank(file / OWN_FILES);
                format!("/scratch/job{job}/rank{rank}/data-{}", file % OWN_FILES)
            }
        }))),
        _ => None,
    })
}

fn columns(rows: &[SyntheticEvent]) -> Result<RecordBatch> {
    fn all<T: arrow_array::ArrowPrimitiveType>(
        rows: &[SyntheticEvent],
        of: impl Fn(&SyntheticEvent) -> T::Native,
    ) -> Option<ArrayRef> {
        Some(Arc::new(PrimitiveArray::<T>::from_iter_values(rows.iter().map(of))))
    }
    fn numbers(rows: &[SyntheticEvent], of: impl Fn(&SyntheticEvent) -> Option<i64>) -> Option<ArrayRef> {
        Some(Arc::new(rows.iter().map(of).collect::<Int64Array>()))
    }
    let is_mpi = |row: &SyntheticEvent| matches!(row.op, Op::MpiRead | Op::MpiWrite);
    let layers = rows.iter().map(|row| i32::from(is_mpi(row)));
    let layers = DictionaryArray::<NameKey>::try_new(
        PrimitiveArray::from_iter_values(layers),
        Arc::new(StringArray::from(LAYERS.to_vec())),
    )?;
    let ops = DictionaryArray::<NameKey>::try_new(
        PrimitiveArray::from_iter_values(rows.iter().map(|row| row.op as i32)),
        Arc::new(StringArray::from(OPS.to_vec())),
    )?;
    let names: Vec<String> = (0..NODES).map(|node| format!("node{node}")).collect();
    let nodes = DictionaryArray::<NameKey>::try_new(
        PrimitiveArray::from_iter_values(rows.iter().map(|row| of_rank(row.rank).2 as i32)),
        Arc::new(StringArray::from(names)),
    )?;
    use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
    batch(Table::Events, rows.len(), |name| match name {
        "time" => {
            let times = rows.iter().map(|row| row.time);
            Some(Arc::new(TimestampNanosecondArray::from_iter_values(times).with_timezone("UTC")))
        }
        "duration" => all::<Int64Type>(rows, |row| row.duration),
        "node" => Some(Arc::new(nodes.clone())),
        "process" | "stream" => all::<UInt64Type>(rows, |row| row.rank + 1),
        "pid" | "tid" => all::<UInt32Type>(rows, |row| 1000 + row.rank as u32),
        "layer" => Some(Arc::new(layers.clone())),
        "op" => Some(Arc::new(ops.clone())),
        "file" => Some(Arc::new(rows.iter().map(|row| row.file).collect::<UInt64Array>())),
        "handle" => Some(Arc::new(rows.iter().map(|row| row.handle).collect::<UInt64Array>())),
        "offset" => numbers(rows, |row| row.offset),
        "length" => numbers(rows, |row| row.length),
        "result" => all::<Int64Type>(rows, |row| row.result),
        "flags" => Some(Arc::new(UInt16Array::from_iter_values(
            rows.iter().map(|row| if row.op == Op::Read { flag::OFFSET_QUERIED } else { 0 }),
        ))),
        "seq" => all::<UInt64Type>(rows, |row| row.seq),
        "request" => all::<UInt32Type>(rows, |row| row.seq as u32 + 1),
        "enclosing" => Some(Arc::new(rows.iter().map(|row| row.enclosing).collect::<UInt32Array>())),
        _ => None,
    })
}
