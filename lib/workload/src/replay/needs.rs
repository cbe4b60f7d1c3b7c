//! What must be there before the first step: files and directories that steps find, how large files must be so that every read
//! moves as many bytes and every append lands at the same place, and how much must be in directories so that listings are as long.

use super::{Part, Step};
use miot_proto::event::flag;
use miot_proto::op::OpClass;
use std::collections::{BTreeMap, HashMap};

/// A file or directory, whatever it is called at the moment.
#[derive(Debug, Default)]
struct Entity {
    /// Name when the trace begins; empty for the root, and for what has none.
    original: Vec<u8>,
    /// It was there before the first step.
    must: bool,
    directory: bool,
    /// Bytes that it must have had.
    base: u64,
    /// Bytes that it has now, or more, unless `exact`.
    size: u64,
    /// A step has made it or set its size.
    exact: bool,
    /// Entries that it must have had, named in the trace or not.
    entries: i64,
    /// Entries that steps have made in it until now, minus those that they have removed.
    added: i64,
    /// Steps have removed or replaced it, so it was empty then.
    removed: bool,
}

/// Entries of each directory that no program has made: itself and the one that it is in.
const DOTS: i64 = 2;

/// Takes in all steps in order of completion.
#[derive(Debug, Default)]
pub struct Needs {
    entities: Vec<Entity>,
    /// `None`: there is nothing of this name.
    names: HashMap<Vec<u8>, Option<usize>>,
    handles: HashMap<(u64, u64), usize>,
    /// Entries that were listed since the begin of a directory, by handle.
    listed: HashMap<(u64, u64), i64>,
}

impl Needs {
    /// Takes in the next step of a process. It has its path also where it is on a handle.
    pub fn add(&mut self, process: u64, step: &Step) {
        let (Some(info), false) = (step.info(), matches!(step.part, Part::Submit(_))) else { return };
        let path = step.path.as_deref();
        if step.result < 0 {
            return self.failed(info.name, path, -step.result);
        }
        let moved = u64::try_from(step.result).unwrap_or(0);
        let positive = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).unwrap_or(0);
        let (offset, length) = (positive(step.offset), positive(step.length));
        match (info.class, info.name) {
            (OpClass::Read, _) => {
                if let (Some(id), true) = (self.file(process, step.handle, path), moved > 0) {
                    self.grow(id, offset.saturating_add(moved));
                }
            }
            (OpClass::Write, _) => {
                let appends = step.flags & flag::APPEND != 0;
                self.written(process, step.handle, path, offset, moved, appends);
            }
            (OpClass::Copy, _) => {
                self.written(process, step.handle, path, offset, moved, false);
                let source = self.file(process, step.handle2, step.path2.as_deref());
                if let (Some(id), true) = (source, moved > 0) {
                    self.grow(id, positive(step.offset2).saturating_add(moved));
                }
            }
            (_, "lseek" | "fseek") if step.arg as i32 == libc::SEEK_END && info.name == "lseek" => {
                if let Some(id) = self.file(process, step.handle, path) {
                    let size = step.result.saturating_sub(step.offset.unwrap_or(0));
                    self.grow(id, u64::try_from(size).unwrap_or(0));
                }
            }
            (_, "ftruncate") => {
                if let Some(id) = self.file(process, step.handle, path) {
                    self.set(id, length);
                }
            }
            (_, "fallocate" | "posix_fallocate") => {
                if let Some(id) = self.file(process, step.handle, path) {
                    let size = &mut self.entities[id].size;
                    *size = (*size).max(offset.saturating_add(length));
                }
            }
            (_, "readdir") => self.listed(process, step),
            (_, "close" | "fclose" | "closedir") => {
                self.handles.remove(&(process, step.handle));
                self.listed.remove(&(process, step.handle));
            }
            (_, name) => {
                if let Some(path) = path {
                    self.named(process, name, step, path, length);
                }
            }
        }
    }

    fn named(&mut self, process: u64, name: &str, step: &Step, path: &[u8], length: u64) {
        match name {
            "open" | "openat" | "creat" | "fopen" | "freopen" | "mkstemp" | "opendir" => {
                let id = match name {
                    "opendir" => self.directory(path),
                    "mkstemp" => self.made(path, false),
                    "creat" => self.opened(path, libc::O_CREAT | libc::O_TRUNC),
                    _ => self.opened(path, step.arg as i32),
                };
                self.handles.insert((process, step.handle), id);
                if name == "opendir" {
                    self.listed.insert((process, step.handle), 0);
                }
            }
            "fdopendir" | "rewinddir" => {
                self.opened_directory(process, step);
                self.listed.insert((process, step.handle), 0);
            }
            "seekdir" => drop(self.listed.remove(&(process, step.handle))),
            "truncate" => {
                let id = self.exists(path);
                self.set(id, length);
            }
            "unlink" | "remove" | "rmdir" | "unlinkat" => {
                if name == "rmdir" || name == "unlinkat" && step.arg as i32 & libc::AT_REMOVEDIR != 0 {
                    let id = self.directory(path);
                    self.entities[id].removed = true;
                } else {
                    self.exists(path);
                }
                self.bind(path, None);
            }
            "mkdir" | "mkdirat" | "mkdtemp" => _ = self.made(path, true),
            "mkfifo" | "mkfifoat" | "mknod" | "mknodat" => _ = self.made(path, false),
            "rename" | "renameat" | "renameat2" => {
                if let Some(to) = step.path2.as_deref() {
                    self.renamed(path, to);
                }
            }
            "link" | "linkat" => {
                if let Some(to) = step.path2.as_deref() {
                    let id = self.exists(path);
                    self.above(to);
                    self.bind(to, Some(id));
                }
            }
            // The first string is what the link says.
            "symlink" | "symlinkat" => {
                if let Some(link) = step.path2.as_deref() {
                    self.made(link, false);
                }
            }
            "scandir" | "chdir" => _ = self.directory(path),
            "readlink" | "readlinkat" => {}
            _ if step.handle == 0 => _ = self.exists(path),
            _ => _ = self.file(process, step.handle, Some(path)),
        }
    }

    fn failed(&mut self, name: &str, path: Option<&[u8]>, errno: i64) {
        let Some(path) = path else { return };
        match i32::try_from(errno).unwrap_or(0) {
            libc::ENOENT if !name.starts_with("symlink") => {
                _ = self.names.entry(path.to_vec()).or_insert(None)
            }
            libc::EEXIST if name.starts_with("mkdir") => _ = self.directory(path),
            libc::EEXIST if ["open", "mkfifo", "mknod"].iter().any(|made| name.starts_with(made)) => {
                _ = self.exists(path);
            }
            libc::EISDIR => _ = self.directory(path),
            _ => {}
        }
    }

    fn written(
        &mut self,
        process: u64,
        handle: u64,
        path: Option<&[u8]>,
        offset: u64,
        moved: u64,
        appends: bool,
    ) {
        let Some(id) = self.file(process, handle, path) else { return };
        if appends {
            self.grow(id, offset);
        }
        let size = &mut self.entities[id].size;
        *size = (*size).max(offset.saturating_add(moved));
    }

    /// It has at least so many bytes; if no step has seen to that, it had them before.
    fn grow(&mut self, id: usize, bytes: u64) {
        let entity = &mut self.entities[id];
        if entity.size < bytes {
            entity.size = bytes;
            if !entity.exact {
                let is_found_late = !entity.must;
                (entity.base, entity.must) = (bytes, true);
                // A step seemed to have made it.
                if let (true, Some(parent)) = (is_found_late, self.inside(&self.entities[id].original)) {
                    self.entities[parent].added -= 1;
                }
            }
        }
    }

    fn set(&mut self, id: usize, bytes: u64) {
        let entity = &mut self.entities[id];
        (entity.size, entity.exact) = (bytes, true);
    }

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

    fn opened(&mut self, path: &[u8], flags: i32) -> usize {
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
            self.made(path, false)
        } else {
            self.above(path);
            known.flatten().unwrap_or_else(|| self.name(path, Entity::default()))
        };
        if has(libc::O_TRUNC) {
            self.set(id, 0);
        }
        id
    }

    fn made(&mut self, path: &[u8], directory: bool) -> usize {
        self.above(path);
        self.name(path, Entity { directory, exact: true, ..Entity::default() })
    }

    fn renamed(&mut self, from: &[u8], to: &[u8]) {
        let id = self.exists(from);
        self.above(to);
        if self.entities[id].directory {
            let below = |name: &[u8]| name.starts_with(from) && name.get(from.len()) == Some(&b'/');
            let moved: Vec<Vec<u8>> = self.names.keys().filter(|name| below(name)).cloned().collect();
            for name in moved {
                let new = [to, &name[from.len()..]].concat();
                let what = self.names.insert(name, None).flatten();
                self.names.insert(new, what);
            }
        }
        if let Some(Some(replaced)) = self.names.get(to) {
            self.entities[*replaced].removed = true;
        }
        self.bind(from, None);
        self.bind(to, Some(id));
    }

    /// A listing may have found an entry more: what no step has made was there before.
    fn listed(&mut self, process: u64, step: &Step) {
        let Some(id) = self.opened_directory(process, step) else { return };
        if let (1, Some(listed)) = (step.result, self.listed.get_mut(&(process, step.handle))) {
            *listed += 1;
            let entity = &mut self.entities[id];
            // Nothing was in a directory that a step has made: the trace does not know who has made it since.
            if entity.exact {
                return;
            }
            entity.entries = entity.entries.max(*listed - DOTS - entity.added);
        }
    }

    fn opened_directory(&mut self, process: u64, step: &Step) -> Option<usize> {
        let id = self.file(process, step.handle, step.path.as_deref())?;
        self.entities[id].directory = true;
        Some(id)
    }

    /// From now on, this is what the name stands for.
    fn bind(&mut self, path: &[u8], what: Option<usize>) {
        let before = self.names.insert(path.to_vec(), what).flatten();
        if let (true, Some(parent)) = (before.is_some() != what.is_some(), self.inside(path)) {
            self.entities[parent].added += if what.is_some() { 1 } else { -1 };
        }
    }

    /// The directory that a name is in.
    fn inside(&self, path: &[u8]) -> Option<usize> {
        self.names.get(parent(path)?).copied().flatten()
    }

    /// There is something of this name; unless a step has made it, it was there before.
    fn exists(&mut self, path: &[u8]) -> usize {
        match self.names.get(path) {
            Some(Some(id)) => *id,
            // It was not there: somebody else has made it since.
            Some(None) => self.name(path, Entity { exact: true, ..Entity::default() }),
            None => {
                self.above(path);
                self.name(path, Entity { must: true, ..Entity::default() })
            }
        }
    }

    fn directory(&mut self, path: &[u8]) -> usize {
        let id = self.exists(path);
        self.entities[id].directory = true;
        id
    }

    /// The directories that it is in are there.
    fn above(&mut self, path: &[u8]) {
        if let Some(parent) = parent(path) {
            let is_known = matches!(self.names.get(parent), Some(Some(id)) if self.entities[*id].directory);
            if !is_known {
                self.directory(parent);
            }
        }
    }

    fn name(&mut self, path: &[u8], entity: Entity) -> usize {
        let is_made = !entity.must;
        let id = self.new_entity(Entity { original: path.to_vec(), ..entity });
        if is_made {
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

    /// What must be there, by name, directories before what is in them; with its bytes, or `None` for a directory. Entries of which
    /// the trace has no name are empty files.
    #[must_use]
    pub fn before(&self) -> BTreeMap<Vec<u8>, Option<u64>> {
        let must = || self.entities.iter().filter(|entity| entity.must);
        let mut named: HashMap<&[u8], i64> = HashMap::new();
        let mut all = BTreeMap::new();
        for entity in must() {
            if let Some(parent) = parent(&entity.original) {
                *named.entry(parent).or_default() += 1;
                all.insert(entity.original.clone(), (!entity.directory).then_some(entity.base));
            }
        }
        for directory in must().filter(|entity| entity.directory && !entity.removed) {
            let name = directory.original.as_slice();
            let slash: &[u8] = if name.is_empty() { b"" } else { b"/" };
            for nth in named.get(name).copied().unwrap_or(0)..directory.entries {
                all.insert([name, slash, format!(".miot-entry-{nth}").as_bytes()].concat(), Some(0));
            }
        }
        all
    }
}

/// The name of the directory that a name is in: empty for the directory that stands for the root, which is in none.
fn parent(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    (!path.is_empty()).then(|| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::Needs;
    use crate::replay::Step;
    use miot_proto::op::by_name;

    fn step(name: &str, path: &str, arg: i32, result: i64) -> Step {
        let op = by_name("posix", name).unwrap().op;
        let path = Some(path.as_bytes().to_vec());
        Step { op: (op.layer, op.number), path, arg: arg.into(), result, ..Step::default() }
    }

    fn on(name: &str, handle: u64, offset: i64, length: i64, result: i64) -> Step {
        let whole = step(name, "", 0, result);
        Step { handle, path: None, offset: Some(offset), length: Some(length), ..whole }
    }

    fn open(handle: u64, path: &str, flags: i32) -> Step {
        Step { handle, ..step("open", path, flags, 3) }
    }

    fn list(handle: u64, path: &str, found: usize) -> Vec<Step> {
        let begin = Step { handle, ..step("opendir", path, 0, 0) };
        let next = |result| Step { handle, ..step("readdir", path, 0, result) };
        let end = Step { handle, ..step("closedir", path, 0, 0) };
        [vec![begin], vec![next(1); found], vec![next(0), end]].concat()
    }

    fn to(step: Step, path2: &str) -> Step {
        Step { path2: Some(path2.as_bytes().to_vec()), ..step }
    }

    #[track_caller]
    fn needs(steps: &[Step], expected: &[(&str, Option<u64>)]) {
        let mut needs = Needs::default();
        steps.iter().for_each(|step| needs.add(1, step));
        let before = needs.before();
        let found: Vec<_> =
            before.iter().map(|(path, bytes)| (str::from_utf8(path).unwrap(), *bytes)).collect();
        assert_eq!(found, expected);
    }

    const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

    #[test]
    fn what_is_read_first_must_have_been_there_and_what_is_written_first_not() {
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
        needs(&steps, &[("in", None), ("in/a", Some(150)), ("out", None)]);
    }

    #[test]
    fn what_steps_make_is_not_needed() {
        let steps = [
            step("mkdir", "d/new", 0, 0),
            open(1, "d/new/f", libc::O_WRONLY | libc::O_CREAT),
            to(step("rename", "d/new/f", 0, 0), "d/new/g"),
            to(step("rename", "d/new", 0, 0), "d/other"),
            step("stat", "d/other/g", 0, 0),
            step("unlink", "d/other/g", 0, 0),
            step("rmdir", "d/other", 0, 0),
        ];
        needs(&steps, &[("d", None)]);
    }

    #[test]
    fn sizes_are_those_before_the_first_step() {
        let append = Step { flags: miot_proto::event::flag::APPEND, ..on("write", 2, 70, 5, 5) };
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
        needs(&steps, &[("a", Some(300)), ("cut", Some(0)), ("log", Some(70)), ("x", Some(8))]);
    }

    #[test]
    fn directories_have_as_many_entries_as_listings_found() {
        let steps = [
            vec![step("stat", "d/a", 0, 0), step("mkdir", "d/new", 0, 0), step("unlink", "d/gone", 0, 0)],
            // Both dots, a, new, and one that is not named.
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
        needs(&steps, &expected);
    }

    #[test]
    fn a_listing_from_its_begin_and_one_that_was_cut_short() {
        let of = |name, result| Step { handle: 1, ..step(name, "d", 0, result) };
        let begun =
            [of("opendir", 0), of("readdir", 1), of("readdir", 1), of("readdir", 1), of("readdir", 1)];
        let two = [("d", None), ("d/.miot-entry-0", Some(0)), ("d/.miot-entry-1", Some(0))];
        needs(&begun, &two);
        needs(&[&begun[..], &[of("rewinddir", 0)], &begun[1..]].concat(), &two);
        // From an unknown place on.
        needs(&[&begun[..], &[of("seekdir", 0)], &begun[1..]].concat(), &two);
    }

    #[test]
    fn a_file_that_is_found_later_to_have_been_there_counts_as_an_entry() {
        let steps = [
            vec![open(2, "d/f", libc::O_RDWR | libc::O_CREAT), on("read", 2, 0, 8, 8)],
            list(1, "d", 4),
            vec![open(2, "d/new", libc::O_RDWR | libc::O_CREAT)],
            list(1, "d", 5),
        ];
        needs(&steps.concat(), &[("d", None), ("d/.miot-entry-1", Some(0)), ("d/f", Some(8))]);
    }
}
