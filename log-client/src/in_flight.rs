//! Requests in flight on this node: requests that have begun and not ended, and for how long.
//!
//! Every lane shows the request that its thread is in ([`miot_proto::segment::in_flight`]), and a
//! table shows the asynchronous requests ([`miot_proto::segment::pending`]). The segments of a MIOT
//! directory are read here as untrusted, like in the log-client, but read-only and without a
//! log-client. A producer with false data gets meaningless lines about itself.
//!
//! A thread may change an entry while it is copied. So each lane table is copied twice, and a
//! request that differs between the copies is left out: it has just begun or ended.

mod file;

use crate::clock::{Calibration, Clocks, ticks};
use crate::error::Error;
use crate::segment::{Header, InFlightEntry, LaneRequests, Memory, PendingRequest, SegmentFile, word};
use crate::sweeper::{SegmentName, start_time};
use miot_proto::event::NONE;
use miot_proto::op::{ArgMeaning, Op};
use miot_proto::segment::{Clock, HEADER_BYTES, LANE_BYTES, MAX_LANES, MAX_SEGMENT_BYTES, header, lane};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Resolution of start times in `/proc`, nanoseconds.
const START_TICK_NS: u64 = 10_000_000;

/// A request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Time since it began.
    pub age: Duration,
    /// Process id in the namespace of the process.
    pub pid: u32,
    /// Thread id in the namespace of the process: the thread that is in the request, or that began
    /// an asynchronous one.
    pub tid: u32,
    /// Name of the thread when it made its first request.
    pub comm: Vec<u8>,
    /// Path of the executable.
    pub exe: Vec<u8>,
    /// Operation.
    pub op: Op,
    /// Number of the request in its thread; of an asynchronous request in its process.
    pub request: u32,
    /// Handle of the file, if known.
    pub handle: Option<u64>,
    /// Byte offset, if the operation has one and the file is known.
    pub offset: Option<u64>,
    /// Requested bytes, if the operation has a length and the file is known.
    pub length: Option<u64>,
    /// Path of the file according to the kernel, from the system call that the thread is in; of an
    /// asynchronous request the path, or its end, that the process shows. Empty if it is not known.
    pub file: Vec<u8>,
    /// Thread for which the process makes the request: that of a program that uses a mount.
    pub caller: Option<u32>,
    /// The outermost request that this one is part of.
    pub parent: Option<ParentRequest>,
}

/// A request in flight that is the parent of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentRequest {
    /// Time since it began.
    pub age: Duration,
    /// Operation.
    pub op: Op,
    /// Number of the request in its thread.
    pub request: u32,
}

/// The requests in flight on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlightList {
    /// The requests, oldest first.
    pub requests: Vec<InFlight>,
    /// Number of processes examined.
    pub processes: usize,
    /// Number of processes of other users, which this user has no right to examine.
    pub hidden: usize,
    /// Number of segments that are invalid or of another version of MIOT.
    pub unfit: usize,
}

/// Reads the requests in flight from the segments of a MIOT directory.
#[derive(Debug)]
pub struct InFlightReader {
    path: PathBuf,
    dir: OwnedFd,
    clocks: Clocks,
    /// The pid namespace of this process, 0 if unknown.
    namespace: u64,
}

impl InFlightReader {
    /// Opens the directory and measures the rate of the clocks, which takes 20 ms.
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

    /// Lists all requests in flight that are at least `min_age` old.
    ///
    /// # Errors
    /// [`Error::Path`] if the directory cannot be read.
    pub fn list(&mut self, min_age: Duration) -> Result<InFlightList, Error> {
        self.clocks.refine();
        let fail = |error| Error::path("cannot read the MIOT directory", &self.path, error);
        let mut listing = InFlightList::default();
        for entry in Dir::read_from(&self.dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Some(name) = SegmentName::parse(entry.file_name().to_bytes()) else { continue };
            match self.open_segment(&name) {
                Ok(Some(segment)) => self.examine(&name, &segment, min_age, &mut listing),
                Ok(None) => {}
                Err(Errno::ACCESS | Errno::PERM) => listing.hidden += 1,
                // The file has just been removed, or is not a segment.
                Err(_) => {}
            }
        }
        listing.requests.sort_by_key(|request| std::cmp::Reverse(request.age));
        Ok(listing)
    }

    fn open_segment(&self, name: &SegmentName) -> Result<Option<SegmentFile>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let sound = FileType::from_raw_mode(stat.st_mode).is_file()
            && u64::try_from(stat.st_size).is_ok_and(|size| size <= MAX_SEGMENT_BYTES);
        Ok(sound.then(|| SegmentFile::new(file)))
    }

    fn examine(
        &self,
        name: &SegmentName,
        segment: &dyn Memory,
        min_age: Duration,
        listing: &mut InFlightList,
    ) {
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
        // In another namespace the pid belongs to another process here, or to none.
        let namespace = word(&words, header::PID_NAMESPACE);
        let is_seen = namespace == 0 || self.namespace == 0 || namespace == self.namespace;
        if is_seen && !is_alive(&header) {
            return;
        }
        listing.processes += 1;
        let lanes =
            usize::try_from(word(&words, header::LANES)).map_or(MAX_LANES, |lanes| lanes.min(MAX_LANES));
        let (Some(first), Some(second)) = (table(segment, lanes), table(segment, lanes)) else { return };
        let now = ticks(header.clock);
        for (before, entry) in first.chunks_exact(LANE_BYTES).zip(second.chunks_exact(LANE_BYTES)) {
            let Some(shown) =
                LaneRequests::read(entry).filter(|shown| LaneRequests::read(before).as_ref() == Some(shown))
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
        let age = |begin| self.age(header.clock, begin, now);
        for mut pending in PendingRequest::read_all(segment, &words) {
            if age(pending.request.begin) >= min_age {
                let of_thread = |entry: &&[u8]| word(entry, lane::TID) == u64::from(pending.tid);
                let comm = second.chunks_exact(LANE_BYTES).find(of_thread).map_or(&[][..], comm_of);
                if let Some(fd) = pending.fd.filter(|_| is_seen) {
                    pending.path = file::of_descriptor(header.pid, fd);
                }
                listing.requests.push(pending.in_flight(&header, age, comm));
            }
        }
    }

    fn age(&self, clock: Clock, begin: u64, now: u64) -> Duration {
        Duration::from_nanos(self.clocks.of(clock).last().span(now.saturating_sub(begin)))
    }
}

/// True if the process that created the segment is alive: a process with its pid exists and is not
/// younger than the segment.
fn is_alive(header: &Header) -> bool {
    start_time(header.pid).is_some_and(|start| start <= header.created_boot_ns.saturating_add(START_TICK_NS))
}

/// Copies the lane table.
fn table(segment: &dyn Memory, lanes: usize) -> Option<Vec<u8>> {
    let mut table = vec![0; lanes * LANE_BYTES];
    segment.read(HEADER_BYTES as u64, &mut table).ok()?;
    Some(table)
}

/// Name of the thread of a lane entry, padded with NUL.
fn comm_of(entry: &[u8]) -> &[u8] {
    entry.get(lane::COMM..lane::COMM + 16).unwrap_or_default()
}

impl PendingRequest {
    fn in_flight(self, header: &Header, age: impl Fn(u64) -> Duration, comm: &[u8]) -> InFlight {
        InFlight {
            file: self.path,
            caller: (self.caller != 0).then_some(self.caller),
            ..self.request.in_flight(header, age, self.tid, comm)
        }
    }
}

impl LaneRequests {
    fn in_flight(self, header: &Header, age: impl Fn(u64) -> Duration, file: Vec<u8>) -> InFlight {
        InFlight {
            file,
            parent: self.parent.map(|outer| ParentRequest {
                age: age(outer.begin),
                op: outer.op,
                request: outer.number,
            }),
            ..self.request.in_flight(header, age, self.tid, &self.comm)
        }
    }
}

impl InFlightEntry {
    fn in_flight(self, header: &Header, age: impl Fn(u64) -> Duration, tid: u32, comm: &[u8]) -> InFlight {
        let InFlightEntry { op, number, begin, handle, offset, length } = self;
        let args = op.info().map_or(ArgMeaning::Range, |info| info.args);
        let given = |value: u64, used| (value != NONE && used).then_some(value);
        InFlight {
            age: age(begin),
            pid: header.pid,
            tid,
            comm: comm.split(|byte| *byte == 0).next().unwrap_or(&[]).to_vec(),
            exe: header.exe.clone(),
            op,
            request: number,
            handle: (handle != 0).then_some(handle),
            offset: given(
                offset,
                matches!(args, ArgMeaning::Range | ArgMeaning::Offset | ArgMeaning::OffsetArg),
            ),
            length: given(length, matches!(args, ArgMeaning::Range | ArgMeaning::Length)),
            file: Vec::new(),
            caller: None,
            parent: None,
        }
    }
}

#[cfg(test)]
mod tests;
