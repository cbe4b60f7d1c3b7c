//! Table of open MPI files, by MPI's handle.

#![expect(clippy::disallowed_types, reason = "count of open files, checked before the lock")]

use crate::abi::Handle;
use miot_proto::event::Communicator;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    /// Handle in the trace; 0 until a request on the file is recorded.
    pub(crate) handle: u64,
    /// Communicator of the open.
    pub(crate) communicator: Communicator,
    /// Access mode of the open, `MPI_MODE_*`.
    pub(crate) amode: c_int,
    /// The split collective that has begun and not ended.
    pub(crate) split: Option<SplitCollective>,
}

/// Values of a split collective that its end repeats; units as in the event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitCollective {
    pub(crate) offset: u64,
    pub(crate) etypes: u64,
    pub(crate) length: u64,
    pub(crate) type_size: u64,
}

struct Entry {
    file: OpenFile,
    path: CString,
}

static FILES: Mutex<BTreeMap<Handle, Entry>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn files() -> MutexGuard<'static, BTreeMap<Handle, Entry>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether any file is open.
pub(crate) fn any_open() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Adds a file that was opened.
pub(crate) fn add(fh: Handle, file: OpenFile, path: CString) {
    let mut files = files();
    files.insert(fh, Entry { file, path });
    COUNT.store(files.len(), Relaxed);
}

/// Removes a file that is being closed.
pub(crate) fn remove(fh: Handle) -> Option<(OpenFile, CString)> {
    let mut files = files();
    let entry = files.remove(&fh);
    COUNT.store(files.len(), Relaxed);
    entry.map(|entry| (entry.file, entry.path))
}

/// Returns the file of a handle.
pub(crate) fn find(fh: Handle) -> Option<OpenFile> {
    files().get(&fh).map(|entry| entry.file)
}

/// Returns the trace handle of a file. If the file has none, it gets the one that `name_path`
/// returns for its path. Returns 0 for an unknown file.
pub(crate) fn ensure_trace_handle(fh: Handle, name_path: impl FnOnce(&CString) -> u64) -> u64 {
    files().get_mut(&fh).map_or(0, |entry| {
        if entry.file.handle == 0 {
            entry.file.handle = name_path(&entry.path);
        }
        entry.file.handle
    })
}

/// Stores the split collective that has begun on a file.
pub(crate) fn begin_split(fh: Handle, split: SplitCollective) {
    if let Some(entry) = files().get_mut(&fh) {
        entry.file.split = Some(split);
    }
}

/// Removes the split collective that has begun on a file, and returns it.
pub(crate) fn end_split(fh: Handle) -> Option<SplitCollective> {
    files().get_mut(&fh).and_then(|entry| entry.file.split.take())
}
