//! The walk: threads take directories from one stack, count their entries, and push the directories
//! that they find.
//!
//! A thread reads a part of a directory (some thousand entries) without a lock. Then it commits the
//! part: it adds the entries to its figures, pushes directories on the stack, looks up the files
//! with several names, and removes the part from the list of parts in progress. A checkpoint
//! suspends commits while it copies this state; it contains parts in progress as not done. Each
//! entry is therefore counted once, before or after the checkpoint.
//!
//! The stack is last in, first out, so that it holds the siblings of one path. A directory is
//! suspended while more than [`SUSPEND_AT`] directories wait.

#![expect(clippy::disallowed_types, reason = "counters of the progress")]

use crate::checkpoint::{Waiting, WalkState};
use crate::contents::{Attributes, Contents};
use crate::errors::Errors;
use crate::exclude::Excludes;
use crate::mounts::Mounts;
use crate::node::{DirectoryOpener, Node};
use crate::pace::Pace;
use crate::read::{
    DirectoryPart, DirectoryReader, DirectoryTask, Entry, EntryKind, attributes, id, place, stat,
};
use miot_trace_store::escape;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Statx};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Number of waiting directories at which those being read are suspended. With names of 50 bytes
/// this takes 10 MB.
const SUSPEND_AT: usize = 64 << 10;

/// Number of mount points that a snapshot names.
const MOUNTS_NAMED: usize = 10;

/// A walk of a directory tree.
#[derive(Debug)]
pub struct Walk {
    opener: DirectoryOpener,
    excludes: Excludes,
    pace: Pace,
    cross: bool,
    /// Time to which ages are counted, seconds since 1970.
    now: i64,
    mounts: Mounts,
    /// Locked for reading during a commit. A lock for writing suspends commits.
    gate: RwLock<()>,
    queue: Mutex<Queue>,
    woken: Condvar,
    known: Mutex<SeenInodes>,
    /// Figures of each thread.
    figures: Vec<Mutex<Figures>>,
    /// Progress, for a display.
    pub progress: Progress,
}

/// Progress of a walk.
#[derive(Debug, Default)]
pub struct Progress {
    /// Names counted.
    pub names: AtomicU64,
    directories_done: AtomicU64,
    directories_seen: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<DirectoryTask>,
    /// The task of each thread.
    in_progress: Vec<Option<DirectoryTask>>,
    stopped: bool,
}

/// Files and directories that were counted and may be found again.
#[derive(Debug, Default)]
pub(crate) struct SeenInodes {
    /// Files with several names of which some were not found yet, and the number of these.
    pub(crate) links: HashMap<(u64, u64), u64>,
    /// Directories of file systems that can be met in several mounts.
    pub(crate) directories: HashSet<(u64, u64)>,
}

/// Results of a walk.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Distributions of attributes.
    pub contents: Contents,
    /// Failures.
    pub errors: Errors,
    /// Names that an exclude pattern left out.
    pub excluded: u64,
    /// Mount points that were not entered, and directories that were found before through another
    /// mount.
    pub mounts: u64,
    /// Paths of some of them, escaped.
    pub mounts_named: Vec<String>,
}

impl Figures {
    fn skip_mount(&mut self, path: &[u8]) {
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

/// Attributes of an open directory.
///
/// # Errors
/// If they cannot be read.
pub fn root_attributes(root: &OwnedFd) -> rustix::io::Result<Statx> {
    stat(root.as_fd(), c"", AtFlags::EMPTY_PATH)
}

/// Returns device number and inode number.
#[must_use]
pub fn inode(stat: &Statx) -> (u64, u64) {
    id(stat)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Walk {
    /// Creates a walk from the root of `opener` with this number of threads. With `cross` it enters
    /// other file systems and mounts. Ages are counted to `now`, seconds since 1970.
    #[must_use]
    pub fn new(
        opener: DirectoryOpener,
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
            queue: Mutex::new(Queue { in_progress: vec![None; threads], ..Queue::default() }),
            woken: Condvar::new(),
            known: Mutex::default(),
            figures: (0..threads).map(|_| Mutex::default()).collect(),
            progress: Progress::default(),
        }
    }

    /// Starts at the root.
    ///
    /// # Errors
    /// If the attributes of the root cannot be read.
    pub fn begin(&self) -> rustix::io::Result<()> {
        let stat = stat(self.opener.root(), c"", AtFlags::EMPTY_PATH)?;
        let directory = Arc::new(Node { parent: None, name: Box::default(), place: place(&stat) });
        lock(&self.figures[0]).contents.directory(&attributes(&stat));
        if self.mounts.shared(place(&stat).device) {
            lock(&self.known).directories.insert(id(&stat));
        }
        lock(&self.queue).waiting.push(DirectoryTask { directory, cursor: 0, entries: 0 });
        self.progress.directories_seen.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Continues from a checkpoint.
    pub fn resume(&self, state: WalkState) {
        let contents = &state.figures.contents;
        let waiting = state.waiting.len() as u64;
        self.progress.names.store(contents.names, Ordering::Relaxed);
        self.progress.directories_seen.store(contents.directories, Ordering::Relaxed);
        self.progress.directories_done.store(contents.directories.saturating_sub(waiting), Ordering::Relaxed);
        lock(&self.queue).waiting = state.waiting.into_tasks();
        *lock(&self.known) = state.known;
        *lock(&self.figures[0]) = state.figures;
    }

    /// Returns the state of the walk, for a checkpoint.
    pub fn state(&self) -> WalkState {
        let _no_commits = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let queue = lock(&self.queue);
        let tasks = queue.waiting.iter().chain(queue.in_progress.iter().flatten());
        let known = lock(&self.known);
        WalkState {
            figures: self.figures(),
            waiting: Waiting::of(tasks),
            known: SeenInodes { links: known.links.clone(), directories: known.directories.clone() },
        }
    }

    /// Returns the results of all threads so far.
    pub fn figures(&self) -> Figures {
        let mut sum = Figures::default();
        self.figures.iter().for_each(|figures| sum.merge(&lock(figures)));
        sum
    }

    /// Ends the threads after the parts that they are reading.
    pub fn stop(&self) {
        self.pace.stop.store(true, Ordering::Relaxed);
        lock(&self.queue).stopped = true;
        self.woken.notify_all();
    }

    /// Runs one thread of the walk, until no directory is left or the walk is stopped.
    pub fn work(&self, thread: usize) {
        let mut reader = DirectoryReader::new(&self.opener, &self.excludes, &self.pace, self.cross);
        let mut next = self.take(thread);
        while let Some(task) = next {
            let piece = reader.read(&task);
            next = self.commit(thread, task, piece).or_else(|| self.take(thread));
        }
    }

    fn take(&self, thread: usize) -> Option<DirectoryTask> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(task) = queue.waiting.pop() {
                queue.in_progress[thread] = Some(task.clone());
                return Some(task);
            }
            if queue.in_progress.iter().all(Option::is_none) {
                self.woken.notify_all();
                return None;
            }
            queue = self.woken.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a part of a directory. Returns the next part of the same directory if this thread
    /// continues with it.
    fn commit(&self, thread: usize, task: DirectoryTask, piece: DirectoryPart) -> Option<DirectoryTask> {
        let _commit = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let mut directories = Vec::new();
        let names = piece.found.len() as u64;
        {
            let mut figures = lock(&self.figures[thread]);
            figures.excluded += piece.excluded;
            piece.mounts.iter().for_each(|path| figures.skip_mount(path));
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

        let more = piece.next.map(|(cursor, entries)| DirectoryTask { cursor, entries, ..task });
        let mut queue = lock(&self.queue);
        let suspend = queue.waiting.len() + directories.len() > SUSPEND_AT;
        let (own, aside) = if suspend || queue.stopped { (None, more) } else { (more, None) };
        let before = queue.waiting.len();
        queue.waiting.extend(aside);
        let new = directories.into_iter().map(|directory| DirectoryTask { directory, cursor: 0, entries: 0 });
        queue.waiting.extend(new);
        queue.in_progress[thread] = own.clone();
        let more_than_one = queue.waiting.len() > before + 1;
        let end = queue.waiting.is_empty() && queue.in_progress.iter().all(Option::is_none);
        drop(queue);
        if more_than_one || end {
            self.woken.notify_all();
        } else {
            self.woken.notify_one();
        }
        own
    }

    fn count(&self, figures: &mut Figures, found: Entry, directories: &mut Vec<Arc<Node>>) {
        let contents = &mut figures.contents;
        match found.kind {
            EntryKind::File { attributes, id, crossed } => {
                // A file that is a mount point may also be found at its origin.
                if crossed && self.mounts.shared(id.0) {
                    figures.mounts += 1;
                    return;
                }
                contents.name(found.name);
                if attributes.links > 1 && self.was_seen(id, attributes.links) {
                    contents.further_links += 1;
                } else {
                    contents.file(&attributes, self.now);
                }
            }
            EntryKind::Directory { attributes, id, node, crossed } => {
                self.directory(figures, found.name, &attributes, id, node, crossed, directories);
            }
            EntryKind::Symlink { target } => {
                contents.name(found.name);
                contents.symlink(target);
            }
            EntryKind::Other(kind) => {
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
            figures.skip_mount(&node.path());
            return;
        }
        figures.contents.name(name);
        figures.contents.directory(attributes);
        directories.push(node);
    }

    /// Returns true if a file with several names was found before.
    fn was_seen(&self, id: (u64, u64), links: u64) -> bool {
        use std::collections::hash_map;
        let mut known = lock(&self.known);
        match known.links.entry(id) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(links - 1);
                false
            }
            hash_map::Entry::Occupied(mut entry) => {
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
    /// Estimates the number of names, assuming that unread directories are like those that were
    /// read.
    pub fn estimate(&self) -> u64 {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (names, done) = (load(&self.names), load(&self.directories_done).max(1));
        let per_directory = names as f64 / done as f64;
        (per_directory * load(&self.directories_seen) as f64).max(names as f64) as u64
    }
}
