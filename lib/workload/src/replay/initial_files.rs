//! What must exist before the first step:
//!
//! - the files and directories that steps find;
//! - file sizes for which every read moves the recorded bytes and every append has the recorded
//!   offset;
//! - directory entries for which every listing has the recorded length.

use super::{ReplayStep, StepPart};
use miot_proto::event::flag;
use miot_proto::op::{Op, OpClass, posix, stdio};
use std::collections::{BTreeMap, HashMap};

/// A file or directory, under any name.
#[derive(Debug, Default)]
struct Entity {
    /// Path when the trace begins; empty for the root and for a file without a name.
    original: Vec<u8>,
    /// It existed before the first step.
    is_initial: bool,
    is_directory: bool,
    /// Bytes before the first step.
    initial_size: u64,
    /// Bytes now; a lower bound unless `exact`.
    size: u64,
    /// A step has created it or set its size.
    exact: bool,
    /// Entries before the first step, with and without a path in the trace.
    entries: i64,
    /// Entries that steps have created in it so far, minus those that they have removed.
    added: i64,
    /// A step has removed or replaced it, so it was empty then.
    removed: bool,
}

/// What a step creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

/// Entries that each directory has without being created: `.` and `..`.
const DOT_ENTRIES: i64 = 2;

/// Computes what must exist before the first step, from all steps in order of completion.
#[derive(Debug, Default)]
pub struct InitialFiles {
    entities: Vec<Entity>,
    /// By path; `None`: it does not exist.
    names: HashMap<Vec<u8>, Option<usize>>,
    /// By process and handle.
    handles: HashMap<(u64, u64), usize>,
    /// Entries listed since the start of a directory, by process and handle.
    listed: HashMap<(u64, u64), i64>,
}

impl InitialFiles {
    /// Adds the next step of a process. It must contain its path even if it has a handle.
    pub fn add(&mut self, process: u64, step: &ReplayStep) {
        let (Some(info), false) = (step.info(), matches!(step.part, StepPart::Submit(_))) else { return };
        let path = step.path.as_deref();
        if step.result < 0 {
            return self.add_failed(info.op, path, -step.result);
        }
        let moved = u64::try_from(step.result).unwrap_or(0);
        let positive = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).unwrap_or(0);
        let (offset, length) = (positive(step.offset), positive(step.length));
        match (info.class, info.op) {
            (OpClass::Read, _) => {
                if let (Some(id), true) = (self.file(process, step.handle, path), moved > 0) {
                    self.grow(id, offset.saturating_add(moved));
                }
            }
            (OpClass::Write, _) => {
                let appends = step.flags & flag::APPEND != 0;
                if let Some(id) = self.file(process, step.handle, path) {
                    if appends {
                        self.grow(id, offset);
                    }
                    self.extend(id, offset.saturating_add(moved));
                }
            }
            (OpClass::Copy, _) => {
                if let Some(id) = self.file(process, step.handle, path) {
                    self.extend(id, offset.saturating_add(moved));
                }
                let source = self.file(process, step.handle2, step.path2.as_deref());
                if let (Some(id), true) = (source, moved > 0) {
                    self.grow(id, positive(step.offset2).saturating_add(moved));
                }
            }
            (_, posix::LSEEK) if step.arg as i32 == libc::SEEK_END => {
                if let Some(id) = self.file(process, step.handle, path) {
                    let size = step.result.saturating_sub(step.offset.unwrap_or(0));
                    self.grow(id, u64::try_from(size).unwrap_or(0));
                }
            }
            (_, posix::FTRUNCATE) => {
                if let Some(id) = self.file(process, step.handle, path) {
                    self.set_size(id, length);
                }
            }
            (_, posix::FALLOCATE | posix::POSIX_FALLOCATE) => {
                if let Some(id) = self.file(process, step.handle, path) {
                    self.extend(id, offset.saturating_add(length));
                }
            }
            (_, posix::READDIR) => self.add_listed(process, step),
            (_, posix::CLOSE | stdio::FCLOSE | posix::CLOSEDIR) => {
                self.handles.remove(&(process, step.handle));
                self.listed.remove(&(process, step.handle));
            }
            _ => {
                if let Some(path) = path {
                    self.add_on_path(process, step, path, length);
                }
            }
        }
    }

    fn add_on_path(&mut self, process: u64, step: &ReplayStep, path: &[u8], length: u64) {
        let argument = step.arg as i32;
        let handle = (process, step.handle);
        match step.operation() {
            posix::OPENDIR => {
                let id = self.directory(path);
                self.handles.insert(handle, id);
                self.listed.insert(handle, 0);
            }
            posix::MKSTEMP => {
                let id = self.create(path, Kind::File);
                self.handles.insert(handle, id);
            }
            posix::CREAT => {
                let id = self.open(path, libc::O_CREAT | libc::O_TRUNC);
                self.handles.insert(handle, id);
            }
            posix::OPEN | posix::OPENAT | stdio::FOPEN | stdio::FREOPEN => {
                let id = self.open(path, argument);
                self.handles.insert(handle, id);
            }
            posix::FDOPENDIR | posix::REWINDDIR => {
                self.opened_directory(process, step);
                self.listed.insert(handle, 0);
            }
            posix::SEEKDIR => drop(self.listed.remove(&(process, step.handle))),
            posix::TRUNCATE => {
                let id = self.exists(path);
                self.set_size(id, length);
            }
            posix::RMDIR => self.remove_directory(path),
            posix::UNLINKAT if argument & libc::AT_REMOVEDIR != 0 => self.remove_directory(path),
            posix::UNLINK | posix::REMOVE | posix::UNLINKAT => {
                self.exists(path);
                self.bind(path, None);
            }
            posix::MKDIR | posix::MKDIRAT | posix::MKDTEMP => _ = self.create(path, Kind::Directory),
            posix::MKFIFO | posix::MKFIFOAT | posix::MKNOD | posix::MKNODAT => {
                _ = self.create(path, Kind::File);
            }
            posix::RENAME | posix::RENAMEAT | posix::RENAMEAT2 => {
                if let Some(to) = step.path2.as_deref() {
                    self.rename(path, to);
                }
            }
            posix::LINK | posix::LINKAT => {
                if let Some(to) = step.path2.as_deref() {
                    let id = self.exists(path);
                    self.parents_exist(to);
                    self.bind(to, Some(id));
                }
            }
            // The first path is the target of the link.
            posix::SYMLINK | posix::SYMLINKAT => {
                if let Some(link) = step.path2.as_deref() {
                    self.create(link, Kind::File);
                }
            }
            posix::SCANDIR | posix::CHDIR => _ = self.directory(path),
            posix::READLINK | posix::READLINKAT => {}
            _ if step.handle == 0 => _ = self.exists(path),
            _ => _ = self.file(process, step.handle, Some(path)),
        }
    }

    fn add_failed(&mut self, op: Op, path: Option<&[u8]>, errno: i64) {
        let Some(path) = path else { return };
        match i32::try_from(errno).unwrap_or(0) {
            libc::ENOENT if !matches!(op, posix::SYMLINK | posix::SYMLINKAT) => {
                _ = self.names.entry(path.to_vec()).or_insert(None)
            }
            libc::EEXIST if matches!(op, posix::MKDIR | posix::MKDIRAT) => _ = self.directory(path),
            libc::EEXIST if creates_file(op) => _ = self.exists(path),
            libc::EISDIR => _ = self.directory(path),
            _ => {}
        }
    }

    /// A step has written the file up to this size.
    fn extend(&mut self, id: usize, bytes: u64) {
        let size = &mut self.entities[id].size;
        *size = (*size).max(bytes);
    }

    fn remove_directory(&mut self, path: &[u8]) {
        let id = self.directory(path);
        self.entities[id].removed = true;
        self.bind(path, None);
    }

    /// The file has at least so many bytes. If no step has created or written them, they are
    /// initial.
    fn grow(&mut self, id: usize, bytes: u64) {
        let entity = &mut self.entities[id];
        if entity.size < bytes {
            entity.size = bytes;
            if !entity.exact {
                let was_counted_as_created = !entity.is_initial;
                (entity.initial_size, entity.is_initial) = (bytes, true);
                if let (true, Some(parent)) =
                    (was_counted_as_created, self.parent_directory(&self.entities[id].original))
                {
                    self.entities[parent].added -= 1;
                }
            }
        }
    }

    /// A step has set the size of the file.
    fn set_size(&mut self, id: usize, bytes: u64) {
        let entity = &mut self.entities[id];
        (entity.size, entity.exact) = (bytes, true);
    }

    /// Returns the entity of a handle, or of a path if no step has opened the handle.
    fn file(&mut self, process: u64, handle: u64, path: Option<&[u8]>) -> Option<usize> {
        if let Some(id) = self.handles.get(&(process, handle)) {
            return Some(*id);
        }
        let id = self.exists(path?);
        if handle != 0 {
            self.handles.insert((process, handle), id);
        }
        Some(id)
    }

    /// A step has opened the path with these flags.
    fn open(&mut self, path: &[u8], flags: i32) -> usize {
        let has = |flag: i32| flags & flag == flag;
        if has(libc::O_TMPFILE) {
            self.directory(path);
            return self.new_entity(Entity { exact: true, ..Entity::default() });
        }
        let known = self.names.get(path).copied();
        let id = if has(libc::O_DIRECTORY) {
            self.directory(path)
        } else if !has(libc::O_CREAT) {
            self.exists(path)
        } else if has(libc::O_EXCL) || known == Some(None) {
            self.create(path, Kind::File)
        } else {
            self.parents_exist(path);
            known.flatten().unwrap_or_else(|| self.name(path, Entity::default()))
        };
        if has(libc::O_TRUNC) {
            self.set_size(id, 0);
        }
        id
    }

    /// A step has created the path.
    fn create(&mut self, path: &[u8], kind: Kind) -> usize {
        self.parents_exist(path);
        let is_directory = kind == Kind::Directory;
        self.name(path, Entity { is_directory, exact: true, ..Entity::default() })
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let id = self.exists(from);
        self.parents_exist(to);
        if self.entities[id].is_directory {
            let below = |name: &[u8]| name.starts_with(from) && name.get(from.len()) == Some(&b'/');
            let moved: Vec<Vec<u8>> = self.names.keys().filter(|name| below(name)).cloned().collect();
            for name in moved {
                let new = [to, &name[from.len()..]].concat();
                let entity = self.names.insert(name, None).flatten();
                self.names.insert(new, entity);
            }
        }
        if let Some(Some(replaced)) = self.names.get(to) {
            self.entities[*replaced].removed = true;
        }
        self.bind(from, None);
        self.bind(to, Some(id));
    }

    /// Adds a `readdir`. An entry that no step has created is initial.
    fn add_listed(&mut self, process: u64, step: &ReplayStep) {
        let Some(id) = self.opened_directory(process, step) else { return };
        if let (1, Some(listed)) = (step.result, self.listed.get_mut(&(process, step.handle))) {
            *listed += 1;
            let entity = &mut self.entities[id];
            // A directory that a step has created was empty; the trace does not show who created
            // the entry.
            if entity.exact {
                return;
            }
            entity.entries = entity.entries.max(*listed - DOT_ENTRIES - entity.added);
        }
    }

    fn opened_directory(&mut self, process: u64, step: &ReplayStep) -> Option<usize> {
        let id = self.file(process, step.handle, step.path.as_deref())?;
        self.entities[id].is_directory = true;
        Some(id)
    }

    /// From now on the path names this entity, or nothing.
    fn bind(&mut self, path: &[u8], entity: Option<usize>) {
        let previous = self.names.insert(path.to_vec(), entity).flatten();
        if let (true, Some(parent)) = (previous.is_some() != entity.is_some(), self.parent_directory(path)) {
            self.entities[parent].added += if entity.is_some() { 1 } else { -1 };
        }
    }

    /// Returns the parent directory of a path, if it exists.
    fn parent_directory(&self, path: &[u8]) -> Option<usize> {
        self.names.get(parent(path)?).copied().flatten()
    }

    /// The path exists. If no step has created it, it is initial.
    fn exists(&mut self, path: &[u8]) -> usize {
        match self.names.get(path) {
            Some(Some(id)) => *id,
            // It did not exist: a process outside the trace has created it since.
            Some(None) => self.name(path, Entity { exact: true, ..Entity::default() }),
            None => {
                self.parents_exist(path);
                self.name(path, Entity { is_initial: true, ..Entity::default() })
            }
        }
    }

    /// The path exists and is a directory.
    fn directory(&mut self, path: &[u8]) -> usize {
        let id = self.exists(path);
        self.entities[id].is_directory = true;
        id
    }

    /// The parent directories of the path exist.
    fn parents_exist(&mut self, path: &[u8]) {
        if let Some(parent) = parent(path) {
            let is_known =
                matches!(self.names.get(parent), Some(Some(id)) if self.entities[*id].is_directory);
            if !is_known {
                self.directory(parent);
            }
        }
    }

    fn name(&mut self, path: &[u8], entity: Entity) -> usize {
        let is_created = !entity.is_initial;
        let id = self.new_entity(Entity { original: path.to_vec(), ..entity });
        if is_created {
            self.bind(path, Some(id));
        } else {
            self.names.insert(path.to_vec(), Some(id));
        }
        id
    }

    fn new_entity(&mut self, entity: Entity) -> usize {
        self.entities.push(entity);
        self.entities.len() - 1
    }

    /// Returns what must exist before the first step, by path, directories before their entries:
    /// the bytes of a file, `None` for a directory. Entries without a path in the trace are empty
    /// files.
    #[must_use]
    pub fn before_first_step(&self) -> BTreeMap<Vec<u8>, Option<u64>> {
        let initial = || self.entities.iter().filter(|entity| entity.is_initial);
        let mut named: HashMap<&[u8], i64> = HashMap::new();
        let mut all = BTreeMap::new();
        for entity in initial() {
            if let Some(parent) = parent(&entity.original) {
                *named.entry(parent).or_default() += 1;
                all.insert(entity.original.clone(), (!entity.is_directory).then_some(entity.initial_size));
            }
        }
        for directory in initial().filter(|entity| entity.is_directory && !entity.removed) {
            let name = directory.original.as_slice();
            let slash: &[u8] = if name.is_empty() { b"" } else { b"/" };
            for nth in named.get(name).copied().unwrap_or(0)..directory.entries {
                all.insert([name, slash, format!(".miot-entry-{nth}").as_bytes()].concat(), Some(0));
            }
        }
        all
    }
}

/// True for requests that create a file, or fail with `EEXIST` if the path exists.
fn creates_file(op: Op) -> bool {
    matches!(
        op,
        posix::OPEN
            | posix::OPENAT
            | posix::OPENDIR
            | posix::MKFIFO
            | posix::MKFIFOAT
            | posix::MKNOD
            | posix::MKNODAT
    )
}

/// Returns the path of the parent directory; `None` for the replay root, whose path is empty.
fn parent(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    (!path.is_empty()).then(|| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::InitialFiles;
    use crate::replay::ReplayStep;
    use miot_proto::op::by_name;

    fn step(name: &str, path: &str, arg: i32, result: i64) -> ReplayStep {
        let op = by_name("posix", name).unwrap().op;
        let path = Some(path.as_bytes().to_vec());
        ReplayStep { op: (op.layer, op.number), path, arg: arg.into(), result, ..ReplayStep::default() }
    }

    fn on(name: &str, handle: u64, offset: i64, length: i64, result: i64) -> ReplayStep {
        let whole = step(name, "", 0, result);
        ReplayStep { handle, path: None, offset: Some(offset), length: Some(length), ..whole }
    }

    fn open(handle: u64, path: &str, flags: i32) -> ReplayStep {
        ReplayStep { handle, ..step("open", path, flags, 3) }
    }

    fn list(handle: u64, path: &str, found: usize) -> Vec<ReplayStep> {
        let begin = ReplayStep { handle, ..step("opendir", path, 0, 0) };
        let next = |result| ReplayStep { handle, ..step("readdir", path, 0, result) };
        let end = ReplayStep { handle, ..step("closedir", path, 0, 0) };
        [vec![begin], vec![next(1); found], vec![next(0), end]].concat()
    }

    fn to(step: ReplayStep, path2: &str) -> ReplayStep {
        ReplayStep { path2: Some(path2.as_bytes().to_vec()), ..step }
    }

    #[track_caller]
    fn check(steps: &[ReplayStep], expected: &[(&str, Option<u64>)]) {
        let mut initial = InitialFiles::default();
        steps.iter().for_each(|step| initial.add(1, step));
        let before = initial.before_first_step();
        let found: Vec<_> =
            before.iter().map(|(path, bytes)| (str::from_utf8(path).unwrap(), *bytes)).collect();
        assert_eq!(found, expected);
    }

    const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

    #[test]
    fn files_read_first_are_initial_and_files_written_first_are_not() {
        let steps = [
            open(1, "in/a", libc::O_RDONLY),
            on("pread", 1, 100, 500, 50),
            open(2, "out/b", NEW),
            on("write", 2, 0, 10, 10),
            on("read", 2, 0, 10, 10),
            open(3, "out/b", libc::O_RDONLY),
            on("read", 3, 0, 99, 10),
            step("stat", "none", 0, -2),
        ];
        check(&steps, &[("in", None), ("in/a", Some(150)), ("out", None)]);
    }

    #[test]
    fn created_files_are_not_initial() {
        let steps = [
            step("mkdir", "d/new", 0, 0),
            open(1, "d/new/f", libc::O_WRONLY | libc::O_CREAT),
            to(step("rename", "d/new/f", 0, 0), "d/new/g"),
            to(step("rename", "d/new", 0, 0), "d/other"),
            step("stat", "d/other/g", 0, 0),
            step("unlink", "d/other/g", 0, 0),
            step("rmdir", "d/other", 0, 0),
        ];
        check(&steps, &[("d", None)]);
    }

    #[test]
    fn sizes_are_those_before_the_first_step() {
        let append = ReplayStep { flags: miot_proto::event::flag::APPEND, ..on("write", 2, 70, 5, 5) };
        let steps = [
            open(1, "a", libc::O_RDWR | libc::O_CREAT),
            on("lseek", 1, 0, 0, 300),
            on("read", 1, 200, 200, 100),
            open(2, "log", libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND),
            append,
            on("read", 2, 0, 75, 75),
            open(3, "cut", libc::O_RDWR),
            on("ftruncate", 3, 0, 10, 0),
            on("write", 3, 10, 90, 90),
            on("read", 3, 0, 100, 100),
            to(step("rename", "x", 0, 0), "y"),
            open(4, "y", libc::O_RDONLY),
            on("read", 4, 0, 8, 8),
        ];
        check(&steps, &[("a", Some(300)), ("cut", Some(0)), ("log", Some(70)), ("x", Some(8))]);
    }

    #[test]
    fn directories_have_as_many_entries_as_listings_found() {
        let steps = [
            vec![step("stat", "d/a", 0, 0), step("mkdir", "d/new", 0, 0), step("unlink", "d/gone", 0, 0)],
            // Both dots, a, new, and one without a path in the trace.
            list(1, "d", 5),
            list(1, "d/new", 2),
            vec![to(step("rename", "d/a", 0, 0), "a")],
            list(1, "d", 4),
            list(1, "", 6),
            list(1, "empty", 3),
            vec![step("rmdir", "empty", 0, 0)],
        ]
        .concat();
        let expected = [
            (".miot-entry-2", Some(0)),
            ("d", None),
            ("d/.miot-entry-2", Some(0)),
            ("d/a", Some(0)),
            ("d/gone", Some(0)),
            ("empty", None),
        ];
        check(&steps, &expected);
    }

    #[test]
    fn only_listings_from_the_begin_count_entries() {
        let of = |name, result| ReplayStep { handle: 1, ..step(name, "d", 0, result) };
        let begun =
            [of("opendir", 0), of("readdir", 1), of("readdir", 1), of("readdir", 1), of("readdir", 1)];
        let two = [("d", None), ("d/.miot-entry-0", Some(0)), ("d/.miot-entry-1", Some(0))];
        check(&begun, &two);
        check(&[&begun[..], &[of("rewinddir", 0)], &begun[1..]].concat(), &two);
        // From an unknown position on.
        check(&[&begun[..], &[of("seekdir", 0)], &begun[1..]].concat(), &two);
    }

    #[test]
    fn file_found_initial_later_counts_as_an_entry() {
        let steps = [
            vec![open(2, "d/f", libc::O_RDWR | libc::O_CREAT), on("read", 2, 0, 8, 8)],
            list(1, "d", 4),
            vec![open(2, "d/new", libc::O_RDWR | libc::O_CREAT)],
            list(1, "d", 5),
        ];
        check(&steps.concat(), &[("d", None), ("d/.miot-entry-1", Some(0)), ("d/f", Some(8))]);
    }
}
