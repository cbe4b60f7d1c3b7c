//! What one process does in a measurement: prepare, wait, access, wait, clean up.

use crate::content::{ALIGNMENT, Content, Mismatch};
use crate::files::Opened;
use crate::mpi::SharedFile;
use crate::pattern::{Impossible, Piece};
use crate::scatter::Scatter;
use crate::suite::{Cache, Interface, Operation, Pause, Run, Sync, Verify};
use crate::times::Moments;
use crate::world::{Lost, Place};
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

/// What a rank is told before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// How many there are.
    pub processes: u64,
    /// Bytes of the path of the directory that files are made in.
    pub directory: Vec<u8>,
}

/// What a rank has done in one repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// When.
    pub moments: Moments,
    /// Bytes read within T.
    pub read: u64,
    /// Bytes written within T.
    pub written: u64,
    /// Calls that moved them.
    pub calls: u64,
}

/// What the conductor says before each repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Do this.
    Measure {
        /// A [`Run`], in TOML.
        run: String,
        /// Which of its phases, from 0.
        phase: u64,
    },
    /// There is nothing more.
    End,
}

/// Why a rank cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// See [`Lost`].
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The pattern cannot be.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// The system refused.
    #[error("rank {rank}: cannot {action} {}: {source}", path.display())]
    Io {
        /// Whose.
        rank: u64,
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file does not hold what was written.
    #[error(
        "rank {rank}: {} does not hold what was written: at offset {} there is {:#04x} instead of {:#04x}",
        path.display(), mismatch.offset, mismatch.found, mismatch.expected
    )]
    Content {
        /// Whose.
        rank: u64,
        /// Which file.
        path: PathBuf,
        /// Where.
        mismatch: Mismatch,
    },
}

/// What came of a step, as it is told to the conductor.
pub type Told<T> = Result<T, String>;

/// A rank's life: takes orders until there are no more.
///
/// # Errors
/// [`Failed`]; the conductor has been told.
pub fn serve(mut place: Place) -> Result<(), Failed> {
    let job: Job = place.hear()?;
    loop {
        match place.hear::<Order>()? {
            Order::End => return Ok(()),
            Order::Measure { run, phase } => {
                let run = toml::from_str(&run).map_err(|error| Lost::Conductor(io::Error::other(error)))?;
                Measurement::of(&place, &job, &run, phase)?.measure(&mut place)?;
            }
        }
    }
}

/// Nanoseconds of the clock that all processes of a host share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Measurement<'a> {
    rank: u64,
    run: &'a Run,
    phase: u64,
    path: PathBuf,
    pieces: Vec<Piece>,
    /// What the file holds before, and what is written.
    before: Content,
    after: Content,
    /// Calls of the process that has the most of them, if all make as many.
    calls: usize,
    /// This rank's of as many parts of the file as there are ranks, if they access every byte of it once.
    part: Option<Range<u64>>,
}

/// Bytes written at a time before the clock runs.
const FILL: u64 = 1 << 20;

impl<'a> Measurement<'a> {
    fn of(place: &Place, job: &Job, run: &'a Run, phase: u64) -> Result<Measurement<'a>, Failed> {
        let rank = place.rank();
        let (part, sharing) = run.place(rank, job.processes);
        let begin = run.begin(phase, sharing)?;
        let shifted = |piece: Piece| Piece { offset: begin + piece.offset, ..piece };
        let pieces: Vec<Piece> = run.pattern.pieces(part, sharing)?.map(shifted).collect();
        let longest = pieces.iter().map(|piece| piece.length).max().unwrap_or(0);
        let name = if run.file_per_process { format!("file-{rank}") } else { "file".to_owned() };
        let file = if run.file_per_process { rank } else { 0 };
        let (modified, writes) = (u64::from(run.operation.needs_content()), run.operation.writes());
        let mut most = 0usize;
        let mut accessed = 0;
        let concerned = run.collective || run.operation.needs_content();
        for other in 0..if concerned { sharing } else { 0 } {
            let (calls, bytes) = run
                .pattern
                .pieces(other, sharing)?
                .fold((0, 0), |(calls, bytes), piece| (calls + 1, bytes + piece.length));
            most = most.max(calls);
            accessed += bytes;
        }
        let end = run.pattern.file_bytes(sharing)?;
        let is_whole = accessed == end && !run.pattern.overlaps();
        let slice = |part: u64| begin + (u128::from(end) * u128::from(part) / u128::from(sharing)) as u64;
        Ok(Measurement {
            path: Path::new(OsStr::from_bytes(&job.directory)).join(name),
            before: Content::new(2 * file, longest.max(FILL)),
            after: Content::spread(2 * file + modified, longest, if writes { run.memory } else { 0 }),
            rank,
            run,
            phase,
            pieces,
            calls: if run.collective { most.div_ceil(run.together as usize) } else { 0 },
            part: is_whole.then(|| slice(part)..slice(part + 1)),
        })
    }

    fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> Failed {
        let (rank, path) = (self.rank, self.path.clone());
        move |source| Failed::Io { rank, action, path, source }
    }

    /// Each step of which one may fail is told, so that nobody waits for those who have failed.
    fn measure(&self, place: &mut Place) -> Result<(), Failed> {
        agree(place, self.make())?;
        agree(place, self.fill())?;
        let file = agree(place, self.open())?;
        let file = agree(place, self.share(place, file))?;
        let staged = self.staged();
        let memory = if self.run.operation.reads() { self.run.memory } else { 0 };
        let mut buffer = Buffer::new(self.longest_call(), memory, self.run.aligned);
        agree(place, self.ready(&file, &mut buffer))?;
        place.barrier()?;
        let ready = now();
        pause(&self.run.late, self.rank);
        let accessed = self.access(&file, &staged, &mut buffer);
        pause(&self.run.linger, self.rank);
        place.barrier()?;
        let done = now();
        let closed = file.close().map_err(self.io("close"));
        let checked = accessed.and_then(|accessed| {
            closed?;
            self.check(&mut buffer).map(|()| accessed)
        });
        let accessed = agree(place, checked)?;
        let moments = Moments { ready, first: accessed.first, last: accessed.last, done };
        let moments = match place.member() {
            Some(member) if !member.shares_clock() => moments.since_ready(),
            _ => moments,
        };
        place.tell(&Done {
            moments,
            read: accessed.read,
            written: accessed.written,
            calls: accessed.calls,
        })?;
        Ok(())
    }

    /// The one who makes the file.
    fn is_owner(&self) -> bool {
        self.run.file_per_process || self.rank == 0
    }

    fn make(&self) -> Result<(), Failed> {
        if self.is_owner() && self.phase == 0 {
            File::create_new(&self.path).map_err(self.io("make"))?;
        }
        Ok(())
    }

    /// Gives the file its content, from front to back and in large writes: what is written in the order of later accesses lies on some
    /// storage, and in memory, as they like it, and small writes may take longer than all that is measured.
    fn fill(&self) -> Result<(), Failed> {
        if !self.run.operation.needs_content() || (self.run.pattern.overlaps() && !self.is_owner()) {
            return Ok(());
        }
        let file = File::options().write(true).open(&self.path).map_err(self.io("open"))?;
        for range in self.filled() {
            for offset in range.clone().step_by(FILL as usize) {
                let content = self.before.at(offset, FILL.min(range.end - offset));
                file.write_all_at(content, offset).map_err(self.io("fill"))?;
            }
        }
        if self.run.cache == Cache::Keep { Ok(()) } else { file.sync_all().map_err(self.io("sync")) }
    }

    /// What this rank fills: its part of a file that the ranks access without gaps, else what it accesses itself.
    fn filled(&self) -> Vec<Range<u64>> {
        if let Some(part) = &self.part {
            return vec![part.clone()];
        }
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for Piece { offset, length } in pieces {
            match ranges.last_mut() {
                Some(last) if last.end == offset => last.end += length,
                _ => ranges.push(offset..offset + length),
            }
        }
        ranges
    }

    fn open(&self) -> Result<File, Failed> {
        let direct = if self.run.cache == Cache::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
        let file = rustix::fs::open(&self.path, flags, Mode::empty());
        Ok(File::from(file.map_err(|errno| self.io("open")(errno.into()))?))
    }

    /// Opens the file through MPI-IO, if that is wanted: a step of its own, as one that waits for all ranks.
    fn share(&self, place: &Place, file: File) -> Result<Opened, Failed> {
        let (Interface::MpiIo, Some(member)) = (self.run.interface, place.member()) else {
            return Ok(Opened::Posix(file));
        };
        let file =
            SharedFile::open(member.mpi(), &self.path, self.run.collective).map_err(self.io("open"))?;
        if self.run.together > 1 {
            file.show(&self.pieces, self.run.together as usize).map_err(self.io("set the view of"))?;
        }
        Ok(Opened::MpiIo(file))
    }

    /// Caches are as they are wanted.
    fn ready(&self, file: &Opened, buffer: &mut Buffer) -> Result<(), Failed> {
        if self.run.operation == Operation::ReRead {
            self.access(file, &[], buffer)?;
        }
        // Direct writes, too, would have to throw out what filling the file has left there.
        if self.run.cache != Cache::Keep {
            let file = File::open(&self.path).map_err(self.io("open"))?;
            let dropped = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
            dropped.map_err(|errno| self.io("drop the cache of")(errno.into()))?;
        }
        Ok(())
    }

    /// The pieces of each call.
    fn each_call(&self) -> impl Iterator<Item = &[Piece]> {
        self.pieces.chunks(self.run.together as usize)
    }

    fn longest_call(&self) -> u64 {
        self.each_call().map(bytes).max().unwrap_or(0)
    }

    /// What is written by calls of several pieces, one after the other; ready before the clock runs.
    fn staged(&self) -> Vec<u8> {
        let is_needed = self.run.together > 1 && self.run.operation.writes();
        let pieces = if is_needed { self.pieces.as_slice() } else { &[] };
        let mut staged = Vec::with_capacity(bytes(pieces) as usize);
        for piece in pieces {
            staged.extend_from_slice(self.after.at(piece.offset, piece.length));
        }
        staged
    }

    /// Whether a piece is read, and whether it is written.
    fn does(&self, number: usize) -> (bool, bool) {
        match self.run.operation {
            Operation::Write | Operation::ReWrite => (false, true),
            Operation::Read | Operation::ReRead => (true, false),
            Operation::ReadModifyWrite => (true, true),
            Operation::Mixed => {
                let lot = Scatter::new(self.rank).at(number as u64);
                let reads = lot < (self.run.read_share * u64::MAX as f64) as u64;
                (reads, !reads)
            }
            Operation::None => (false, false),
        }
    }

    /// Collective calls go on after an error, as the others wait for them.
    fn access(&self, file: &Opened, staged: &[u8], buffer: &mut Buffer) -> Result<Accessed, Failed> {
        let mut accessed = Accessed::default();
        let mut failed = None;
        let mut position = 0;
        for (number, pieces) in self.each_call().enumerate() {
            accessed.first.get_or_insert_with(now);
            let call = Call { number, pieces, position };
            if let Err(why) = self.call(file, &call, staged, buffer, &mut accessed) {
                if !self.run.collective {
                    return Err(why);
                }
                failed.get_or_insert(why);
            }
            position += bytes(pieces);
            accessed.last = Some(now());
            if self.run.burst > 0
                && (number as u64 + 1).is_multiple_of(self.run.burst)
                && position < bytes(&self.pieces)
            {
                compute(self.run.compute);
            }
        }
        for number in self.each_call().count()..self.calls {
            let nothing = Call { number, pieces: &[], position };
            if let Err(why) = self.call(file, &nothing, staged, buffer, &mut Accessed::default()) {
                failed.get_or_insert(why);
            }
        }
        let (writes, wrote) = (self.run.operation.writes(), accessed.written > 0);
        if self.run.sync == Sync::End && if self.run.collective { writes } else { wrote } {
            if let Err(why) = file.sync() {
                failed.get_or_insert(self.io("sync")(why));
            }
            accessed.last = accessed.last.map(|_| now());
        }
        failed.map_or(Ok(accessed), Err)
    }

    fn call(
        &self,
        file: &Opened,
        call: &Call<'_>,
        staged: &[u8],
        buffer: &mut Buffer,
        accessed: &mut Accessed,
    ) -> Result<(), Failed> {
        let (reads, writes) = self.does(call.number);
        let length = bytes(call.pieces);
        let (offset, content) = match call.pieces {
            // Nothing, or by the view.
            [] => (call.position, [].as_slice()),
            _ if self.run.together > 1 => {
                let end = (call.position + length) as usize;
                (call.position, staged.get(call.position as usize..end).unwrap_or_default())
            }
            [one, ..] => (one.offset, self.after.at(one.offset, one.length)),
        };
        let read = if reads { self.read(file, call.pieces, offset, buffer) } else { Ok(()) };
        if reads && read.is_ok() {
            accessed.read += length;
            accessed.calls += 1;
        }
        // The others wait in a collective call for one that could not read, too.
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

    /// Reads pieces by one call, and compares them.
    fn read(&self, file: &Opened, pieces: &[Piece], offset: u64, buffer: &mut Buffer) -> Result<(), Failed> {
        let found = buffer.of(bytes(pieces));
        file.read(found, offset).map_err(self.io("read"))?;
        let mut rest = &*found;
        for piece in pieces {
            let (own, others) = rest.split_at(piece.length as usize);
            self.compare(&self.before, piece.offset, own, self.run.verify)?;
            rest = others;
        }
        Ok(())
    }

    fn compare(&self, with: &Content, offset: u64, found: &[u8], how: Verify) -> Result<(), Failed> {
        if how == Verify::None {
            return Ok(());
        }
        with.check(offset, found, how == Verify::All).map_err(|mismatch| Failed::Content {
            rank: self.rank,
            path: self.path.clone(),
            mismatch,
        })
    }

    /// Reads what was written, and compares it.
    fn check(&self, buffer: &mut Buffer) -> Result<(), Failed> {
        if self.run.verify == Verify::None || !self.run.operation.writes() {
            return Ok(());
        }
        let file = File::open(&self.path).map_err(self.io("open"))?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let found = buffer.of(piece.length);
            file.read_exact_at(found, piece.offset).map_err(self.io("read"))?;
            let content =
                if self.does(number / self.run.together as usize).1 { &self.after } else { &self.before };
            self.compare(content, piece.offset, found, Verify::All)?;
        }
        Ok(())
    }
}

/// What was accessed, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Accessed {
    first: Option<u64>,
    last: Option<u64>,
    read: u64,
    written: u64,
    calls: u64,
}

/// One call: which, of which pieces, and how many bytes those before it have.
struct Call<'a> {
    number: usize,
    pieces: &'a [Piece],
    position: u64,
}

fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.length).sum()
}

fn pause(pauses: &[Pause], rank: u64) {
    if let Some(Pause(time)) = pauses.get(rank as usize) {
        std::thread::sleep(*time);
    }
}

/// Tells how a step went, and learns whether all can go on.
fn agree<T>(place: &mut Place, step: Result<T, Failed>) -> Result<T, Failed> {
    match step {
        Ok(value) => {
            place.tell(&Told::Ok(()))?;
            place.hear::<()>()?;
            Ok(value)
        }
        Err(failed) => {
            place.tell(&Told::<()>::Err(failed.to_string()))?;
            // Under MPI all hear together that it is over.
            let _ = place.hear::<()>();
            Err(failed)
        }
    }
}

/// Keeps the processor busy, as an application between its bursts.
fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Where large arrays begin after a page: behind what `malloc` keeps of them.
const UNALIGNED: usize = 16;

/// Memory to read into, touched before the clock runs.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    /// From `start`: which part is next, a multiple of `step`.
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

    /// The next part of so many bytes, and the first after the last.
    fn of(&mut self, length: u64) -> &mut [u8] {
        let length = length as usize;
        if self.start + self.next + length > self.bytes.len() {
            self.next = 0;
        }
        let begin = self.start + self.next;
        self.next += length.next_multiple_of(self.step);
        &mut self.bytes[begin..begin + length]
    }
}
