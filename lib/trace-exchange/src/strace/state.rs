//! State that strace does not print: shared descriptors, file positions, working directories.

use crate::{ProcessId, Thread};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Size of a file, shared by its names and open descriptions; `None` if unknown.
pub(super) type Size = Rc<Cell<Option<i64>>>;

/// An open file description.
#[derive(Debug)]
pub(super) struct OpenDescription {
    /// Path of the file; `None` if neither an open nor `-y` showed it.
    pub(super) path: Option<Vec<u8>>,
    /// Path that `-y` shows, with symbolic links resolved.
    pub(super) shown: RefCell<Option<Vec<u8>>>,
    pub(super) handle: u64,
    /// Position; `None` if the file was opened before the trace began.
    pub(super) position: Cell<Option<i64>>,
    pub(super) append: Cell<bool>,
    pub(super) direct: Cell<bool>,
    pub(super) size: Size,
    /// True for a pipe, a socket or an event counter, whose transfers are not I/O on files.
    pub(super) no_file: bool,
}

/// A descriptor: its open file, and whether `execve` closes it.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    pub(super) open: Rc<OpenDescription>,
    pub(super) close_on_exec: bool,
}

/// A thread, with the state that it may share with others.
#[derive(Clone, Debug)]
pub(super) struct TracedThread {
    pub(super) process: ProcessId,
    pub(super) pid: u32,
    pub(super) thread: Thread,
    pub(super) descriptors: Rc<RefCell<HashMap<i32, Descriptor>>>,
    /// Working directory; `None` if unknown.
    pub(super) directory: Rc<RefCell<Option<Vec<u8>>>>,
    /// Mapped files: start and end.
    pub(super) maps: Rc<RefCell<Vec<(i64, i64)>>>,
}

fn copied<T: Clone>(shared: &Rc<RefCell<T>>, share: bool) -> Rc<RefCell<T>> {
    if share { Rc::clone(shared) } else { Rc::new(RefCell::new(shared.borrow().clone())) }
}

impl TracedThread {
    /// Returns the child that `clone` with these flags creates.
    pub(super) fn child(&self, flags: i64, process: ProcessId, pid: u32, thread: Thread) -> TracedThread {
        let shares = |flag: i32| flags & i64::from(flag) != 0;
        TracedThread {
            process,
            pid,
            thread,
            descriptors: copied(&self.descriptors, shares(libc::CLONE_FILES)),
            directory: copied(&self.directory, shares(libc::CLONE_FS)),
            maps: copied(&self.maps, shares(libc::CLONE_VM) && !shares(libc::CLONE_VFORK)),
        }
    }

    /// Applies a successful `execve`.
    pub(super) fn execute(&mut self, process: ProcessId, thread: Thread) {
        *self = self.child(0, process, self.pid, thread);
        self.maps = Rc::default();
        self.descriptors.borrow_mut().retain(|_, descriptor| !descriptor.close_on_exec);
    }

    pub(super) fn open(&self, descriptor: i32) -> Option<Rc<OpenDescription>> {
        self.descriptors.borrow().get(&descriptor).map(|descriptor| Rc::clone(&descriptor.open))
    }
}

/// Sizes of files by path, as far as the text shows them: enough to derive the offsets of appending
/// writes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    by_path: HashMap<Vec<u8>, Size>,
}

impl Sizes {
    pub(super) fn of(&mut self, path: &[u8]) -> Size {
        if let Some(size) = self.by_path.get(path) {
            return Rc::clone(size);
        }
        let size = Size::default();
        self.by_path.insert(path.to_vec(), Rc::clone(&size));
        size
    }

    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8]) {
        match self.by_path.remove(from) {
            Some(size) => self.by_path.insert(to.to_vec(), size),
            None => self.by_path.remove(to),
        };
    }

    pub(super) fn removed(&mut self, path: &[u8]) {
        self.by_path.remove(path);
    }
}
