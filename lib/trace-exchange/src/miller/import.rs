//! Converts records to events of MIOT.
//!
//! A process of the trace becomes a process with one thread. Logical records become requests of the
//! layer `posix` (`read`, `write`, and `aio_read`, `aio_write` where the process did not wait).
//! Physical records become requests of the layer `block`, whose handle is the disk. Each request is
//! assumed to move all requested bytes, because the format does not record the bytes moved.
//! `request` is the operation, `enclosing` the operation of physical records. `arg` is the record
//! type, with bit 0x100 if it does not describe the cache. `cpu_time` is the sum of processTime,
//! where that is CPU time.

use super::export::NO_CACHE_FLAGS;
use super::reader::{Base, Damage, ReadError, Reader};
use super::{BLOCK, Item, Record, TICK, comment};
use crate::build::{self, Event, FileId, Process, ProcessId, Thread, TraceBuilder};
use miot_proto::event::flag;
use miot_proto::op::{Layer, Op, client, posix};
use std::collections::HashMap;
use std::io::BufRead;

/// Properties that a trace may not contain.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nanoseconds since 1970 at tick 0, unless a comment defines it.
    pub epoch: i64,
    /// Node of processes for which no comment names one.
    pub node: String,
    /// Base of the numbers in comments that MIOT wrote.
    pub base: Base,
}

/// Reason why the import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line is damaged and the import must not skip it; or the text cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The new trace cannot be written.
    #[error(transparent)]
    Build(#[from] build::Error),
}

/// State of a process of the trace.
#[derive(Debug)]
struct ProcessState {
    process: ProcessId,
    thread: Thread,
    has_cpu: bool,
    /// CPU time in nanoseconds.
    cpu: i64,
}

/// Files by process, kind and number.
type FileKey = (u64, bool, u64);

/// An import in progress.
#[derive(Debug)]
struct Import<'a> {
    to: &'a mut TraceBuilder,
    options: Options,
    cache_flags: bool,
    processes: HashMap<u64, ProcessState>,
    /// Data from comments about processes without a record so far: node, program, whether
    /// processTime is CPU time.
    announced: HashMap<u64, (String, String, bool)>,
    files: HashMap<FileKey, FileId>,
    /// Paths of files whose process has no record so far.
    paths: HashMap<FileKey, Vec<u8>>,
    earlier: u64,
}

/// Adds the records of a trace to a new one. `damaged` is called with the number of each damaged
/// line, and returns whether to continue without it.
///
/// # Errors
/// [`ImportError`].
pub fn import<R: BufRead>(
    from: &mut Reader<R>,
    to: &mut TraceBuilder,
    options: Options,
    mut damaged: impl FnMut(u64, &Damage) -> bool,
) -> Result<(), ImportError> {
    let mut import = Import {
        to,
        options,
        cache_flags: true,
        processes: HashMap::new(),
        announced: HashMap::new(),
        files: HashMap::new(),
        paths: HashMap::new(),
        earlier: 0,
    };
    while let Some(item) = from.next() {
        let taken = match item {
            Ok(Item::Comment(text)) => {
                import.comment(&String::from_utf8_lossy(&text));
                continue;
            }
            Ok(Item::Record(record)) => match import.event(&record)? {
                Ok(event) => {
                    import.to.event(&event)?;
                    continue;
                }
                Err(damage) => Err(ReadError::Damaged { line: from.line(), damage }),
            },
            Err(error) => Err(error),
        };
        match taken {
            Err(ReadError::Damaged { line, damage }) if damaged(line, &damage) => {}
            taken => taken?,
        }
    }
    Ok(())
}

impl Import<'_> {
    /// Applies a comment that MIOT wrote.
    fn comment(&mut self, text: &str) {
        let word = |key: &str| comment::value(text, key);
        let radix = if self.options.base == Base::Hexadecimal { 16 } else { 10 };
        let id = |key: &str| word(key).and_then(|id| u64::from_str_radix(id, radix).ok());
        if let Some(epoch) = word(comment::EPOCH).and_then(|epoch| epoch.parse().ok()) {
            self.options.epoch = epoch;
        }
        if let Some(flags) = word(comment::CACHE_FLAGS) {
            self.cache_flags = flags != "absent";
        }
        if let Some(ticks) = word(comment::EARLIER).and_then(|ticks| ticks.parse().ok()) {
            self.earlier = ticks;
        }
        let Some(process) = id(comment::PROCESS) else { return };
        if let (Some(file), Some(path)) = (id(comment::FILE), word("path")) {
            let key = (process, word("physical").is_none(), file);
            self.paths.insert(key, comment::bytes(path));
        } else {
            let text = |key: &str| Some(String::from_utf8_lossy(&comment::bytes(word(key)?)).into_owned());
            let node = text("node").unwrap_or_else(|| self.options.node.clone());
            let has_cpu = word("processtime").is_none_or(|source| source == "cpu");
            self.announced.insert(process, (node, text("program").unwrap_or_default(), has_cpu));
        }
    }

    fn event(&mut self, record: &Record) -> Result<Result<Event, Damage>, ImportError> {
        let earlier = std::mem::take(&mut self.earlier);
        let numbers = Numbers::of(record, earlier, self.options.epoch);
        let numbers = match numbers {
            Ok(numbers) => numbers,
            Err(damage) => return Ok(Err(damage)),
        };
        let logical = record.kind.is_logical();
        let of = self.processes.entry(record.process).or_insert_with(|| {
            let (node, program, has_cpu) = self
                .announced
                .remove(&record.process)
                .unwrap_or_else(|| (self.options.node.clone(), String::new(), true));
            let process = self.to.process(Process {
                node,
                pid: numbers.process,
                cmdline: program.clone(),
                exe: program,
                ..Process::default()
            });
            ProcessState { process, thread: self.to.thread(process, numbers.process, ""), has_cpu, cpu: 0 }
        });
        if logical {
            let ticks = i64::try_from(record.process_time).unwrap_or(i64::MAX);
            of.cpu = of.cpu.saturating_add(ticks.saturating_mul(TICK as i64));
        }
        let key = (record.process, logical, record.file);
        let file = match (self.paths.remove(&key), self.files.get(&key)) {
            (None, Some(file)) => *file,
            (path, _) => {
                let path = path.unwrap_or_else(|| match logical {
                    true => format!("/process-{:X}/file-{:X}", record.process, record.file).into(),
                    false => format!("/disk-{:X}", record.file).into(),
                });
                let file = self.to.file(of.process, &path)?;
                self.files.insert(key, file);
                file
            }
        };
        let kind = record.kind;
        let op = match (logical, kind.is_write(), kind.is_async()) {
            (true, false, false) => posix::READ,
            (true, true, false) => posix::WRITE,
            (true, false, true) => posix::AIO_READ,
            (true, true, true) => posix::AIO_WRITE,
            (false, false, _) => Op { layer: Layer::Block as u8, ..client::READ },
            (false, true, _) => Op { layer: Layer::Block as u8, ..client::WRITE },
        };
        Ok(Ok(Event {
            file: Some(file),
            handle: Some(record.file),
            offset: Some(numbers.offset),
            length: Some(numbers.length),
            result: numbers.length,
            arg: Some(i64::from(kind.bits()) | if self.cache_flags { 0 } else { NO_CACHE_FLAGS }),
            flags: if kind.is_async() { flag::ASYNC } else { 0 },
            // Physical requests are within others, and no request is within them.
            request: Some(if logical { numbers.operation } else { 0 }),
            enclosing: Some(numbers.operation).filter(|operation| !logical && *operation != 0),
            cpu_time: (logical && of.has_cpu).then_some(of.cpu),
            ..Event::new(of.thread, op, numbers.begin, numbers.end)
        }))
    }
}

/// Numbers of a record in the units of MIOT's columns.
struct Numbers {
    begin: i64,
    end: i64,
    offset: i64,
    length: i64,
    operation: u32,
    process: u32,
}

impl Numbers {
    fn of(record: &Record, earlier: u64, epoch: i64) -> Result<Numbers, Damage> {
        let time = |ticks: Option<u64>| {
            let since = i64::try_from(ticks?).ok()?.checked_mul(TICK as i64)?;
            epoch.checked_add(since)
        };
        let moved = i64::try_from(earlier).ok().and_then(|ticks| ticks.checked_mul(TICK as i64));
        let begin = time(Some(record.start)).zip(moved).and_then(|(begin, moved)| begin.checked_sub(moved));
        let unit = if record.kind.is_logical() { 1 } else { BLOCK };
        let bytes = |number: u64| number.checked_mul(unit).and_then(|bytes| i64::try_from(bytes).ok());
        Ok(Numbers {
            begin: begin.ok_or(Damage::TooLarge("the start time, in nanoseconds since 1970,"))?,
            end: time(record.start.checked_add(record.took))
                .ok_or(Damage::TooLarge("the completion time, in nanoseconds since 1970,"))?,
            offset: bytes(record.offset).ok_or(Damage::TooLarge("the offset, in bytes,"))?,
            length: bytes(record.length).ok_or(Damage::TooLarge("the length, in bytes,"))?,
            operation: record.operation.try_into().map_err(|_| Damage::TooWide("operation"))?,
            process: record.process.try_into().map_err(|_| Damage::TooWide("process"))?,
        })
    }
}
