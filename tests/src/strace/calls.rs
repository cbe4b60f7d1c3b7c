//! Converts each system call to a [`Fact`].

use super::model::Model;
use super::parse::{self, Call};
use super::state::{Open, Task};
use crate::fact::{Fact, normal_path};
use std::rc::Rc;

const AT_SYMLINK_NOFOLLOW: i64 = 0x100;
const AT_REMOVEDIR: i64 = 0x200;
const AT_EMPTY_PATH: i64 = 0x1000;

/// Returns the request of a call. `None` if MIOT does not record the call, or if all its files are
/// excluded.
#[expect(clippy::too_many_lines, reason = "one arm per system call")]
pub(super) fn fact(model: &mut Model<'_>, task: &Task, call: &Call) -> Option<Fact> {
    let result = call.result;
    let arg = |i: usize| call.args.get(i).map_or("", String::as_str);
    let number = |i: usize| parse::integer(arg(i));
    // Paths: absolute ones, and those relative to a directory descriptor.
    let path = |i: usize| parse::string(arg(i)).map(|p| normal_path(&task.directory.borrow(), &p));
    let path_at = |i: usize| {
        let (descriptor, shown) = parse::descriptor(arg(i))?;
        let path = parse::string(arg(i + 1))?;
        let directory = match task.open(descriptor) {
            _ if descriptor == libc::AT_FDCWD => task.directory.borrow().clone(),
            Some(open) => open.path.clone(),
            None => shown,
        };
        Some(normal_path(&directory, &path))
    };
    let on_path = |op: &'static str, path: Option<Vec<u8>>| {
        Some(Fact { op: op.into(), path: Some(path?), result, ..Fact::default() })
    };
    let on_two = |op: &'static str, path: Option<Vec<u8>>, path2: Option<Vec<u8>>| {
        Some(Fact { path2: Some(path2?), ..on_path(op, path)? })
    };
    let on_file = |op: &'static str, file: &Open| Fact {
        op: op.into(),
        path: Some(file.path.clone()),
        result,
        ..Fact::default()
    };

    Some(match call.name.as_str() {
        "open" | "openat" | "creat" => {
            let (path, flags) = match call.name.as_str() {
                "open" => (path(0)?, number(1)?),
                "openat" => (path_at(0)?, number(2)?),
                _ => (path(0)?, i64::from(libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC)),
            };
            if result >= 0 {
                model.adopt(task, result as i32, path.clone(), flags);
            }
            Fact { arg: Some(flags), ..on_path("openat", Some(path))? }
        }
        "close" => {
            let file = model.file(task, arg(0));
            task.descriptors.borrow_mut().remove(&parse::descriptor(arg(0))?.0);
            on_file("close", &*file?)
        }
        "dup" | "dup2" | "dup3" => {
            let file = model.file(task, arg(0));
            duplicate(task, file.clone(), result);
            let new = if call.name == "dup" { None } else { Some(i64::from(parse::descriptor(arg(1))?.0)) };
            Fact { arg: new, ..on_file(if call.name == "dup" { "dup" } else { "dup2" }, &*file?) }
        }
        "fcntl" => {
            let command = number(1)?;
            let file = model.file(task, arg(0));
            if command == i64::from(libc::F_DUPFD) || command == i64::from(libc::F_DUPFD_CLOEXEC) {
                duplicate(task, file.clone(), result);
            }
            let file = file?;
            if command == i64::from(libc::F_SETFL) && result == 0 {
                file.append.set(number(2)? & i64::from(libc::O_APPEND) != 0);
            }
            Fact { arg: Some(command), ..on_file("fcntl", &file) }
        }
        "read" | "readv" | "write" | "writev" => {
            let file = model.file(task, arg(0))?;
            let vector = call.name.ends_with('v');
            let writes = call.name.starts_with('w');
            let start = if writes && file.append.get() { file.size.get() } else { file.position.get() };
            if result > 0 {
                file.position.set(start + result);
            }
            if writes {
                grown(&file, start, result);
            }
            let length = if vector { parse::vector_length(arg(1)) } else { number(2)? };
            let op = match (writes, vector) {
                (false, false) => "read",
                (false, true) => "readv",
                (true, false) => "write",
                (true, true) => "writev",
            };
            Fact { offset: Some(start), length: Some(length), ..on_file(op, &file) }
        }
        "pread64" | "preadv" | "preadv2" | "pwrite64" | "pwritev" | "pwritev2" => {
            let file = model.file(task, arg(0))?;
            let (length, offset) = match call.name.ends_with("64") {
                true => (number(2)?, number(3)?),
                false => (parse::vector_length(arg(1)), number(3)?),
            };
            let start = match (offset, call.name.as_str()) {
                // preadv2 and pwritev2 with offset -1 use the position.
                (-1, "preadv2" | "pwritev2") => {
                    let start = file.position.get();
                    file.position.set(start + result.max(0));
                    start
                }
                _ => offset,
            };
            let writes = call.name.starts_with("pw");
            // Linux: pwrite to a file opened for appending appends.
            let start = if writes && file.append.get() { file.size.get() } else { start };
            if writes {
                grown(&file, start, result);
            }
            let op = match call.name.as_str() {
                "pread64" => "pread",
                "pwrite64" => "pwrite",
                "preadv" | "preadv2" => "preadv",
                _ => "pwritev",
            };
            Fact { offset: Some(start), length: Some(length), ..on_file(op, &file) }
        }
        "lseek" => {
            let file = model.file(task, arg(0))?;
            let (offset, whence) = (number(1)?, number(2)?);
            if result >= 0 {
                match i32::try_from(whence) {
                    Ok(libc::SEEK_CUR) => model.check(call, file.position.get() + offset, result),
                    Ok(libc::SEEK_END) if model.knows(&file.path) => {
                        model.check(call, file.size.get() + offset, result)
                    }
                    _ => {}
                }
                file.position.set(result);
            }
            Fact { offset: Some(offset), arg: Some(whence), ..on_file("lseek", &file) }
        }
        "fsync" | "fdatasync" | "syncfs" => on_file(name_of(&call.name), &*model.file(task, arg(0))?),
        "sync_file_range" | "fadvise64" => {
            let op = if call.name == "fadvise64" { "posix_fadvise" } else { "sync_file_range" };
            Fact { offset: number(1), length: number(2), ..on_file(op, &*model.file(task, arg(0))?) }
        }
        "ftruncate" => {
            let file = model.file(task, arg(0))?;
            if result == 0 {
                file.size.set(number(1)?);
            }
            Fact { length: number(1), ..on_file("ftruncate", &file) }
        }
        "truncate" => {
            let path = path(0)?;
            if result == 0 {
                model.size(&path).set(number(1)?);
            }
            Fact { length: number(1), ..on_path("truncate", Some(path))? }
        }
        "fallocate" => {
            let file = model.file(task, arg(0))?;
            if number(1) == Some(0) && result == 0 {
                grown(&file, number(2)?, number(3)?);
            }
            Fact { offset: number(2), length: number(3), ..on_file("fallocate", &file) }
        }
        "stat" | "lstat" => on_path(name_of(&call.name), path(0))?,
        "fstat" | "fstatfs" => on_file(name_of(&call.name), &*model.file(task, arg(0))?),
        "newfstatat" | "statx" => {
            let flags = number(if call.name == "statx" { 2 } else { 3 })?;
            match parse::string(arg(1)) {
                Some(path) if path.is_empty() && flags & AT_EMPTY_PATH != 0 => {
                    on_file(if call.name == "statx" { "statx" } else { "fstat" }, &*model.file(task, arg(0))?)
                }
                _ if call.name == "statx" => on_path("statx", path_at(0))?,
                _ => on_path(if flags & AT_SYMLINK_NOFOLLOW != 0 { "lstat" } else { "stat" }, path_at(0))?,
            }
        }
        "statfs" => on_path("statfs", path(0))?,
        "access" => on_path("access", path(0))?,
        "faccessat" | "faccessat2" => on_path("access", path_at(0))?,
        "chmod" if descriptor_link(&path(0)?).is_some() => {
            // fchmodat(AT_SYMLINK_NOFOLLOW) of the C library.
            let open = task.open(descriptor_link(&path(0)?)?)?;
            Fact { arg: number(1), ..on_path("chmod", Some(open.path.clone()))? }
        }
        "mkdir" | "chmod" | "mknod" => Fact { arg: number(1), ..on_path(name_of(&call.name), path(0))? },
        "mkdirat" | "fchmodat" | "mknodat" => {
            Fact { arg: number(2), ..on_path(name_of(call.name.trim_end_matches("at")), path_at(0))? }
        }
        "rmdir" => on_path("rmdir", path(0))?,
        "unlink" | "unlinkat" => {
            let (path, directory) = match call.name.as_str() {
                "unlink" => (path(0)?, false),
                _ => (path_at(0)?, number(2)? & AT_REMOVEDIR != 0),
            };
            if result == 0 {
                model.sizes.removed(&path);
            }
            on_path(if directory { "rmdir" } else { "unlink" }, Some(path))?
        }
        "rename" | "renameat" | "renameat2" => {
            let (from, to) =
                if call.name == "rename" { (path(0)?, path(1)?) } else { (path_at(0)?, path_at(2)?) };
            if result == 0 {
                model.sizes.renamed(&from, &to);
            }
            on_two("rename", Some(from), Some(to))?
        }
        "link" => on_two("link", path(0), path(1))?,
        "linkat" => on_two("link", path_at(0), path_at(2))?,
        "symlink" => on_two("symlink", parse::string(arg(0)), path(1))?,
        "symlinkat" => on_two("symlink", parse::string(arg(0)), path_at(1))?,
        "readlink" => Fact { length: number(2), ..on_path("readlink", path(0))? },
        "readlinkat" => Fact { length: number(3), ..on_path("readlink", path_at(0))? },
        "getdents64" => {
            let file = model.file(task, arg(0))?;
            model.delivered(&file.path, parse::entries(arg(1)).unwrap_or(0));
            Fact { length: number(2), ..on_file("getdents", &file) }
        }
        "fchmod" => Fact { arg: number(1), ..on_file("fchmod", &*model.file(task, arg(0))?) },
        "chown" | "lchown" => on_path(name_of(&call.name), path(0))?,
        "fchown" => on_file("fchown", &*model.file(task, arg(0))?),
        "fchownat" if number(4)? & AT_EMPTY_PATH != 0 => on_file("fchown", &*model.file(task, arg(0))?),
        "fchownat" => {
            on_path(if number(4)? & AT_SYMLINK_NOFOLLOW != 0 { "lchown" } else { "chown" }, path_at(0))?
        }
        "utime" | "utimes" => on_path("utimens", path(0))?,
        "utimensat" | "futimesat" => match parse::string(arg(1)) {
            Some(_) => on_path("utimens", path_at(0))?,
            None => on_file("futimens", &*model.file(task, arg(0))?),
        },
        "getxattr" | "lgetxattr" | "setxattr" | "lsetxattr" => {
            Fact { length: number(3), ..on_two(name_of(&call.name), path(0), parse::string(arg(1)))? }
        }
        "fgetxattr" | "fsetxattr" => {
            let file = model.file(task, arg(0))?;
            Fact { path2: parse::string(arg(1)), length: number(3), ..on_file(name_of(&call.name), &file) }
        }
        "listxattr" | "llistxattr" => Fact { length: number(2), ..on_path(name_of(&call.name), path(0))? },
        "flistxattr" => Fact { length: number(2), ..on_file("flistxattr", &*model.file(task, arg(0))?) },
        "removexattr" | "lremovexattr" => on_two(name_of(&call.name), path(0), parse::string(arg(1)))?,
        "fremovexattr" => {
            Fact { path2: parse::string(arg(1)), ..on_file("fremovexattr", &*model.file(task, arg(0))?) }
        }
        "mmap" => {
            let file = model.file(task, arg(4))?;
            let length = number(1)?;
            let failed = (-4095..0).contains(&result);
            if !failed {
                task.maps.borrow_mut().push((result, result + length));
            }
            Fact {
                offset: number(5),
                length: Some(length),
                result: if failed { result } else { 0 },
                ..on_file("mmap", &file)
            }
        }
        "munmap" | "msync" => {
            let (start, length) = (number(0)?, number(1)?);
            let of_file = task.maps.borrow().iter().any(|(from, to)| start < *to && *from < start + length);
            if !of_file {
                return None;
            }
            if call.name == "munmap" {
                task.maps.borrow_mut().retain(|(from, to)| *from < start || start + length < *to);
            }
            // The call does not name the file, and the trace has none either.
            Fact { op: name_of(&call.name).into(), length: Some(length), result, ..Fact::default() }
        }
        "sendfile" => {
            let (out, from) = (model.file(task, arg(0)), model.file(task, arg(1))?);
            let explicit = parse::pointed(arg(2));
            advance(&from, explicit, result);
            let Some(out) = out else {
                let path2 = Some(from.path.clone());
                return Some(Fact {
                    op: "sendfile".into(),
                    path2,
                    length: number(3),
                    result,
                    ..Fact::default()
                });
            };
            let start = out.position.get();
            advance(&out, None, result);
            grown(&out, start, result);
            Fact {
                path2: Some(from.path.clone()),
                offset: Some(start),
                length: number(3),
                ..on_file("sendfile", &out)
            }
        }
        "copy_file_range" | "splice" => {
            let (from, out) = (model.file(task, arg(0)), model.file(task, arg(2)));
            let (from_offset, out_offset) = (parse::pointed(arg(1)), parse::pointed(arg(3)));
            if let Some(from) = &from {
                advance(from, from_offset, result);
            }
            let Some(out) = out else {
                // Into a pipe.
                let op = name_of(&call.name).into();
                let path2 = Some(from?.path.clone());
                return Some(Fact { op, path2, length: number(4), result, ..Fact::default() });
            };
            let start = out_offset.unwrap_or(out.position.get());
            advance(&out, out_offset, result);
            grown(&out, start, result);
            Fact {
                path2: from.map(|f| f.path.clone()),
                offset: Some(start),
                length: number(4),
                ..on_file(name_of(&call.name), &out)
            }
        }
        "chdir" => {
            let path = path(0)?;
            if result == 0 {
                task.directory.replace(path.clone());
            }
            on_path("chdir", Some(path))?
        }
        "fchdir" => {
            let file = model.file(task, arg(0))?;
            if result == 0 {
                task.directory.replace(file.path.clone());
            }
            on_file("fchdir", &file)
        }
        "flock" => Fact { arg: number(1), ..on_file("flock", &*model.file(task, arg(0))?) },
        _ => return None,
    })
}

/// The number in `/proc/self/fd/N`.
fn descriptor_link(path: &[u8]) -> Option<i32> {
    std::str::from_utf8(path.strip_prefix(b"/proc/self/fd/")?).ok()?.parse().ok()
}

fn duplicate(task: &Task, file: Option<Rc<Open>>, result: i64) {
    if result < 0 {
        return;
    }
    let mut descriptors = task.descriptors.borrow_mut();
    match file {
        Some(file) => descriptors.insert(result as i32, file),
        None => descriptors.remove(&(result as i32)),
    };
}

fn grown(file: &Open, start: i64, bytes: i64) {
    if bytes > 0 {
        file.size.set(file.size.get().max(start + bytes));
    }
}

/// Advances the position by a transfer, unless the call had an explicit offset.
fn advance(file: &Open, explicit: Option<i64>, bytes: i64) {
    if explicit.is_none() && bytes > 0 {
        file.position.set(file.position.get() + bytes);
    }
}

/// Returns the static name of a call, of which there are few.
fn name_of(name: &str) -> &'static str {
    miot_proto::op::all_operations().map(|row| row.name).find(|n| *n == name).unwrap_or("unknown")
}
