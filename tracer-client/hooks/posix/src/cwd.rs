//! Cache of the working directory between two `chdir`.
//!
//! The cache is lock-free: readers never wait. A thread that finds it stale queries the kernel and
//! tries to store the result. A rename of the directory is not detected, and neither is a change by
//! a raw system call or within libc (`nftw` with `FTW_CHDIR`).

#![expect(clippy::disallowed_types, reason = "working directory under a version counter")]

use crate::path::{Buffer, Joined, read_cwd};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

const WORDS: usize = 64;
/// Maximum length in bytes of a cached path. Longer ones are queried each time.
pub(crate) const MAX: usize = WORDS * 8;

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

/// Returns the working directory, a slash, and a short relative path. `None`: the directory is not
/// cached, or the path is long.
#[inline(never)]
pub(crate) fn join<'a>(path: &[u8], joined: &'a mut Joined) -> Option<&'a [u8]> {
    CACHE.join(CHANGES.load(Acquire), path, joined)
}

impl Cache {
    const fn new() -> Cache {
        Cache {
            version: AtomicU32::new(0),
            head: AtomicU64::new(0),
            text: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Version and length of the cached path. `None`: there is none.
    #[inline(always)]
    fn begin_read(&self, changes: u32) -> Option<(u32, usize)> {
        let version = self.version.load(Acquire);
        let head = self.head.load(Relaxed);
        let length = head as u32 as usize;
        let is_valid = version & 1 == 0 && (head >> 32) as u32 == changes && length != 0 && length <= MAX;
        is_valid.then_some((version, length))
    }

    /// Returns whether the words that were read since then are those of this version.
    #[inline(always)]
    fn end_read(&self, version: u32) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// Words of a path of this length.
    #[inline(always)]
    fn words(&self, length: usize) -> impl Iterator<Item = u64> {
        self.text[..length.div_ceil(8)].iter().map(|word| word.load(Relaxed))
    }

    /// Fills the empty buffer with the cached path. Returns false and leaves it empty if there is
    /// none.
    fn load(&self, changes: u32, buffer: &mut Buffer) -> bool {
        let Some((version, length)) = self.begin_read(changes) else { return false };
        buffer.set_words(self.words(length), length);
        let unchanged = self.end_read(version);
        buffer.truncate(if unchanged { length } else { 0 });
        unchanged
    }

    /// Returns the cached path, a slash, and a relative path. `None`: there is none, or one of both
    /// is too long.
    #[inline(always)]
    fn join<'a>(&self, changes: u32, path: &[u8], joined: &'a mut Joined) -> Option<&'a [u8]> {
        let (version, length) = self.begin_read(changes)?;
        let path = joined.set(self.words(length), length, path);
        if self.end_read(version) { path } else { None }
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
    use crate::path::{Buffer, Joined};

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

    #[test]
    fn joined_path_has_one_slash_between_directory_and_name() {
        let cache = Cache::new();
        let mut joined = Joined::new();
        assert_eq!(cache.join(1, b"n", &mut joined), None);
        for directory in [&b"/"[..], b"/a", b"/123456", b"/1234567", b"/12345678", &[b'x'; 512]] {
            cache.store(1, directory);
            for name in [&b"n"[..], b"some/name", &[b'y'; 512]] {
                let stem = if directory == b"/" { b"" } else { directory };
                let expected = [stem, b"/", name].concat();
                assert_eq!(cache.join(1, name, &mut joined), Some(&expected[..]));
            }
            assert_eq!(cache.join(1, &[b'y'; 513], &mut joined), None);
            assert_eq!(cache.join(2, b"n", &mut joined), None);
        }
    }
}
