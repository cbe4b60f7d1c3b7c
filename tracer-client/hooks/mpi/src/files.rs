//! Open files, by the handle that MPI gave.

use crate::abi::Handle;
use miot_proto::event::Communicator;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    /// Its handle in the trace, 0 as long as nothing of it was recorded.
    pub(crate) handle: u64,
    /// The communicator it was opened with.
    pub(crate) communicator: Communicator,
    /// How it was opened.
    pub(crate) amode: c_int,
    /// The split collective that has begun.
    pub(crate) split: Option<Split>,
}

/// What the end of a split collective moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) offset: u64,
    pub(crate) etypes: u64,
    pub(crate) length: u64,
    pub(crate) type_size: u64,
}

struct Entry {
    file: File,
    path: CString,
}

static FILES: Mutex<BTreeMap<Handle, Entry>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn files() -> MutexGuard<'static, BTreeMap<Handle, Entry>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if any file is open.
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// A file was opened.
pub(crate) fn add(fh: Handle, file: File, path: CString) {
    let mut files = files();
    files.insert(fh, Entry { file, path });
    COUNT.store(files.len(), Relaxed);
}

/// A file is being closed.
pub(crate) fn remove(fh: Handle) -> Option<(File, CString)> {
    let mut files = files();
    let entry = files.remove(&fh);
    COUNT.store(files.len(), Relaxed);
    entry.map(|entry| (entry.file, entry.path))
}

/// The file of a handle.
pub(crate) fn find(fh: Handle) -> Option<File> {
    files().get(&fh).map(|entry| entry.file)
}

/// Gives a file that has none the handle that `name` returns for its path.
pub(crate) fn named(fh: Handle, name: impl FnOnce(&CString) -> u64) -> u64 {
    files().get_mut(&fh).map_or(0, |entry| {
        if entry.file.handle == 0 {
            entry.file.handle = name(&entry.path);
        }
        entry.file.handle
    })
}

/// Remembers what has begun, or takes it away.
pub(crate) fn split(fh: Handle, split: Option<Split>) -> Option<Split> {
    files().get_mut(&fh).and_then(|entry| std::mem::replace(&mut entry.file.split, split))
}
