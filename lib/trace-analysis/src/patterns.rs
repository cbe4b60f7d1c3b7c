//! File sharing between the members of a program, and the order of accesses.
//!
//! **Sharing** (Carns et al. 2011, section III-A): a file is unique if one member of a program
//! moved data from or to it, shared if all did, partially shared if some did. The first rule that
//! holds determines the pattern of the program:
//!
//! | pattern | rule |
//! |---|---|
//! | none | no member moved data |
//! | 1:1 | the program has one member |
//! | one rank | one member moved at least [`ONE_MEMBER`] of the bytes; the result names it |
//! | N:N | at least [`DOMINANT`] of the bytes were moved from or to unique files |
//! | N:1 | at least [`DOMINANT`], shared files |
//! | N:M | at least [`DOMINANT`], partially shared files |
//! | mixed | otherwise |
//!
//! In most programs with the pattern "one rank" the member is rank 0.
//!
//! **Order**: each access of a process to a file is compared with the previous one in the same
//! direction. It is consecutive if it begins where the previous one ended, forward if it begins
//! behind that. The distance between the begins of two accesses is a stride (pio-bench; Darshan's
//! stride is the gap between them). For a request through an MPI-IO view ([`crate::place`]) each
//! piece of the file is an access. Strided accesses are those with the two most frequent forward
//! distances that are not consecutive (two, because of nested strides). The order of the file is
//! that of the first kind with at least [`ORDERED`] of the accesses that follow another one:
//! consecutive, strided, sequential (consecutive or forward), otherwise random.
//!
//! Only outermost requests count ([`miot_trace_events::outermost`]), so collective MPI-IO counts as
//! the ranks requested it, not as aggregators carried it out. Files of the system are excluded
//! ([`crate::programs::is_system`]) unless requested, and counted; failed requests are excluded.
//!
//! Memory grows with the number of members, and of files up to [`FILES`]. For shared files it also
//! grows with the members that share them, up to [`SHARERS`] in all.

use crate::place::{Place, Places, UnknownPlace};
use crate::programs::{LeftOut, Member, Program, Programs, SystemFiles};
use crate::recent::Recent;
use arrow_array::RecordBatch;
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::outermost::{OutermostEvents, each_event};
use miot_trace_events::{ById, Event, IdMap, IdSet};
use miot_trace_store::FileNames;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Share of the bytes that one member must move so that the other members do almost no I/O. MIOT's
/// choice: in the rank-0 programs of Carns et al. (sections V-B and V-H) rank 0 moved all bytes.
pub const ONE_MEMBER: f64 = 0.95;
/// Share of the bytes that makes a kind of sharing the pattern of the program. MIOT's choice.
pub const DOMINANT: f64 = 0.9;
/// Share of the accesses that makes an order the order of the file. MIOT's choice.
pub const ORDERED: f64 = 0.8;
/// Maximum number of files whose accesses are kept.
pub const FILES: usize = 1 << 20;
/// Maximum number of members of shared files that are distinguished, over all files.
pub const SHARERS: usize = 1 << 22;
/// Maximum number of pairs of process and file whose last access is kept.
const POSITIONS: usize = 1 << 19;
/// Maximum number of counted distances of a file; further ones are ignored (as in Darshan).
const DISTANCES: usize = 32;

/// Sharing of a program's files between its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Sharing {
    /// No data moved.
    #[serde(rename = "none")]
    None,
    /// One member.
    #[serde(rename = "1:1")]
    OneToOne,
    /// One of many members does the I/O.
    #[serde(rename = "one rank")]
    OneMember,
    /// A file for each member.
    #[serde(rename = "N:N")]
    Unique,
    /// Files that all members share.
    #[serde(rename = "N:1")]
    Shared,
    /// Files that some members share.
    #[serde(rename = "N:M")]
    Partial,
    /// Several of these.
    #[serde(rename = "mixed")]
    Mixed,
}

impl Sharing {
    /// Returns the usual notation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Sharing::None => "none",
            Sharing::OneToOne => "1:1",
            Sharing::OneMember => "one rank",
            Sharing::Unique => "N:N",
            Sharing::Shared => "N:1",
            Sharing::Partial => "N:M",
            Sharing::Mixed => "mixed",
        }
    }
}

/// Order of the accesses to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No process accessed it twice in the same direction.
    Single,
    /// Each access begins where the previous one ended.
    Consecutive,
    /// Accesses have equal distances.
    Strided,
    /// Accesses go forward.
    Sequential,
    /// None of these.
    Random,
}

impl Order {
    /// Returns the usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Order::Single => "single",
            Order::Consecutive => "consecutive",
            Order::Strided => "strided",
            Order::Sequential => "sequential",
            Order::Random => "random",
        }
    }
}

/// Patterns of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Patterns {
    /// Programs that moved data, the one that moved the most first.
    pub programs: Vec<ProgramPattern>,
    /// Files of the programs, the one with the most bytes first.
    pub files: Vec<FilePattern>,
    /// Number of files that were not examined, because there were too many: figures are lower
    /// bounds.
    pub files_left_out: u64,
    /// Number of members of shared files that were not distinguished, because there were too many.
    pub sharers_left_out: u64,
    /// Number of requests through MPI-IO views whose blocks the trace does not contain. They do not
    /// count for the order.
    pub views_unknown: u64,
    /// Requests to excluded files of the operating system and its programs.
    pub system_files_left_out: LeftOut,
}

/// Sharing of a program's files between its members.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramPattern {
    /// Program.
    #[serde(flatten)]
    pub program: Program,
    /// Pattern.
    pub pattern: Sharing,
    /// Rule that determined the pattern, with its figures.
    pub rule: String,
    /// Number of members that moved data.
    pub active: u64,
    /// Member that moved the most: MPI rank, or process in the trace.
    pub busiest: u64,
    /// Bytes moved by this member.
    pub busiest_bytes: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Files of one member.
    pub unique: Part,
    /// Files of all members.
    pub shared: Part,
    /// Files of some members.
    pub partial: Part,
}

/// Files with one kind of sharing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// Number of files.
    pub files: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Share of the program's bytes.
    pub share: f64,
}

/// Accesses of a program to a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilePattern {
    /// Executable of the program.
    pub exe: String,
    /// Job of the program.
    pub job: Option<String>,
    /// Id of the file in the trace.
    pub file: u64,
    /// Path; empty if the trace does not contain it.
    pub path: String,
    /// Number of members of the program that moved data from or to the file.
    pub members: u64,
    /// Sharing: `N:N` (unique), `N:1`, `N:M`; `1:1` in a program of one member.
    pub sharing: Sharing,
    /// Order of the accesses.
    pub order: Order,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Number of reads and writes that moved data.
    pub accesses: u64,
    /// Number of accesses that follow another one; each piece counts. The following fields are
    /// counts of these accesses.
    pub followed: u64,
    /// Accesses that begin where the previous one ended.
    pub consecutive: u64,
    /// Accesses that begin behind the end of the previous one.
    pub forward: u64,
    /// Forward accesses at one of the two most frequent distances.
    pub strided: u64,
    /// Accesses that begin before the end of the previous one.
    pub backward: u64,
    /// Distances of the strided accesses, the most frequent first.
    pub strides: Vec<Stride>,
}

/// A distance between the begins of two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stride {
    /// Distance in bytes.
    pub bytes: u64,
    /// Number of occurrences.
    pub count: u64,
}

/// Members that moved data from or to a file.
#[derive(Debug)]
enum Sharers {
    One(u64),
    Many(IdSet<u64>),
}

/// Accesses of a program to a file.
#[derive(Debug)]
struct Access {
    sharers: Sharers,
    read: u64,
    written: u64,
    accesses: u64,
    consecutive: u64,
    forward: u64,
    backward: u64,
    distances: Vec<Stride>,
}

/// Collects accesses.
#[derive(Debug)]
pub struct Accesses {
    events: OutermostEvents,
    places: Places,
    programs: Programs,
    system_files: SystemFiles,
    files: IdMap<(usize, u64), Access>,
    /// Bytes by process, which become those of its member.
    by_process: ById<u64>,
    /// Begin and end of the last access, by process, file and direction.
    positions: Recent<(u64, u64, bool), Option<(i64, i64)>>,
    sharers: usize,
    files_left_out: HashSet<(usize, u64)>,
    sharers_left_out: u64,
    views_unknown: u64,
}

impl Accesses {
    /// Returns a collector for these programs.
    #[must_use]
    pub fn new(programs: Programs) -> Accesses {
        Accesses {
            events: OutermostEvents::default(),
            places: Places::default(),
            programs,
            system_files: SystemFiles::default(),
            files: IdMap::default(),
            by_process: ById::default(),
            positions: Recent::new(POSITIONS),
            sharers: 0,
            files_left_out: HashSet::new(),
            sharers_left_out: 0,
            views_unknown: 0,
        }
    }

    /// Includes requests to files of the operating system and its programs.
    #[must_use]
    pub fn with_system_files(self, are_included: bool) -> Accesses {
        Accesses { system_files: SystemFiles::new(are_included), ..self }
    }

    /// Adds events, in order, with the paths of their files. A batch without
    /// [`miot_trace_events::events::FILE_COLUMNS`] adds nothing.
    pub fn add(&mut self, batch: &RecordBatch, paths: &FileNames) {
        each_event(
            self,
            |analysis| &mut analysis.events,
            batch,
            |analysis, event, is_outermost| {
                let place = analysis.places.of(event, paths);
                if is_outermost {
                    analysis.request(event, &place, paths);
                }
            },
        );
    }

    /// Adds an outermost request.
    fn request(&mut self, event: &Event, place: &Place, paths: &FileNames) {
        let moved = event.moved();
        if moved == 0 || event.layer == Some(Layer::App) {
            return;
        }
        let class = event.class();
        if let Some(file) = event.file {
            let is_write = class != OpClass::Read;
            self.access(event, file, is_write, place, moved, paths);
        }
        if let (OpClass::Copy, Some(source)) = (class, event.file2) {
            self.access(event, source, false, &Place::Unknown(UnknownPlace::NoOffset), moved, paths);
        }
    }

    fn access(
        &mut self,
        event: &Event,
        file: u64,
        is_write: bool,
        place: &Place,
        moved: u64,
        paths: &FileNames,
    ) {
        if self.system_files.leave_out(file, moved, paths) {
            return;
        }
        let member = self.programs.member(event.process);
        let key = (member.program, file);
        if self.files.len() >= FILES && !self.files.contains_key(&key) {
            if self.files_left_out.len() < FILES {
                self.files_left_out.insert(key);
            }
            return;
        }
        let bytes = self.by_process.get(event.process);
        *bytes = bytes.saturating_add(moved);
        let access = self.files.entry(key).or_insert_with(|| Access::of(member.member));
        let sum = if is_write { &mut access.written } else { &mut access.read };
        *sum = sum.saturating_add(moved);
        access.accesses += 1;
        match &mut access.sharers {
            Sharers::One(one) if *one == member.member => {}
            Sharers::One(one) => access.sharers = Sharers::Many([*one, member.member].into_iter().collect()),
            Sharers::Many(many) if self.sharers < SHARERS => {
                self.sharers += usize::from(many.insert(member.member));
            }
            Sharers::Many(many) => self.sharers_left_out += u64::from(!many.contains(&member.member)),
        }
        let position = self.positions.get((event.process, file, is_write));
        if event.layer == Some(Layer::MpiIo) && matches!(place, Place::Unknown(_)) {
            self.views_unknown += 1;
            *position = None;
        }
        let whole = event.offset.filter(|_| *place == Place::Whole).map(|begin| (begin, moved));
        let pieces = match place {
            Place::Pieces(pieces) => pieces.as_slice(),
            _ => &[],
        };
        let pieces =
            pieces.iter().map(|piece| (i64::try_from(piece.offset).unwrap_or(i64::MAX), piece.bytes));
        for (begin, bytes) in whole.into_iter().chain(pieces) {
            let end = begin.saturating_add_unsigned(bytes);
            if let Some(before) = position.replace((begin, end)) {
                access.follow(before, begin);
            }
        }
    }

    /// Returns the result, with at most `files` files.
    #[must_use]
    pub fn finish(mut self, paths: &FileNames, files: usize) -> Patterns {
        let mut members: HashMap<Member, u64> = HashMap::new();
        for (process, bytes) in self.by_process.into_sorted().filter(|(_, bytes)| *bytes > 0) {
            let of = members.entry(self.programs.member(process)).or_default();
            *of = of.saturating_add(bytes);
        }
        let mut by_program: HashMap<usize, Tally> = HashMap::new();
        for (member, bytes) in &members {
            by_program.entry(member.program).or_default().member(member.member, *bytes);
        }
        let mut rows: Vec<(&(usize, u64), &Access)> = self.files.iter().collect();
        for ((program, _), access) in &rows {
            let sharing = access.sharing(self.programs.get(*program).members);
            by_program.entry(*program).or_default().file(sharing, access.bytes());
        }
        let mut programs: Vec<_> = by_program.into_iter().collect();
        programs.sort_unstable_by_key(|(program, tally)| (Reverse(tally.bytes), *program));
        rows.sort_unstable_by_key(|(key, access)| (Reverse(access.bytes()), **key));
        rows.truncate(files);
        Patterns {
            programs: programs
                .into_iter()
                .map(|(program, tally)| tally.pattern(self.programs.get(program)))
                .collect(),
            files: rows
                .into_iter()
                .map(|((program, file), access)| access.row(self.programs.get(*program), *file, paths))
                .collect(),
            files_left_out: self.files_left_out.len() as u64,
            sharers_left_out: self.sharers_left_out,
            views_unknown: self.views_unknown,
            system_files_left_out: self.system_files.left_out,
        }
    }
}

impl Access {
    fn of(member: u64) -> Access {
        Access {
            sharers: Sharers::One(member),
            read: 0,
            written: 0,
            accesses: 0,
            consecutive: 0,
            forward: 0,
            backward: 0,
            distances: Vec::new(),
        }
    }

    fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    fn members(&self) -> u64 {
        match &self.sharers {
            Sharers::One(_) => 1,
            Sharers::Many(many) => many.len() as u64,
        }
    }

    fn sharing(&self, members: u64) -> Sharing {
        match self.members() {
            _ if members <= 1 => Sharing::OneToOne,
            1 => Sharing::Unique,
            some if some < members => Sharing::Partial,
            _ => Sharing::Shared,
        }
    }

    fn follow(&mut self, before: (i64, i64), begin: i64) {
        if begin == before.1 {
            self.consecutive += 1;
        } else if begin < before.1 {
            self.backward += 1;
        } else {
            self.forward += 1;
            let bytes = begin.abs_diff(before.0);
            if let Some(stride) = self.distances.iter_mut().find(|stride| stride.bytes == bytes) {
                stride.count += 1;
            } else if self.distances.len() < DISTANCES {
                self.distances.push(Stride { bytes, count: 1 });
            }
        }
    }

    fn row(&self, program: &Program, file: u64, paths: &FileNames) -> FilePattern {
        let followed = self.consecutive + self.forward + self.backward;
        let mut strides = self.distances.clone();
        strides.sort_unstable_by_key(|stride| (Reverse(stride.count), stride.bytes));
        strides.truncate(2);
        // A distance that occurs once is not a stride.
        strides.retain(|stride| stride.count > 1);
        let strided = strides.iter().map(|stride| stride.count).sum();
        let most = |count: u64| count as f64 >= ORDERED * followed as f64;
        let order = match () {
            () if followed == 0 => Order::Single,
            () if most(self.consecutive) => Order::Consecutive,
            () if most(strided) => Order::Strided,
            () if most(self.consecutive + self.forward) => Order::Sequential,
            () => Order::Random,
        };
        FilePattern {
            exe: program.exe.clone(),
            job: program.job.clone(),
            file,
            path: paths.get(file).unwrap_or_default().to_owned(),
            members: self.members(),
            sharing: self.sharing(program.members),
            order,
            bytes_read: self.read,
            bytes_written: self.written,
            accesses: self.accesses,
            followed,
            consecutive: self.consecutive,
            forward: self.forward,
            strided,
            backward: self.backward,
            strides,
        }
    }
}

/// Sums over the members and files of a program.
#[derive(Debug, Default)]
struct Tally {
    bytes: u64,
    active: u64,
    /// Bytes and member.
    busiest: Option<(u64, Reverse<u64>)>,
    unique: Part,
    shared: Part,
    partial: Part,
}

impl Tally {
    fn member(&mut self, member: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.active += 1;
        self.busiest = self.busiest.max(Some((bytes, Reverse(member))));
    }

    fn file(&mut self, sharing: Sharing, bytes: u64) {
        let part = match sharing {
            Sharing::Shared => &mut self.shared,
            Sharing::Partial => &mut self.partial,
            _ => &mut self.unique,
        };
        part.files += 1;
        part.bytes = part.bytes.saturating_add(bytes);
    }

    fn pattern(mut self, program: &Program) -> ProgramPattern {
        let all = self.bytes.max(1) as f64;
        for part in [&mut self.unique, &mut self.shared, &mut self.partial] {
            part.share = part.bytes as f64 / all;
        }
        let (most, Reverse(busiest)) = self.busiest.unwrap_or_default();
        let share = most as f64 / all;
        let members = if program.ranks { "ranks" } else { "processes" };
        let n = program.members;
        let of = |part: &Part, what: &str| {
            format!("{:.1} % of the bytes in {what} (at least {:.0} %)", part.share * 100.0, DOMINANT * 100.0)
        };
        let (pattern, rule) = match () {
            () if self.bytes == 0 => (Sharing::None, "no data moved".to_owned()),
            () if n <= 1 => (Sharing::OneToOne, "a program of one member".to_owned()),
            () if share >= ONE_MEMBER => {
                // Ranks are below n; the number of a process in the trace may be above it.
                let who = if program.ranks {
                    format!("rank {busiest} of {n}")
                } else {
                    format!("process {busiest}, one of {n}")
                };
                let least = ONE_MEMBER * 100.0;
                let rule = format!("{:.1} % of the bytes by {who} (at least {least:.0} %)", share * 100.0);
                (Sharing::OneMember, rule)
            }
            () if self.unique.share >= DOMINANT => (Sharing::Unique, of(&self.unique, "files of one member")),
            () if self.shared.share >= DOMINANT => {
                (Sharing::Shared, of(&self.shared, &format!("files of all {n} {members}")))
            }
            () if self.partial.share >= DOMINANT => {
                (Sharing::Partial, of(&self.partial, &format!("files of some of {n} {members}")))
            }
            () => (Sharing::Mixed, format!("no kind has at least {:.0} % of the bytes", DOMINANT * 100.0)),
        };
        ProgramPattern {
            program: program.clone(),
            pattern,
            rule,
            active: self.active,
            busiest,
            busiest_bytes: most,
            bytes: self.bytes,
            unique: self.unique,
            shared: self.shared,
            partial: self.partial,
        }
    }
}
