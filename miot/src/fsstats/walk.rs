//! The walk: threads that take directories from one stack, count what is in them and put their directories on it.
//!
//! A thread reads a piece of a directory (some thousand entries) without a lock. Then it commits: what was found is added to the
//! thread's figures, directories are put on the stack, names of files with several are looked up, and the piece is
//! gone from the list of what is under way. A checkpoint stops commits for as long as it takes to copy all that; what is under way
//! is in it as not done. So whatever a checkpoint has is counted once, and what it has not will be.
//!
//! The stack is taken from the end, so it holds the siblings of one way down; and a directory that has more than
//! [`ENOUGH`] waiting is left until they are done.

use super::checkpoint::{State, Waiting};
use super::errors::Errors;
use super::exclude::Excludes;
use super::mounts::Mounts;
use super::node::{Node, Opener};
use super::pace::Pace;
use super::read::{DirectoryReader, Found, Kind, Piece, Task, attributes, place, stat};
use miot_trace_analysis::contents::{Attributes, Contents};
use miot_trace_store::escape;
use rustix::fs::{AtFlags, FileType};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Directories that wait before those being read are put aside: with names of 50 bytes, 10 MB.
const ENOUGH: usize = 64 << 10;

/// Paths of mounts that are named.
const MOUNTS_NAMED: usize = 10;

/// What one walk is about.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) opener: Opener,
    pub(crate) excludes: Excludes,
    pub(crate) pace: Pace,
    pub(crate) cross: bool,
    /// Ages are counted to this moment, seconds since 1970.
    pub(crate) now: i64,
    pub(crate) mounts: Mounts,
    /// No commit is under way while this is held for writing.
    gate: RwLock<()>,
    queue: Mutex<Queue>,
    woken: Condvar,
    known: Mutex<Known>,
    /// Per thread.
    figures: Vec<Mutex<Figures>>,
    pub(crate) progress: Progress,
}

/// For the bar.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) names: AtomicU64,
    pub(crate) directories_done: AtomicU64,
    pub(crate) directories_seen: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Task>,
    /// What each thread has.
    under_way: Vec<Option<Task>>,
    stopped: bool,
}

/// What was met before and may be met again.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Files with several names of which some are still to come, and how many.
    pub(crate) links: HashMap<(u64, u64), u64>,
    /// Directories of file systems that can be met in several mounts.
    pub(crate) directories: HashSet<(u64, u64)>,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) contents: Contents,
    pub(crate) errors: Errors,
    pub(crate) excluded: u64,
    /// Mount points that were left alone, and directories that were met before by way of another mount.
    pub(crate) mounts: u64,
    pub(crate) mounts_named: Vec<String>,
}

impl Figures {
    fn left_alone(&mut self, path: &[u8]) {
        self.mounts += 1;
        if self.mounts_named.len() < MOUNTS_NAMED {
            self.mounts_named.push(escape::path(path).0.into_owned());
        }
    }

    pub(crate) fn merge(&mut self, other: &Figures) {
        self.contents.merge(&other.contents);
        self.errors.merge(&other.errors);
        self.excluded += other.excluded;
        self.mounts += other.mounts;
        self.mounts_named.extend(other.mounts_named.iter().cloned());
        self.mounts_named.truncate(MOUNTS_NAMED);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Walk {
    pub(crate) fn new(
        opener: Opener,
        excludes: Excludes,
        pace: Pace,
        cross: bool,
        now: i64,
        threads: usize,
    ) -> Walk {
        Walk {
            opener,
            excludes,
            pace,
            cross,
            now,
            mounts: if cross { Mounts::read() } else { Mounts::default() },
            gate: RwLock::new(()),
            queue: Mutex::new(Queue { under_way: vec![None; threads], ..Queue::default() }),
            woken: Condvar::new(),
            known: Mutex::default(),
            figures: (0..threads).map(|_| Mutex::default()).collect(),
            progress: Progress::default(),
        }
    }

    /// Begins at the directory that the walk is about.
    pub(crate) fn begin(&self) -> rustix::io::Result<()> {
        let stat = stat(self.opener.root(), c"", AtFlags::EMPTY_PATH)?;
        let directory = Arc::new(Node { parent: None, name: Box::default(), place: place(&stat) });
        lock(&self.figures[0]).contents.directory(&attributes(&stat));
        if self.mounts.shared(place(&stat).device) {
            lock(&self.known).directories.insert(super::read::id(&stat));
        }
        lock(&self.queue).waiting.push(Task { directory, cursor: 0, entries: 0 });
        self.progress.directories_seen.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on from a checkpoint.
    pub(crate) fn go_on(&self, state: State) {
        let contents = &state.figures.contents;
        let waiting = state.waiting.len() as u64;
        self.progress.names.store(contents.names, Ordering::Relaxed);
        self.progress.directories_seen.store(contents.directories, Ordering::Relaxed);
        self.progress.directories_done.store(contents.directories.saturating_sub(waiting), Ordering::Relaxed);
        lock(&self.queue).waiting = state.waiting.into_tasks();
        *lock(&self.known) = state.known;
        *lock(&self.figures[0]) = state.figures;
    }

    /// What would be needed to go on from here.
    pub(crate) fn state(&self) -> State {
        let _no_commits = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let queue = lock(&self.queue);
        let tasks = queue.waiting.iter().chain(queue.under_way.iter().flatten());
        let known = lock(&self.known);
        State {
            figures: self.figures(),
            waiting: Waiting::of(tasks),
            known: Known { links: known.links.clone(), directories: known.directories.clone() },
        }
    }

    /// What was counted so far, by all threads.
    pub(crate) fn figures(&self) -> Figures {
        let mut sum = Figures::default();
        self.figures.iter().for_each(|figures| sum.merge(&lock(figures)));
        sum
    }

    /// Threads end after the pieces they are at.
    pub(crate) fn stop(&self) {
        self.pace.stop.store(true, Ordering::Relaxed);
        lock(&self.queue).stopped = true;
        self.woken.notify_all();
    }

    /// The work of one thread, until nothing is left.
    pub(crate) fn work(&self, thread: usize) {
        let mut reader = DirectoryReader::new(&self.opener, &self.excludes, &self.pace, self.cross);
        let mut next = self.take(thread);
        while let Some(task) = next {
            let piece = reader.read(&task);
            next = self.commit(thread, task, piece).or_else(|| self.take(thread));
        }
    }

    fn take(&self, thread: usize) -> Option<Task> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(task) = queue.waiting.pop() {
                queue.under_way[thread] = Some(task.clone());
                return Some(task);
            }
            if queue.under_way.iter().all(Option::is_none) {
                self.woken.notify_all();
                return None;
            }
            queue = self.woken.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a piece; the next one of the same directory, if this thread is to go on with it.
    fn commit(&self, thread: usize, task: Task, piece: Piece) -> Option<Task> {
        let _commit = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let mut directories = Vec::new();
        let names = piece.found.len() as u64;
        {
            let mut figures = lock(&self.figures[thread]);
            figures.excluded += piece.excluded;
            piece.mounts.iter().for_each(|path| figures.left_alone(path));
            if let Some(entries) = piece.entries {
                figures.contents.entries(entries);
            }
            for found in piece.found {
                self.count(&mut figures, found, &mut directories);
            }
            piece.failed.into_iter().for_each(|failed| figures.errors.add(failed));
        }
        let progress = &self.progress;
        progress.names.fetch_add(names, Ordering::Relaxed);
        progress.directories_seen.fetch_add(directories.len() as u64, Ordering::Relaxed);
        progress.directories_done.fetch_add(u64::from(piece.next.is_none()), Ordering::Relaxed);

        let more = piece.next.map(|(cursor, entries)| Task { cursor, entries, ..task });
        let mut queue = lock(&self.queue);
        let put_aside = queue.waiting.len() + directories.len() > ENOUGH;
        let (own, aside) = if put_aside || queue.stopped { (None, more) } else { (more, None) };
        let before = queue.waiting.len();
        queue.waiting.extend(aside);
        let new = directories.into_iter().map(|directory| Task { directory, cursor: 0, entries: 0 });
        queue.waiting.extend(new);
        queue.under_way[thread] = own.clone();
        let more_than_one = queue.waiting.len() > before + 1;
        let end = queue.waiting.is_empty() && queue.under_way.iter().all(Option::is_none);
        drop(queue);
        if more_than_one || end {
            self.woken.notify_all();
        } else {
            self.woken.notify_one();
        }
        own
    }

    fn count(&self, figures: &mut Figures, found: Found, directories: &mut Vec<Arc<Node>>) {
        let contents = &mut figures.contents;
        match found.kind {
            Kind::File { attributes, id, crossed } => {
                // A file that is mounted somewhere may be met where it is from, too.
                if crossed && self.mounts.shared(id.0) {
                    figures.mounts += 1;
                    return;
                }
                contents.name(found.name);
                if attributes.links > 1 && self.met(id, attributes.links) {
                    contents.further_links += 1;
                } else {
                    contents.file(&attributes, self.now);
                }
            }
            Kind::Directory { attributes, id, node, crossed } => {
                self.directory(figures, found.name, &attributes, id, node, crossed, directories);
            }
            Kind::Symlink { target } => {
                contents.name(found.name);
                contents.symlink(target);
            }
            Kind::Other(kind) => {
                contents.name(found.name);
                let special = &mut contents.special;
                *match kind {
                    FileType::BlockDevice => &mut special.block_devices,
                    FileType::CharacterDevice => &mut special.character_devices,
                    FileType::Fifo => &mut special.fifos,
                    FileType::Socket => &mut special.sockets,
                    _ => &mut special.unknown,
                } += 1;
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn directory(
        &self,
        figures: &mut Figures,
        name: u64,
        attributes: &Attributes,
        id: (u64, u64),
        node: Arc<Node>,
        crossed: bool,
        directories: &mut Vec<Arc<Node>>,
    ) {
        let again = self.mounts.shared(id.0) && !lock(&self.known).directories.insert(id);
        if again || crossed && self.mounts.pseudo(node.place.mount) {
            figures.left_alone(&node.path());
            return;
        }
        figures.contents.name(name);
        figures.contents.directory(attributes);
        directories.push(node);
    }

    /// True if a file with several names was met before.
    fn met(&self, id: (u64, u64), links: u64) -> bool {
        use std::collections::hash_map::Entry;
        let mut known = lock(&self.known);
        match known.links.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(links - 1);
                false
            }
            Entry::Occupied(mut entry) => {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                }
                true
            }
        }
    }
}

impl Progress {
    /// Names that there will be, if the directories to be read are like those that were read.
    pub(crate) fn estimate(&self) -> u64 {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (names, done) = (load(&self.names), load(&self.directories_done).max(1));
        let per_directory = names as f64 / done as f64;
        (per_directory * load(&self.directories_seen) as f64).max(names as f64) as u64
    }
}
