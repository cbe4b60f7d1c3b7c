//! Selection of the recorded paths.
//!
//! Excluded by default: paths below `/proc`, `/sys` and `/dev` (except `/dev/shm`), shared
//! libraries (`*.so`, `*.so.N…`) and the MIOT directory. `MIOT_EXCLUDE` adds globs, `MIOT_INCLUDE`
//! overrides both; each is a list separated by colons. (The setting `MIOT_MPI` of the mpi hook is
//! read here too, so that a starting program reads its environment only once.) In a glob `?`
//! matches one byte except `/`, `*` any number of bytes except `/`, `**` any bytes. A glob that
//! ends in `/` matches the directory and everything below. A glob without `/` is compared with the
//! last component of the path only.

use miot_tracer::Once;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ffi::c_char;

/// Maximum length in bytes of each environment variable. Longer values are cut at the last colon
/// that fits.
const MAX_LIST: usize = 4096;

#[derive(Clone, Copy)]
struct Filter {
    exclude: &'static [u8],
    include: &'static [u8],
    /// Last bytes of the MIOT directory, for a quick comparison; see [`may_be_excluded`].
    directory_end: u64,
    /// Where they begin, bytes.
    directory_end_at: u16,
    /// Every path must be compared in detail: there are lists, or the MIOT directory is too short
    /// for a quick comparison.
    always: bool,
    /// The mpi hook may be loaded.
    mpi: bool,
}

#[unsafe(link_section = ".data.miot")]
static FILTER: Once<Filter> = Once::new();

/// Copy of an environment variable's value: the program may overwrite the original later. The
/// memory is zero-initialized, so that a program that sets no variable touches none of it.
struct ListBuffer(UnsafeCell<[u8; MAX_LIST]>);

// SAFETY:
// - It is written only while `FILTER` is initialized, which one thread does.
// - It is read only after that.
unsafe impl Sync for ListBuffer {}

static LIST_BUFFERS: [ListBuffer; 2] = [const { ListBuffer(UnsafeCell::new([0; MAX_LIST])) }; 2];

impl ListBuffer {
    /// Stores a value.
    ///
    /// # Safety
    /// - It is called at most once per buffer.
    unsafe fn store(&'static self, value: &[u8]) -> &'static [u8] {
        let fits = match value.get(..MAX_LIST) {
            Some(head) if value.len() > MAX_LIST => {
                &head[..head.iter().rposition(|byte| *byte == b':').unwrap_or(0)]
            }
            _ => value,
        };
        // SAFETY:
        // - This is the only access that creates a reference to the buffer, by the contract above.
        let buffer = unsafe { &mut *self.0.get() };
        buffer[..fits.len()].copy_from_slice(fits);
        &buffer[..fits.len()]
    }
}

/// Reads the environment. Called by the library's constructor, while there is one thread.
///
/// # Safety
/// - `env` is null, or a null-terminated array of C strings.
/// - No other thread changes the array or the strings during the call.
pub(crate) unsafe fn read_environment(env: *const *const c_char) {
    // SAFETY:
    // - `env` is valid, by the contract of this function.
    // - The closure initializes `FILTER`.
    FILTER.init(|| unsafe { from_environment(env) });
}

unsafe extern "C" {
    /// The environment, which the C library sets before any other library's constructor runs.
    static environ: *const *const c_char;
}

fn filter() -> &'static Filter {
    // Constructors of other libraries may do I/O before the constructor of this library (libselinux
    // does).
    // SAFETY:
    // - `environ` is null or a null-terminated array of C strings.
    // - No other thread changes it while the first constructors run.
    // - The closure initializes `FILTER`.
    FILTER.get_or_init(|| unsafe { from_environment(environ) })
}

/// Reads the variables.
///
/// # Safety
/// - The requirements of [`read_environment`].
/// - It is called only to initialize `FILTER`.
#[unsafe(link_section = ".text.startup")]
unsafe fn from_environment(env: *const *const c_char) -> Filter {
    let names: [&[u8]; 3] = [b"MIOT_EXCLUDE=", b"MIOT_INCLUDE=", b"MIOT_MPI="];
    let mut values: [&[u8]; 3] = [b"", b"", b""];
    let mut at = env;
    // SAFETY:
    // - `at` points to an entry of the array: the loop ends at the null entry.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // The check of the first letter makes most entries cheap.
        // SAFETY:
        // - The entry is not null, so it is a C string and is followed by another entry.
        let line = unsafe {
            at = at.add(1);
            if **entry as u8 != b'M' {
                continue;
            }
            CStr::from_ptr(*entry).to_bytes()
        };
        for (name, value) in names.iter().zip(&mut values) {
            if let Some(rest) = line.strip_prefix(*name).filter(|rest| !rest.is_empty()) {
                *value = rest;
            }
        }
    }
    let [exclude, include] = std::array::from_fn(|at| {
        // SAFETY:
        // - `FILTER` is initialized once, and this loop uses each buffer once.
        if values[at].is_empty() { &[][..] } else { unsafe { LIST_BUFFERS[at].store(values[at]) } }
    });
    let directory = miot_tracer::directory();
    let directory_end = directory.last_chunk().map_or(0, |end| u64::from_ne_bytes(*end));
    // It has at most some hundred bytes.
    let directory_end_at = directory.len().saturating_sub(size_of::<u64>()) as u16;
    let always = !values[0].is_empty() || !values[1].is_empty() || directory.len() < size_of::<u64>();
    Filter { exclude, include, directory_end, directory_end_at, always, mpi: values[2] != b"off" }
}

/// Returns whether the mpi hook may be loaded: not with `MIOT_MPI=off`.
pub(crate) fn allows_mpi() -> bool {
    filter().mpi
}

/// Returns whether requests on this path are excluded.
#[inline(always)]
pub(crate) fn excluded(path: &[u8]) -> bool {
    let filter = filter();
    (filter.always || may_be_excluded(filter, path)) && is_excluded(path)
}

/// Returns false if a path cannot be excluded by default, in few comparisons.
#[inline(always)]
fn may_be_excluded(filter: &Filter, path: &[u8]) -> bool {
    let (Some(first), Some(last)) = (path.first_chunk::<4>(), path.last()) else { return true };
    // As numbers: the compiler would make a table of jumps, which is badly predicted.
    let [dev, sys, pro, mem] = [b"/dev", b"/sys", b"/pro", b"/mem"].map(|name| u32::from_ne_bytes(*name));
    let first = u32::from_ne_bytes(*first);
    let is_pseudo =
        first == dev && !path.starts_with(b"/dev/shm/") || first == sys || first == pro || first == mem;
    // The end of the MIOT directory differs more often than its start.
    let end = path.get(usize::from(filter.directory_end_at)..).and_then(|end| end.first_chunk());
    let is_miot = end.is_some_and(|end| u64::from_ne_bytes(*end) == filter.directory_end);
    is_pseudo || is_miot || may_end_library(*last)
}

#[inline(never)]
fn is_excluded(path: &[u8]) -> bool {
    let filter = filter();
    let by_default = excluded_by_default(path) || is_below(path, miot_tracer::directory());
    !in_list(filter.include, path) && (by_default || in_list(filter.exclude, path))
}

fn in_list(list: &[u8], path: &[u8]) -> bool {
    !list.is_empty() && list.split(|byte| *byte == b':').any(|glob| matches(glob, path))
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

#[inline]
fn excluded_by_default(path: &[u8]) -> bool {
    let pseudo = match path.get(..4) {
        Some(b"/dev") => is_below(path, b"/dev") && !is_below(path, b"/dev/shm"),
        Some(b"/sys") => is_below(path, b"/sys"),
        Some(b"/pro") => is_below(path, b"/proc"),
        // Target of the links in /proc/self/fd for files without a name.
        Some(b"/mem") => path.starts_with(b"/memfd:"),
        _ => false,
    };
    pseudo || is_library(path)
}

/// Returns whether the name of a library may end in this byte. It decides for most paths.
#[inline(always)]
fn may_end_library(last: u8) -> bool {
    matches!(last, b'o' | b'.' | b'0'..=b'9')
}

/// Matches `*.so`, and `*.so.` followed by digits and dots.
#[inline]
fn is_library(path: &[u8]) -> bool {
    if !path.last().is_some_and(|last| may_end_library(*last)) {
        return false;
    }
    let end =
        path.iter().rposition(|byte| !byte.is_ascii_digit() && *byte != b'.').map_or(0, |last| last + 1);
    let (stem, version) = path.split_at(end);
    stem.ends_with(b".so") && (version.is_empty() || version.starts_with(b"."))
}

fn matches(glob: &[u8], path: &[u8]) -> bool {
    if glob.is_empty() {
        return false;
    }
    if !glob.contains(&b'/') {
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..]);
        return glob_matches(glob, name, MatchExtent::Whole);
    }
    match glob.strip_suffix(b"/") {
        Some(directory) => glob_matches(directory, path, MatchExtent::DirectoryPrefix),
        None => glob_matches(glob, path, MatchExtent::Whole),
    }
}

/// Part of the text that a glob must match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchExtent {
    Whole,
    /// The whole text, or a part that ends before a slash.
    DirectoryPrefix,
}

/// Compares byte by byte. On a mismatch it backtracks to the last star and extends the star's match
/// by one byte.
///
/// Two backtracking points suffice: the match of `**` is final once a `*` after it has matched up
/// to the next mismatch, unless that `*` would have to match a `/`.
fn glob_matches(glob: &[u8], text: &[u8], extent: MatchExtent) -> bool {
    /// Position in the glob after the star, and end of the star's match in the text.
    type Backtrack = Option<(usize, usize)>;
    let (mut g, mut t) = (0, 0);
    let (mut star, mut stars): (Backtrack, Backtrack) = (None, None);
    loop {
        let done =
            g == glob.len() && (t == text.len() || extent == MatchExtent::DirectoryPrefix && text[t] == b'/');
        if done {
            return true;
        }
        match (glob.get(g), text.get(t)) {
            (Some(b'*'), _) if glob.get(g + 1) == Some(&b'*') => {
                g += 2;
                (stars, star) = (Some((g, t)), None);
                continue;
            }
            (Some(b'*'), _) => {
                g += 1;
                star = Some((g, t));
                continue;
            }
            (Some(b'?'), Some(byte)) if *byte != b'/' => {
                (g, t) = (g + 1, t + 1);
                continue;
            }
            (Some(expected), Some(byte)) if expected == byte => {
                (g, t) = (g + 1, t + 1);
                continue;
            }
            _ => {}
        }
        match (star, stars) {
            (Some((after, from)), _) if from < text.len() && text[from] != b'/' => {
                (g, t) = (after, from + 1);
                star = Some((after, t));
            }
            (_, Some((after, from))) if from < text.len() => {
                (g, t) = (after, from + 1);
                (stars, star) = (Some((after, t)), None);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{excluded_by_default, in_list, matches};

    #[test]
    fn pseudo_files_and_libraries_are_excluded_by_default() {
        for path in [
            "/proc",
            "/proc/self/maps",
            "/sys/x",
            "/dev/null",
            "/dev",
            "/lib/a.so",
            "/lib/a.so.1.2.3",
            "a.so",
        ] {
            assert!(excluded_by_default(path.as_bytes()), "{path}");
        }
        for path in [
            "/process",
            "/system",
            "/devil",
            "/dev/shm",
            "/dev/shm/x",
            "/a/so",
            "/a.so/b",
            "/a.sox",
            "/a.so1",
            "/",
            "",
            "..",
            "/a/1.2",
        ] {
            assert!(!excluded_by_default(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn globs_match_as_documented() {
        let matching = [
            ("/a/b", "/a/b"),
            ("/a/", "/a"),
            ("/a/", "/a/b/c"),
            ("/a/*", "/a/b"),
            ("/a/**", "/a/b/c"),
            ("*.o", "/x/y.o"),
            ("?.o", "/x/y.o"),
            ("/**/c", "/a/b/c"),
            ("/a*/b*/", "/ax/by/z"),
            ("**", "/x"),
            ("/**/*.c", "/a/b/x.y.c"),
            ("/**b/*c", "/ab/b/xc"),
            ("/*/x/", "/q/x/y"),
        ];
        for (glob, path) in matching {
            assert!(matches(glob.as_bytes(), path.as_bytes()), "{glob} {path}");
        }
        let different = [
            ("/a/b", "/a/bc"),
            ("/a/", "/ab"),
            ("/a/*", "/a/b/c"),
            ("/a/*", "/a"),
            ("*.o", "/x.o/y"),
            ("?.o", "/x/yy.o"),
            ("", "/x"),
            ("", ""),
            ("/a?b", "/a/b"),
            ("/*/x/", "/q/r/x"),
            ("/**/*.c", "/a/b.c/d"),
        ];
        for (glob, path) in different {
            assert!(!matches(glob.as_bytes(), path.as_bytes()), "{glob} {path}");
        }
        assert!(in_list(b"*.o::/tmp/", b"/tmp/x") && !in_list(b"", b"/tmp"));
    }
}
