//! Which paths are recorded.
//!
//! Left out by default: what is below `/proc`, `/sys` and `/dev` (except `/dev/shm`), shared libraries
//! (`*.so`, `*.so.N…`) and the MIOT directory. `MIOT_EXCLUDE` adds globs, `MIOT_INCLUDE` overrides both;
//! each is a list separated by colons. In a glob `?` stands for one byte but `/`, `*` for any number of
//! bytes but `/`, `**` for any bytes; one that ends in `/` stands for everything below. A glob without a
//! `/` is compared with the last component of the path only.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ffi::c_char;
use std::sync::OnceLock;

/// Bytes kept of each environment variable; longer values are cut at the last colon that fits.
const MAX_LIST: usize = 4096;

struct Filter {
    exclude: &'static [u8],
    include: &'static [u8],
}

static FILTER: OnceLock<Filter> = OnceLock::new();

/// Room for a copy of an environment variable's value: the original may be overwritten later. Zero memory, of
/// which a program that sets nothing touches nothing.
struct Room(UnsafeCell<[u8; MAX_LIST]>);

// SAFETY: written only while `FILTER` is initialized, read only after.
unsafe impl Sync for Room {}

static ROOMS: [Room; 2] = [const { Room(UnsafeCell::new([0; MAX_LIST])) }; 2];

impl Room {
    /// # Safety
    /// At most once per room.
    unsafe fn keep(&'static self, value: &[u8]) -> &'static [u8] {
        let fits = match value.get(..MAX_LIST) {
            Some(head) if value.len() > MAX_LIST => {
                &head[..head.iter().rposition(|byte| *byte == b':').unwrap_or(0)]
            }
            _ => value,
        };
        // SAFETY: by the contract above nobody else looks here.
        let room = unsafe { &mut *self.0.get() };
        room[..fits.len()].copy_from_slice(fits);
        &room[..fits.len()]
    }
}

/// Reads the environment. Called by the library's constructor, while there is one thread.
///
/// # Safety
/// `env` is null, or a null-terminated array of C strings that nobody changes meanwhile.
pub(crate) unsafe fn read_environment(env: *const *const c_char) {
    // SAFETY: the caller's.
    FILTER.get_or_init(|| unsafe { from_environment(env) });
}

unsafe extern "C" {
    /// The environment as the C library has it, which it sets before any other library's constructor runs.
    static environ: *const *const c_char;
}

fn filter() -> &'static Filter {
    // Libraries the program is linked with may do I/O in constructors that run before ours (libselinux does).
    // SAFETY: nobody changes the environment while the first constructors run.
    FILTER.get_or_init(|| unsafe { from_environment(environ) })
}

/// # Safety
/// As [`read_environment`], and only to initialize `FILTER`.
#[unsafe(link_section = ".text.startup")]
unsafe fn from_environment(env: *const *const c_char) -> Filter {
    let names: [&[u8]; 2] = [b"MIOT_EXCLUDE=", b"MIOT_INCLUDE="];
    let mut found: [&[u8]; 2] = [b"", b""];
    let mut at = env;
    // SAFETY: by the contract above, each entry up to the null one is a C string.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: as above; the null entry ends the loop. Most entries cost no more than a look at one letter.
        let line = unsafe {
            at = at.add(1);
            if **entry as u8 != b'M' {
                continue;
            }
            CStr::from_ptr(*entry).to_bytes()
        };
        for (name, value) in names.iter().zip(&mut found) {
            if let Some(given) = line.strip_prefix(*name).filter(|given| !given.is_empty()) {
                *value = given;
            }
        }
    }
    let [exclude, include] = std::array::from_fn(|at| {
        // SAFETY: `FILTER` is initialized once.
        if found[at].is_empty() { &[][..] } else { unsafe { ROOMS[at].keep(found[at]) } }
    });
    Filter { exclude, include }
}

/// True if requests on this path are not recorded.
pub(crate) fn excluded(path: &[u8]) -> bool {
    let filter = filter();
    !in_list(filter.include, path)
        && (by_default(path) || below(path, miot_tracer::directory()) || in_list(filter.exclude, path))
}

fn in_list(list: &[u8], path: &[u8]) -> bool {
    !list.is_empty() && list.split(|byte| *byte == b':').any(|glob| matches(glob, path))
}

fn below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

fn by_default(path: &[u8]) -> bool {
    let pseudo = match path.get(..4) {
        Some(b"/dev") => below(path, b"/dev") && !below(path, b"/dev/shm"),
        Some(b"/sys") => below(path, b"/sys"),
        Some(b"/pro") => below(path, b"/proc"),
        // What the links of /proc/self/fd show for files without a name.
        Some(b"/mem") => path.starts_with(b"/memfd:"),
        _ => false,
    };
    pseudo || is_library(path)
}

/// `*.so` and `*.so.` with digits and dots.
fn is_library(path: &[u8]) -> bool {
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
        return glob_matches(glob, name, false);
    }
    match glob.strip_suffix(b"/") {
        Some(directory) => glob_matches(directory, path, true),
        None => glob_matches(glob, path, false),
    }
}

/// Compares byte by byte; on a mismatch goes back to the last star and lets it take one byte more. With
/// `prefix`, a glob that ends at a slash of the text will do.
///
/// Two marks to go back to are enough: what `**` took stays taken once a `*` behind it has matched up to the
/// next mismatch, unless that `*` would have to take a `/`.
fn glob_matches(glob: &[u8], text: &[u8], prefix: bool) -> bool {
    /// Where the glob goes on after the star, and how far the star has got in the text.
    type Mark = Option<(usize, usize)>;
    let (mut g, mut t) = (0, 0);
    let (mut star, mut stars): (Mark, Mark) = (None, None);
    loop {
        let done = g == glob.len() && (t == text.len() || prefix && text[t] == b'/');
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
            (Some(wanted), Some(byte)) if wanted == byte => {
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
    use super::{by_default, in_list, matches};

    #[test]
    fn pseudo_files_and_libraries_are_left_out_by_default() {
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
            assert!(by_default(path.as_bytes()), "{path}");
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
            assert!(!by_default(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn globs() {
        let yes = [
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
        for (glob, path) in yes {
            assert!(matches(glob.as_bytes(), path.as_bytes()), "{glob} {path}");
        }
        let no = [
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
        for (glob, path) in no {
            assert!(!matches(glob.as_bytes(), path.as_bytes()), "{glob} {path}");
        }
        assert!(in_list(b"*.o::/tmp/", b"/tmp/x") && !in_list(b"", b"/tmp"));
    }
}
