//! Collects the input of the rules from events.

use super::facts::{FileFacts, MemberFacts, ProgramFacts, Sizes, Span};
use super::ranges::Ranges;
use super::rules::{self, SMALL};
use super::{FILES, Findings, Rule};
use crate::block_sizes::{ASSUMED_BLOCK, BlockSizes};
use crate::place::{Place, Places};
use crate::programs::{Member, Programs, SystemFiles};
use crate::recent::Recent;
use arrow_array::RecordBatch;
use miot_proto::op::{Layer, OpClass, OpInfo};
use miot_trace_events::outermost::{OutermostEvents, each_event};
use miot_trace_events::{ById, Event, IdMap};
use miot_trace_store::FileNames;
use std::collections::HashMap;
use std::ops::Range;

/// Maximum number of pairs of process and file, and of program and file, whose recent ranges are
/// kept.
const REMEMBERED: usize = 1 << 15;
/// Bit of the flags of `open` that truncates the file.
const TRUNCATES: i64 = 0o1000;
/// Argument of `lseek` and `fseek` that adds the offset to the present position.
const FROM_POSITION: i64 = 1;

/// Kind of a request for the rules, apart from its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Other,
    Open,
    Stat,
    Seek,
    /// Makes data durable; `fflush` and the `flush` at a close do not.
    Sync,
    /// The name refers to another file afterwards.
    Replace,
    Collective,
    Truncate,
}

impl RequestKind {
    fn of(info: &OpInfo) -> RequestKind {
        match (Layer::from_number(info.op.layer), info.name) {
            (Some(Layer::Stdio), "fflush") | (_, "flush") => RequestKind::Other,
            _ if info.class == OpClass::Sync => RequestKind::Sync,
            (Some(Layer::MpiIo), name) if name.contains("_all") || name.contains("_ordered") => {
                RequestKind::Collective
            }
            (_, "open" | "openat" | "creat" | "fopen" | "freopen" | "uring_open" | "create") => {
                RequestKind::Open
            }
            (_, "stat" | "fstat" | "lstat" | "fstatat" | "statx" | "uring_statx" | "getattr" | "lookup") => {
                RequestKind::Stat
            }
            (_, "access" | "faccessat" | "euidaccess") => RequestKind::Stat,
            (_, "lseek" | "seek" | "fseek" | "rewind" | "fsetpos" | "seek_shared") => RequestKind::Seek,
            (_, "truncate" | "ftruncate" | "uring_ftruncate" | "set_size") => RequestKind::Truncate,
            (_, "unlink" | "unlinkat" | "remove" | "delete" | "uring_unlink") => RequestKind::Replace,
            (_, "rename" | "renameat" | "renameat2" | "uring_rename") => RequestKind::Replace,
            _ => RequestKind::Other,
        }
    }
}

/// Returns whether a seek only asks for the position, as interpreters do at every `open`.
fn asks_for_position(seek: &Event) -> bool {
    seek.offset == Some(0) && seek.arg == Some(FROM_POSITION)
}

/// Versions of a file, which invalidate the ranges recorded for it.
#[derive(Clone, Copy, Debug, Default)]
struct Version {
    /// Number of times it was truncated or replaced.
    contents: u32,
    /// Number of writes by another process than the previous writer.
    writers: u32,
    last_writer: u64,
}

/// Accesses of a process to a file.
#[derive(Debug, Default)]
struct ProcessAccess {
    opens: u64,
    stats: u64,
    version: (u32, u32),
    read: Ranges,
}

/// Accesses of a program to a file.
#[derive(Debug, Default)]
struct ProgramAccess {
    version: (u32, u32),
    read: Ranges,
    written: Ranges,
}

/// A file and the position of its facts, of the program of a process: most requests are to the same
/// file as the one before.
type LastFile = Option<(u64, usize)>;

/// What a request is to.
#[derive(Clone, Copy, Debug)]
struct Subject {
    file: u64,
    /// Program and member that made the request.
    member: Member,
    /// Position of the facts of the program and the file.
    position: usize,
    kind: RequestKind,
}

/// Collects the input of the rules.
#[derive(Debug)]
pub struct Collector {
    events: OutermostEvents,
    places: Places,
    programs: Programs,
    blocks: BlockSizes,
    /// Kinds by number of the operation.
    kinds: Vec<Option<RequestKind>>,
    system_files: SystemFiles,
    versions: ById<Version>,
    own: Recent<(u64, u64), ProcessAccess>,
    together: Recent<(usize, u64), ProgramAccess>,
    /// Facts by number of the program; those of a program without requests have no span.
    by_program: Vec<ProgramFacts>,
    /// Facts by process, which become those of its member, and its last file.
    by_process: ById<(MemberFacts, LastFile)>,
    /// Positions of the facts of a program and file.
    positions: IdMap<(usize, u64), usize>,
    files: Vec<FileFacts>,
    files_left_out: u64,
}

impl Collector {
    /// Returns a collector for these programs, with the block sizes of their files.
    #[must_use]
    pub fn new(programs: Programs, blocks: BlockSizes) -> Collector {
        Collector {
            events: OutermostEvents::default(),
            places: Places::default(),
            programs,
            blocks,
            kinds: Vec::new(),
            system_files: SystemFiles::default(),
            versions: ById::default(),
            own: Recent::new(REMEMBERED),
            together: Recent::new(REMEMBERED),
            by_program: Vec::new(),
            by_process: ById::default(),
            positions: IdMap::default(),
            files: Vec::new(),
            files_left_out: 0,
        }
    }

    /// Includes requests to files of the operating system and its programs.
    #[must_use]
    pub fn with_system_files(self, are_included: bool) -> Collector {
        Collector { system_files: SystemFiles::new(are_included), ..self }
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

    /// Adds an outermost request, with its place and the paths of all files.
    pub fn request(&mut self, event: &Event, place: &Place, paths: &FileNames) {
        let Some(file) = event.file.filter(|_| event.layer != Some(Layer::App)) else { return };
        let is_left_out = self.system_files.leave_out(file, event.moved(), paths);
        if is_left_out || event.failed() && event.class().is_data() {
            return;
        }
        let member = self.programs.member(event.process);
        let last = self.by_process.get(event.process).1;
        let position = match last {
            Some((last, position)) if last == file => Some(position),
            _ => self.position(event, file, member, paths),
        };
        let Some(position) = position else {
            self.files_left_out += 1;
            return;
        };
        let subject = Subject { file, member, position, kind: self.kind(event) };
        if member.program >= self.by_program.len() {
            self.by_program.resize_with(member.program + 1, ProgramFacts::default);
        }
        Span::join(&mut self.by_program[member.program].span, event.begin, event.end);
        let (of, last) = self.by_process.get(event.process);
        *last = Some((file, position));
        of.requests += 1;
        of.time = of.time.saturating_add(event.duration());
        of.bytes = of.bytes.saturating_add(event.moved());
        match event.class() {
            OpClass::Read | OpClass::Write | OpClass::Copy => self.data(event, place, &subject),
            OpClass::Sync | OpClass::Meta => self.other(event, &subject),
        }
    }

    /// Returns the position of the facts of a file; `None` if there are too many files.
    fn position(&mut self, event: &Event, file: u64, member: Member, paths: &FileNames) -> Option<usize> {
        let key = (member.program, file);
        if let Some(position) = self.positions.get(&key) {
            return Some(*position);
        }
        if self.files.len() >= FILES {
            return None;
        }
        let block = paths.get(file).and_then(|path| self.blocks.of(event.process, path));
        self.files.push(FileFacts { block: block.unwrap_or(ASSUMED_BLOCK), ..FileFacts::default() });
        self.positions.insert(key, self.files.len() - 1);
        Some(self.files.len() - 1)
    }

    fn kind(&mut self, event: &Event) -> RequestKind {
        if event.op >= self.kinds.len() {
            self.kinds.resize(event.op + 1, None);
        }
        *self.kinds[event.op].get_or_insert_with(|| event.info.map_or(RequestKind::Other, RequestKind::of))
    }

    /// Records a case of a rule.
    fn case(&mut self, event: &Event, of: &Subject, rule: Rule, count: u64) {
        if count > 0 {
            self.files[of.position].add(rule, count);
            self.by_program[of.member.program].case(rule, event.begin, event.end);
        }
    }

    fn data(&mut self, event: &Event, place: &Place, subject: &Subject) {
        let (moved, time) = (event.moved(), event.duration());
        let is_write = event.class() != OpClass::Read;
        let is_direct = event.layer != Some(Layer::Stdio) && subject.kind != RequestKind::Collective;
        let facts = &mut self.by_program[subject.member.program];
        facts.data_requests += 1;
        facts.data_time = facts.data_time.saturating_add(time);
        facts.write_requests += u64::from(is_write);
        facts.mpi_requests += u64::from(event.layer == Some(Layer::MpiIo));
        let sum = if is_write { &mut facts.bytes_written } else { &mut facts.bytes_read };
        *sum = sum.saturating_add(moved);
        if moved == 0 {
            return;
        }
        let of = &mut self.files[subject.position];
        of.bytes = of.bytes.saturating_add(moved);
        let member = subject.member.member;
        of.is_shared |= *of.member.get_or_insert(member) != member;
        if is_direct {
            self.size(event, place, subject, is_write);
        }
        for piece in place.pieces(event.offset, moved) {
            let range = piece.offset..piece.offset.saturating_add(piece.bytes);
            self.ranges(event, subject, is_write, range);
        }
    }

    fn size(&mut self, event: &Event, place: &Place, subject: &Subject, is_write: bool) {
        let (moved, time) = (event.moved(), event.duration());
        let block = u64::from(self.files[subject.position].block);
        let facts = &mut self.by_program[subject.member.program];
        let sizes: &mut Sizes = if is_write { &mut facts.writes } else { &mut facts.reads };
        sizes.requests += 1;
        sizes.time = sizes.time.saturating_add(time);
        let is_small = moved <= SMALL;
        if is_small {
            sizes.small += 1;
            sizes.small_bytes = sizes.small_bytes.saturating_add(moved);
            sizes.small_time = sizes.small_time.saturating_add(time);
        }
        // A request in pieces is aligned if its file type is.
        let is_block = moved >= block && *place == Place::Whole;
        facts.blocks += u64::from(is_block);
        facts.block = facts.block.max(block);
        let is_misaligned =
            is_block && event.offset.is_some_and(|offset| !offset.unsigned_abs().is_multiple_of(block));
        facts.misaligned += u64::from(is_misaligned);
        let rule = if is_write { Rule::SmallWrites } else { Rule::SmallReads };
        self.case(event, subject, rule, u64::from(is_small));
        self.case(event, subject, Rule::Misaligned, u64::from(is_misaligned));
        let is_mpi = event.layer == Some(Layer::MpiIo);
        self.case(event, subject, Rule::IndependentSharedIo, u64::from(is_small && is_mpi));
    }

    fn ranges(&mut self, event: &Event, subject: &Subject, is_write: bool, range: Range<u64>) {
        let version = self.versions.get(subject.file);
        if is_write && version.last_writer != event.process {
            version.last_writer = event.process;
            version.writers = version.writers.wrapping_add(1);
        }
        let version = (version.contents, version.writers);
        let own = self.own.get((event.process, subject.file));
        if own.version != version {
            own.version = version;
            own.read.clear();
        }
        let together = self.together.get((subject.member.program, subject.file));
        if together.version.0 != version.0 {
            together.written.clear();
        }
        if together.version != version {
            together.version = version;
            together.read.clear();
        }
        let facts = &mut self.by_program[subject.member.program];
        if is_write {
            own.read.remove(&range);
            together.read.remove(&range);
            let overwritten = together.written.add(range);
            facts.overwritten += overwritten;
            self.case(event, subject, Rule::Overwrites, overwritten);
        } else {
            let by_itself = own.read.add(range.clone());
            let by_others = together.read.add(range).saturating_sub(by_itself);
            facts.reread += by_itself;
            facts.read_by_others += by_others;
            self.case(event, subject, Rule::RedundantReads, by_itself);
            self.case(event, subject, Rule::ReadByAll, by_others);
        }
    }

    fn other(&mut self, event: &Event, subject: &Subject) {
        let time = event.duration();
        let facts = &mut self.by_program[subject.member.program];
        if event.class() == OpClass::Sync {
            facts.sync_time = facts.sync_time.saturating_add(time);
            if subject.kind == RequestKind::Sync {
                facts.syncs += 1;
                self.case(event, subject, Rule::SyncPerWrite, 1);
            }
            return;
        }
        facts.metadata_requests += 1;
        facts.metadata_time = facts.metadata_time.saturating_add(time);
        match subject.kind {
            RequestKind::Seek if !asks_for_position(event) => {
                facts.seeks += 1;
                self.case(event, subject, Rule::Seeks, 1);
            }
            RequestKind::Open => {
                let own = self.own.get((event.process, subject.file));
                own.opens += 1;
                let again = u64::from(own.opens > 1);
                facts.opens += 1;
                facts.redundant_opens += again;
                self.case(event, subject, Rule::RedundantOpens, again);
                let is_posix = matches!(event.layer, Some(Layer::Posix));
                let empties = is_posix && event.arg.is_some_and(|flags| flags & TRUNCATES != 0);
                if !event.failed() && empties {
                    self.replaced(subject.file);
                }
            }
            RequestKind::Stat => {
                let own = self.own.get((event.process, subject.file));
                own.stats += 1;
                let again = u64::from(own.stats > 1);
                facts.stats += 1;
                facts.redundant_stats += again;
                self.case(event, subject, Rule::RedundantStats, again);
            }
            RequestKind::Replace | RequestKind::Truncate if !event.failed() => {
                self.replaced(subject.file);
                event.file2.into_iter().for_each(|other| self.replaced(other));
            }
            _ => {}
        }
        self.case(event, subject, Rule::MetadataStorm, 1);
    }

    /// Invalidates everything that was read or written of a file.
    fn replaced(&mut self, file: u64) {
        let version = self.versions.get(file);
        version.contents = version.contents.wrapping_add(1);
    }

    /// Returns the findings of the rules.
    #[must_use]
    pub fn finish(mut self, paths: &FileNames) -> Findings {
        for (process, (of, _)) in self.by_process.into_sorted().filter(|(_, (of, _))| of.requests > 0) {
            let Member { program, member } = self.programs.member(process);
            self.by_program[program].members.entry(member).or_default().add(&of);
        }
        let programs = self.by_program.into_iter().enumerate().filter(|(_, facts)| facts.span.is_some());
        let mut programs: Vec<(usize, ProgramFacts)> = programs.collect();
        programs.sort_by_key(|(number, facts)| (std::cmp::Reverse(facts.io_time()), *number));
        let mut files: HashMap<usize, Vec<(u64, FileFacts)>> = HashMap::new();
        for ((program, file), position) in self.positions {
            files.entry(program).or_default().push((file, std::mem::take(&mut self.files[position])));
        }
        let judged = programs.len() as u64;
        let mut findings = Vec::new();
        for (number, mut facts) in programs {
            let files = files.remove(&number).unwrap_or_default();
            let program = self.programs.get(number);
            if program.ranks {
                // Ranks without any request to these files are members as well.
                for rank in 0..program.members.min(1 << 20) {
                    let _: &mut MemberFacts = facts.members.entry(rank).or_default();
                }
            }
            findings.extend(rules::judge(program, &facts, &files, paths));
        }
        Findings {
            findings,
            programs: judged,
            files_left_out: self.files_left_out,
            system_files_left_out: self.system_files.left_out,
        }
    }
}
