//! Counters of a job, a process, a file …: merged pairs of process and file.

use super::ranks::{self, Performance, Ranks, Shared};
use super::{Characterization, Counters, Life, OTHERS, Pair, Quantiles, Span, Value};
use crate::characterize::facts::{Process, Texts};
use miot_proto::op::Layer;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A job of the batch system; without one, a run of a parallel program.
    Job,
    /// A step of a job.
    Step,
    /// A process image.
    Process,
    /// An executable, by path.
    Program,
    /// An MPI rank of a run of a parallel program; all processes without a rank together.
    Rank,
    /// A path.
    File,
    /// A node.
    Node,
    /// A layer.
    Layer,
    /// A directory, with this many names below the root.
    Directory(usize),
    /// A user.
    User,
}

/// The pairs of each row, see [`Characterization::groups`].
#[derive(Debug)]
pub struct Groups {
    by: By,
    /// Numbers of pairs, group by group, by file within each group.
    order: Vec<u32>,
    /// Key of each group, and the position of its pairs in `order`.
    groups: Vec<Group>,
    /// Names of directories.
    texts: Texts,
    /// Processes with a rank, by the subject of the rows.
    members: HashMap<Run, Vec<u64>>,
}

/// Group of pairs that becomes a row.
#[derive(Clone, Debug)]
pub struct Group {
    key: u64,
    layer: u8,
    pairs: Range<usize>,
}

impl Groups {
    /// Returns the groups, one for each row.
    #[must_use]
    pub fn all(&self) -> &[Group] {
        &self.groups
    }
}

/// A row.
#[derive(Clone, Debug)]
pub struct CounterRow {
    /// Subject of the row, by name.
    pub labels: Vec<(&'static str, Value)>,
    /// Name of the layer.
    pub layer: &'static str,
    /// Merged counters.
    pub counters: Counters,
    /// Processes that made a request.
    pub processes: u64,
    /// Files that were named.
    pub files: u64,
    /// Pairs of a process and a file that it opened, read or wrote.
    pub files_of_processes: u64,
    /// Sum over the files of the highest offset that was read or written, plus 1.
    pub data_size: u64,
    /// CPU time of the processes up to their last request, nanoseconds; `None` if it was not
    /// recorded for all their threads.
    pub cpu: Option<u64>,
    /// Time from the first to the last event in nanoseconds: of the processes, or for files and
    /// directories, of the events on them.
    pub wall: u64,
    /// Sum over the processes of the time from their first to their last event, nanoseconds.
    pub lives: u64,
    /// Sum over the processes of the time with a request of this layer in progress, nanoseconds.
    /// `None` for files and directories.
    pub busy: Option<u64>,
    /// Alignment of the files in bytes; `None` if they have several.
    pub block: Option<u32>,
    /// Durations of reads.
    pub read_latency: Quantiles,
    /// Durations of writes.
    pub write_latency: Quantiles,
    /// Durations of syncs.
    pub sync_latency: Quantiles,
    /// Durations of requests on metadata.
    pub meta_latency: Quantiles,
    /// Reduction of a file that all ranks of one job opened.
    pub shared: Option<Shared>,
    /// Performance of a job or a step.
    pub performance: Option<Performance>,
}

impl Characterization {
    /// Returns the groups of a table by subject, in these layers, or in all if `layers` is empty.
    #[must_use]
    pub fn groups(&self, by: By, layers: &[Layer]) -> Groups {
        let mut texts = Texts::default();
        let mut directories = HashMap::new();
        let mut runs: HashMap<Run, u64> = HashMap::new();
        let mut keyed: Vec<(u64, u8, u64, u32)> = Vec::new();
        for (number, pair) in self.pairs.iter().enumerate() {
            if !layers.is_empty() && !layers.iter().any(|layer| *layer as u8 == pair.layer) {
                continue;
            }
            let process = || self.processes.get(pair.process);
            let file = pair.file.unwrap_or(0);
            let key = match by {
                By::Process => pair.process,
                By::Program => u64::from(process().program),
                By::Rank => process().rank.map_or(0, |rank| {
                    let number = runs.len() as u64 + 1;
                    *runs.entry(run(process())).or_insert(number) << 32 | u64::from(rank)
                }),
                By::File => file,
                By::Layer => 0,
                By::Node => u64::from(process().node),
                By::User => user(process()),
                By::Job => job(process()),
                By::Step => u64::from(process().step),
                By::Directory(depth) => *directories.entry(file).or_insert_with(|| {
                    let path = self.path(file);
                    path.map_or(0, |path| u64::from(texts.number(directory(path, depth))))
                }),
            };
            keyed.push((key, pair.layer, file, number as u32));
        }
        keyed.sort_unstable();
        let mut groups: Vec<Group> = Vec::new();
        for (at, (key, layer, ..)) in keyed.iter().enumerate() {
            match groups.last_mut() {
                Some(last) if (last.key, last.layer) == (*key, *layer) => last.pairs.end = at + 1,
                _ => groups.push(Group { key: *key, layer: *layer, pairs: at..at + 1 }),
            }
        }
        let mut members: HashMap<Run, Vec<u64>> = HashMap::new();
        if matches!(by, By::Job | By::Step | By::File) {
            let ranked = self.processes.all.iter().filter(|(_, facts)| facts.rank.is_some());
            ranked.for_each(|(process, facts)| {
                members.entry(member_of(by, *facts)).or_default().push(*process)
            });
        }
        let order = keyed.into_iter().map(|(.., number)| number).collect();
        Groups { by, order, groups, texts, members }
    }

    /// Returns the bytes read and written, without computing the whole row.
    ///
    /// # Panics
    /// If the group belongs to other groups.
    #[must_use]
    pub fn bytes(&self, groups: &Groups, group: &Group) -> u64 {
        let pairs = groups.order[group.pairs.clone()].iter().map(|number| &self.pairs[*number as usize]);
        pairs.fold(0, |sum, pair| sum.saturating_add(pair.counters.bytes()))
    }

    /// Returns the row of a group.
    ///
    /// # Panics
    /// If the group belongs to other groups.
    #[must_use]
    pub fn row(&self, groups: &Groups, group: &Group) -> CounterRow {
        let pairs: Vec<&Pair> =
            groups.order[group.pairs.clone()].iter().map(|number| &self.pairs[*number as usize]).collect();
        let mut counters = Counters::default();
        let mut processes = HashSet::new();
        let (mut data_size, mut files) = (0u64, 0);
        for file in pairs.chunk_by(|one, other| one.file == other.file) {
            files += u64::from(file[0].file.is_some());
            let mut size = 0;
            for pair in file {
                counters.merge(&pair.counters);
                processes.insert(pair.process);
                let sides = [pair.counters.reads(), pair.counters.writes()].into_iter();
                let sizes = sides.filter(|side| side.bytes > 0).map(|side| side.max_byte.saturating_add(1));
                size = sizes.fold(size, u64::max);
            }
            data_size = data_size.saturating_add(size);
        }
        let lives: Vec<&Life> = processes.iter().filter_map(|process| self.lives.get(process)).collect();
        let is_of_files = matches!(groups.by, By::File | By::Directory(_));
        let mut span = if is_of_files { counters.span } else { Span::default() };
        if !is_of_files {
            lives.iter().for_each(|life| span.merge(life.span));
        }
        let busy = |life: &&Life| life.busy[usize::from(group.layer)].total;
        let [reads, writes] = [counters.reads(), counters.writes()].map(|side| side.latencies.quantiles());
        CounterRow {
            labels: self.labels(groups, group, &pairs),
            layer: Layer::from_number(group.layer).map_or("unknown", Layer::name),
            processes: processes.len() as u64,
            files,
            files_of_processes: pairs
                .iter()
                .filter(|pair| pair.file.is_some() && pair.counters.is_opened())
                .count() as u64,
            data_size,
            cpu: processes
                .iter()
                .map(|process| self.cpu.get(process).copied())
                .try_fold(0u64, |sum, cpu| Some(sum.saturating_add(cpu?))),
            wall: span.length(),
            lives: lives.iter().fold(0, |sum, life| sum.saturating_add(life.span.length())),
            busy: (!is_of_files).then(|| lives.iter().map(busy).fold(0, u64::saturating_add)),
            block: block(&pairs),
            read_latency: reads,
            write_latency: writes,
            sync_latency: counters.sync_latencies().quantiles(),
            meta_latency: counters.meta_latencies().quantiles(),
            shared: if groups.by == By::File { self.shared(groups, &pairs) } else { None },
            performance: self.performance(groups, &pairs),
            counters,
        }
    }

    /// Returns the path of a file; for [`OTHERS`] a description.
    #[must_use]
    pub fn path(&self, file: u64) -> Option<&str> {
        if file == OTHERS { Some("(other files)") } else { self.files.names.get(file) }
    }

    /// Returns the rank of a process for analyses of ranks: its MPI rank, if it has one.
    #[must_use]
    pub fn rank(&self, process: u64) -> Option<u32> {
        self.processes.get(process).rank
    }

    /// Returns the number of the job of a process, equal for processes of the same job; 0 without a
    /// job.
    #[must_use]
    pub fn job(&self, process: u64) -> u64 {
        job(self.processes.get(process))
    }

    fn labels(&self, groups: &Groups, group: &Group, pairs: &[&Pair]) -> Vec<(&'static str, Value)> {
        let process = self.processes.get(pairs[0].process);
        let texts = &self.processes.texts;
        let text = |number: u32| texts.get(number).map_or(Value::None, |text| Value::Text(text.to_owned()));
        match groups.by {
            By::Job if process.job == 0 => vec![("job", text(process.step)), ("job_system", Value::None)],
            By::Job => vec![("job", text(process.job)), ("job_system", text(process.system))],
            By::Step => vec![("job_step", text(process.step)), ("job", text(process.job))],
            By::Process => vec![
                ("process", Value::Int(group.key)),
                ("node", text(process.node)),
                ("pid", Value::Int(process.pid.into())),
                ("rank", process.rank.map_or(Value::None, |rank| Value::Int(rank.into()))),
                ("command", text(process.command)),
            ],
            By::Program => vec![("program", text(process.program))],
            By::Rank => {
                let rank = process.rank.map_or(Value::None, |rank| Value::Int(rank.into()));
                let [job, step] = if process.rank.is_some() { [process.job, process.step] } else { [0, 0] };
                vec![("rank", rank), ("job", text(job)), ("job_step", text(step))]
            }
            By::File => {
                let path = self.path(group.key).map_or(Value::None, |path| Value::Text(path.to_owned()));
                vec![("path", path)]
            }
            By::Node => vec![("node", text(process.node))],
            By::Layer => Vec::new(),
            By::Directory(_) => {
                let path = groups.texts.get(group.key as u32);
                vec![("directory", path.map_or(Value::None, |path| Value::Text(path.to_owned())))]
            }
            By::User => vec![("user", text(process.user)), ("uid", Value::Int(process.uid.into()))],
        }
    }

    /// Returns the ranks of these processes, all of which have one, and the rank of each process.
    /// Without them each process in `seen` is a rank.
    fn ranks(&self, members: &[u64], seen: &[&Pair]) -> (Ranks, HashMap<u64, u64>) {
        let mut ranks = Ranks::default();
        let mut of = HashMap::new();
        let mut add = |process: u64| {
            let facts = self.processes.get(process);
            let rank = facts.rank.map_or(process, u64::from);
            ranks.all.insert(rank);
            ranks.nodes.insert(facts.node);
            of.insert(process, rank);
        };
        if members.is_empty() {
            seen.iter().for_each(|pair| add(pair.process));
        } else {
            members.iter().for_each(|process| add(*process));
        }
        (ranks, of)
    }

    /// Returns the reduction of a file, if it belongs to one job with ranks.
    fn shared(&self, groups: &Groups, pairs: &[&Pair]) -> Option<Shared> {
        let facts = |pair: &&Pair| self.processes.get(pair.process);
        let of = run(pairs.iter().map(facts).find(|process| process.rank.is_some())?);
        let members = groups.members.get(&of)?;
        let is_of_others = |process: Process| process.rank.is_some() && run(process) != of;
        // Most files are used by one rank.
        let distinct: HashSet<_> =
            members.iter().map(|process| self.processes.get(*process).rank).take(pairs.len() + 1).collect();
        if distinct.len() > pairs.len() || pairs.iter().map(facts).any(is_of_others) {
            return None;
        }
        let (ranks, rank) = self.ranks(members, pairs);
        ranks::shared(&ranks, pairs.iter().filter_map(|pair| Some((*rank.get(&pair.process)?, *pair))))
    }

    /// Returns the performance of a job whose ranks are those of one parallel program.
    fn performance(&self, groups: &Groups, pairs: &[&Pair]) -> Option<Performance> {
        if !matches!(groups.by, By::Job | By::Step) {
            return None;
        }
        let of = member_of(groups.by, self.processes.get(pairs[0].process));
        let members = groups.members.get(&of).map_or(&[][..], Vec::as_slice);
        let mut steps = members.iter().map(|process| self.processes.get(*process).step);
        let first = steps.next();
        if steps.any(|step| Some(step) != first) {
            return None;
        }
        let (ranks, rank) = self.ranks(members, pairs);
        let of_ranks: Vec<(u64, &Pair)> =
            pairs.iter().filter_map(|pair| Some((*rank.get(&pair.process)?, *pair))).collect();
        Some(ranks::performance(&ranks, &of_ranks))
    }
}

/// A run of a parallel program: batch system, job, step; each may be 0.
type Run = (u32, u32, u32);

fn run(process: Process) -> Run {
    (process.system, process.job, process.step)
}

/// Returns the run to which the processes of a row belong for analyses of ranks.
fn member_of(by: By, process: Process) -> Run {
    match by {
        By::Job => {
            let job = job(process);
            ((job >> 32) as u32, job as u32, 0)
        }
        By::Step => (0, 0, process.step),
        _ => run(process),
    }
}

/// Returns the number of the job, or of the run of a parallel program.
fn job(process: Process) -> u64 {
    match process.job {
        0 => u64::from(process.step),
        job => u64::from(process.system) << 32 | u64::from(job),
    }
}

/// Returns a key of the user. A node may have another name for a user, or none.
fn user(process: Process) -> u64 {
    u64::from(process.user) << 32 | u64::from(process.uid)
}

/// Returns at most `depth` leading names of the directory of a path.
fn directory(path: &str, depth: usize) -> &str {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let end = parent.match_indices('/').nth(depth).map_or(parent.len(), |(at, _)| at);
    if parent.is_empty() || end == 0 { "/" } else { &parent[..end] }
}

/// Returns the alignment of all files of these pairs.
fn block(pairs: &[&Pair]) -> Option<u32> {
    let of_files = |pair: &&&Pair| pair.file.is_some_and(|file| file != OTHERS);
    let mut blocks = pairs.iter().filter(of_files).map(|pair| pair.block);
    let first = blocks.next()?;
    blocks.all(|block| block == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::directory;

    #[test]
    fn directories_are_truncated_to_the_depth() {
        let cases = [
            ("/a/b/c", 1, "/a"),
            ("/a/b/c", 2, "/a/b"),
            ("/a/b/c", 9, "/a/b"),
            ("/a", 3, "/"),
            ("x", 1, "/"),
            ("/a/b", 0, "/"),
        ];
        for (path, depth, expected) in cases {
            assert_eq!(directory(path, depth), expected, "{path} {depth}");
        }
    }
}
