//! The working directory, remembered between two `chdir`.
//!
//! A lock-free cache: readers never wait, and whoever finds it stale asks the kernel and tries to store the
//! answer. A directory that is renamed meanwhile keeps the name it had; one that is changed by a raw system
//! call or inside libc (`nftw` with `FTW_CHDIR`) is not noticed.

use crate::path::{Buffer, read_cwd};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

const WORDS: usize = 64;
/// Longer ones are asked for each time.
const MAX: usize = WORDS * 8;

/// Counts changes of directory.
static CHANGES: AtomicU32 = AtomicU32::new(1);
static CACHE: Cache = Cache::new();

struct Cache {
    /// Odd while the cache is being written.
    version: AtomicU32,
    /// Low half: length; high half: the value of CHANGES it is true for. 0 = empty.
    head: AtomicU64,
    text: [AtomicU64; WORDS],
}

/// The directory has changed, or may have.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, AcqRel);
}

/// Appends the working directory to the empty buffer. False: it is not in the tree.
pub(crate) fn get(buffer: &mut Buffer) -> bool {
    let changes = CHANGES.load(Acquire);
    if CACHE.load(changes, buffer) {
        return true;
    }
    if !read_cwd(buffer) {
        return false;
    }
    CACHE.store(changes, buffer.bytes());
    true
}

impl Cache {
    const fn new() -> Cache {
        Cache {
            version: AtomicU32::new(0),
            head: AtomicU64::new(0),
            text: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Fills the empty buffer, or leaves it empty.
    fn load(&self, changes: u32, buffer: &mut Buffer) -> bool {
        let version = self.version.load(Acquire);
        let head = self.head.load(Relaxed);
        let length = head as u32 as usize;
        if version & 1 != 0 || (head >> 32) as u32 != changes || length == 0 || length > MAX {
            return false;
        }
        for word in &self.text[..length.div_ceil(8)] {
            buffer.push(&word.load(Relaxed).to_ne_bytes());
        }
        fence(Acquire);
        let unchanged = self.version.load(Relaxed) == version;
        buffer.truncate(if unchanged { length } else { 0 });
        unchanged
    }

    fn store(&self, changes: u32, path: &[u8]) {
        let version = self.version.load(Relaxed);
        let fits = path.len() <= MAX && version & 1 == 0;
        let next = version.wrapping_add(1);
        if !fits || self.version.compare_exchange(version, next, Acquire, Relaxed).is_err() {
            return;
        }
        fence(Release);
        for (word, from) in self.text.iter().zip(path.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            word.store(u64::from_ne_bytes(bytes), Relaxed);
        }
        self.head.store(u64::from(changes) << 32 | path.len() as u64, Relaxed);
        self.version.store(next.wrapping_add(1), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Cache;
    use crate::path::Buffer;

    fn load(cache: &Cache, changes: u32) -> Option<Vec<u8>> {
        let mut buffer = Buffer::new();
        let there = cache.load(changes, &mut buffer);
        assert!(there || buffer.bytes().is_empty());
        there.then(|| buffer.bytes().to_vec())
    }

    #[test]
    fn remembers_until_the_directory_changes() {
        let cache = Cache::new();
        for path in [&b"/a"[..], b"/12345678", &[b'x'; 512]] {
            cache.store(7, path);
            assert_eq!(load(&cache, 7), Some(path.to_vec()));
            assert_eq!(load(&cache, 8), None);
        }
        cache.store(8, &[b'x'; 513]);
        assert_eq!(load(&cache, 8), None);
    }
}
