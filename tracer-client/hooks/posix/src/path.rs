//! Recorded paths: absolute, without `//`, `/./` and a final slash; `..` and links stay.
//!
//! The application's string is read only after the real call, and only if it is known to be
//! readable: after a success, or after an error that the kernel returns once it has read the name.
//! After any other error the kernel is queried first, so that a bad pointer causes `EFAULT` as
//! without the hook.

use crate::cwd;
use crate::files::borrow;
use crate::scan::scan;
use miot_tracer::NONE;
use miot_tracer::gate::{self, Calls};
use rustix::fs::CWD;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// Maximum length in bytes of a path in a system call, including its NUL.
const PATH_MAX: usize = libc::PATH_MAX as usize;
/// Capacity of a buffer: one byte more than is recorded, so that a longer path is recognized as
/// cut.
const CAPACITY: usize = miot_proto::event::MAX_PATH + 1;

/// A path as the application passed it: any pointer.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Path(pub(crate) *const c_char);

/// A path under construction. It is cut at the capacity.
pub(crate) struct Buffer {
    bytes: [MaybeUninit<u8>; CAPACITY],
    length: usize,
}

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer { bytes: [const { MaybeUninit::uninit() }; CAPACITY], length: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY:
        // - The first `length` bytes have been written.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length) }
    }

    pub(crate) fn push(&mut self, more: &[u8]) {
        let free = &mut self.bytes[self.length..];
        let fits = more.len().min(free.len());
        free[..fits].write_copy_of_slice(&more[..fits]);
        self.length += fits;
    }

    /// Replaces the contents by the first `length` bytes of words in memory order.
    pub(crate) fn set_words(&mut self, words: impl Iterator<Item = u64>, length: usize) {
        let (chunks, _) = self.bytes.as_chunks_mut::<{ size_of::<u64>() }>();
        let mut filled = 0;
        for (chunk, word) in chunks.iter_mut().zip(words) {
            chunk.write_copy_of_slice(&word.to_ne_bytes());
            filled += size_of::<u64>();
        }
        self.length = length.min(filled);
    }

    /// Keeps only the first `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Appends a slash and each component of a path, without empty components and `.`.
    pub(crate) fn join(&mut self, path: &[u8]) {
        let starts_normalized = !matches!(path, [b'/', ..] | [b'.'] | [b'.', b'/', ..]);
        if starts_normalized && is_rest_normalized(path) {
            self.push(b"/");
            return self.push(path);
        }
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            self.push(b"/");
            self.push(part);
        }
    }

    /// Fills the buffer with a link's target, by one system call.
    fn read_link(&mut self, link: &std::ffi::CStr) -> bool {
        let Some(_permit) = gate::permit(Calls::LINK) else { return false };
        let read = rustix::fs::readlinkat_raw(CWD, link, &mut self.bytes[..]).map(|(filled, _)| filled.len());
        self.length = read.unwrap_or(0);
        read.is_ok()
    }
}

/// Memory for a path of the cached working directory and a short relative path.
pub(crate) struct Joined([MaybeUninit<u64>; Joined::WORDS]);

impl Joined {
    /// Maximum length in bytes of the relative path.
    const LONGEST: usize = 512;
    const WORDS: usize = (cwd::MAX + Joined::LONGEST).div_ceil(size_of::<u64>()) + 1;

    #[inline(always)]
    pub(crate) fn new() -> Joined {
        Joined([MaybeUninit::uninit(); Joined::WORDS])
    }

    /// Returns the path of a directory, whose `length` bytes are given as words in memory order, a
    /// slash, and a relative path. `None`: one of both is too long.
    pub(crate) fn set(
        &mut self,
        words: impl Iterator<Item = u64>,
        length: usize,
        path: &[u8],
    ) -> Option<&[u8]> {
        if length > cwd::MAX || path.len() > Joined::LONGEST {
            return None;
        }
        let words = words.take(length.div_ceil(size_of::<u64>()));
        let mut filled = 0;
        for (to, word) in self.0.iter_mut().zip(words) {
            to.write(word);
            filled += size_of::<u64>();
        }
        // The root directory ends in a slash already.
        let length = if length == 1 { 0 } else { length.min(filled) };
        let bytes = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: the writes and the slice require
        // - ranges within the words: `length` and the length of the path are limited above;
        // - no overlap: these words are borrowed mutably;
        // - initialized bytes: those of the directory, the slash and the path have been written.
        unsafe {
            bytes.add(length).write(b'/');
            bytes.add(length + 1).copy_from_nonoverlapping(path.as_ptr(), path.len());
            Some(std::slice::from_raw_parts(bytes, length + 1 + path.len()))
        }
    }
}

/// Queries the kernel for the path of an open file. Returns false if it has none.
pub(crate) fn of_descriptor(fd: c_int, buffer: &mut Buffer) -> bool {
    const DELETED: &[u8] = b" (deleted)";
    // Not /proc/self, which is empty after the main thread has ended.
    const FOLDER: &[u8] = b"/proc/thread-self/fd/";
    let mut name = [0u8; FOLDER.len() + 12];
    name[..FOLDER.len()].copy_from_slice(FOLDER);
    let mut digits = [0u8; 10];
    let (mut rest, mut at) = (fd as u32, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    name[FOLDER.len()..FOLDER.len() + digits.len() - at].copy_from_slice(&digits[at..]);
    let Ok(name) = std::ffi::CStr::from_bytes_until_nul(&name) else { return false };
    if !buffer.read_link(name) || buffer.bytes().first() != Some(&b'/') {
        return false;
    }
    if buffer.bytes().ends_with(DELETED)
        && let Some(_permit) = gate::permit(Calls::STAT)
        && borrow(fd).and_then(|fd| rustix::fs::fstat(fd).ok()).is_some_and(|stat| stat.st_nlink == 0)
    {
        buffer.length -= DELETED.len();
    }
    true
}

/// Queries the kernel for the working directory. Returns false if it has no path.
pub(crate) fn read_cwd(buffer: &mut Buffer) -> bool {
    buffer.read_link(c"/proc/thread-self/cwd") && buffer.bytes().first() == Some(&b'/')
}

/// Position of a path among the arguments of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathArgument {
    First,
    /// The call may fail before it reads this path.
    Second,
}

impl Path {
    /// Returns the string if it is readable: the call with this result has read it, or the kernel
    /// confirms it.
    fn read<'a>(self, result: i64, argument: PathArgument) -> Option<&'a [u8]> {
        let was_read = result >= 0 || argument == PathArgument::First && is_after_first_read(-result);
        if self.0.is_null() || result == -i64::from(libc::EFAULT) || !was_read && !self.is_readable() {
            return None;
        }
        // SAFETY:
        // - The kernel has read this string up to its end, or up to PATH_MAX bytes, without a
        //   fault.
        // - Only these bytes are read. A program that changes them at the same time has a data race
        //   with the kernel as well.
        unsafe { Some(std::slice::from_raw_parts(self.0.cast(), libc::strnlen(self.0, PATH_MAX))) }
    }

    /// Returns the recorded path of a call whose path the kernel has read, if it is assembled
    /// quickly: from the string itself, or from the cached working directory and the string.
    #[inline(always)]
    pub(crate) fn read_quickly(self, directory: c_int, result: i64, joined: &mut Joined) -> Option<&[u8]> {
        if result < 0 && !is_after_first_read(-result) || self.0.is_null() {
            return None;
        }
        // SAFETY: `scan` and the slice require
        // - a C string: the kernel has read this string up to its end, or up to PATH_MAX bytes,
        //   without a fault, and only these bytes are read.
        let (path, is_plain) = unsafe {
            let scanned = scan::<{ PATH_MAX - 32 }>(self.0)?;
            (std::slice::from_raw_parts(self.0.cast::<u8>(), scanned.length), scanned.is_plain)
        };
        match path {
            [b'/', ..] if is_plain => Some(path),
            [] | [b'/', ..] | [b'.'] | [b'.', b'/', ..] => None,
            _ if is_plain && directory == libc::AT_FDCWD => cwd::join(path, joined),
            _ => None,
        }
    }

    /// Queries the kernel whether the string is readable.
    #[cold]
    fn is_readable(self) -> bool {
        let Some(_permit) = gate::permit(Calls::ACCESS) else { return false };
        crate::real::keeping_errno(|| {
            // The invalid descriptor prevents the lookup of a relative path.
            // SAFETY:
            // - The call accepts any pointer: the kernel returns EFAULT for a bad one.
            let returned = unsafe { libc::syscall(libc::SYS_faccessat, -1, self.0, libc::F_OK) };
            returned == 0 || crate::real::errno() != libc::EFAULT
        })
    }

    /// Calls `run` with the absolute path, or with an empty one if the string cannot be read.
    #[inline]
    pub(crate) fn resolved<R>(
        self,
        directory: c_int,
        result: i64,
        argument: PathArgument,
        run: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match self.read(result, argument) {
            Some(path) if is_normalized(path) => run(path),
            Some(path) if !path.is_empty() => run_joined(path, run, |buffer| match directory {
                libc::AT_FDCWD => cwd::get(buffer),
                _ => of_descriptor(directory, buffer),
            }),
            _ => run(b""),
        }
    }

    /// Calls `run` as [`resolved`](Self::resolved) does, for a path relative to a directory with a
    /// known path.
    pub(crate) fn resolved_from<R>(
        self,
        directory: Option<&Buffer>,
        result: i64,
        run: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match self.read(result, PathArgument::First) {
            Some(path) if !path.is_empty() => run_joined(path, run, |buffer| {
                buffer.push(directory.map_or(b"", Buffer::bytes));
                directory.is_some()
            }),
            _ => run(b""),
        }
    }

    /// Calls `run` with the string as given.
    pub(crate) fn as_given<R>(self, result: i64, argument: PathArgument, run: impl FnOnce(&[u8]) -> R) -> R {
        run(self.read(result, argument).unwrap_or_default())
    }

    /// Returns whether the string is empty, so that with `AT_EMPTY_PATH` it refers to the
    /// descriptor itself.
    pub(crate) fn is_empty(self, result: i64) -> bool {
        self.read(result, PathArgument::First).is_some_and(<[u8]>::is_empty)
    }
}

/// Returns whether the kernel returns this error only after it has read the (first) name.
fn is_after_first_read(errno: i64) -> bool {
    const ERRORS: [c_int; 12] = [
        libc::ENOENT,
        libc::EEXIST,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::ELOOP,
        libc::ENAMETOOLONG,
        libc::ENOTEMPTY,
        libc::EROFS,
        libc::ENOSPC,
        libc::EXDEV,
        libc::ETXTBSY,
        libc::ENODATA,
    ];
    ERRORS.iter().any(|listed| i64::from(*listed) == errno)
}

/// Returns whether an absolute path is recorded unchanged.
fn is_normalized(path: &[u8]) -> bool {
    path.first() == Some(&b'/') && (path.len() == 1 || is_rest_normalized(path))
}

/// Returns whether no component after the first slash is empty or `.`, and the path does not end in
/// a slash. The path must not be empty.
#[inline]
fn is_rest_normalized(path: &[u8]) -> bool {
    // A slash before a slash or a dot is rare; only then the path is checked in detail.
    if !has_slash_before_slash_or_dot(path) {
        return path.last() != Some(&b'/');
    }
    path.last() != Some(&b'/')
        && !path.windows(2).any(|pair| pair == b"//")
        && !path.windows(3).any(|three| three == b"/./")
        && !path.ends_with(b"/.")
}

/// Returns whether a slash is followed by a slash or a dot.
#[inline]
fn has_slash_before_slash_or_dot(path: &[u8]) -> bool {
    /// Pairs of neighbors that are compared at a time: a vector register.
    const PAIRS: usize = 16;
    let in_pairs = |before: &[u8], after: &[u8]| {
        before.iter().zip(after).fold(0, |found, (first, second)| {
            found | u8::from(*first == b'/') & (u8::from(*second == b'/') | u8::from(*second == b'.'))
        }) != 0
    };
    let (before, after) = (&path[..path.len() - 1], &path[1..]);
    let (Some((_, last_before)), Some((_, last_after))) =
        (before.split_last_chunk::<PAIRS>(), after.split_last_chunk::<PAIRS>())
    else {
        return in_pairs(before, after);
    };
    // The last chunk overlaps the one before it, so that no single bytes remain.
    let (chunks_before, chunks_after) = (before.as_chunks::<PAIRS>().0, after.as_chunks::<PAIRS>().0);
    chunks_before.iter().zip(chunks_after).any(|(before, after)| in_pairs(before, after))
        || in_pairs(last_before, last_after)
}

/// Calls `run` with a path assembled from a directory, which `directory` appends to the buffer, and
/// `path`. `directory` returns false if the directory has no path.
#[inline(never)]
fn run_joined<R>(
    path: &[u8],
    run: impl FnOnce(&[u8]) -> R,
    directory: impl FnOnce(&mut Buffer) -> bool,
) -> R {
    let mut buffer = Buffer::new();
    if path.first() != Some(&b'/') {
        if !directory(&mut buffer) {
            // The directory has been removed: the path stays as given.
            return run(path);
        }
        if buffer.bytes() == b"/" {
            buffer.truncate(0);
        }
    }
    buffer.join(path);
    if buffer.length == 0 {
        buffer.push(b"/");
    }
    run(buffer.bytes())
}

/// Returns the argument word of an event, which is stored as its length. The low half is often
/// flags, the high half a mode.
pub(crate) const fn arg(low: c_int, high: u32) -> u64 {
    let word = low as u32 as u64 | (high as u64) << 32;
    // NONE would mean that there is no argument.
    if word == NONE { word - 1 } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn resolve(path: &str, result: i64) -> Vec<u8> {
        let path = CString::new(path).unwrap();
        Path(path.as_ptr()).resolved(libc::AT_FDCWD, result, PathArgument::First, <[u8]>::to_vec)
    }

    #[test]
    fn paths_become_absolute_and_normalized() {
        gate::detect_inherited_filter();
        let cwd = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
        let below = |rest: &[u8]| [&cwd[..], rest].concat();
        for (given, expected) in [
            ("a//b/./c/", "/a/b/c"),
            ("../x", "/../x"),
            ("a", "/a"),
            ("a/b", "/a/b"),
            (".a/.b/..", "/.a/.b/.."),
            ("./a", "/a"),
            ("a/", "/a"),
            ("a/.", "/a"),
            (".", ""),
            ("./", ""),
            ("././/.", ""),
        ] {
            assert_eq!(resolve(given, 0), below(expected.as_bytes()), "{given}");
        }
        for (given, expected) in
            [("/", "/"), ("//", "/"), ("/.", "/"), ("/a/./b", "/a/b"), ("/a/..", "/a/.."), ("/a/.b", "/a/.b")]
        {
            assert_eq!(resolve(given, 0), expected.as_bytes(), "{given}");
        }
        assert_eq!(resolve("", -2), b"");
    }

    /// The quick way, where it is taken, gives the path of the other way.
    #[test]
    fn quick_paths_are_those_of_the_general_way() {
        gate::detect_inherited_filter();
        // Fills the cache of the working directory.
        assert!(!resolve("x", 0).is_empty());
        let long = "y".repeat(600);
        let mut quick = 0;
        for given in [
            "a",
            "a/b",
            "..",
            "../x",
            ".a",
            "..b/.c",
            ".",
            "./a",
            "a/",
            "a//b",
            "a/./b",
            "a/.",
            "",
            "/",
            "/a",
            "/a/b.c",
            "/a/",
            "//a",
            "some/longer/path/of/more/than/one/chunk.txt",
            &long,
        ] {
            let path = CString::new(given).unwrap();
            let mut joined = Joined::new();
            let found = Path(path.as_ptr()).read_quickly(libc::AT_FDCWD, -2, &mut joined).map(<[u8]>::to_vec);
            if let Some(found) = found {
                assert_eq!(found, resolve(given, -2), "{given}");
                quick += 1;
            }
        }
        let expected = if cfg!(target_arch = "x86_64") { 8 } else { 0 };
        assert_eq!(quick, expected);
        let path = c"a";
        assert_eq!(Path(path.as_ptr()).read_quickly(5, 0, &mut Joined::new()), None);
    }

    #[test]
    fn every_pair_of_neighbors_is_checked() {
        for length in 2..70 {
            for at in 0..length - 1 {
                for pair in [b"//", b"/."] {
                    let mut path = vec![b'a'; length];
                    path[at..at + 2].copy_from_slice(pair);
                    assert!(has_slash_before_slash_or_dot(&path), "{length} {at}");
                    path[at] = b'a';
                    assert!(!has_slash_before_slash_or_dot(&path), "{length} {at}");
                }
            }
        }
    }

    #[test]
    fn long_paths_are_cut_at_the_capacity() {
        gate::detect_inherited_filter();
        let long = "/x".repeat(4000);
        let found = resolve(&long, -i64::from(libc::ENAMETOOLONG));
        assert!(long.as_bytes().starts_with(&found) && found.len() == PATH_MAX);
        assert_eq!(resolve(&"y/".repeat(2047), 0).len(), CAPACITY);
    }

    #[test]
    fn bad_pointers_are_not_read() {
        gate::detect_inherited_filter();
        for (result, address) in [(0, 0), (-i64::from(libc::EFAULT), 8), (-i64::from(libc::EINVAL), 8)] {
            let path = Path(std::ptr::without_provenance(address));
            assert_eq!(path.resolved(libc::AT_FDCWD, result, PathArgument::First, <[u8]>::to_vec), b"");
        }
        let second = Path(std::ptr::without_provenance(8));
        assert_eq!(second.resolved(libc::AT_FDCWD, -2, PathArgument::Second, <[u8]>::to_vec), b"");
        // The string is readable, although the error does not show it.
        assert_eq!(resolve("/x", -i64::from(libc::EINVAL)), b"/x");
        assert_eq!(crate::real::keeping_errno(|| 1), 1);
    }

    #[test]
    fn only_descriptors_of_files_have_paths() {
        gate::detect_inherited_filter();
        use std::os::fd::AsRawFd;
        let dir = std::fs::File::open("/etc").unwrap();
        let mut buffer = Buffer::new();
        assert!(of_descriptor(dir.as_raw_fd(), &mut buffer));
        assert_eq!(buffer.bytes(), b"/etc");
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(!of_descriptor(pipe.as_raw_fd(), &mut Buffer::new()));
    }
}
