//! Intake of segments: from a name in the directory to an open segment. Decides which files are
//! opened, which wait, and which are invalid.
//!
//! Every user may create files in the directory of a node, so all work and memory for them is
//! bounded: time per sweep, waiting names, open segments, open segments per user. Refused files are
//! found again by a rescan once there is capacity.

use super::discover::{Discovery, OpenError, SegmentName};
use super::pending::{PendingSegment, PendingSegments};
use super::process_watch::{ExitWatcher, ProcessWatch, may_have_created};
use crate::directory::MiotDirectory;
use crate::error::Error;
use crate::segment::{Header, HeaderError, Memory as _, SegmentFile};
use miot_proto::segment::{MAJOR, MAX_SEGMENT_BYTES, MINOR};
use siphasher::sip::SipHasher13;
use std::collections::{HashMap, HashSet};
use std::hash::Hasher as _;
use std::time::{Duration, Instant};

/// Maximum time for opening files in one sweep. Segments that were opened are read and, if their
/// process has ended, removed before more are opened. So a log-client that is killed again and
/// again before it has opened all files still makes progress.
const OPEN_BUDGET: Duration = Duration::from_millis(5);

/// Minimum interval between rescans of the directory because files were refused.
const RESCAN_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of warnings about invalid files per second.
const WARNINGS: u32 = 8;

/// A segment that can be read.
#[derive(Debug)]
pub(super) struct OpenedSegment {
    pub(super) name: SegmentName,
    pub(super) file: SegmentFile,
    pub(super) header: Header,
    pub(super) uid: u32,
    pub(super) watch: ProcessWatch,
}

/// An open file that is not a valid segment: not yet, or never.
#[derive(Debug)]
struct Candidate {
    name: SegmentName,
    file: SegmentFile,
    uid: u32,
    watch: ProcessWatch,
    /// It never will be valid; kept only to be removed when no process holds it.
    refused: bool,
}

/// The intake, see the module.
#[derive(Debug)]
pub(super) struct SegmentIntake {
    discovery: Discovery,
    exits: ExitWatcher,
    /// Names of all files that wait or are open.
    names: HashSet<SegmentName>,
    pending: PendingSegments,
    candidates: Vec<Candidate>,
    /// Number of open files per user.
    by_user: HashMap<u32, usize>,
    open: usize,
    limit: usize,
    /// A file was refused for lack of capacity.
    refused_some: bool,
    rescanned: Instant,
    /// Number of files of the first scan that are still to be opened; `None` before the first scan.
    left_of_first_scan: Option<usize>,
    next_id: u64,
    warnings: FileWarnings,
    /// Versions that a warning was logged for.
    versions: HashSet<(u32, u32)>,
}

/// Counters of one call of [`SegmentIntake::receive`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IntakeCounts {
    /// Files whose content is invalid.
    pub(super) violations: u64,
    /// Processes whose segments have the layout of another version.
    pub(super) other_version: u64,
}

impl SegmentIntake {
    /// `limit`: maximum number of open files.
    pub(super) fn new(directory: &MiotDirectory, limit: usize) -> Result<SegmentIntake, Error> {
        Ok(SegmentIntake {
            discovery: Discovery::new(directory)?,
            exits: ExitWatcher::new().map_err(|error| Error::system("cannot watch processes", error))?,
            names: HashSet::new(),
            pending: PendingSegments::default(),
            candidates: Vec::new(),
            by_user: HashMap::new(),
            open: 0,
            limit,
            refused_some: false,
            rescanned: Instant::now(),
            left_of_first_scan: None,
            next_id: 0,
            warnings: FileWarnings { since: Instant::now(), logged: 0, left_out: 0 },
            versions: HashSet::new(),
        })
    }

    /// Appends the ids of the processes that have ended since the last call.
    pub(super) fn ended(&self, ended: &mut Vec<u64>) {
        self.exits.poll(ended);
    }

    /// A time before which no process has recorded anything whose segment waits to be opened.
    pub(super) fn not_before(&self) -> Option<i64> {
        self.pending.not_before()
    }

    /// True until all files of the first scan have been opened: there may be thousands of segments
    /// of dead processes with old events.
    pub(super) fn is_catching_up(&self) -> bool {
        self.left_of_first_scan.is_some_and(|left| left > 0)
    }

    /// Opens new files, and examines again those that were not valid the last time.
    ///
    /// `last`: time of the previous call. Segments with older records were found by that call.
    pub(super) fn receive(&mut self, last: i64, mut accept: impl FnMut(OpenedSegment)) -> IntakeCounts {
        let mut counts = IntakeCounts::default();
        self.queue_new_names(last);
        self.left_of_first_scan.get_or_insert_with(|| self.pending.len());
        for candidate in std::mem::take(&mut self.candidates) {
            self.examine(candidate, &mut accept, &mut counts);
        }
        let began = Instant::now();
        while began.elapsed() < OPEN_BUDGET {
            let Some((uid, pending_segment)) = self.pending.pop() else {
                self.left_of_first_scan = Some(0);
                break;
            };
            self.left_of_first_scan = self.left_of_first_scan.map(|left| left.saturating_sub(1));
            if self.open >= self.limit || !self.has_capacity_for(uid) {
                self.refuse(&pending_segment.name);
                continue;
            }
            match self.discovery.open(&pending_segment.name) {
                Ok((file, uid)) => {
                    self.open += 1;
                    *self.by_user.entry(uid).or_default() += 1;
                    let name = pending_segment.name;
                    let (file, watch) = (SegmentFile::new(file), self.exits.watch_file(name.pid));
                    let candidate = Candidate { name, file, uid, watch, refused: false };
                    self.examine(candidate, &mut accept, &mut counts);
                }
                Err(OpenError::TooManyOpenFiles) => {
                    self.warnings
                        .log("too many open files, some processes are read later", &pending_segment.name);
                    self.pending.put_back(uid, pending_segment);
                    break;
                }
                Err(why) => self.drop_name(&pending_segment.name, &why),
            }
        }
        counts
    }

    /// Removes a segment that is not read any more.
    pub(super) fn remove(&mut self, name: &SegmentName, uid: u32) {
        self.discovery.remove(name);
        self.names.remove(name);
        self.open = self.open.saturating_sub(1);
        if let Some(open) = self.by_user.get_mut(&uid) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                self.by_user.remove(&uid);
            }
        }
    }

    fn queue_new_names(&mut self, last: i64) {
        if self.refused_some && self.rescanned.elapsed() >= RESCAN_EVERY {
            self.refused_some = false;
            self.rescanned = Instant::now();
            self.discovery.rescan();
        }
        let mut found = Vec::new();
        self.discovery.poll(&mut found);
        for name in found {
            if !self.names.insert(name.clone()) {
                continue;
            }
            match self.discovery.owner(&name) {
                Ok(uid) => {
                    let pending_segment = PendingSegment { name: name.clone(), not_before: last };
                    if !self.pending.push(uid, pending_segment) {
                        self.refuse(&name);
                    }
                }
                Err(why) => self.drop_name(&name, &why),
            }
        }
    }

    fn drop_name(&mut self, name: &SegmentName, why: &OpenError) {
        self.names.remove(name);
        if let OpenError::NotASegment(reason) = why {
            self.warnings.log(reason, name);
        }
    }

    fn refuse(&mut self, name: &SegmentName) {
        self.warnings.log("the maximum number of segments is open (`segments`)", name);
        self.names.remove(name);
        self.refused_some = true;
    }

    /// One user gets at most three quarters of the capacity, so that no user can exclude the
    /// others.
    fn has_capacity_for(&self, uid: u32) -> bool {
        let most = match uid == rustix::process::geteuid().as_raw() {
            true => self.limit,
            false => self.limit - self.limit / 4,
        };
        self.by_user.get(&uid).is_none_or(|open| *open < most)
    }

    fn examine(
        &mut self,
        mut candidate: Candidate,
        accept: &mut impl FnMut(OpenedSegment),
        counts: &mut IntakeCounts,
    ) {
        // Before the header is read: the content of a file whose process is dead is final.
        candidate.watch.poll_end(&candidate.file);
        let dead = candidate.watch.is_dead();
        let header = match candidate.refused {
            true => Err(HeaderError::Incomplete),
            false => Header::read(&candidate.file),
        };
        let reason = match header {
            Ok(_) | Err(HeaderError::Incomplete)
                if !candidate.refused && candidate.file.size() > MAX_SEGMENT_BYTES =>
            {
                "too large"
            }
            Ok(header) if header.pid != candidate.name.pid || header.nonce != candidate.name.nonce => {
                "its header does not match its name"
            }
            Ok(mut header) => {
                let watch = self.exits.watch(&header, &candidate.file, self.next_id);
                self.next_id += 1;
                if watch.is_dead()
                    || !watch.is_local()
                    || may_have_created(header.pid, candidate.uid, &candidate.name)
                {
                    header.nonce = trace_nonce(header.nonce, candidate.uid);
                    let Candidate { name, file, uid, .. } = candidate;
                    return accept(OpenedSegment { name, file, header, uid, watch });
                }
                "it claims to belong to another user's process"
            }
            Err(HeaderError::Incomplete) if !dead => return self.candidates.push(candidate),
            // It died before it recorded anything, or no process holds it.
            Err(HeaderError::Incomplete) => return self.remove(&candidate.name, candidate.uid),
            Err(HeaderError::Version { major, minor }) => {
                counts.other_version += 1;
                if self.versions.insert((major, minor)) {
                    tracing::error!(
                        name = candidate.name.as_str(),
                        version = format!("{major}.{minor}"),
                        ours = format!("{MAJOR}.{MINOR}"),
                        "programs record with another version of MIOT and are not read: restart them with this version; \
                         their segments are removed when they end"
                    );
                }
                candidate.refused = true;
                return self.candidates.push(candidate);
            }
            Err(HeaderError::Invalid) => "its header is invalid",
        };
        counts.violations += 1;
        self.warnings.log(reason, &candidate.name);
        candidate.refused = true;
        self.candidates.push(candidate);
    }
}

/// The nonce by which the trace identifies a process.
///
/// Names of segments are visible and can be reused once their files are gone. Another user's
/// segment with the name of an earlier one must not be taken for it. The kernel guarantees the
/// owner of the file.
fn trace_nonce(nonce: u64, uid: u32) -> u64 {
    if uid == rustix::process::geteuid().as_raw() {
        return nonce;
    }
    // A specified function: the next log-client, built by another compiler, must compute the same
    // value.
    let mut hasher = SipHasher13::new();
    hasher.write(&nonce.to_le_bytes());
    hasher.write(&uid.to_le_bytes());
    hasher.finish()
}

/// Limits the warnings about invalid files.
#[derive(Debug)]
struct FileWarnings {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl FileWarnings {
    fn log(&mut self, reason: &str, name: &SegmentName) {
        if self.since.elapsed() >= Duration::from_secs(1) {
            if self.left_out > 0 {
                tracing::warn!(files = self.left_out, "more files ignored");
            }
            *self = FileWarnings { since: Instant::now(), logged: 0, left_out: 0 };
        }
        if self.logged < WARNINGS {
            self.logged += 1;
            tracing::warn!(name = name.as_str(), reason, "file ignored");
        } else {
            self.left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_name_of_another_user_is_another_process() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(trace_nonce(77, own), 77);
        let others: HashSet<u64> =
            (0..1000).filter(|uid| *uid != own).map(|uid| trace_nonce(77, uid)).collect();
        assert!(others.len() >= 999 && !others.contains(&77));
        assert_eq!(trace_nonce(77, own + 1), trace_nonce(77, own + 1));
    }
}
