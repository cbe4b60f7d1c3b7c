//! Meaning of each system call: a request on files, a change of shared state, or neither.
//!
//! `tests/src/strace/calls.rs` interprets the same calls independently, as a second witness in
//! tests.

use super::Import;
use super::state::{Descriptor, OpenDescription, Size, TracedThread};
use super::syntax::{self, AT_FDCWD, CallResult};
use miot_proto::event::flag;
use miot_proto::op::{Op, posix};
use std::cell::Cell;
use std::rc::Rc;

/// A call that has returned.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [&'a [u8]],
    pub(super) result: i64,
    pub(super) result_path: Option<&'a [u8]>,
}

impl<'a> Call<'a> {
    pub(super) fn new(name: &'a str, args: &'a [&'a [u8]], value: i64, result: &CallResult<'a>) -> Call<'a> {
        Call { name, args, result: value, result_path: result.path }
    }

    fn arg(&self, at: usize) -> &'a [u8] {
        self.args.get(at).copied().unwrap_or_default()
    }

    fn number(&self, at: usize) -> Option<i64> {
        syntax::flags(self.arg(at))
    }

    fn failed(&self) -> bool {
        self.result < 0
    }
}

/// A request with the fields that the text of a call contains.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) op: Option<Op>,
    pub(super) open: Option<Rc<OpenDescription>>,
    pub(super) path: Option<Vec<u8>>,
    pub(super) path2: Option<Vec<u8>>,
    pub(super) offset: Option<i64>,
    pub(super) offset2: Option<i64>,
    pub(super) length: Option<i64>,
    pub(super) arg: Option<i64>,
    pub(super) result: i64,
    pub(super) flags: u16,
}

/// Meaning of a call.
#[derive(Debug)]
pub(super) enum Meaning {
    Request(Box<Draft>),
    /// A request on a pipe, a socket or similar.
    NoFile,
    /// Not I/O, or an unknown operation.
    Other,
}

/// An argument is missing or invalid.
struct BadArgument;

type ArgumentResult<T> = Result<T, BadArgument>;

fn required<T>(value: Option<T>) -> ArgumentResult<T> {
    value.ok_or(BadArgument)
}

const NO_FILE: Meaning = Meaning::NoFile;

/// Joins a relative path to a directory, and removes redundant parts: `//`, `/./`, a trailing
/// slash.
pub(super) fn absolute(directory: Option<&[u8]>, path: &[u8]) -> Vec<u8> {
    let joined = match directory {
        Some(directory) if !path.starts_with(b"/") => [directory, b"/", path].concat(),
        _ => path.to_vec(),
    };
    let parts = joined.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let clean = parts.collect::<Vec<_>>().join(&b'/');
    if joined.starts_with(b"/") { [b"/", &clean[..]].concat() } else { clean }
}

/// Returns the meaning of a call; `Err` if an argument is missing or invalid.
pub(super) fn meaning(import: &mut Import<'_>, task: &TracedThread, call: &Call<'_>) -> Result<Meaning, ()> {
    interpret(import, task, call).map_err(|BadArgument| ())
}

fn interpret(import: &mut Import<'_>, task: &TracedThread, call: &Call<'_>) -> ArgumentResult<Meaning> {
    let Call { name, result, .. } = *call;
    let path = |at: usize| -> ArgumentResult<Vec<u8>> {
        let text = required(syntax::string(call.arg(at)))?;
        Ok(absolute(task.directory.borrow().as_deref(), &text))
    };
    let path_at = |at: usize| -> ArgumentResult<Vec<u8>> {
        let (descriptor, shown) = required(syntax::descriptor(call.arg(at)))?;
        let text = required(syntax::string(call.arg(at + 1)))?;
        let directory = match task.open(descriptor) {
            _ if descriptor == AT_FDCWD => task.directory.borrow().clone().or(shown),
            Some(open) => open.path.clone().or(shown),
            None => shown,
        };
        Ok(absolute(directory.as_deref(), &text))
    };
    let draft = |op: Op| Draft { op: Some(op), result, ..Draft::default() };
    let on_path = |op: Op, path: Vec<u8>| Draft { path: Some(path), ..draft(op) };
    let on_two = |op: Op, path: Vec<u8>, path2: Vec<u8>| Draft { path2: Some(path2), ..on_path(op, path) };
    let on = |op: Op, open: Rc<OpenDescription>| Draft { open: Some(open), ..draft(op) };
    // Returns the open file of a descriptor argument. A descriptor that is not a file ends the
    // function.
    macro_rules! file {
        ($at:expr) => {{
            let open = required(import.file(task, call.arg($at)))?;
            if open.no_file {
                return Ok(NO_FILE);
            }
            open
        }};
    }

    let draft = match name {
        "open" | "openat" | "openat2" | "creat" => {
            let (op, path, flags, mode) = match name {
                "open" => (posix::OPEN, path(0)?, call.number(1), call.number(2)),
                "creat" => (posix::CREAT, path(0)?, None, call.number(1)),
                "openat" => (posix::OPENAT, path_at(0)?, call.number(2), call.number(3)),
                _ => {
                    let field = |name| syntax::field(call.arg(2), name).and_then(syntax::flags);
                    (posix::OPENAT, path_at(0)?, field("flags"), field("mode"))
                }
            };
            let created = i64::from(libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC);
            let flags = if name == "creat" { Some(created) } else { flags };
            let mut draft = on_path(op, path.clone());
            draft.arg = flags.map(|flags| flags & 0xffff_ffff | mode.unwrap_or(0) << 32);
            if !call.failed() {
                draft.open = Some(import.opened(task, call, path, flags.unwrap_or(0)));
            }
            draft
        }
        "close" => {
            let open = import.file(task, call.arg(0));
            let descriptor = required(syntax::descriptor(call.arg(0)))?.0;
            task.descriptors.borrow_mut().remove(&descriptor);
            match open {
                Some(open) if !open.no_file => on(posix::CLOSE, open),
                _ => return Ok(NO_FILE),
            }
        }
        "close_range" => {
            let (first, last, flags) = (required(call.number(0))?, required(call.number(1))?, call.number(2));
            if flags == Some(0) && !call.failed() {
                let closed = first..=last & 0xffff_ffff;
                task.descriptors
                    .borrow_mut()
                    .retain(|descriptor, _| !closed.contains(&i64::from(*descriptor)));
            }
            let range = (first as u64 & 0xffff_ffff | (last as u64) << 32) as i64;
            let flags = (flags.unwrap_or(0) as u16 & 0x7f) << flag::OP_SHIFT;
            Draft { arg: Some(range), flags, ..draft(posix::CLOSE_RANGE) }
        }
        "dup" | "dup2" | "dup3" => {
            let open = required(import.file(task, call.arg(0)))?;
            let close_on_exec = call.number(2).unwrap_or(0) & i64::from(libc::O_CLOEXEC) != 0;
            duplicate(task, &open, result, name == "dup3" && close_on_exec);
            if open.no_file {
                return Ok(NO_FILE);
            }
            let new = syntax::descriptor(call.arg(1)).map(|(new, _)| i64::from(new));
            let op = match name {
                "dup" => posix::DUP,
                "dup2" => posix::DUP2,
                _ => posix::DUP3,
            };
            Draft { arg: new.filter(|_| name != "dup"), ..on(op, open) }
        }
        "fcntl" => {
            let open = required(import.file(task, call.arg(0)))?;
            let command = call.number(1);
            let set = |at| call.number(at).unwrap_or(0);
            let descriptor = required(syntax::descriptor(call.arg(0)))?.0;
            match command.map(|command| command as i32) {
                Some(libc::F_DUPFD) => duplicate(task, &open, result, false),
                Some(libc::F_DUPFD_CLOEXEC) => duplicate(task, &open, result, true),
                Some(libc::F_SETFD) if !call.failed() => {
                    if let Some(descriptor) = task.descriptors.borrow_mut().get_mut(&descriptor) {
                        descriptor.close_on_exec = set(2) & i64::from(libc::FD_CLOEXEC) != 0;
                    }
                }
                Some(libc::F_SETFL) if !call.failed() => open.set_flags(set(2)),
                _ => {}
            }
            if open.no_file {
                return Ok(NO_FILE);
            }
            Draft { arg: command, ..on(posix::FCNTL, open) }
        }
        "read" | "readv" | "write" | "writev" => {
            let open = file!(0);
            let (writes, vector) = (name.starts_with('w'), name.ends_with('v'));
            let start = open.start(writes);
            open.moved(start, result, writes);
            let length = if vector { syntax::vector_length(call.arg(1)) } else { call.number(2) };
            let op = match (writes, vector) {
                (false, false) => posix::READ,
                (false, true) => posix::READV,
                (true, false) => posix::WRITE,
                (true, true) => posix::WRITEV,
            };
            Draft { offset: start, length, flags: open.flags(writes), ..on(op, open) }
        }
        "pread64" | "pread" | "preadv" | "preadv2" | "pwrite64" | "pwrite" | "pwritev" | "pwritev2" => {
            let open = file!(0);
            let (writes, vector) = (name.starts_with("pw"), name.contains('v'));
            let length = if vector { syntax::vector_length(call.arg(1)) } else { call.number(2) };
            let offset = required(call.number(3))?;
            let start = if offset == -1 && name.ends_with('2') {
                let start = open.start(writes);
                open.moved(start, result, writes);
                start
            } else {
                // On Linux, pwrite to a file opened for appending appends.
                let start = if writes && open.append.get() { open.size.get() } else { Some(offset) };
                if writes {
                    open.grown(start, result);
                }
                start
            };
            let op = match name {
                "pread64" | "pread" => posix::PREAD,
                "preadv" => posix::PREADV,
                "preadv2" => posix::PREADV2,
                "pwritev" => posix::PWRITEV,
                "pwritev2" => posix::PWRITEV2,
                _ => posix::PWRITE,
            };
            Draft { offset: start, length, flags: open.flags(writes), ..on(op, open) }
        }
        "lseek" => {
            let open = file!(0);
            let (offset, whence) = (required(call.number(1))?, call.number(2));
            if !call.failed() {
                open.position.set(Some(result));
                if whence == Some(i64::from(libc::SEEK_END)) {
                    open.size.set(result.checked_sub(offset));
                }
            }
            Draft { offset: Some(offset), arg: whence, ..on(posix::LSEEK, open) }
        }
        "fsync" => on(posix::FSYNC, file!(0)),
        "fdatasync" => on(posix::FDATASYNC, file!(0)),
        "syncfs" => on(posix::SYNCFS, file!(0)),
        "sync" => draft(posix::SYNC),
        "sync_file_range" | "fadvise64" => {
            let op = if name == "sync_file_range" { posix::SYNC_FILE_RANGE } else { posix::POSIX_FADVISE };
            Draft { offset: call.number(1), length: call.number(2), ..on(op, file!(0)) }
        }
        "truncate" => {
            let (path, length) = (path(0)?, call.number(1));
            if !call.failed() {
                import.sizes.of(&path).set(length);
            }
            Draft { length, ..on_path(posix::TRUNCATE, path) }
        }
        "ftruncate" => {
            let (open, length) = (file!(0), call.number(1));
            if !call.failed() {
                open.size.set(length);
            }
            Draft { length, ..on(posix::FTRUNCATE, open) }
        }
        "fallocate" => {
            let (open, offset, length) = (file!(0), call.number(2), call.number(3));
            if call.number(1) == Some(0) && !call.failed() {
                open.grown(offset, length.unwrap_or(0));
            }
            Draft { offset, length, ..on(posix::FALLOCATE, open) }
        }
        "stat" => on_path(posix::STAT, path(0)?),
        "lstat" => on_path(posix::LSTAT, path(0)?),
        "fstat" => {
            let open = file!(0);
            learn_size(&open, call.arg(1));
            on(posix::FSTAT, open)
        }
        "newfstatat" | "fstatat64" | "statx" => {
            let flags = call.number(if name == "statx" { 2 } else { 3 });
            let empty = matches!(call.arg(1), b"\"\"" | b"NULL");
            let op = if name == "statx" { posix::STATX } else { posix::FSTATAT };
            if empty && flags.unwrap_or(0) & i64::from(libc::AT_EMPTY_PATH) != 0 {
                let open = file!(0);
                learn_size(&open, call.arg(2));
                on(if name == "statx" { op } else { posix::FSTAT }, open)
            } else {
                Draft { arg: flags, ..on_path(op, path_at(0)?) }
            }
        }
        "statfs" => on_path(posix::STATFS, path(0)?),
        "fstatfs" => on(posix::FSTATFS, file!(0)),
        "access" => Draft { arg: call.number(1), ..on_path(posix::ACCESS, path(0)?) },
        "faccessat" | "faccessat2" => Draft { arg: call.number(2), ..on_path(posix::FACCESSAT, path_at(0)?) },
        "mkdir" => Draft { arg: call.number(1), ..on_path(posix::MKDIR, path(0)?) },
        "mkdirat" => Draft { arg: call.number(2), ..on_path(posix::MKDIRAT, path_at(0)?) },
        "rmdir" => on_path(posix::RMDIR, path(0)?),
        "unlink" | "unlinkat" => {
            let at = name == "unlinkat";
            let path = if at { path_at(0)? } else { path(0)? };
            if !call.failed() {
                import.sizes.removed(&path);
            }
            let op = if at { posix::UNLINKAT } else { posix::UNLINK };
            Draft { arg: if at { call.number(2) } else { None }, ..on_path(op, path) }
        }
        "rename" | "renameat" | "renameat2" => {
            let plain = name == "rename";
            let (from, to) = if plain { (path(0)?, path(1)?) } else { (path_at(0)?, path_at(2)?) };
            if !call.failed() {
                import.sizes.renamed(&from, &to);
                import.renamed.insert(to.clone());
            }
            let op = match name {
                "rename" => posix::RENAME,
                "renameat" => posix::RENAMEAT,
                _ => posix::RENAMEAT2,
            };
            Draft { arg: if name == "renameat2" { call.number(4) } else { None }, ..on_two(op, from, to) }
        }
        "link" => on_two(posix::LINK, path(0)?, path(1)?),
        "linkat" => Draft { arg: call.number(4), ..on_two(posix::LINKAT, path_at(0)?, path_at(2)?) },
        "symlink" => on_two(posix::SYMLINK, required(syntax::string(call.arg(0)))?, path(1)?),
        "symlinkat" => on_two(posix::SYMLINKAT, required(syntax::string(call.arg(0)))?, path_at(1)?),
        "readlink" => Draft { length: call.number(2), ..on_path(posix::READLINK, path(0)?) },
        "readlinkat" => Draft { length: call.number(3), ..on_path(posix::READLINKAT, path_at(0)?) },
        "getdents64" | "getdents" => Draft { length: call.number(2), ..on(posix::GETDENTS, file!(0)) },
        "chmod" => Draft { arg: call.number(1), ..on_path(posix::CHMOD, path(0)?) },
        "fchmod" => Draft { arg: call.number(1), ..on(posix::FCHMOD, file!(0)) },
        "fchmodat" | "fchmodat2" => Draft { arg: call.number(2), ..on_path(posix::FCHMODAT, path_at(0)?) },
        "chown" => on_path(posix::CHOWN, path(0)?),
        "lchown" => on_path(posix::LCHOWN, path(0)?),
        "fchown" => on(posix::FCHOWN, file!(0)),
        "fchownat" => Draft { arg: call.number(4), ..on_path(posix::FCHOWNAT, path_at(0)?) },
        "utime" => on_path(posix::UTIME, path(0)?),
        "utimes" => on_path(posix::UTIMES, path(0)?),
        "futimesat" | "utimensat" if call.arg(1) == b"NULL" => on(posix::FUTIMENS, file!(0)),
        "futimesat" => on_path(posix::FUTIMESAT, path_at(0)?),
        "utimensat" => Draft { arg: call.number(3), ..on_path(posix::UTIMENSAT, path_at(0)?) },
        "getxattr" | "lgetxattr" | "setxattr" | "lsetxattr" | "removexattr" | "lremovexattr" => {
            let op = match name {
                "getxattr" => posix::GETXATTR,
                "lgetxattr" => posix::LGETXATTR,
                "setxattr" => posix::SETXATTR,
                "lsetxattr" => posix::LSETXATTR,
                "removexattr" => posix::REMOVEXATTR,
                _ => posix::LREMOVEXATTR,
            };
            Draft { length: call.number(3), ..on_two(op, path(0)?, required(syntax::string(call.arg(1)))?) }
        }
        "fgetxattr" | "fsetxattr" | "fremovexattr" => {
            let op = match name {
                "fgetxattr" => posix::FGETXATTR,
                "fsetxattr" => posix::FSETXATTR,
                _ => posix::FREMOVEXATTR,
            };
            let attribute = required(syntax::string(call.arg(1)))?;
            Draft { path2: Some(attribute), length: call.number(3), ..on(op, file!(0)) }
        }
        "listxattr" => Draft { length: call.number(2), ..on_path(posix::LISTXATTR, path(0)?) },
        "llistxattr" => Draft { length: call.number(2), ..on_path(posix::LLISTXATTR, path(0)?) },
        "flistxattr" => Draft { length: call.number(2), ..on(posix::FLISTXATTR, file!(0)) },
        "mmap" | "mmap2" => {
            if syntax::descriptor(call.arg(4)).is_none_or(|(descriptor, _)| descriptor < 0) {
                return Ok(Meaning::Other);
            }
            let (open, length) = (file!(4), required(call.number(1))?);
            let failed = (-4095..0).contains(&result);
            if !failed {
                task.maps.borrow_mut().push((result, result.saturating_add(length)));
            }
            let protection = call.number(2).unwrap_or(0) as u16 & 7;
            let shared = call.number(3).unwrap_or(0) as u16 & 1;
            Draft {
                offset: call.number(5),
                length: Some(length),
                result: if failed { result } else { 0 },
                flags: (protection | shared << 3) << flag::OP_SHIFT,
                ..on(posix::MMAP, open)
            }
        }
        "munmap" | "msync" => {
            let (start, length) = (required(call.number(0))?, required(call.number(1))?);
            let end = start.saturating_add(length);
            let mut maps = task.maps.borrow_mut();
            if !maps.iter().any(|(from, to)| start < *to && *from < end) {
                return Ok(Meaning::Other);
            }
            if name == "munmap" {
                maps.retain(|(from, to)| *from < start || end < *to);
            }
            let op = if name == "munmap" { posix::MUNMAP } else { posix::MSYNC };
            Draft { length: Some(length), ..draft(op) }
        }
        "sendfile" | "sendfile64" | "copy_file_range" | "splice" => {
            let sendfile = name.starts_with("sendfile");
            let (op, from_at, to_at, length) = match name {
                "copy_file_range" => (posix::COPY_FILE_RANGE, 0, 2, 4),
                "splice" => (posix::SPLICE, 0, 2, 4),
                _ => (posix::SENDFILE, 1, 0, 3),
            };
            let from = required(import.file(task, call.arg(from_at)))?;
            let to = required(import.file(task, call.arg(to_at)))?;
            let from_given = syntax::pointed(call.arg(if sendfile { 2 } else { 1 }));
            let to_given = if sendfile { None } else { syntax::pointed(call.arg(3)) };
            let (offset2, offset) = (from_given.or(from.start(false)), to_given.or(to.start(true)));
            match from_given {
                Some(_) => {}
                None => from.moved(offset2, result, false),
            }
            match to_given {
                Some(_) => to.grown(offset, result),
                None => to.moved(offset, result, true),
            }
            if from.no_file && to.no_file {
                return Ok(NO_FILE);
            }
            let path2 = from.path.clone().filter(|_| !from.no_file);
            let (open, offset) = if to.no_file { (None, None) } else { (Some(to), offset) };
            let offset2 = offset2.filter(|_| !from.no_file);
            Draft { open, path2, offset, offset2, length: call.number(length), ..draft(op) }
        }
        "mknod" => Draft { arg: call.number(1), ..on_path(posix::MKNOD, path(0)?) },
        "mknodat" => Draft { arg: call.number(2), ..on_path(posix::MKNODAT, path_at(0)?) },
        "chdir" => {
            let path = path(0)?;
            if !call.failed() {
                task.directory.replace(Some(path.clone()));
            }
            on_path(posix::CHDIR, path)
        }
        "fchdir" => {
            let open = file!(0);
            if !call.failed() {
                task.directory.replace(open.path.clone());
            }
            on(posix::FCHDIR, open)
        }
        "flock" => Draft { arg: call.number(1), ..on(posix::FLOCK, file!(0)) },
        // Descriptors that are not files, if -y does not mark them.
        "pipe" | "pipe2" | "socketpair" => {
            let at = if name == "socketpair" { 3 } else { 0 };
            if !call.failed() {
                let inside = call.arg(at).strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
                for text in inside.unwrap_or_default().split(|byte| *byte == b',') {
                    if let Some((descriptor, _)) = syntax::descriptor(text.trim_ascii()) {
                        import.no_file(task, descriptor);
                    }
                }
            }
            return Ok(Meaning::Other);
        }
        "socket" | "accept" | "accept4" | "eventfd" | "eventfd2" | "epoll_create" | "epoll_create1"
        | "timerfd_create" | "signalfd" | "signalfd4" | "inotify_init" | "inotify_init1" | "memfd_create"
        | "pidfd_open" | "userfaultfd" | "perf_event_open" | "io_uring_setup" => {
            if !call.failed() {
                import.no_file(task, result as i32);
            }
            return Ok(Meaning::Other);
        }
        _ => return Ok(Meaning::Other),
    };
    Ok(Meaning::Request(Box::new(draft)))
}

fn duplicate(task: &TracedThread, open: &Rc<OpenDescription>, new: i64, close_on_exec: bool) {
    if let Ok(new) = i32::try_from(new)
        && new >= 0
    {
        task.descriptors.borrow_mut().insert(new, Descriptor { open: Rc::clone(open), close_on_exec });
    }
}

/// Learns the size of a file from `{st_mode=S_IFREG|0644, st_size=5, ...}`.
fn learn_size(open: &OpenDescription, text: &[u8]) {
    if syntax::field(text, "st_mode").is_some_and(|mode| mode.starts_with(b"S_IFREG"))
        && let Some(size) = syntax::field(text, "st_size").and_then(syntax::integer)
    {
        open.size.set(Some(size));
    }
}

impl OpenDescription {
    fn set_flags(&self, flags: i64) {
        self.append.set(flags & i64::from(libc::O_APPEND) != 0);
        self.direct.set(flags & i64::from(libc::O_DIRECT) != 0);
    }

    fn flags(&self, writes: bool) -> u16 {
        let append = if writes && self.append.get() { flag::APPEND } else { 0 };
        append | if self.direct.get() { flag::DIRECT } else { 0 }
    }

    /// Returns the offset at which a request without an offset begins.
    fn start(&self, writes: bool) -> Option<i64> {
        if writes && self.append.get() { self.size.get() } else { self.position.get() }
    }

    /// Updates the position after such a request.
    fn moved(&self, start: Option<i64>, result: i64, writes: bool) {
        if result > 0 {
            self.position.set(start.and_then(|start| start.checked_add(result)));
            if writes {
                self.grown(start, result);
            }
        }
    }

    /// Updates the size after a write at `start`.
    fn grown(&self, start: Option<i64>, result: i64) {
        if result <= 0 {
            return;
        }
        let end = start.and_then(|start| start.checked_add(result));
        match (end, self.size.get()) {
            (Some(end), Some(size)) => self.size.set(Some(size.max(end))),
            // If the offset of the write is unknown, the size is unknown too.
            (None, _) => self.size.set(None),
            (Some(_), None) => {}
        }
    }
}

impl Import<'_> {
    /// Returns the open file of a descriptor; `None` if the argument is not a descriptor.
    fn file(&mut self, task: &TracedThread, text: &[u8]) -> Option<Rc<OpenDescription>> {
        let (descriptor, shown) = syntax::descriptor(text)?;
        let known = task.open(descriptor);
        if let Some(open) = known {
            let other = shown.as_ref().is_some_and(|shown| !self.same(&open, shown));
            if !other {
                return Some(open);
            }
        }
        // The file was opened before the trace began, or by a call that strace did not record.
        let no_file = shown.as_ref().is_some_and(|shown| !shown.starts_with(b"/"));
        let size = shown.as_ref().map_or_else(Size::default, |path| self.sizes.of(path));
        let open = self.open(shown.clone(), shown, None, size, no_file);
        let entry = Descriptor { open: Rc::clone(&open), close_on_exec: false };
        task.descriptors.borrow_mut().insert(descriptor, entry);
        Some(open)
    }

    /// Returns true if `-y` shows the same path as before. The path of an open file changes only
    /// when the file is renamed or removed.
    fn same(&self, open: &OpenDescription, shown: &[u8]) -> bool {
        let mut before = open.shown.borrow_mut();
        match &mut *before {
            None => *before = Some(shown.to_vec()),
            Some(before) if before.as_slice() == shown || shown.ends_with(b" (deleted)") => {}
            Some(before) if self.renamed.contains(shown) => *before = shown.to_vec(),
            Some(_) => return false,
        }
        true
    }

    fn open(
        &mut self,
        path: Option<Vec<u8>>,
        shown: Option<Vec<u8>>,
        position: Option<i64>,
        size: Size,
        no_file: bool,
    ) -> Rc<OpenDescription> {
        self.handles += 1;
        Rc::new(OpenDescription {
            path,
            shown: shown.into(),
            handle: self.handles,
            position: Cell::new(position),
            append: Cell::new(false),
            direct: Cell::new(false),
            size,
            no_file,
        })
    }

    fn opened(
        &mut self,
        task: &TracedThread,
        call: &Call<'_>,
        path: Vec<u8>,
        flags: i64,
    ) -> Rc<OpenDescription> {
        let size = self.sizes.of(&path);
        let has = |flag: i32| flags & i64::from(flag) == i64::from(flag);
        if has(libc::O_TRUNC) || has(libc::O_CREAT | libc::O_EXCL) {
            size.set(Some(0));
        }
        let shown = call.result_path.map(syntax::unescape);
        let open = self.open(Some(path), shown, Some(0), size, false);
        open.set_flags(flags);
        let entry = Descriptor { open: Rc::clone(&open), close_on_exec: has(libc::O_CLOEXEC) };
        task.descriptors.borrow_mut().insert(call.result as i32, entry);
        open
    }

    fn no_file(&mut self, task: &TracedThread, descriptor: i32) {
        let open = self.open(None, None, None, Size::default(), true);
        task.descriptors.borrow_mut().insert(descriptor, Descriptor { open, close_on_exec: false });
    }
}
