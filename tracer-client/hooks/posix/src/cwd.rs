//! Cache of the working directory between two `chdir`.
//!
//! The cache is lock-free: readers never wait. A thread that finds it stale queries the kernel and
//! tries to store the result. A rename of the directory is not detected, and neither is a change by
//! a raw system call or within libc (`nftw` with `FTW_CHDIR`).

#![expect(clippy::disallowed_types, reason = "working directory under a version counter")]

use crate::path::{Buffer, read_cwd};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

const WORDS: usize = 64;
/// Maximum length in bytes of a cached path. Longer ones are queried each time.
const MAX: usize = WORDS * 8;

/// Number of changes of the directory.
static CHANGES: AtomicU32 = AtomicU32::new(1);
static CACHE: Cache = Cache::new();

struct Cache {
    /// Odd while the cache is being written.
    version: AtomicU32,
    /// Low half: length in bytes; high half: value of CHANGES for which the path is valid. 0 if
    /// empty.
    head: AtomicU64,
    text: [AtomicU64; WORDS],
}

/// Invalidates the cache after a possible change of the directory.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, AcqRel);
}

/// Appends the working directory to the empty buffer. Returns false if the directory has no path.
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

    /// Fills the empty buffer with the cached path. Returns false and leaves it empty if there is
    /// none.
    fn load(&self, changes: u32, buffer: &mut Buffer) -> bool {
        let version = self.version.load(Acquire);
        let head = self.head.load(Relaxed);
        let length = head as u32 as usize;
        if version & 1 != 0 || (head >> 32) as u32 != changes || length == 0 || length > MAX {
            return false;
        }
        buffer.set_words(self.text[..length.div_ceil(8)].iter().map(|word| word.load(Relaxed)), length);
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
        let is_cached = cache.load(changes, &mut buffer);
        assert!(is_cached || buffer.bytes().is_empty());
        is_cached.then(|| buffer.bytes().to_vec())
    }

    #[test]
    fn path_is_cached_until_the_directory_changes() {
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
