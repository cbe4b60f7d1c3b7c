//! The file of each open handle of a process, and the id of each path of a node.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds fast hashers of one number. Handles come from traced programs, so the hash is keyed: a
/// program cannot choose handles that collide.
#[derive(Clone, Debug)]
pub struct KeyedHash(u64, u64);

impl Default for KeyedHash {
    fn default() -> KeyedHash {
        let random = RandomState::new();
        KeyedHash(random.hash_one(1), random.hash_one(2) | 1)
    }
}

/// See [`KeyedHash`].
#[derive(Debug)]
pub struct KeyedHasher(u64, u64);

impl BuildHasher for KeyedHash {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher(self.0, self.1)
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(value ^ self.0) * u128::from(self.1);
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Number of closed handles that are kept: in another thread, a request on a handle may complete
/// after the close of the handle.
const KEEP_CLOSED: usize = 4096;
/// Maximum number of handles of a process. A process with more open handles loses the names of the
/// oldest.
const MAX_HANDLES: usize = 1 << 20;

/// Handles of one process.
#[derive(Debug, Default)]
pub struct Handles {
    files: HashMap<u64, u64, KeyedHash>,
    closed: VecDeque<u64>,
    version: u64,
}

impl Handles {
    /// Number of changes: a look-up at the same version is still valid.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// File of a handle.
    #[must_use]
    pub fn get(&self, handle: u64) -> Option<u64> {
        self.files.get(&handle).copied()
    }

    /// All handles and their files.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().map(|(handle, file)| (*handle, *file))
    }

    /// Assigns a file to a handle.
    pub fn define(&mut self, handle: u64, file: u64) {
        if self.files.insert(handle, file) != Some(file) {
            self.version += 1;
        }
        if self.files.len() > MAX_HANDLES {
            // Handles are numbered in ascending order, so the lower half is the older one.
            let newest = self.files.keys().max().copied().unwrap_or(0);
            let keep_from = newest.saturating_sub(MAX_HANDLES as u64 / 2);
            self.files.retain(|handle, _| *handle > keep_from);
            self.version += 1;
        }
    }

    /// Closes a handle.
    pub fn close(&mut self, handle: u64) {
        self.closed.push_back(handle);
        while self.closed.len() > KEEP_CLOSED {
            if let Some(handle) = self.closed.pop_front() {
                self.files.remove(&handle);
                self.version += 1;
            }
        }
    }
}

/// Ids by path. Paths come from traced programs: this hash is keyed, and a quarter of the cost of
/// std's.
type PathMap = HashMap<Box<[u8]>, u64, ahash::RandomState>;

/// Ids of the paths of one node. Recently used paths are kept: a path that was not used for long
/// gets another id.
#[derive(Debug)]
pub struct PathIds {
    recent: PathMap,
    old: PathMap,
    half: usize,
}

impl PathIds {
    /// Creates a table that keeps between `keep / 2` and `keep` paths.
    #[must_use]
    pub fn new(keep: usize) -> PathIds {
        PathIds { recent: PathMap::default(), old: PathMap::default(), half: (keep / 2).max(1) }
    }

    /// Ids of all known paths.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.recent.values().chain(self.old.values()).copied()
    }

    /// Returns the id of a path, and whether the path is new. A new path gets the id `*next`, which
    /// is incremented.
    pub fn intern(&mut self, path: &[u8], next: &mut u64) -> (u64, bool) {
        if let Some(id) = self.recent.get(path) {
            return (*id, false);
        }
        let (path, id, new) = match self.old.remove_entry(path) {
            Some((path, id)) => (path, id, false),
            None => {
                let id = *next;
                *next += 1;
                (path.into(), id, true)
            }
        };
        if self.recent.len() >= self.half {
            self.old = std::mem::take(&mut self.recent);
        }
        self.recent.insert(path, id);
        (id, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_handles_expire_and_open_ones_stay() {
        let mut handles = Handles::default();
        handles.define(1, 10);
        for handle in 2..10_000 {
            handles.define(handle, 20);
            handles.close(handle);
        }
        assert_eq!((handles.get(1), handles.get(9_999), handles.get(2)), (Some(10), Some(20), None));
        assert!(handles.files.len() <= KEEP_CLOSED + 1);
    }

    #[test]
    fn handles_of_a_process_are_limited() {
        let mut handles = Handles::default();
        (0..MAX_HANDLES as u64 + 10).for_each(|handle| handles.define(handle, 1));
        assert!(handles.files.len() <= MAX_HANDLES);
        assert_eq!(handles.get(MAX_HANDLES as u64 + 9), Some(1));
    }

    #[test]
    fn version_counts_every_change() {
        let mut handles = Handles::default();
        let before = handles.version();
        handles.define(1, 10);
        let defined = handles.version();
        handles.define(1, 10);
        assert_eq!(handles.version(), defined);
        handles.define(1, 11);
        assert!(before < defined && defined < handles.version());
    }

    #[test]
    fn recently_used_paths_keep_their_ids() {
        let (mut paths, mut next) = (PathIds::new(8), 1);
        assert_eq!(paths.intern(b"/a", &mut next), (1, true));
        for i in 0..100u8 {
            paths.intern(&[i], &mut next);
            assert_eq!(paths.intern(b"/a", &mut next), (1, false), "after {i}");
        }
        assert_eq!(next, 102);
        assert!(paths.recent.len() + paths.old.len() <= 8);
        assert!(paths.intern(&[0], &mut next).1, "forgotten, so it gets a new id");
    }
}
