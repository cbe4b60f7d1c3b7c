//! State that strace does not print: positions of open files, directories of processes, mapped
//! files.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Size of a file, shared by its names and open descriptions.
pub(super) type Size = Rc<Cell<i64>>;

/// An open file description.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) path: Vec<u8>,
    pub(super) position: Cell<i64>,
    pub(super) append: Cell<bool>,
    pub(super) size: Size,
}

/// State of a thread. Threads share parts of it or have copies, depending on the flags of `clone`.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub(super) descriptors: Rc<RefCell<HashMap<i32, Rc<Open>>>>,
    pub(super) directory: Rc<RefCell<Vec<u8>>>,
    /// Start and end of mapped files.
    pub(super) maps: Rc<RefCell<Vec<(i64, i64)>>>,
    /// A child of `vfork` or `posix_spawn` that has not called `execve` yet.
    pub(super) borrowed: Rc<Cell<bool>>,
}

const CLONE_VM: i64 = 0x100;
const CLONE_FS: i64 = 0x200;
const CLONE_FILES: i64 = 0x400;
const CLONE_VFORK: i64 = 0x4000;

impl Task {
    /// Returns the task that `clone` with these flags creates from this one.
    pub(super) fn child(&self, flags: i64) -> Task {
        fn copy<T: Clone>(shared: &Rc<RefCell<T>>, share: bool) -> Rc<RefCell<T>> {
            if share { shared.clone() } else { Rc::new(RefCell::new(shared.borrow().clone())) }
        }
        Task {
            descriptors: copy(&self.descriptors, flags & CLONE_FILES != 0),
            directory: copy(&self.directory, flags & CLONE_FS != 0),
            maps: copy(&self.maps, flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM),
            borrowed: Rc::new(Cell::new(flags & CLONE_VFORK != 0)),
        }
    }

    /// Removes the state that a successful `execve` discards.
    pub(super) fn execute(&mut self) {
        *self = self.child(0);
        self.maps = Rc::default();
    }

    pub(super) fn open(&self, descriptor: i32) -> Option<Rc<Open>> {
        self.descriptors.borrow().get(&descriptor).cloned()
    }
}

/// Sizes of files by path, needed to compute the offset of an appending write.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    by_path: HashMap<Vec<u8>, Size>,
}

impl Sizes {
    /// Returns the size of the file at this path. `at_start` returns it for a file not seen before.
    pub(super) fn of(&mut self, path: &[u8], at_start: impl FnOnce(&[u8]) -> i64) -> Size {
        if let Some(size) = self.by_path.get(path) {
            return size.clone();
        }
        let size = Rc::new(Cell::new(at_start(path)));
        self.by_path.insert(path.to_vec(), size.clone());
        size
    }

    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8]) {
        if let Some(size) = self.by_path.remove(from) {
            self.by_path.insert(to.to_vec(), size);
        }
    }

    pub(super) fn removed(&mut self, path: &[u8]) {
        self.by_path.insert(path.to_vec(), Rc::default());
    }
}
