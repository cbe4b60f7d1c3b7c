//! One process of a measurement: prepares, waits for the others, accesses, waits again, and
//! verifies.

use crate::bench_file::BenchFile;
use crate::comm::{ConnectionLost, RankLink};
use crate::content::{ALIGNMENT, Compare, Content, Mismatch};
use crate::mpi::SharedFile;
use crate::pattern::{Extent, Pattern, PatternError};
use crate::rng::PositionRng;
use crate::suite::{Cache, Interface, Operation, Pause, Run, Sync, Verify};
use crate::times::RankTimestamps;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// First message of the coordinator to each rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankJob {
    /// Number of ranks.
    pub processes: u64,
    /// Path of the directory in which files are created.
    pub directory: Vec<u8>,
}

/// Result of one repetition of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// Timestamps.
    pub timestamps: RankTimestamps,
    /// Bytes read within T.
    pub read: u64,
    /// Bytes written within T.
    pub written: u64,
    /// Calls that moved them.
    pub calls: u64,
}

/// Message of the coordinator before each repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RankCommand {
    /// Measure one repetition.
    Measure {
        /// The [`Run`], in TOML.
        run: String,
        /// Phase of the run, from 0.
        phase: u64,
    },
    /// End the process.
    End,
}

/// Why a rank cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// See [`ConnectionLost`].
    #[error(transparent)]
    ConnectionLost(#[from] ConnectionLost),
    /// The pattern is invalid.
    #[error(transparent)]
    PatternError(#[from] PatternError),
    /// A system call failed.
    #[error("rank {rank}: cannot {action} {}: {source}", path.display())]
    Io {
        /// Number of the rank.
        rank: u64,
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file does not contain what was written.
    #[error(
        "rank {rank}: {} does not contain what was written: at offset {} found {:#04x}, expected {:#04x}",
        path.display(), mismatch.offset, mismatch.found, mismatch.expected
    )]
    Content {
        /// Number of the rank.
        rank: u64,
        /// The file.
        path: PathBuf,
        /// The first wrong byte.
        mismatch: Mismatch,
    },
}

/// Result of a step, as a rank reports it to the coordinator.
pub type StepResult<T> = Result<T, String>;

/// Executes the commands of the coordinator until [`RankCommand::End`].
///
/// # Errors
/// [`RankError`]. The coordinator has received its text, unless the connection is lost.
pub fn serve(mut link: RankLink) -> Result<(), RankError> {
    let job: RankJob = link.receive()?;
    loop {
        match link.receive::<RankCommand>()? {
            RankCommand::End => return Ok(()),
            RankCommand::Measure { run, phase } => {
                let run = toml::from_str(&run)
                    .map_err(|error| ConnectionLost::Coordinator(io::Error::other(error)))?;
                Measurement::new(&link, &job, &run, phase)?.measure(&mut link)?;
            }
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One repetition of a run by this rank.
struct Measurement<'a> {
    rank: u64,
    run: &'a Run,
    phase: u64,
    path: PathBuf,
    extents: Vec<Extent>,
    /// Content of the file before the measurement.
    before: Content,
    /// Content that is written.
    after: Content,
    /// Calls that every rank makes in a collective run: those of the rank with the most extents;
    /// else 0.
    calls: usize,
    /// If the ranks access every byte of the file once: the range that this rank fills, one of as
    /// many equal parts as there are ranks.
    part: Option<Range<u64>>,
}

/// Bytes of a write that fills the file before the measurement.
const FILL_BYTES: u64 = 1 << 20;

impl<'a> Measurement<'a> {
    fn new(link: &RankLink, job: &RankJob, run: &'a Run, phase: u64) -> Result<Measurement<'a>, RankError> {
        let rank = link.rank();
        let (part, sharing) = run.pattern_rank(rank, job.processes);
        let begin = run.phase_offset(phase, sharing)?;
        let shifted = |extent: Extent| Extent { offset: begin + extent.offset, ..extent };
        let extents: Vec<Extent> = run.pattern.extents(part, sharing)?.map(shifted).collect();
        let longest = extents.iter().map(|extent| extent.length).max().unwrap_or(0);
        let name = if run.file_per_process { format!("file-{rank}") } else { "file".to_owned() };
        let file = if run.file_per_process { rank } else { 0 };
        let (modified, writes) = (u64::from(run.operation.needs_content()), run.operation.writes());
        let needs_all_ranks = run.collective || run.operation.needs_content();
        let (most, accessed) =
            if needs_all_ranks { extents_of_all_ranks(&run.pattern, sharing)? } else { (0, 0) };
        let end = run.pattern.file_bytes(sharing)?;
        let is_whole = accessed == end && !run.pattern.overlaps();
        let slice = |part: u64| begin + (u128::from(end) * u128::from(part) / u128::from(sharing)) as u64;
        Ok(Measurement {
            path: Path::new(OsStr::from_bytes(&job.directory)).join(name),
            before: Content::new(2 * file, longest.max(FILL_BYTES)),
            after: Content::with_memory(2 * file + modified, longest, if writes { run.memory } else { 0 }),
            rank,
            run,
            phase,
            extents,
            calls: if run.collective { most.div_ceil(run.together as usize) } else { 0 },
            part: is_whole.then(|| slice(part)..slice(part + 1)),
        })
    }

    /// Returns a function that adds the action, the file and the rank to an error.
    fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> RankError {
        let (rank, path) = (self.rank, self.path.clone());
        move |source| RankError::Io { rank, action, path, source }
    }

    /// Measures one repetition. The ranks agree on each step that may fail, so that no rank waits
    /// for one that has failed. [`crate::coordinator`] follows the same protocol.
    fn measure(&self, link: &mut RankLink) -> Result<(), RankError> {
        agree(link, self.create())?;
        agree(link, self.fill())?;
        let file = agree(link, self.open())?;
        let file = agree(link, self.open_shared(link, file))?;
        let staged = self.staged();
        let memory = if self.run.operation.reads() { self.run.memory } else { 0 };
        let mut buffer = Buffer::new(self.longest_call(), memory, self.run.aligned);
        agree(link, self.prepare_caches(&file, &mut buffer))?;
        link.barrier()?;
        let ready = now();
        pause(&self.run.late, self.rank);
        let accessed = self.access(&file, &staged, &mut buffer);
        pause(&self.run.linger, self.rank);
        link.barrier()?;
        let done = now();
        let closed = file.close().map_err(self.io("close"));
        let checked = accessed.and_then(|accessed| {
            closed?;
            self.verify_written(&mut buffer).map(|()| accessed)
        });
        let accessed = agree(link, checked)?;
        let timestamps = RankTimestamps { ready, first: accessed.first, last: accessed.last, done };
        let timestamps = match link.member() {
            Some(member) if !member.shares_clock() => timestamps.since_ready(),
            _ => timestamps,
        };
        link.send(&RankReport {
            timestamps,
            read: accessed.read,
            written: accessed.written,
            calls: accessed.calls,
        })?;
        Ok(())
    }

    /// True for the rank that creates the file.
    fn is_owner(&self) -> bool {
        self.run.file_per_process || self.rank == 0
    }

    fn create(&self) -> Result<(), RankError> {
        if self.is_owner() && self.phase == 0 {
            File::create_new(&self.path).map_err(self.io("create"))?;
        }
        Ok(())
    }

    /// Fills the file from front to back, in large writes. Data that is written in the order of the
    /// measured accesses would be laid out in favor of them on some storage and in memory, and
    /// small writes may take longer than the measurement.
    fn fill(&self) -> Result<(), RankError> {
        if !self.run.operation.needs_content() || (self.run.pattern.overlaps() && !self.is_owner()) {
            return Ok(());
        }
        let file = File::options().write(true).open(&self.path).map_err(self.io("open"))?;
        for range in self.filled_ranges() {
            for offset in range.clone().step_by(FILL_BYTES as usize) {
                let content = self.before.at(offset, FILL_BYTES.min(range.end - offset));
                file.write_all_at(content, offset).map_err(self.io("fill"))?;
            }
        }
        if self.run.cache == Cache::Keep { Ok(()) } else { file.sync_all().map_err(self.io("sync")) }
    }

    /// Returns the ranges that this rank fills: its part of a file that the ranks access without
    /// gaps, else its own extents.
    fn filled_ranges(&self) -> Vec<Range<u64>> {
        if let Some(part) = &self.part {
            return vec![part.clone()];
        }
        let mut extents = self.extents.clone();
        extents.sort_unstable_by_key(|extent| extent.offset);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for Extent { offset, length } in extents {
            match ranges.last_mut() {
                Some(last) if last.end == offset => last.end += length,
                _ => ranges.push(offset..offset + length),
            }
        }
        ranges
    }

    fn open(&self) -> Result<File, RankError> {
        let direct = if self.run.cache == Cache::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
        let file = rustix::fs::open(&self.path, flags, Mode::empty());
        Ok(File::from(file.map_err(|errno| self.io("open")(errno.into()))?))
    }

    /// Opens the file through MPI-IO, if the run uses it. This is a step of its own because it
    /// waits for all ranks.
    fn open_shared(&self, link: &RankLink, file: File) -> Result<BenchFile, RankError> {
        let (Interface::MpiIo, Some(member)) = (self.run.interface, link.member()) else {
            return Ok(BenchFile::Posix(file));
        };
        let file =
            SharedFile::open(member.mpi(), &self.path, self.run.collective).map_err(self.io("open"))?;
        if self.run.together > 1 {
            file.set_view(&self.extents, self.run.together as usize).map_err(self.io("set the view of"))?;
        }
        Ok(BenchFile::MpiIo(file))
    }

    /// Fills or drops the page cache, as the run requires.
    fn prepare_caches(&self, file: &BenchFile, buffer: &mut Buffer) -> Result<(), RankError> {
        if self.run.operation == Operation::ReRead {
            self.access(file, &[], buffer)?;
        }
        // Also for direct I/O: direct writes would have to drop the pages that filling the file has
        // left.
        if self.run.cache != Cache::Keep {
            let file = File::open(&self.path).map_err(self.io("open"))?;
            let dropped = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
            dropped.map_err(|errno| self.io("drop the cache of")(errno.into()))?;
        }
        Ok(())
    }

    /// The extents of each call.
    fn each_call(&self) -> impl Iterator<Item = &[Extent]> {
        self.extents.chunks(self.run.together as usize)
    }

    fn longest_call(&self) -> u64 {
        self.each_call().map(bytes).max().unwrap_or(0)
    }

    /// Returns the data that calls with several extents write, without gaps; prepared before the
    /// measurement. Empty for other calls.
    fn staged(&self) -> Vec<u8> {
        let is_needed = self.run.together > 1 && self.run.operation.writes();
        let extents = if is_needed { self.extents.as_slice() } else { &[] };
        let mut staged = Vec::with_capacity(bytes(extents) as usize);
        for extent in extents {
            staged.extend_from_slice(self.after.at(extent.offset, extent.length));
        }
        staged
    }

    /// Returns whether a call reads, and whether it writes.
    fn reads_and_writes(&self, number: usize) -> (bool, bool) {
        match self.run.operation {
            Operation::Write | Operation::ReWrite => (false, true),
            Operation::Read | Operation::ReRead => (true, false),
            Operation::ReadModifyWrite => (true, true),
            Operation::Mixed => {
                let random = PositionRng::new(self.rank).at(number as u64);
                let reads = random < (self.run.read_share * u64::MAX as f64) as u64;
                (reads, !reads)
            }
            Operation::None => (false, false),
        }
    }

    /// Makes all calls. Collective calls continue after an error, because the other ranks wait for
    /// them.
    fn access(&self, file: &BenchFile, staged: &[u8], buffer: &mut Buffer) -> Result<Accessed, RankError> {
        let mut accessed = Accessed::default();
        let mut failed = None;
        let mut position = 0;
        for (number, extents) in self.each_call().enumerate() {
            accessed.first.get_or_insert_with(now);
            let call = Call { number, extents, position };
            if let Err(error) = self.call(file, &call, staged, buffer, &mut accessed) {
                if !self.run.collective {
                    return Err(error);
                }
                failed.get_or_insert(error);
            }
            position += bytes(extents);
            accessed.last = Some(now());
            if self.run.burst > 0
                && (number as u64 + 1).is_multiple_of(self.run.burst)
                && position < bytes(&self.extents)
            {
                compute(self.run.compute);
            }
        }
        for number in self.each_call().count()..self.calls {
            let empty = Call { number, extents: &[], position };
            if let Err(error) = self.call(file, &empty, staged, buffer, &mut Accessed::default()) {
                failed.get_or_insert(error);
            }
        }
        let wrote = if self.run.collective { self.run.operation.writes() } else { accessed.written > 0 };
        if self.run.sync == Sync::End && wrote {
            if let Err(error) = file.sync() {
                failed.get_or_insert(self.io("sync")(error));
            }
            accessed.last = accessed.last.map(|_| now());
        }
        failed.map_or(Ok(accessed), Err)
    }

    /// Makes one call, or a read and a write of the same extents.
    fn call(
        &self,
        file: &BenchFile,
        call: &Call<'_>,
        staged: &[u8],
        buffer: &mut Buffer,
        accessed: &mut Accessed,
    ) -> Result<(), RankError> {
        let (reads, writes) = self.reads_and_writes(call.number);
        let length = bytes(call.extents);
        let (offset, content) = match call.extents {
            [] => (call.position, [].as_slice()),
            _ if self.run.together > 1 => {
                let end = (call.position + length) as usize;
                (call.position, staged.get(call.position as usize..end).unwrap_or_default())
            }
            [one, ..] => (one.offset, self.after.at(one.offset, one.length)),
        };
        let read = if reads { self.read(file, call.extents, offset, buffer) } else { Ok(()) };
        if reads && read.is_ok() {
            accessed.read += length;
            accessed.calls += 1;
        }
        // In a collective call the others also wait for a rank whose read failed.
        if writes && (read.is_ok() || self.run.collective) {
            file.write(content, offset).map_err(self.io("write"))?;
            accessed.written += length;
            accessed.calls += 1;
            if self.run.sync == Sync::Each {
                file.sync().map_err(self.io("sync"))?;
            }
        }
        if self.run.operation == Operation::None {
            accessed.calls += 1;
        }
        read
    }

    /// Reads extents with one call and verifies them.
    fn read(
        &self,
        file: &BenchFile,
        extents: &[Extent],
        offset: u64,
        buffer: &mut Buffer,
    ) -> Result<(), RankError> {
        let found = buffer.slice(bytes(extents));
        file.read(found, offset).map_err(self.io("read"))?;
        let mut remaining = &*found;
        for extent in extents {
            let (bytes, others) = remaining.split_at(extent.length as usize);
            self.compare(&self.before, extent.offset, bytes, self.run.verify)?;
            remaining = others;
        }
        Ok(())
    }

    fn compare(
        &self,
        expected: &Content,
        offset: u64,
        found: &[u8],
        verify: Verify,
    ) -> Result<(), RankError> {
        let compare = match verify {
            Verify::None => return Ok(()),
            Verify::Ends => Compare::Ends,
            Verify::All => Compare::All,
        };
        expected.check(offset, found, compare).map_err(|mismatch| RankError::Content {
            rank: self.rank,
            path: self.path.clone(),
            mismatch,
        })
    }

    /// Reads the written data and verifies all of it.
    fn verify_written(&self, buffer: &mut Buffer) -> Result<(), RankError> {
        if self.run.verify == Verify::None || !self.run.operation.writes() {
            return Ok(());
        }
        let file = File::open(&self.path).map_err(self.io("open"))?;
        for (number, extent) in self.extents.iter().enumerate() {
            let found = buffer.slice(extent.length);
            file.read_exact_at(found, extent.offset).map_err(self.io("read"))?;
            let (_, writes) = self.reads_and_writes(number / self.run.together as usize);
            let content = if writes { &self.after } else { &self.before };
            self.compare(content, extent.offset, found, Verify::All)?;
        }
        Ok(())
    }
}

/// Accessed bytes, number of calls, and times.
#[derive(Clone, Copy, Debug, Default)]
struct Accessed {
    first: Option<u64>,
    last: Option<u64>,
    read: u64,
    written: u64,
    calls: u64,
}

/// One call, or a read and a write of the same extents.
struct Call<'a> {
    number: usize,
    extents: &'a [Extent],
    /// Bytes of the calls before: the offset in a view.
    position: u64,
}

/// Returns the most extents of a rank, and the bytes of all extents of all ranks.
fn extents_of_all_ranks(pattern: &Pattern, ranks: u64) -> Result<(usize, u64), PatternError> {
    let (mut most, mut accessed) = (0usize, 0);
    for rank in 0..ranks {
        let extents = pattern.extents(rank, ranks)?;
        let (count, bytes) =
            extents.fold((0, 0), |(count, bytes), extent| (count + 1, bytes + extent.length));
        most = most.max(count);
        accessed += bytes;
    }
    Ok((most, accessed))
}

fn bytes(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.length).sum()
}

fn pause(pauses: &[Pause], rank: u64) {
    if let Some(Pause(time)) = pauses.get(rank as usize) {
        std::thread::sleep(*time);
    }
}

/// Reports the result of a step, and waits until all ranks have succeeded in it.
fn agree<T>(link: &mut RankLink, step: Result<T, RankError>) -> Result<T, RankError> {
    match step {
        Ok(value) => {
            link.send(&StepResult::Ok(()))?;
            link.receive::<()>()?;
            Ok(value)
        }
        Err(failed) => {
            link.send(&StepResult::<()>::Err(failed.to_string()))?;
            // Under MPI all ranks receive together that the measurement has ended.
            let _ = link.receive::<()>();
            Err(failed)
        }
    }
}

/// Keeps the processor busy, as an application does between bursts of I/O.
fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Offset of unaligned memory from a page, bytes: large arrays from `malloc` begin after its
/// header.
const UNALIGNED: usize = 16;

/// Memory that reads fill. Its pages are touched before the measurement.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    /// Start of the next part, relative to `start`; a multiple of `step`.
    next: usize,
    step: usize,
}

impl Buffer {
    fn new(longest: u64, memory: u64, aligned: bool) -> Buffer {
        let length = usize::try_from(longest.max(memory)).unwrap_or(usize::MAX - (1 << 30));
        let mut bytes = vec![0; length + 2 * ALIGNMENT];
        bytes.fill(1);
        let page = bytes.as_ptr().align_offset(ALIGNMENT);
        let (start, step) = if aligned { (page, ALIGNMENT) } else { (page + UNALIGNED, UNALIGNED) };
        Buffer { bytes, start, step, next: 0 }
    }

    /// Returns the next part of this length; after the last part the first.
    fn slice(&mut self, length: u64) -> &mut [u8] {
        let length = length as usize;
        if self.start + self.next + length > self.bytes.len() {
            self.next = 0;
        }
        let begin = self.start + self.next;
        self.next += length.next_multiple_of(self.step);
        &mut self.bytes[begin..begin + length]
    }
}
