//! Import of Darshan DXT text, the output of `darshan-dxt-parser`.
//!
//! ```text
//! # exe: /path/program arguments
//! # uid: 1000
//! # jobid: 42
//! # start_time: 1700000000    # start_time_asci: …; later versions: start_time: 1700000000.123
//! # nprocs: 4
//! # DXT, file_id: 7, file_name: /data/x
//! # DXT, rank: 0, hostname: n17
//! # DXT, write_count: 2, read_count: 0
//! # DXT, mnt_pt: /data, fs_type: lustre
//! # Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s) [OST]
//!  X_POSIX       0  write        0               0       262144      0.0029      0.0032  [3]
//! ```
//!
//! Source: darshan-util, `darshan-dxt-parser.c` and `darshan-dxt-logutils.c`. Each rank becomes a
//! process on the node that its records name. Its process id is its rank, because DXT does not
//! contain process ids. A request of `X_POSIX` becomes `pread` or `pwrite` of layer `posix`, a
//! request of `X_MPIIO` becomes `read_at` or `write_at` of `mpi-io`: DXT does not identify the
//! call, and records an offset for every request. All requested bytes count as moved, because DXT
//! records the bytes moved.
//!
//! DXT does not record which POSIX request was made within which MPI-IO request. The parent of a
//! POSIX request is the MPI-IO request of the same rank and file whose time contains it; without
//! a parent, its bytes would count twice. The requests of a log are kept until its end for this,
//! because the records of the two modules follow each other.

use crate::import::{BadLine, Error, OnError, Report, read_line, shown};
use crate::{Event, FileId, Process, ProcessId, Thread, TraceBuilder};
use miot_proto::op::{Op, mpi_io, posix};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

/// Returns true if this looks like DXT text.
#[must_use]
pub fn detect(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        line.starts_with(b"# DXT, ")
            || line.starts_with(b"# darshan log version")
            || line.starts_with(b" X_POSIX")
    })
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    process: ProcessId,
    thread: Thread,
}

/// A request of the log.
#[derive(Clone, Copy, Debug)]
struct DataRequest {
    thread: Thread,
    file: FileId,
    /// Nanoseconds since 1970.
    begin: i64,
    end: i64,
    offset: Option<i64>,
    length: i64,
    is_write: bool,
    is_mpi: bool,
}

impl DataRequest {
    fn event(&self) -> Event {
        let op: Op = match (self.is_mpi, self.is_write) {
            (false, false) => posix::PREAD,
            (false, true) => posix::PWRITE,
            (true, false) => mpi_io::READ_AT,
            (true, true) => mpi_io::WRITE_AT,
        };
        Event {
            file: Some(self.file),
            offset: self.offset,
            length: Some(self.length),
            result: self.length,
            ..Event::new(self.thread, op, self.begin, self.end)
        }
    }

    fn overlaps(&self, other: &DataRequest) -> bool {
        let (Some(one), Some(two)) = (self.offset, other.offset) else { return false };
        one < two.saturating_add(other.length) && two < one.saturating_add(self.length)
    }
}

/// An MPI-IO request that may have made POSIX requests.
#[derive(Clone, Copy, Debug)]
struct Parent {
    request: DataRequest,
    number: u32,
    /// Latest end of this request and of those before it.
    latest_end: i64,
}

/// MPI-IO requests that are compared with a POSIX request. Times have four digits, so short
/// requests have the same begin and end.
const CANDIDATES: usize = 1024;

/// The MPI-IO requests of a log, by rank and file, in order of begin.
#[derive(Debug, Default)]
struct Parents(HashMap<(Thread, FileId), Vec<Parent>>);

impl Parents {
    /// Adds a request of MPI-IO; requests must come in order of begin.
    fn add(&mut self, request: DataRequest, number: u32) {
        let of_file = self.0.entry((request.thread, request.file)).or_default();
        let latest_end = of_file.last().map_or(request.end, |last| last.latest_end.max(request.end));
        of_file.push(Parent { request, number, latest_end });
    }

    /// Returns the number of the request whose time contains that of a POSIX request: preferably
    /// one that moves the same bytes, else the one that began last. A read may write nothing.
    fn of(&self, inner: &DataRequest) -> Option<u32> {
        let of_file = self.0.get(&(inner.thread, inner.file))?;
        let begun = of_file.partition_point(|parent| parent.request.begin <= inner.begin);
        let before = of_file[..begun].iter().rev().take(CANDIDATES);
        let contain = before
            .take_while(|parent| parent.latest_end >= inner.end)
            .filter(|parent| parent.request.end >= inner.end && (parent.request.is_write || !inner.is_write));
        let is_same =
            |parent: &&Parent| parent.request.is_write == inner.is_write && parent.request.overlaps(inner);
        let best = contain.clone().find(is_same).or_else(|| contain.clone().next())?;
        Some(best.number)
    }
}

/// An import in progress: it reads lines and adds events to the builder.
#[derive(Debug)]
pub struct Import<'a> {
    builder: &'a mut TraceBuilder,
    on_error: OnError,
    report: Report,
    job: Job,
    ranks: HashMap<(u32, String), Rank>,
    record: Record,
    requests: Vec<DataRequest>,
}

#[derive(Debug, Default)]
struct Job {
    exe: String,
    uid: u32,
    id: Option<String>,
    /// Start time in nanoseconds since 1970.
    start: Option<i64>,
    processes: Option<u32>,
}

/// The record to which the next lines belong.
#[derive(Debug, Default)]
struct Record {
    path: Option<Vec<u8>>,
    rank: Option<u32>,
    host: String,
    of: Option<(Rank, FileId)>,
    /// Reads and writes that the record header announces, and those found.
    counts: Option<([u64; 2], [u64; 2])>,
}

/// Imports files into a trace. `progress` is called with the size of each line in bytes.
///
/// # Errors
/// [`Error`].
pub fn import(
    files: &[PathBuf],
    builder: &mut TraceBuilder,
    on_error: OnError,
    mut progress: impl FnMut(u64),
) -> Result<Report, Error> {
    let mut import = Import::new(builder, on_error);
    for path in files {
        let read = |source| Error::Read { path: path.clone(), source };
        let from = BufReader::with_capacity(1 << 20, File::open(path).map_err(read)?);
        import.file(&path.display().to_string(), from, read, &mut progress)?;
    }
    import.finish()
}

impl<'a> Import<'a> {
    /// Starts an import.
    pub fn new(builder: &'a mut TraceBuilder, on_error: OnError) -> Import<'a> {
        Import {
            builder,
            on_error,
            report: Report::default(),
            job: Job::default(),
            ranks: HashMap::new(),
            record: Record::default(),
            requests: Vec::new(),
        }
    }

    fn file(
        &mut self,
        name: &str,
        mut from: impl BufRead,
        failed: impl Fn(std::io::Error) -> Error,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), Error> {
        (self.job, self.record) = (Job::default(), Record::default());
        self.ranks.clear();
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            let taken = read_line(&mut from, &mut line).map_err(&failed)?;
            if taken == 0 {
                break;
            }
            number += 1;
            self.line(name, number, &line)?;
            progress(taken as u64);
        }
        self.end_of_record();
        self.end_of_log()
    }

    /// Gives the requests of a log to the builder.
    fn end_of_log(&mut self) -> Result<(), Error> {
        let mut requests = std::mem::take(&mut self.requests);
        requests.sort_by_key(|request| (request.is_mpi, request.is_mpi.then_some(request.begin)));
        let (of_posix, of_mpi) = requests.split_at(requests.partition_point(|request| !request.is_mpi));
        let mut parents = Parents::default();
        let numbers: Vec<u32> = of_mpi.iter().map(|request| self.builder.request(request.thread)).collect();
        of_mpi.iter().zip(&numbers).for_each(|(request, number)| parents.add(*request, *number));
        // A parent comes after its children, also where both end at the same time.
        for request in of_posix {
            self.builder.event(&Event { enclosing: parents.of(request), ..request.event() })?;
        }
        for (request, number) in of_mpi.iter().zip(numbers) {
            self.builder.event(&Event { request: Some(number), ..request.event() })?;
        }
        Ok(())
    }

    /// Processes a line.
    ///
    /// # Errors
    /// [`Error::Line`], if invalid lines abort the import; [`Error::Build`].
    pub fn line(&mut self, file: &str, number: u64, line: &[u8]) -> Result<(), Error> {
        self.report.lines += 1;
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        let taken = match text.strip_prefix(b"#") {
            Some(header) => self.header(header.trim_ascii()),
            None if text.trim_ascii().is_empty() => Ok(()),
            None => match self.segment(text) {
                Ok(request) => {
                    self.requests.push(request);
                    return Ok(());
                }
                Err(Segment::Build(error)) => return Err(error.into()),
                Err(Segment::Refused(why)) => Err(why),
            },
        };
        match taken {
            Ok(()) => Ok(()),
            Err(why) => {
                let bad = || BadLine { file: file.to_owned(), line: number, why, text: shown(line) };
                self.report.bad(self.on_error, bad)
            }
        }
    }

    /// Ends the import.
    ///
    /// # Errors
    /// [`Error::Build`].
    pub fn finish(mut self) -> Result<Report, Error> {
        self.end_of_record();
        self.end_of_log()?;
        Ok(self.report)
    }

    fn header(&mut self, header: &[u8]) -> Result<(), &'static str> {
        if let Some(fields) = header.strip_prefix(b"DXT, ") {
            return self.record_header(fields);
        }
        let Some(colon) = header.windows(2).position(|two| two == b": ") else { return Ok(()) };
        let (key, value) = (&header[..colon], header[colon + 2..].trim_ascii());
        let text = || String::from_utf8_lossy(value).into_owned();
        match key {
            b"exe" => self.job.exe = text(),
            b"uid" => self.job.uid = number(value).ok_or("no user id")?,
            b"jobid" => self.job.id = Some(text()),
            b"nprocs" => self.job.processes = Some(number(value).ok_or("no number of processes")?),
            b"start_time" => {
                self.job.start = Some(nanoseconds(value).ok_or("no time in seconds since 1970")?)
            }
            _ => {}
        }
        Ok(())
    }

    fn record_header(&mut self, fields: &[u8]) -> Result<(), &'static str> {
        if fields.starts_with(b"file_id: ") {
            self.end_of_record();
            let at = fields.windows(13).position(|word| word == b", file_name: ").ok_or("no file name")?;
            self.record.path = Some(fields[at + 13..].to_vec());
        } else if let Some(rest) = fields.strip_prefix(b"rank: ") {
            let at = rest.windows(12).position(|word| word == b", hostname: ").ok_or("no hostname")?;
            self.record.rank = Some(number(&rest[..at]).ok_or("no rank")?);
            self.record.host = String::from_utf8_lossy(rest[at + 12..].trim_ascii()).into_owned();
            self.record.of = None;
        } else if let Some(rest) = fields.strip_prefix(b"write_count: ") {
            let at = rest.windows(14).position(|word| word == b", read_count: ").ok_or("no read count")?;
            let counts = [number(rest[at + 14..].trim_ascii()), number(&rest[..at])];
            let [Some(reads), Some(writes)] = counts else { return Err("no counts of reads and writes") };
            self.record.counts = Some(([reads, writes], [0, 0]));
        }
        Ok(())
    }

    /// Ends a record. If it has another number of segments than announced, some were lost.
    fn end_of_record(&mut self) {
        if let Some((told, found)) = self.record.counts
            && told != found
        {
            self.report.note("records with another number of requests than they say");
        }
        self.record = Record::default();
    }

    fn segment(&mut self, line: &[u8]) -> Result<DataRequest, Segment> {
        let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let mut next = || {
            words.next().ok_or(Segment::Refused("a request has eight columns: module, rank, write or read, segment, offset, length, start, end"))
        };
        let (module, rank, direction, _segment) = (next()?, next()?, next()?, next()?);
        let (offset, length, start, end) = (next()?, next()?, next()?, next()?);
        let refused = Segment::Refused;
        let write = match direction {
            b"write" => true,
            b"read" => false,
            _ => return Err(refused("neither write nor read")),
        };
        let is_mpi = match module {
            b"X_POSIX" => false,
            b"X_MPIIO" => true,
            _ => return Err(refused("a module that is neither X_POSIX nor X_MPIIO")),
        };
        let rank: u32 = number(rank).ok_or(refused("no rank"))?;
        if self.record.rank.is_some_and(|of_record| of_record != rank) {
            return Err(refused("another rank than that of its record"));
        }
        // Some MPI-IO requests have no offset.
        let offset: i64 = number(offset).ok_or(refused("no offset"))?;
        let length: i64 = number(length).filter(|length| *length >= 0).ok_or(refused("no length"))?;
        let [Some(start), Some(end)] = [nanoseconds(start), nanoseconds(end)] else {
            return Err(refused("no start and end in seconds"));
        };
        let base = self.job.start.ok_or(refused("no `# start_time: ` before the first request"))?;
        let (of_rank, file) = self.whose(rank)?;
        if let Some((_, found)) = &mut self.record.counts {
            found[usize::from(write)] += 1;
        }
        let begin = base.saturating_add(start);
        Ok(DataRequest {
            thread: of_rank.thread,
            file,
            begin,
            end: base.saturating_add(end).max(begin),
            offset: (offset >= 0).then_some(offset),
            length,
            is_write: write,
            is_mpi,
        })
    }

    fn whose(&mut self, rank: u32) -> Result<(Rank, FileId), Segment> {
        if let Some(of) = self.record.of {
            return Ok(of);
        }
        let Some(path) = &self.record.path else {
            return Err(Segment::Refused("no `# DXT, file_id: …, file_name: …` before it"));
        };
        let host = if self.record.host.is_empty() { "unknown".to_owned() } else { self.record.host.clone() };
        let (builder, job) = (&mut *self.builder, &self.job);
        let of_rank = *self.ranks.entry((rank, host)).or_insert_with_key(|(rank, host)| {
            let program = job.exe.split(' ').next().unwrap_or_default();
            let process = builder.process(Process {
                node: host.clone(),
                pid: *rank,
                uid: job.uid,
                rank: Some(*rank),
                job: job.id.clone(),
                job_system: job.id.is_some().then(|| "darshan".to_owned()),
                exe: program.to_owned(),
                cmdline: job.exe.clone(),
                ..Process::default()
            });
            let comm = program.rsplit('/').next().unwrap_or_default();
            Rank { process, thread: builder.thread(process, *rank, comm) }
        });
        let file = self.builder.file(of_rank.process, path).map_err(Segment::Build)?;
        self.record.of = Some((of_rank, file));
        Ok((of_rank, file))
    }
}

/// Reason why a request was not imported.
enum Segment {
    Refused(&'static str),
    Build(crate::build::Error),
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Parses decimal seconds, also negative ones, as nanoseconds. Exact, unlike a float of this size.
fn nanoseconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let good = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !good(whole) || !good(fraction) {
        return None;
    }
    let padded = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let fraction = padded.fold(0_i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let value = whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)?;
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn seconds_are_exact() {
        assert_eq!(nanoseconds(b"1700000000"), Some(1_700_000_000_000_000_000));
        assert_eq!(nanoseconds(b"0.0029"), Some(2_900_000));
        assert_eq!(nanoseconds(b"-0.5"), Some(-500_000_000));
        assert_eq!(nanoseconds(b"1700000000.123456789123"), Some(1_700_000_000_123_456_789));
        for bad in ["", ".", "1e3", "x", "1.-2", "99999999999"] {
            assert_eq!(nanoseconds(bad.as_bytes()), None, "{bad}");
        }
    }
}
