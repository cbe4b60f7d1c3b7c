//! Paths as they are recorded: absolute, without `//`, `/./` and a slash at the end; `..` and links stay.
//!
//! The application's string is read only after the real call, and only where it is known to be readable:
//! after a success or an error that the kernel gives once it has read the name. After any other error the
//! kernel is asked first, so that a bad pointer stays the `EFAULT` that it is without the hook.

use crate::cwd;
use crate::files::borrow;
use miot_tracer::NONE;
use miot_tracer::gate::{self, Calls};
use rustix::fs::CWD;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// Longest path a system call takes, its NUL included.
const PATH_MAX: usize = libc::PATH_MAX as usize;
/// One byte more than is recorded, so that a longer path is seen to be cut.
const ROOM: usize = miot_proto::event::MAX_PATH + 1;

/// A path as an application passed it: any pointer.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Path(pub(crate) *const c_char);

/// A path under construction. What does not fit is cut.
pub(crate) struct Buffer {
    bytes: [MaybeUninit<u8>; ROOM],
    length: usize,
}

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer { bytes: [const { MaybeUninit::uninit() }; ROOM], length: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the first `length` bytes have been written.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length) }
    }

    pub(crate) fn push(&mut self, more: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let fits = more.len().min(room.len());
        room[..fits].write_copy_of_slice(&more[..fits]);
        self.length += fits;
    }

    /// Leaves only the first so many bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Appends the components of a path.
    pub(crate) fn join(&mut self, path: &[u8]) {
        let begins_plain = !matches!(path, [b'/', ..] | [b'.'] | [b'.', b'/', ..]);
        if begins_plain && goes_on_plain(path) {
            self.push(b"/");
            return self.push(path);
        }
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            self.push(b"/");
            self.push(part);
        }
    }

    /// Fills it with a link's target, by one system call.
    fn read_link(&mut self, link: &std::ffi::CStr) -> bool {
        let Some(_pass) = gate::pass(Calls::LINK) else { return false };
        let read = rustix::fs::readlinkat_raw(CWD, link, &mut self.bytes[..]).map(|(filled, _)| filled.len());
        self.length = read.unwrap_or(0);
        read.is_ok()
    }
}

/// The path of an open file, from the kernel. False if it has none.
pub(crate) fn of_descriptor(fd: c_int, buffer: &mut Buffer) -> bool {
    const DELETED: &[u8] = b" (deleted)";
    // Not /proc/self: it is empty once the main thread has ended.
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
        && let Some(_pass) = gate::pass(Calls::STAT)
        && borrow(fd).and_then(|fd| rustix::fs::fstat(fd).ok()).is_some_and(|stat| stat.st_nlink == 0)
    {
        buffer.length -= DELETED.len();
    }
    true
}

/// The working directory, from the kernel.
pub(crate) fn read_cwd(buffer: &mut Buffer) -> bool {
    buffer.read_link(c"/proc/thread-self/cwd") && buffer.bytes().first() == Some(&b'/')
}

impl Path {
    /// The string, if the call that ended with `result` has read it or can be shown to be able to. `second`:
    /// it is a path that the call may not have come to.
    fn read<'a>(self, result: i64, second: bool) -> Option<&'a [u8]> {
        let known = result >= 0 || !second && read_before(-result);
        if self.0.is_null() || result == -i64::from(libc::EFAULT) || !known && !self.readable() {
            return None;
        }
        // SAFETY:
        // - the kernel read this string up to its end, or to PATH_MAX bytes, without a fault;
        // - a program that changes it meanwhile has a race of its own, and we stay within those bytes.
        unsafe { Some(std::slice::from_raw_parts(self.0.cast(), libc::strnlen(self.0, PATH_MAX))) }
    }

    /// Asks the kernel to read the string.
    #[cold]
    fn readable(self) -> bool {
        let Some(_pass) = gate::pass(Calls::ACCESS) else { return false };
        crate::real::keeping_errno(|| {
            // SAFETY: any pointer will do: the kernel answers EFAULT to a bad one. The bad descriptor keeps it
            // from looking a relative path up.
            let answer = unsafe { libc::syscall(libc::SYS_faccessat, -1, self.0, libc::F_OK) };
            answer == 0 || crate::real::errno() != libc::EFAULT
        })
    }

    /// Runs `run` with the path made absolute; with an empty one if it cannot be read.
    #[inline]
    pub(crate) fn resolved<R>(
        self,
        directory: c_int,
        result: i64,
        second: bool,
        run: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match self.read(result, second) {
            Some(path) if is_plain(path) => run(path),
            Some(path) if !path.is_empty() => run_joined(path, run, |buffer| match directory {
                libc::AT_FDCWD => cwd::get(buffer),
                _ => of_descriptor(directory, buffer),
            }),
            _ => run(b""),
        }
    }

    /// The same, relative to a directory that is known by its path.
    pub(crate) fn resolved_from<R>(
        self,
        directory: Option<&Buffer>,
        result: i64,
        run: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match self.read(result, false) {
            Some(path) if !path.is_empty() => run_joined(path, run, |buffer| {
                buffer.push(directory.map_or(b"", Buffer::bytes));
                directory.is_some()
            }),
            _ => run(b""),
        }
    }

    /// Runs `run` with the string as it is.
    pub(crate) fn as_given<R>(self, result: i64, second: bool, run: impl FnOnce(&[u8]) -> R) -> R {
        run(self.read(result, second).unwrap_or_default())
    }

    /// True for the empty string that `AT_EMPTY_PATH` lets stand for the descriptor itself, after a success.
    pub(crate) fn is_empty(self, result: i64) -> bool {
        self.read(result, false).is_some_and(<[u8]>::is_empty)
    }
}

/// Errors that the kernel gives after it has read the (first) name.
fn read_before(errno: i64) -> bool {
    const AFTER: [c_int; 12] = [
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
    AFTER.iter().any(|known| i64::from(*known) == errno)
}

/// True for an absolute path that is recorded as it is.
fn is_plain(path: &[u8]) -> bool {
    path.first() == Some(&b'/') && (path.len() == 1 || goes_on_plain(path))
}

/// True if no component after the first slash is empty or `.`, and no slash is the end. For a path that is not empty.
fn goes_on_plain(path: &[u8]) -> bool {
    // Sixteen bytes at a time: a slash before a slash or a dot is rare, and only then looked at.
    let (before, after) = (&path[..path.len() - 1], &path[1..]);
    let doubtful = before.iter().zip(after).fold(0, |doubtful, (first, second)| {
        doubtful | u8::from(*first == b'/') & (u8::from(*second == b'/') | u8::from(*second == b'.'))
    });
    if doubtful == 0 {
        return path.last() != Some(&b'/');
    }
    path.last() != Some(&b'/')
        && !path.windows(2).any(|pair| pair == b"//")
        && !path.windows(3).any(|three| three == b"/./")
        && !path.ends_with(b"/.")
}

#[inline(never)]
fn run_joined<R>(
    path: &[u8],
    run: impl FnOnce(&[u8]) -> R,
    directory: impl FnOnce(&mut Buffer) -> bool,
) -> R {
    let mut buffer = Buffer::new();
    if path.first() != Some(&b'/') {
        if !directory(&mut buffer) {
            // Nowhere to be found in the tree any more: as given.
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

/// Word of an event for a length that is not a number of bytes.
pub(crate) const fn arg(low: c_int, high: u32) -> u64 {
    let word = low as u32 as u64 | (high as u64) << 32;
    // NONE would say that there is no argument.
    if word == NONE { word - 1 } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn resolve(path: &str, result: i64) -> Vec<u8> {
        let path = CString::new(path).unwrap();
        Path(path.as_ptr()).resolved(libc::AT_FDCWD, result, false, <[u8]>::to_vec)
    }

    #[test]
    fn paths_become_absolute_and_plain() {
        gate::ask();
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

    #[test]
    fn long_paths_are_cut_one_byte_past_what_is_recorded() {
        gate::ask();
        let long = "/x".repeat(4000);
        let found = resolve(&long, -i64::from(libc::ENAMETOOLONG));
        assert!(long.as_bytes().starts_with(&found) && found.len() == PATH_MAX);
        assert_eq!(resolve(&"y/".repeat(2047), 0).len(), ROOM);
    }

    #[test]
    fn bad_pointers_are_not_read() {
        gate::ask();
        for (result, address) in [(0, 0), (-i64::from(libc::EFAULT), 8), (-i64::from(libc::EINVAL), 8)] {
            let path = Path(std::ptr::without_provenance(address));
            assert_eq!(path.resolved(libc::AT_FDCWD, result, false, <[u8]>::to_vec), b"");
        }
        let second = Path(std::ptr::without_provenance(8));
        assert_eq!(second.resolved(libc::AT_FDCWD, -2, true, <[u8]>::to_vec), b"");
        // Readable, though the error does not say so.
        assert_eq!(resolve("/x", -i64::from(libc::EINVAL)), b"/x");
        assert_eq!(crate::real::keeping_errno(|| 1), 1);
    }

    #[test]
    fn descriptors_have_paths_unless_they_are_no_files() {
        gate::ask();
        use std::os::fd::AsRawFd;
        let dir = std::fs::File::open("/etc").unwrap();
        let mut buffer = Buffer::new();
        assert!(of_descriptor(dir.as_raw_fd(), &mut buffer));
        assert_eq!(buffer.bytes(), b"/etc");
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(!of_descriptor(pipe.as_raw_fd(), &mut Buffer::new()));
    }
}
