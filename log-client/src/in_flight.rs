//! Requests that have begun and not ended on this node: what hangs, and for how long.
//!
//! Every lane shows the request its thread is in ([`miot_proto::segment::in_flight`]). Here the segments of a MIOT
//! directory are read, as without trust as the log-client reads them, but read-only and without one: a producer that
//! lies gets lines of nonsense about itself.
//!
//! A thread may be about to change an entry while it is copied. So each lane table is copied twice, and what is not the
//! same in both copies is not shown: it has ended, or has begun, just now.

mod file;

use crate::clock::{Calibration, Clocks, ticks};
use crate::error::Error;
use crate::segment::{Header, Memory, SegmentFile, Shown, word};
use crate::sweeper::{Name, start};
use miot_proto::event::NONE;
use miot_proto::op::{Args, Op};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAX_LANES, MAX_SEGMENT_BYTES, header, lane,
};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Resolution of start times in `/proc`.
const START_TICK_NS: u64 = 10_000_000;

/// A request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Since it began.
    pub age: Duration,
    /// Process id, as the process sees it.
    pub pid: u32,
    /// Thread id, as the process sees it.
    pub tid: u32,
    /// Name of the thread when it made its first request.
    pub comm: Vec<u8>,
    /// Executable.
    pub exe: Vec<u8>,
    /// What it does.
    pub op: Op,
    /// Its number in its thread.
    pub request: u32,
    /// Handle of the file, where it is known.
    pub handle: Option<u64>,
    /// Byte offset, of an operation on a known file that has one.
    pub offset: Option<u64>,
    /// Bytes asked for, of an operation on a known file that has a length.
    pub length: Option<u64>,
    /// Path of the file as the kernel knows it, from the system call the thread is in; empty if that cannot be seen.
    pub file: Vec<u8>,
    /// The outermost request that it is part of.
    pub enclosing: Option<Enclosing>,
}

/// A request in flight that encloses another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enclosing {
    /// Since it began.
    pub age: Duration,
    /// What it does.
    pub op: Op,
    /// Its number in its thread.
    pub request: u32,
}

/// What is in flight on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The requests, longest first.
    pub requests: Vec<InFlight>,
    /// Processes that were looked at.
    pub processes: usize,
    /// Processes of other users, into which this one may not look.
    pub hidden: usize,
    /// Segments of another version of MIOT, or that make no sense.
    pub unfit: usize,
}

/// Looks at the segments of a MIOT directory.
#[derive(Debug)]
pub struct InFlightReader {
    path: PathBuf,
    dir: OwnedFd,
    clocks: Clocks,
    /// The process id namespace in which this process sees `/proc`, 0 if unknown.
    namespace: u64,
}

impl InFlightReader {
    /// Opens the directory, and learns the rate of the clocks, which takes 20 ms.
    ///
    /// # Errors
    /// [`Error::Path`] if there is no such directory.
    pub fn open(dir: &Path) -> Result<InFlightReader, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(InFlightReader {
            dir: rustix::fs::open(dir, flags, Mode::empty())
                .map_err(|error| Error::path("cannot open the MIOT directory", dir, error))?,
            path: dir.to_owned(),
            clocks: Calibration::begin().finish(),
            namespace: std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()),
        })
    }

    /// All requests in flight that are at least so old.
    ///
    /// # Errors
    /// [`Error::Path`] if the directory cannot be read.
    pub fn list(&mut self, min_age: Duration) -> Result<Listing, Error> {
        self.clocks.refine();
        let fail = |error| Error::path("cannot read the MIOT directory", &self.path, error);
        let mut listing = Listing::default();
        for entry in Dir::read_from(&self.dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Some(name) = Name::parse(entry.file_name().to_bytes()) else { continue };
            match self.open_segment(&name) {
                Ok(Some(segment)) => self.look(&name, &segment, min_age, &mut listing),
                Ok(None) => {}
                Err(Errno::ACCESS | Errno::PERM) => listing.hidden += 1,
                // It went away meanwhile, or is nothing a producer makes.
                Err(_) => {}
            }
        }
        listing.requests.sort_by_key(|request| std::cmp::Reverse(request.age));
        Ok(listing)
    }

    fn open_segment(&self, name: &Name) -> Result<Option<SegmentFile>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let sound = FileType::from_raw_mode(stat.st_mode).is_file()
            && u64::try_from(stat.st_size).is_ok_and(|size| size <= MAX_SEGMENT_BYTES);
        Ok(sound.then(|| SegmentFile::new(file)))
    }

    fn look(&self, name: &Name, segment: &dyn Memory, min_age: Duration, listing: &mut Listing) {
        let Ok(header) = Header::read(segment) else {
            listing.unfit += 1;
            return;
        };
        if header.pid != name.pid || header.nonce != name.nonce {
            listing.unfit += 1;
            return;
        }
        let mut words = [0; header::STRINGS];
        if segment.read(0, &mut words).is_err() || word(&words, header::CLOSED) != 0 {
            return;
        }
        // In another namespace the number means another process here, or none.
        let namespace = word(&words, header::PID_NAMESPACE);
        let is_seen = namespace == 0 || self.namespace == 0 || namespace == self.namespace;
        if is_seen && !lives(&header) {
            return;
        }
        listing.processes += 1;
        let lanes =
            usize::try_from(word(&words, header::LANES)).map_or(MAX_LANES, |lanes| lanes.min(MAX_LANES));
        let (Some(first), Some(second)) = (table(segment, lanes), table(segment, lanes)) else { return };
        let now = ticks(header.clock);
        for (before, entry) in first.chunks_exact(LANE_BYTES).zip(second.chunks_exact(LANE_BYTES)) {
            let Some(shown) =
                OfLane::read(entry).filter(|shown| OfLane::read(before).as_ref() == Some(shown))
            else {
                continue;
            };
            let age = |begin| self.age(header.clock, begin, now);
            if age(shown.request.begin) < min_age || (is_seen && !file::has_thread(header.pid, shown.tid)) {
                continue;
            }
            let file = if is_seen { file::of(header.pid, shown.tid) } else { Vec::new() };
            listing.requests.push(shown.in_flight(&header, age, file));
        }
    }

    fn age(&self, clock: Clock, begin: u64, now: u64) -> Duration {
        Duration::from_nanos(self.clocks.of(clock).last().span(now.saturating_sub(begin)))
    }
}

/// The process that made a segment is still there: one of its number that is not younger than the segment.
fn lives(header: &Header) -> bool {
    start(header.pid).is_some_and(|start| start <= header.created_boot_ns.saturating_add(START_TICK_NS))
}

/// The innermost request that an entry of a lane table shows: operation, begin in ticks, thread.
pub(crate) fn shown(entry: &[u8]) -> Option<(Op, u64, u32)> {
    OfLane::read(entry).map(|shown| (shown.request.op, shown.request.begin, shown.tid))
}

/// A copy of the lane table.
fn table(segment: &dyn Memory, lanes: usize) -> Option<Vec<u8>> {
    let mut table = vec![0; lanes * LANE_BYTES];
    segment.read(HEADER_BYTES as u64, &mut table).ok()?;
    Some(table)
}

/// What a lane shows.
#[derive(Debug, PartialEq, Eq)]
struct OfLane {
    tid: u32,
    comm: [u8; 16],
    request: Shown,
    enclosing: Option<Shown>,
}

impl OfLane {
    /// The innermost request of a lane that a thread has, and the one that encloses it.
    fn read(entry: &[u8]) -> Option<OfLane> {
        if word(entry, lane::STATE) as u32 != LaneState::Claimed as u32 {
            return None;
        }
        let (inner, outer) = (Shown::read(entry, lane::IN_FLIGHT), Shown::read(entry, lane::ENCLOSING));
        let comm = entry.get(lane::COMM..).and_then(<[u8]>::first_chunk)?;
        Some(OfLane {
            tid: u32::try_from(word(entry, lane::TID)).ok()?,
            comm: *comm,
            request: inner.or(outer)?,
            enclosing: inner.and(outer),
        })
    }

    fn in_flight(self, header: &Header, age: impl Fn(u64) -> Duration, file: Vec<u8>) -> InFlight {
        let Shown { op, number, begin, handle, offset, length } = self.request;
        let args = op.info().map_or(Args::Range, |info| info.args);
        let given = |value: u64, used| (value != NONE && used).then_some(value);
        let name = self.comm.split(|byte| *byte == 0).next().unwrap_or(&[]);
        InFlight {
            age: age(begin),
            pid: header.pid,
            tid: self.tid,
            comm: name.to_vec(),
            exe: header.exe.clone(),
            op,
            request: number,
            handle: (handle != 0).then_some(handle),
            offset: given(offset, matches!(args, Args::Range | Args::Offset | Args::OffsetArg)),
            length: given(length, matches!(args, Args::Range | Args::Length)),
            file,
            enclosing: self.enclosing.map(|outer| Enclosing {
                age: age(outer.begin),
                op: outer.op,
                request: outer.number,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
