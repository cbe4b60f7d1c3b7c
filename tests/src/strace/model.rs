//! Converts system calls to [`Fact`]s: follows descriptors through `dup`, `fork` and `exec`, and
//! computes the file position at the start of each call.

use super::calls;
use super::parse::{self, Call};
use super::state::{Open, Sizes, Task};
use crate::fact::{Fact, is_excluded, normal_path};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// One request that strace recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Line of strace's output.
    pub line: usize,
    /// The request.
    pub fact: Fact,
    /// Made by a child of `vfork` or `posix_spawn` before its `execve`.
    pub borrowed: bool,
}

/// All requests that strace recorded, except those that MIOT excludes by default.
#[derive(Debug, Default)]
pub struct Witness {
    /// Requests by thread, threads in order of their first call.
    pub threads: Vec<(u32, Vec<Seen>)>,
    /// Directory entries delivered, by directory.
    pub entries: HashMap<Vec<u8>, u64>,
    /// Contradictions between the kernel and the position model. With any of them, the model is not
    /// reliable.
    pub doubts: Vec<String>,
}

/// Reads strace's output. `directory` is the working directory of the first process.
/// `size_at_start` returns the size of a file before the run.
///
/// # Errors
/// The first line that cannot be parsed.
pub fn witness(
    text: &str,
    directory: &[u8],
    size_at_start: &dyn Fn(&[u8]) -> i64,
) -> Result<Witness, String> {
    let calls = parse::parse(text)?;
    let mut model = Model::new(&calls, directory, size_at_start);
    for call in &calls {
        model.step(call);
    }
    Ok(model.out)
}

pub(super) struct Model<'a> {
    tasks: HashMap<u32, Task>,
    /// Child → parent, flags, line on which the clone began.
    births: HashMap<u32, (u32, i64)>,
    first: Option<u32>,
    directory: &'a [u8],
    pub(super) sizes: Sizes,
    size_at_start: &'a dyn Fn(&[u8]) -> i64,
    out: Witness,
}

impl<'a> Model<'a> {
    fn new(calls: &[Call], directory: &'a [u8], size_at_start: &'a dyn Fn(&[u8]) -> i64) -> Self {
        // A child's first call can return before the clone that made it does.
        let births = calls.iter().filter_map(|call| {
            let flags = match call.name.as_str() {
                "fork" => 0,
                "vfork" => 0x4100,
                "clone" | "clone3" => parse::field(&call.args, "flags")?,
                _ => return None,
            };
            (call.result > 0).then_some((call.result as u32, (call.tid, flags)))
        });
        Model {
            tasks: HashMap::new(),
            births: births.collect(),
            first: calls.first().map(|c| c.tid),
            directory,
            sizes: Sizes::default(),
            size_at_start,
            out: Witness::default(),
        }
    }

    fn task(&mut self, tid: u32) -> Task {
        if let Some(task) = self.tasks.get(&tid) {
            return task.clone();
        }
        let task = match self.births.get(&tid).copied() {
            Some((parent, flags)) if Some(tid) != self.first => self.task(parent).child(flags),
            _ => {
                let task = Task::default();
                *task.directory.borrow_mut() = self.directory.to_vec();
                task
            }
        };
        self.tasks.insert(tid, task.clone());
        task
    }

    fn step(&mut self, call: &Call) {
        let mut task = self.task(call.tid);
        match call.name.as_str() {
            "fork" | "vfork" | "clone" | "clone3" if call.result > 0 => {
                // Take the copies now, if the child has not run yet.
                self.task(call.result as u32);
            }
            "execve" | "execveat" if call.result == 0 => {
                task.execute();
                self.tasks.insert(call.tid, task);
            }
            _ => {
                let borrowed = task.borrowed.get();
                let Some(fact) = calls::fact(self, &task, call) else { return };
                if fact.file().is_some_and(is_excluded) {
                    return;
                }
                let seen = Seen { line: call.line, fact, borrowed };
                match self.out.threads.iter_mut().find(|(tid, _)| *tid == call.tid) {
                    Some((_, thread)) => thread.push(seen),
                    None => self.out.threads.push((call.tid, vec![seen])),
                }
            }
        }
    }

    /// True for files with a known size at the start: those below the first directory.
    pub(super) fn knows(&self, path: &[u8]) -> bool {
        path.starts_with(self.directory)
    }

    pub(super) fn size(&mut self, path: &[u8]) -> Rc<Cell<i64>> {
        self.sizes.of(path, self.size_at_start)
    }

    /// Records a position that differs from the kernel's.
    pub(super) fn check(&mut self, call: &Call, modelled: i64, actual: i64) {
        if modelled != actual {
            self.out
                .doubts
                .push(format!("line {}: {} at {modelled}, the kernel says {actual}", call.line, call.name));
        }
    }

    pub(super) fn delivered(&mut self, directory: &[u8], entries: u64) {
        *self.out.entries.entry(directory.to_vec()).or_default() += entries;
    }

    /// Returns the open file of a descriptor argument. An inherited one is identified by the path
    /// that strace prints.
    pub(super) fn file(&mut self, task: &Task, argument: &str) -> Option<Rc<Open>> {
        let (number, shown) = parse::descriptor(argument)?;
        if is_excluded(&shown) {
            return None;
        }
        if let Some(open) = task.open(number) {
            return Some(open);
        }
        Some(self.adopt(task, number, normal_path(b"/", &shown), 0))
    }

    /// Creates an open file description with this number.
    pub(super) fn adopt(&mut self, task: &Task, number: i32, path: Vec<u8>, flags: i64) -> Rc<Open> {
        let size = self.size(&path);
        if flags & i64::from(libc::O_TRUNC) != 0 {
            size.set(0);
        }
        let append = Cell::new(flags & i64::from(libc::O_APPEND) != 0);
        let open = Rc::new(Open { path, position: Cell::new(0), append, size });
        task.descriptors.borrow_mut().insert(number, open.clone());
        open
    }
}
