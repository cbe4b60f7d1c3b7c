//! From a name in the directory to a segment that is read: what is taken up, what has to wait, and what is not
//! what it says.
//!
//! Everybody may leave files in the directory of a node, so all that is done and kept for them is bounded: time
//! spent on them in a sweep, names that wait, segments read at a time, segments of one user. What is turned away is
//! looked for again once there is room.

use super::arrivals::{Arrival, Arrivals};
use super::discover::{Discovery, Name, NotTaken};
use super::life::{Deaths, Watch, may_have_made};
use crate::error::Error;
use crate::home::Home;
use crate::segment::{Header, Memory as _, SegmentFile, Unfit};
use miot_proto::segment::{MAJOR, MAX_SEGMENT_BYTES, MINOR};
use siphasher::sip::SipHasher13;
use std::collections::{HashMap, HashSet};
use std::hash::Hasher as _;
use std::time::{Duration, Instant};

/// Time for opening files in one sweep: what has been opened is read and, where its process has ended, removed before more
/// is. So a log-client that is killed again and again before it has seen all that lies there gets on all the same.
const OPENING: Duration = Duration::from_millis(5);

/// How often the directory is read again because something was turned away.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Remarks about files that no producer makes, in a second.
const REMARKS: u32 = 8;

/// A segment that can be read.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) name: Name,
    pub(super) file: SegmentFile,
    pub(super) header: Header,
    pub(super) uid: u32,
    pub(super) watch: Watch,
}

/// A file that is not a segment: not yet, or not at all.
#[derive(Debug)]
struct Candidate {
    name: Name,
    file: SegmentFile,
    uid: u32,
    watch: Watch,
    /// It never will be; kept only to be removed when nobody holds it any more.
    refused: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reception {
    discovery: Discovery,
    deaths: Deaths,
    /// Of all that is waiting or read.
    names: HashSet<Name>,
    arrivals: Arrivals,
    candidates: Vec<Candidate>,
    /// Files kept open for each user.
    by_user: HashMap<u32, usize>,
    open: usize,
    limit: usize,
    /// Something was turned away for want of room.
    turned_away: bool,
    looked: Instant,
    /// Of what lay there at the first look, so many wait to be opened; `None` before it.
    left_of_first: Option<usize>,
    next_id: u64,
    remarks: Remarks,
    /// Versions that were remarked upon.
    versions: HashSet<(u32, u32)>,
}

/// What was done at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Files that are not what they say.
    pub(super) violations: u64,
    /// Processes whose segments are laid out by another version.
    pub(super) other_version: u64,
}

impl Reception {
    /// `limit`: files that are kept open at most.
    pub(super) fn new(home: &Home, limit: usize) -> Result<Reception, Error> {
        Ok(Reception {
            discovery: Discovery::new(home)?,
            deaths: Deaths::new().map_err(|error| Error::system("cannot watch processes", error))?,
            names: HashSet::new(),
            arrivals: Arrivals::default(),
            candidates: Vec::new(),
            by_user: HashMap::new(),
            open: 0,
            limit,
            turned_away: false,
            looked: Instant::now(),
            left_of_first: None,
            next_id: 0,
            remarks: Remarks { since: Instant::now(), made: 0, left_out: 0 },
            versions: HashSet::new(),
        })
    }

    /// The ids of the processes that have ended since the last time.
    pub(super) fn ended(&self, ended: &mut Vec<u64>) {
        self.deaths.poll(ended);
    }

    /// A time before which no process can have recorded anything whose segment waits to be opened.
    pub(super) fn not_before(&self) -> Option<i64> {
        self.arrivals.not_before()
    }

    /// What lay there at the first look has not all been opened: perhaps thousands of segments of processes that are gone,
    /// and their events are from long ago.
    pub(super) fn is_catching_up(&self) -> bool {
        self.left_of_first.is_some_and(|left| left > 0)
    }

    /// New files, and files that were not segments the last time.
    ///
    /// `last`: when the last look began. What had been recorded before that is in segments that were found then.
    pub(super) fn receive(&mut self, last: i64, mut take: impl FnMut(Guest)) -> Received {
        let mut received = Received::default();
        self.look_around(last);
        self.left_of_first.get_or_insert_with(|| self.arrivals.len());
        for candidate in std::mem::take(&mut self.candidates) {
            self.examine(candidate, &mut take, &mut received);
        }
        let began = Instant::now();
        while began.elapsed() < OPENING {
            let Some((uid, arrival)) = self.arrivals.pop() else {
                self.left_of_first = Some(0);
                break;
            };
            self.left_of_first = self.left_of_first.map(|left| left.saturating_sub(1));
            if self.open >= self.limit || !self.has_room_for(uid) {
                self.turn_away(&arrival.name);
                continue;
            }
            match self.discovery.open(&arrival.name) {
                Ok((file, uid)) => {
                    self.open += 1;
                    *self.by_user.entry(uid).or_default() += 1;
                    let name = arrival.name;
                    let (file, watch) = (SegmentFile::new(file), self.deaths.watch_file(name.pid));
                    let candidate = Candidate { name, file, uid, watch, refused: false };
                    self.examine(candidate, &mut take, &mut received);
                }
                Err(NotTaken::Later) => {
                    self.remarks.make("too many open files: some processes wait to be read", &arrival.name);
                    self.arrivals.put_back(uid, arrival);
                    break;
                }
                Err(why) => self.forget(&arrival.name, &why),
            }
        }
        received
    }

    /// A segment is not read any more: its file goes.
    pub(super) fn leave(&mut self, name: &Name, uid: u32) {
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

    fn look_around(&mut self, last: i64) {
        if self.turned_away && self.looked.elapsed() >= LOOK_AGAIN {
            self.turned_away = false;
            self.looked = Instant::now();
            self.discovery.look_again();
        }
        let mut found = Vec::new();
        self.discovery.poll(&mut found);
        for name in found {
            if !self.names.insert(name.clone()) {
                continue;
            }
            match self.discovery.owner(&name) {
                Ok(uid) => {
                    let arrival = Arrival { name: name.clone(), not_before: last };
                    if !self.arrivals.push(uid, arrival) {
                        self.turn_away(&name);
                    }
                }
                Err(why) => self.forget(&name, &why),
            }
        }
    }

    fn forget(&mut self, name: &Name, why: &NotTaken) {
        self.names.remove(name);
        if let NotTaken::Odd(reason) = why {
            self.remarks.make(reason, name);
        }
    }

    fn turn_away(&mut self, name: &Name) {
        self.remarks.make("there is no room for more segments (`segments`)", name);
        self.names.remove(name);
        self.turned_away = true;
    }

    /// A quarter of the room is kept from each user: who fills the directory keeps out nobody else.
    fn has_room_for(&self, uid: u32) -> bool {
        let most = match uid == rustix::process::geteuid().as_raw() {
            true => self.limit,
            false => self.limit - self.limit / 4,
        };
        self.by_user.get(&uid).is_none_or(|open| *open < most)
    }

    fn examine(&mut self, mut candidate: Candidate, take: &mut impl FnMut(Guest), received: &mut Received) {
        // Before the header is read: a process that is dead now has written all it ever will.
        candidate.watch.look(&candidate.file);
        let dead = candidate.watch.is_dead();
        let header = match candidate.refused {
            true => Err(Unfit::NotYet),
            false => Header::read(&candidate.file),
        };
        let reason = match header {
            Ok(_) | Err(Unfit::NotYet) if !candidate.refused && candidate.file.size() > MAX_SEGMENT_BYTES => {
                "it is too large"
            }
            Ok(header) if header.pid != candidate.name.pid || header.nonce != candidate.name.nonce => {
                "a segment of another name"
            }
            Ok(mut header) => {
                let watch = self.deaths.watch(&header, &candidate.file, self.next_id);
                self.next_id += 1;
                if watch.is_dead()
                    || !watch.counts_here()
                    || may_have_made(header.pid, candidate.uid, &candidate.name)
                {
                    header.nonce = nonce_of(header.nonce, candidate.uid);
                    let Candidate { name, file, uid, .. } = candidate;
                    return take(Guest { name, file, header, uid, watch });
                }
                "a segment in the name of another user's process"
            }
            Err(Unfit::NotYet) if !dead => return self.candidates.push(candidate),
            // It died before it had recorded anything, or nobody misses it.
            Err(Unfit::NotYet) => return self.leave(&candidate.name, candidate.uid),
            Err(Unfit::Version { major, minor }) => {
                received.other_version += 1;
                if self.versions.insert((major, minor)) {
                    tracing::error!(
                        name = candidate.name.as_str(),
                        version = format!("{major}.{minor}"),
                        ours = format!("{MAJOR}.{MINOR}"),
                        "programs record with another version of MIOT, which is not read: start them anew with this one; \
                         what they leave is removed when they end"
                    );
                }
                candidate.refused = true;
                return self.candidates.push(candidate);
            }
            Err(Unfit::Senseless) => "a senseless segment",
        };
        received.violations += 1;
        self.remarks.make(reason, &candidate.name);
        candidate.refused = true;
        self.candidates.push(candidate);
    }
}

/// The nonce under which the trace knows a process.
///
/// Names of segments can be seen, and used again once their files are gone: another user's segment with the name of
/// an earlier one must not pass for it. The owner of the file is the kernel's word.
fn nonce_of(nonce: u64, uid: u32) -> u64 {
    if uid == rustix::process::geteuid().as_raw() {
        return nonce;
    }
    // A function that is written down: the log-client after this one, built by another compiler, must find the same.
    let mut hasher = SipHasher13::new();
    hasher.write(&nonce.to_le_bytes());
    hasher.write(&uid.to_le_bytes());
    hasher.finish()
}

/// Keeps strangers from filling the log.
#[derive(Debug)]
struct Remarks {
    since: Instant,
    made: u32,
    left_out: u64,
}

impl Remarks {
    fn make(&mut self, reason: &str, name: &Name) {
        if self.since.elapsed() >= Duration::from_secs(1) {
            if self.left_out > 0 {
                tracing::warn!(files = self.left_out, "more files are not read");
            }
            *self = Remarks { since: Instant::now(), made: 0, left_out: 0 };
        }
        if self.made < REMARKS {
            self.made += 1;
            tracing::warn!(name = name.as_str(), reason, "a file is not read");
        } else {
            self.left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_used_again_by_another_user_is_another_process() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(nonce_of(77, own), 77);
        let others: HashSet<u64> = (0..1000).filter(|uid| *uid != own).map(|uid| nonce_of(77, uid)).collect();
        assert!(others.len() >= 999 && !others.contains(&77));
        assert_eq!(nonce_of(77, own + 1), nonce_of(77, own + 1));
    }
}
