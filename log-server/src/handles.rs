//! Which file each open handle of a process stands for, and which id each path of a node has.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes one number fast. Handles come from traced programs, so the hash is keyed: nobody can choose handles that
/// all meet in one place.
#[derive(Clone, Debug)]
pub struct Keyed(u64, u64);

impl Default for Keyed {
    fn default() -> Keyed {
        let random = RandomState::new();
        Keyed(random.hash_one(1), random.hash_one(2) | 1)
    }
}

/// See [`Keyed`].
#[derive(Debug)]
pub struct KeyedHasher(u64, u64);

impl BuildHasher for Keyed {
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

/// Closed handles are forgotten when more than this many are known: a request on a handle may complete after
/// its close did, in another thread.
const LINGER: usize = 4096;
/// Most handles of a process. A process with more of them open loses the names of the oldest.
const MAX_HANDLES: usize = 1 << 20;

/// The handles of one process.
#[derive(Debug, Default)]
pub struct Handles {
    files: HashMap<u64, u64, Keyed>,
    closed: VecDeque<u64>,
    version: u64,
}

impl Handles {
    /// Counts changes: what was looked up at the same version still holds.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The file of a handle.
    #[must_use]
    pub fn get(&self, handle: u64) -> Option<u64> {
        self.files.get(&handle).copied()
    }

    /// Each handle and its file.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().map(|(handle, file)| (*handle, *file))
    }

    /// From now on the handle stands for the file.
    pub fn define(&mut self, handle: u64, file: u64) {
        if self.files.insert(handle, file) != Some(file) {
            self.version += 1;
        }
        if self.files.len() > MAX_HANDLES {
            // Handles count up, so the lower half are the older ones.
            let newest = self.files.keys().max().copied().unwrap_or(0);
            let keep_from = newest.saturating_sub(MAX_HANDLES as u64 / 2);
            self.files.retain(|handle, _| *handle > keep_from);
            self.version += 1;
        }
    }

    /// The handle was closed.
    pub fn close(&mut self, handle: u64) {
        self.closed.push_back(handle);
        while self.closed.len() > LINGER {
            if let Some(handle) = self.closed.pop_front() {
                self.files.remove(&handle);
                self.version += 1;
            }
        }
    }
}

/// Ids of the paths of one node. Keeps those used lately: a path that was not seen for long gets another id.
#[derive(Debug)]
pub struct Paths {
    young: HashMap<Box<[u8]>, u64>,
    old: HashMap<Box<[u8]>, u64>,
    half: usize,
}

impl Paths {
    /// Keeps between `keep / 2` and `keep` paths.
    #[must_use]
    pub fn new(keep: usize) -> Paths {
        Paths { young: HashMap::new(), old: HashMap::new(), half: (keep / 2).max(1) }
    }

    /// The ids of the paths.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.young.values().chain(self.old.values()).copied()
    }

    /// The id of a path, and whether it is new: then it is `*next`, which counts on.
    pub fn intern(&mut self, path: &[u8], next: &mut u64) -> (u64, bool) {
        if let Some(id) = self.young.get(path) {
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
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(path, id);
        (id, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_lingers_and_an_open_one_stays() {
        let mut handles = Handles::default();
        handles.define(1, 10);
        for handle in 2..10_000 {
            handles.define(handle, 20);
            handles.close(handle);
        }
        assert_eq!((handles.get(1), handles.get(9_999), handles.get(2)), (Some(10), Some(20), None));
        assert!(handles.files.len() <= LINGER + 1);
    }

    #[test]
    fn a_process_cannot_have_more_handles_than_the_bound() {
        let mut handles = Handles::default();
        (0..MAX_HANDLES as u64 + 10).for_each(|handle| handles.define(handle, 1));
        assert!(handles.files.len() <= MAX_HANDLES);
        assert_eq!(handles.get(MAX_HANDLES as u64 + 9), Some(1));
    }

    #[test]
    fn the_version_tells_of_every_change() {
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
    fn paths_used_lately_keep_their_ids() {
        let (mut paths, mut next) = (Paths::new(8), 1);
        assert_eq!(paths.intern(b"/a", &mut next), (1, true));
        for i in 0..100u8 {
            paths.intern(&[i], &mut next);
            assert_eq!(paths.intern(b"/a", &mut next), (1, false), "after {i}");
        }
        assert_eq!(next, 102);
        assert!(paths.young.len() + paths.old.len() <= 8);
        assert!(paths.intern(&[0], &mut next).1, "forgotten, so it gets a new id");
    }
}
