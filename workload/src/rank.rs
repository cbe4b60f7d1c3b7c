//! What one process does in a measurement: prepare, wait, access, wait, clean up.

use crate::content::{ALIGNMENT, Content, Mismatch};
use crate::pattern::{Impossible, Piece};
use crate::scatter::Scatter;
use crate::suite::{Cache, Operation, Run, Sync, Verify};
use crate::times::Moments;
use crate::world::{Lost, Place};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a rank is told before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Which one it is.
    pub rank: u64,
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
    /// Do this [`Run`], in TOML.
    Measure(String),
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
            Order::Measure(run) => {
                let run = toml::from_str(&run).map_err(|error| Lost::Conductor(io::Error::other(error)))?;
                Measurement::of(&job, &run)?.measure(&mut place)?;
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
    job: &'a Job,
    run: &'a Run,
    path: PathBuf,
    pieces: Vec<Piece>,
    /// What the file holds before, and what is written.
    before: Content,
    after: Content,
}

impl<'a> Measurement<'a> {
    fn of(job: &'a Job, run: &'a Run) -> Result<Measurement<'a>, Failed> {
        let (rank, sharing) = run.place(job.rank, job.processes);
        let pieces: Vec<Piece> = run.pattern.pieces(rank, sharing)?.collect();
        let longest = pieces.iter().map(|piece| piece.length).max().unwrap_or(0);
        let name = if run.file_per_process { format!("file-{}", job.rank) } else { "file".to_owned() };
        let file = if run.file_per_process { job.rank } else { 0 };
        let modified = u64::from(run.operation.needs_content());
        Ok(Measurement {
            path: Path::new(OsStr::from_bytes(&job.directory)).join(name),
            before: Content::new(2 * file, longest),
            after: Content::new(2 * file + modified, longest),
            job,
            run,
            pieces,
        })
    }

    fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> Failed {
        let (rank, path) = (self.job.rank, self.path.clone());
        move |source| Failed::Io { rank, action, path, source }
    }

    /// Each step of which one may fail is told, so that nobody waits for those who have failed.
    fn measure(&self, place: &mut Place) -> Result<(), Failed> {
        agree(place, self.make())?;
        agree(place, self.fill())?;
        let file = agree(place, self.open())?;
        let mut buffer = Buffer::new(self.pieces.iter().map(|piece| piece.length).max().unwrap_or(0));
        place.barrier()?;
        let ready = now();
        let accessed = self.access(&file, &mut buffer);
        place.barrier()?;
        let done = now();
        let checked = accessed.and_then(|accessed| self.check(&mut buffer).map(|()| accessed));
        let accessed = agree(place, checked)?;
        drop(file);
        place.barrier()?;
        agree(place, self.remove())?;
        let moments = Moments { ready, first: accessed.first, last: accessed.last, done };
        place.tell(&Done {
            moments,
            read: accessed.read,
            written: accessed.written,
            calls: accessed.calls,
        })?;
        Ok(())
    }

    /// The one who makes and removes the file.
    fn is_owner(&self) -> bool {
        self.run.file_per_process || self.job.rank == 0
    }

    fn make(&self) -> Result<(), Failed> {
        if self.is_owner() {
            File::create_new(&self.path).map_err(self.io("make"))?;
        }
        Ok(())
    }

    /// Gives the file its content, each rank what it will access.
    fn fill(&self) -> Result<(), Failed> {
        if !self.run.operation.needs_content() || (self.run.pattern.overlaps() && !self.is_owner()) {
            return Ok(());
        }
        let file = File::options().write(true).open(&self.path).map_err(self.io("open"))?;
        for piece in &self.pieces {
            let content = self.before.at(piece.offset, piece.length);
            file.write_all_at(content, piece.offset).map_err(self.io("fill"))?;
        }
        if self.run.cache == Cache::Keep { Ok(()) } else { file.sync_all().map_err(self.io("sync")) }
    }

    fn open(&self) -> Result<File, Failed> {
        let direct = if self.run.cache == Cache::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
        let file = rustix::fs::open(&self.path, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| self.io("open")(errno.into()))?);
        if self.run.cache == Cache::Drop {
            let dropped = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
            dropped.map_err(|errno| self.io("drop the cache of")(errno.into()))?;
        }
        Ok(file)
    }

    /// Whether a piece is read, and whether it is written.
    fn does(&self, number: usize) -> (bool, bool) {
        match self.run.operation {
            Operation::Write | Operation::ReWrite => (false, true),
            Operation::Read | Operation::ReRead => (true, false),
            Operation::ReadModifyWrite => (true, true),
            Operation::Mixed => {
                let lot = Scatter::new(self.job.rank).at(number as u64);
                let reads = lot < (self.run.read_share * u64::MAX as f64) as u64;
                (reads, !reads)
            }
        }
    }

    fn access(&self, file: &File, buffer: &mut Buffer) -> Result<Accessed, Failed> {
        let mut accessed = Accessed::default();
        for (number, piece) in self.pieces.iter().enumerate() {
            let (reads, writes) = self.does(number);
            accessed.first.get_or_insert_with(now);
            if reads {
                let found = buffer.of(piece.length);
                file.read_exact_at(found, piece.offset).map_err(self.io("read"))?;
                self.compare(&self.before, piece.offset, found, self.run.verify)?;
                accessed.read += piece.length;
                accessed.calls += 1;
            }
            if writes {
                let content = self.after.at(piece.offset, piece.length);
                file.write_all_at(content, piece.offset).map_err(self.io("write"))?;
                accessed.written += piece.length;
                accessed.calls += 1;
                if self.run.sync == Sync::Each {
                    file.sync_data().map_err(self.io("sync"))?;
                }
            }
            accessed.last = Some(now());
            if self.run.burst > 0
                && (number as u64 + 1).is_multiple_of(self.run.burst)
                && number + 1 < self.pieces.len()
            {
                compute(self.run.compute);
            }
        }
        if self.run.sync == Sync::End && accessed.written > 0 {
            file.sync_data().map_err(self.io("sync"))?;
            accessed.last = Some(now());
        }
        Ok(accessed)
    }

    fn compare(&self, with: &Content, offset: u64, found: &[u8], how: Verify) -> Result<(), Failed> {
        if how == Verify::None {
            return Ok(());
        }
        with.check(offset, found, how == Verify::All).map_err(|mismatch| Failed::Content {
            rank: self.job.rank,
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
            let content = if self.does(number).1 { &self.after } else { &self.before };
            self.compare(content, piece.offset, found, Verify::All)?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), Failed> {
        if self.is_owner() { std::fs::remove_file(&self.path).map_err(self.io("remove")) } else { Ok(()) }
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

/// Memory to read into, aligned for direct I/O and touched before the clock runs.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(longest: u64) -> Buffer {
        let mut bytes = vec![0; usize::try_from(longest).unwrap_or(usize::MAX - (1 << 30)) + ALIGNMENT];
        bytes.fill(1);
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Buffer { bytes, start }
    }

    fn of(&mut self, length: u64) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + length as usize]
    }
}
