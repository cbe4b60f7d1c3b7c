//! Builds a new trace directory from events in any order.
//!
//! Processes, threads and files get their ids in the order in which they are first named. Events
//! are sorted by completion, through a file in the new directory if there are more than half a
//! million, and written after the last one has been added. Memory holds 64 MiB of events, 64 KiB
//! for each further half million, and all processes, threads and paths.
//!
//! A process or thread that made no request has no row.
//!
//! A builder that is dropped before [`TraceBuilder::finish`] removes everything it created.

use crate::sort::{Record, Sorter};
use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt16Array,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow_schema::ArrowError;
use miot_proto::op::{Layer, Op};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Options, Summary, Table, Writer, escape, schema};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of rows of a written batch.
const BATCH: usize = 32 << 10;

/// Reason why a trace could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace directory cannot be created or written.
    #[error(transparent)]
    Store(#[from] miot_trace_store::Error),
    /// Events cannot be sorted in the new directory.
    #[error("cannot sort the events in a file in {}: {source}; free space there, or choose another directory", dir.display())]
    Sort {
        /// The new directory.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A batch of rows could not be created.
    #[error(transparent)]
    Rows(#[from] ArrowError),
}

/// A process of the new trace, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(u64);

/// A thread of the new trace, by the id of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread(u64);

/// A file of the new trace, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(u64);

/// A row of `processes`; see [`schema`]. Unknown fields keep their default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Name of its node.
    pub node: String,
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub ppid: u32,
    /// User id.
    pub uid: u32,
    /// MPI rank.
    pub rank: Option<u32>,
    /// Job.
    pub job: Option<String>,
    /// System that assigned the id of the job.
    pub job_system: Option<String>,
    /// Name of the user.
    pub user: Option<String>,
    /// Path of the program.
    pub exe: String,
    /// Program and arguments.
    pub cmdline: String,
    /// Working directory.
    pub cwd: String,
}

/// A completed request: the columns of `events`, see [`schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Thread that made the request.
    pub thread: Thread,
    /// Layer and operation.
    pub op: Op,
    /// Begin in nanoseconds since 1970.
    pub begin: i64,
    /// Completion in nanoseconds since 1970. A value before `begin` counts as `begin`.
    pub end: i64,
    /// The file.
    pub file: Option<FileId>,
    /// The other file.
    pub file2: Option<FileId>,
    /// Number of the open file in its process.
    pub handle: Option<u64>,
    /// Byte offset.
    pub offset: Option<i64>,
    /// Byte offset in the other file.
    pub offset2: Option<i64>,
    /// Bytes requested.
    pub length: Option<i64>,
    /// Argument of the operation.
    pub arg: Option<i64>,
    /// Bytes moved or another value; a negative value is −errno.
    pub result: i64,
    /// Bits of [`miot_proto::event::flag`].
    pub flags: u16,
    /// Number from [`TraceBuilder::request`]; `None` assigns the next number when the event is
    /// added.
    pub request: Option<u32>,
    /// Number of the parent request in the same thread.
    pub enclosing: Option<u32>,
    /// CPU time of the thread at completion in nanoseconds.
    pub cpu_time: Option<i64>,
    /// Rank in the communicator of an MPI file, and its size.
    pub mpi: Option<(u32, u32)>,
}

impl Event {
    /// Returns a successful request without file and arguments, which the caller fills in.
    #[must_use]
    pub fn new(thread: Thread, op: Op, begin: i64, end: i64) -> Event {
        Event {
            thread,
            op,
            begin,
            end,
            file: None,
            file2: None,
            handle: None,
            offset: None,
            offset2: None,
            length: None,
            arg: None,
            result: 0,
            flags: 0,
            request: None,
            enclosing: None,
            cpu_time: None,
            mpi: None,
        }
    }

    /// Returns the record of the event. The words are time, arrival, begin, stream, file, file2,
    /// handle, offset, offset2, length, arg, result, CPU time; then request and enclosing; rank and
    /// size; and flags, layer, operation and a bit for each number that is present.
    fn record(&self, arrival: u64, request: u32) -> Record {
        let optional = [
            self.file.map(|file| file.0),
            self.file2.map(|file| file.0),
            self.handle,
            self.offset.map(|v| v as u64),
            self.offset2.map(|v| v as u64),
            self.length.map(|v| v as u64),
            self.arg.map(|v| v as u64),
            self.cpu_time.map(|v| v as u64),
            self.enclosing.map(u64::from),
            self.mpi.map(|(rank, size)| pair(rank, size)),
        ];
        let there = optional.iter().enumerate().fold(0, |bits, (i, v)| bits | u64::from(v.is_some()) << i);
        let [file, file2, handle, offset, offset2, length, arg, cpu_time, enclosing, mpi] =
            optional.map(|value| value.unwrap_or(0));
        let op = u64::from(self.op.layer) << 16 | u64::from(self.op.number) << 24;
        [
            self.end.max(self.begin) as u64,
            arrival,
            self.begin as u64,
            self.thread.0,
            file,
            file2,
            handle,
            offset,
            offset2,
            length,
            arg,
            self.result as u64,
            cpu_time,
            enclosing << 32 | u64::from(request),
            mpi,
            u64::from(self.flags) | op | there << 32,
        ]
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[derive(Debug)]
struct ProcessRow {
    process: Process,
    node: u16,
    started: i64,
}

#[derive(Debug)]
struct ThreadRow {
    process: usize,
    tid: u32,
    comm: String,
    requests: u32,
    /// True if the thread made a request.
    seen: bool,
    written: u64,
}

/// Builds a trace directory.
#[derive(Debug)]
pub struct TraceBuilder {
    dir: PathBuf,
    /// True if the directory was created for the trace.
    made: bool,
    writer: Option<Writer>,
    nodes: Vec<String>,
    processes: Vec<ProcessRow>,
    threads: Vec<ThreadRow>,
    files: HashMap<(u16, Box<[u8]>), u64>,
    new_files: Vec<(u64, u16, Box<[u8]>)>,
    events: Sorter,
}

impl TraceBuilder {
    /// Starts a trace in a directory that is absent or empty.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn create(dir: &Path) -> Result<TraceBuilder, Error> {
        let made = !dir.exists();
        let writer = Writer::create(dir, Options::default())?;
        Ok(TraceBuilder {
            dir: dir.to_owned(),
            made,
            writer: Some(writer),
            nodes: Vec::new(),
            processes: Vec::new(),
            threads: Vec::new(),
            files: HashMap::new(),
            new_files: Vec::new(),
            events: Sorter::new(),
        })
    }

    /// Adds a process.
    pub fn process(&mut self, process: Process) -> ProcessId {
        let node = self.node(&process.node);
        self.processes.push(ProcessRow { process, node, started: i64::MAX });
        ProcessId(self.processes.len() as u64)
    }

    /// Returns the description of a process, to complete it. Changes of its node are ignored.
    ///
    /// # Panics
    /// If the process belongs to another builder.
    pub fn process_mut(&mut self, process: ProcessId) -> &mut Process {
        &mut self.processes[process.0 as usize - 1].process
    }

    /// Adds a thread of a process.
    ///
    /// # Panics
    /// If the process belongs to another builder.
    pub fn thread(&mut self, process: ProcessId, tid: u32, comm: &str) -> Thread {
        let process = process.0 as usize - 1;
        assert!(process < self.processes.len(), "a process of this trace");
        self.threads.push(ThreadRow {
            process,
            tid,
            comm: comm.to_owned(),
            requests: 0,
            seen: false,
            written: 0,
        });
        Thread(self.threads.len() as u64)
    }

    /// Returns the file at this path on the node of a process. The same path has the same file.
    ///
    /// # Errors
    /// As [`TraceBuilder::event`].
    pub fn file(&mut self, process: ProcessId, path: &[u8]) -> Result<FileId, Error> {
        let node = self.processes[process.0 as usize - 1].node;
        // A look-up by borrowed path would need a separate key type. Paths are short and most occur
        // once.
        let key = (node, Box::from(path));
        if let Some(file) = self.files.get(&key) {
            return Ok(FileId(*file));
        }
        let file = self.files.len() as u64 + 1;
        self.new_files.push((file, node, key.1.clone()));
        self.files.insert(key, file);
        if self.new_files.len() >= BATCH {
            self.write_files()?;
        }
        Ok(FileId(file))
    }

    /// Returns the number of a thread's next request, for a request whose number is needed before
    /// it is complete because other requests run within it.
    ///
    /// # Panics
    /// If the thread belongs to another builder.
    pub fn request(&mut self, thread: Thread) -> u32 {
        let row = &mut self.threads[thread.0 as usize - 1];
        // Numbers wrap as those of recorded threads do, and are never 0.
        row.requests = row.requests.checked_add(1).unwrap_or(1);
        row.requests
    }

    /// Adds a completed request.
    ///
    /// # Errors
    /// [`Error::Sort`], [`Error::Store`].
    ///
    /// # Panics
    /// If the thread belongs to another builder.
    pub fn event(&mut self, event: &Event) -> Result<(), Error> {
        let request = event.request.unwrap_or_else(|| self.request(event.thread));
        let thread = &mut self.threads[event.thread.0 as usize - 1];
        thread.seen = true;
        let process = thread.process;
        let started = &mut self.processes[process].started;
        *started = event.begin.min(*started);
        let record = event.record(self.events.len(), request);
        self.events.push(record, &self.dir).map_err(|source| Error::Sort { dir: self.dir.clone(), source })
    }

    /// Returns the number of requests added.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.len()
    }

    /// Returns the number of files named.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Returns the number of processes that made a request.
    #[must_use]
    pub fn processes(&self) -> u64 {
        self.processes.iter().filter(|row| row.started < i64::MAX).count() as u64
    }

    /// Sorts and writes everything. `progress` is called with the number of events written since
    /// its last call.
    ///
    /// # Errors
    /// [`Error::Sort`], [`Error::Store`]. Everything created is removed, unless only the last step
    /// failed, the conversion to Parquet: then the directory contains all events and can be read.
    pub fn finish(mut self, mut progress: impl FnMut(u64)) -> Result<Summary, Error> {
        self.write_files()?;
        self.write_processes()?;
        self.write_threads()?;
        let sort = |source| Error::Sort { dir: self.dir.clone(), source };
        let mut sorted = std::mem::replace(&mut self.events, Sorter::new()).finish().map_err(sort)?;
        let mut rows = Vec::with_capacity(BATCH);
        loop {
            let next = sorted.next().map_err(|source| Error::Sort { dir: self.dir.clone(), source })?;
            let end = next.is_none();
            rows.extend(next);
            if rows.len() >= BATCH || end && !rows.is_empty() {
                let batch = self.batch(&rows)?;
                self.append(Table::Events, &batch)?;
                progress(rows.len() as u64);
                rows.clear();
            }
            if end {
                break;
            }
        }
        let Some(writer) = self.writer.take() else { return Ok(Summary::default()) };
        Ok(writer.finish()?)
    }

    fn node(&mut self, name: &str) -> u16 {
        let known = self.nodes.iter().position(|node| node == name);
        let node = known.unwrap_or_else(|| {
            // The key of the dictionary has 16 bits: further nodes are recorded as the last one.
            if self.nodes.len() <= usize::from(u16::MAX) {
                self.nodes.push(name.to_owned());
            }
            self.nodes.len() - 1
        });
        node as u16
    }

    fn append(&mut self, table: Table, batch: &RecordBatch) -> Result<(), Error> {
        if let Some(writer) = &mut self.writer {
            writer.append(table, batch)?;
            if writer.seal_due() {
                writer.seal()?;
            }
        }
        Ok(())
    }

    fn write_files(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.new_files);
        if rows.is_empty() {
            return Ok(());
        }
        let paths: Vec<_> = rows.iter().map(|(_, _, path)| escape::path(path)).collect();
        let none = || -> ArrayRef { Arc::new(UInt64Array::new_null(rows.len())) };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &self.nodes[usize::from(row.1)]))),
            Arc::new(StringArray::from_iter_values(paths.iter().map(|(text, _)| text))),
            Arc::new(BinaryArray::from_iter(paths.iter().map(|(_, raw)| *raw))),
            none(),
            none(),
            none(),
        ];
        let batch = schema::batch(Table::Files, columns)?;
        self.append(Table::Files, &batch)
    }

    fn write_processes(&mut self) -> Result<(), Error> {
        let ids = |(at, row): (usize, &ProcessRow)| (row.started < i64::MAX).then_some(at as u64 + 1);
        let ids: Vec<u64> = self.processes.iter().enumerate().filter_map(ids).collect();
        let rows: Vec<&ProcessRow> = self.processes.iter().filter(|row| row.started < i64::MAX).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let text = |of: fn(&Process) -> &str| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| of(&row.process))))
        };
        let maybe = |of: fn(&Process) -> Option<&str>| -> ArrayRef {
            Arc::new(StringArray::from_iter(rows.iter().map(|row| of(&row.process))))
        };
        let number = |of: fn(&Process) -> u32| -> ArrayRef {
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| of(&row.process))))
        };
        let schema = schema::of(Table::Processes);
        let columns = schema.fields().iter().map(|field| -> ArrayRef {
            match field.name().as_str() {
                "process" => Arc::new(UInt64Array::from(ids.clone())),
                "node" => Arc::new(StringArray::from_iter_values(
                    rows.iter().map(|row| &self.nodes[usize::from(row.node)]),
                )),
                "pid" => number(|p| p.pid),
                "ppid" => number(|p| p.ppid),
                "uid" => number(|p| p.uid),
                "rank" => Arc::new(UInt32Array::from_iter(rows.iter().map(|row| row.process.rank))),
                "job" => maybe(|p| p.job.as_deref()),
                "job_system" => maybe(|p| p.job_system.as_deref()),
                "user" => maybe(|p| p.user.as_deref()),
                "exe" => text(|p| &p.exe),
                "cmdline" => text(|p| &p.cmdline),
                "cwd" => text(|p| &p.cwd),
                "started" => Arc::new(
                    TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.started))
                        .with_timezone("UTC"),
                ),
                _ => new_null_array(field.data_type(), rows.len()),
            }
        });
        let batch = schema::batch(Table::Processes, columns.collect())?;
        self.append(Table::Processes, &batch)
    }

    fn write_threads(&mut self) -> Result<(), Error> {
        let ids = |(at, row): (usize, &ThreadRow)| row.seen.then_some(at as u64 + 1);
        let ids: Vec<u64> = self.threads.iter().enumerate().filter_map(ids).collect();
        let rows: Vec<&ThreadRow> = self.threads.iter().filter(|row| row.seen).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let process = |row: &ThreadRow| &self.processes[row.process];
        let constant = |value: u32| -> ArrayRef { Arc::new(UInt32Array::from_value(value, rows.len())) };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(ids)),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.process as u64 + 1))),
            Arc::new(StringArray::from_iter_values(
                rows.iter().map(|row| &self.nodes[usize::from(process(row).node)]),
            )),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| process(row).process.pid))),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.tid))),
            constant(0),
            constant(1),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.comm))),
        ];
        let batch = schema::batch(Table::Threads, columns)?;
        self.append(Table::Threads, &batch)
    }

    fn batch(&mut self, rows: &[Record]) -> Result<RecordBatch, ArrowError> {
        let mut nodes = StringDictionaryBuilder::<NameKey>::new();
        let mut layers = StringDictionaryBuilder::<NameKey>::new();
        let mut ops = StringDictionaryBuilder::<NameKey>::new();
        let mut thread: [Vec<u64>; 4] = std::array::from_fn(|_| Vec::with_capacity(rows.len()));
        for row in rows {
            let stream = &mut self.threads[row[3] as usize - 1];
            let process = &self.processes[stream.process];
            nodes.append(&self.nodes[usize::from(process.node)])?;
            let op = Op { layer: (row[15] >> 16) as u8, number: (row[15] >> 24) as u8 };
            match Layer::from_number(op.layer) {
                Some(layer) => layers.append(layer.name())?,
                None => layers.append(op.layer.to_string())?,
            };
            match op.name() {
                Some(name) => ops.append(name)?,
                None => ops.append(format!("{}:{}", op.layer, op.number))?,
            };
            let values = [
                stream.process as u64 + 1,
                u64::from(process.process.pid),
                u64::from(stream.tid),
                stream.written,
            ];
            thread.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
            stream.written += 1;
        }
        let [process, pid, tid, seq] = thread;
        let there = |row: &Record, bit: u32| row[15] >> (32 + bit) & 1 == 1;
        let u64s = |word: usize, bit: u32| -> ArrayRef {
            Arc::new(UInt64Array::from_iter(rows.iter().map(|row| there(row, bit).then_some(row[word]))))
        };
        let i64s = |word: usize, bit: u32| -> ArrayRef {
            Arc::new(Int64Array::from_iter(
                rows.iter().map(|row| there(row, bit).then_some(row[word] as i64)),
            ))
        };
        let halves = |word: usize, shift: u32, bit: u32| -> ArrayRef {
            let half = |row: &Record| there(row, bit).then_some((row[word] >> shift) as u32);
            Arc::new(UInt32Array::from_iter(rows.iter().map(half)))
        };
        let small = |values: Vec<u64>| -> ArrayRef {
            Arc::new(UInt32Array::from_iter_values(values.into_iter().map(|value| value as u32)))
        };
        let duration = |row: &Record| (row[0] as i64).saturating_sub(row[2] as i64);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(
                TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row[0] as i64))
                    .with_timezone("UTC"),
            ),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(duration))),
            Arc::new(nodes.finish()),
            Arc::new(UInt64Array::from(process)),
            small(pid),
            small(tid),
            Arc::new(layers.finish()),
            Arc::new(ops.finish()),
            u64s(4, 0),
            u64s(5, 1),
            u64s(6, 2),
            i64s(7, 3),
            i64s(8, 4),
            i64s(9, 5),
            i64s(10, 6),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row[11] as i64))),
            Arc::new(UInt16Array::from_iter_values(rows.iter().map(|row| row[15] as u16))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row[3]))),
            Arc::new(UInt64Array::from(seq)),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row[13] as u32))),
            halves(13, 32, 8),
            i64s(12, 7),
            Arc::new(UInt32Array::new_null(rows.len())),
            Arc::new(UInt32Array::new_null(rows.len())),
            halves(14, 0, 9),
            halves(14, 32, 9),
            Arc::new(Int64Array::new_null(rows.len())),
            Arc::new(Int64Array::new_null(rows.len())),
            Arc::new(Int64Array::new_null(rows.len())),
        ];
        schema::batch(Table::Events, columns)
    }
}

impl Drop for TraceBuilder {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        drop(writer);
        // The directory was absent or empty, so everything in it was created here. Files that
        // cannot be removed stay.
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
        if self.made {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}
