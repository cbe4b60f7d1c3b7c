//! Lookup of the recorded file of a descriptor.
//!
//! An unknown descriptor (inherited, or opened while nothing was recorded) is inspected once:
//! regular files, directories and block devices are recorded, with the name of the link in
//! `/proc/self/fd`; all others are excluded. After a fork the child does the same with a new
//! handle.

use crate::chunked::CHUNK;
use crate::description::{self, Description, NewDescription, SHARED, UNQUERIED, state};
use crate::{filter, path, table, vfork};
use miot_tracer::gate::{self, Calls};
use miot_tracer::op::posix;
use miot_tracer::{Op, cancel, flag, mpi_caller_tid, new_handle};
pub(crate) use miot_tracer::{begin, begin_enclosing_on, begin_on};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags};
use std::ffi::c_int;

/// Special files, of which only open and close are recorded: pipes, terminals and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecialFiles {
    Exclude,
    Include,
}

/// Returns the file of a descriptor whose requests are recorded for the thread that makes them,
/// without preparation. `None` says nothing. Before a segment exists the file may be one that
/// nobody uses; then [`begin_leaf_on`] begins nothing.
#[inline(always)]
pub(crate) fn ready(fd: c_int) -> Option<&'static Description> {
    let word = table::get_first(fd)?;
    let is_ready = table::low_half(word) == miot_tracer::lasting_names();
    is_ready.then(|| description::get_ready(table::ready_index_of(word)))
}

/// Returns the file of a descriptor, with its index, whose name is recorded, whatever its type.
/// Otherwise like [`ready`].
#[inline(always)]
pub(crate) fn named(fd: c_int) -> Option<(u32, &'static Description)> {
    let word = table::get_first(fd)?;
    if table::low_half_if_ready(word) != miot_tracer::lasting_names() {
        return None;
    }
    let index = table::ready_index_of(word);
    let file = description::get(index);
    (file.state() & (state::DEFINED | state::HAS_CALLER) == state::DEFINED).then_some((index, file))
}

/// Returns the file of a descriptor, if requests on it are recorded.
#[inline]
pub(crate) fn tracked(op: Op, fd: c_int) -> Option<&'static Description> {
    let word = table::get(fd);
    if word == table::EXCLUDED { None } else { find_tracked(op, fd, word) }
}

#[inline(never)]
fn find_tracked(op: Op, fd: c_int, word: u64) -> Option<&'static Description> {
    if table::epoch_of(word) == miot_tracer::epoch() && word != 0 {
        let found = description::get(table::index_of(word));
        if found.is_ready() {
            return Some(found);
        }
    }
    prepare_tracking(op, fd, SpecialFiles::Exclude)
}

/// Returns the file of a descriptor as [`tracked`] does, including pipes and terminals that were
/// opened by name. For requests that are recorded on them too: `close`.
#[inline(always)]
pub(crate) fn tracked_or_special(op: Op, fd: c_int) -> Option<&'static Description> {
    let word = table::get(fd);
    if word == table::EXCLUDED {
        return None;
    }
    if word != 0 && table::epoch_of(word) == miot_tracer::epoch() {
        let found = description::get(table::index_of(word));
        // Its type does not matter here.
        if found.has(state::DEFINED) && found.is_named() {
            return Some(found);
        }
    }
    prepare_tracking(op, fd, SpecialFiles::Include)
}

#[cold]
#[inline(never)]
fn prepare_tracking(op: Op, fd: c_int, special: SpecialFiles) -> Option<&'static Description> {
    if vfork::in_child() {
        return None;
    }
    if !miot_tracer::active(op) {
        // Sets up the process, so that it has an epoch.
        cancel(miot_tracer::begin(op)?);
    }
    let epoch = miot_tracer::epoch();
    if epoch == 0 || fd < 0 {
        return None;
    }
    let word = table::get(fd);
    let index = table::index_of(word);
    if index == 0 {
        return register(fd, word, epoch);
    }
    let found = description::get(index);
    if table::epoch_of(word) != epoch {
        if !found.renew_handle(epoch, new_handle) {
            return None;
        }
        table::replace(fd, word, table::word(epoch, index));
    }
    if !found.has(state::CHECKED) {
        // If a filter forbids the query, assume the most frequent type.
        let recordable = !gate::allows(Calls::STAT) || file_type(fd).is_some_and(is_recordable);
        found.set(if recordable { state::CHECKED } else { state::CHECKED | state::SPECIAL });
    }
    if !found.has(state::DEFINED) || !(found.is_named() || found.has(state::SPECIAL)) {
        record_name(fd, found);
    }
    if found.is_ready() && found.caller().is_none() && (index as usize) < CHUNK {
        table::set_ready(fd, table::word(epoch, index));
    }
    (special == SpecialFiles::Include || !found.has(state::SPECIAL)).then_some(found)
}

/// Registers the open descriptors, up to the number that programs usually have: later a filter may
/// forbid it.
#[cold]
pub(crate) fn register_open_descriptors() {
    const MAX_DESCRIPTORS: c_int = 1024;
    for fd in 0..MAX_DESCRIPTORS {
        if table::get(fd) != table::EXCLUDED {
            prepare_tracking(posix::READ, fd, SpecialFiles::Include);
        }
    }
}

/// Registers an unknown descriptor.
fn register(fd: c_int, found: u64, epoch: u32) -> Option<&'static Description> {
    // A bad descriptor has no file.
    let kind = file_type(fd)?;
    let mut buffer = path::Buffer::new();
    let is_recorded =
        is_recordable(kind) && path::of_descriptor(fd, &mut buffer) && !filter::excluded(buffer.bytes());
    if !is_recorded {
        table::replace(fd, found, table::EXCLUDED);
        return None;
    }
    let flags = open_flags(fd);
    let handle = new_handle();
    let defined = miot_tracer::name_file(handle, flags, buffer.bytes());
    let state = u32::from(flags) | state::CHECKED | if defined { state::DEFINED } else { 0 };
    let new = NewDescription { handle, state, generation: SHARED, stream: UNQUERIED, epoch, mpi: 0 };
    let index = description::allocate(fd, &new)?;
    if table::replace(fd, found, table::word(epoch, index)) {
        return Some(description::get(index));
    }
    // Another thread was faster, or the table is full.
    description::release(index);
    let index = table::index_of(table::get(fd));
    (index != 0).then(|| description::get(index))
}

/// Records the name of a file whose name was not recorded or has been overwritten. A file that has
/// no name any more is not queried again until the next lap of the lane.
fn record_name(fd: c_int, description: &Description) {
    let mut buffer = path::Buffer::new();
    if path::of_descriptor(fd, &mut buffer)
        && miot_tracer::name_file(description.handle(), description.flags(), buffer.bytes())
    {
        description.set(state::DEFINED);
    }
    description.set_named();
}

/// A file that was just opened.
pub(crate) struct OpenedFile {
    pub(crate) fd: c_int,
    pub(crate) handle: u64,
    /// Flags of the open, `O_*`.
    pub(crate) flags: c_int,
    /// Generation before the call: a process created during the call shares the file.
    pub(crate) generation: u32,
    /// Position of its stream, in bytes.
    pub(crate) stream: u64,
    /// Whether its open was recorded, with its name.
    pub(crate) defined: bool,
}

impl OpenedFile {
    /// Adds the file to the table.
    #[inline(always)]
    pub(crate) fn add_to_table(&self) {
        let mut state = u32::from(event_flags(self.flags));
        if self.flags & libc::O_DIRECTORY != 0 {
            state |= state::CHECKED;
        }
        if self.defined {
            state |= state::DEFINED;
        }
        let (handle, epoch) = (self.handle, miot_tracer::epoch());
        let (generation, stream, mpi) = (self.generation, self.stream, mpi_caller_tid());
        let new = NewDescription { handle, state, generation, stream, epoch, mpi };
        match description::allocate(self.fd, &new) {
            Some(index) if table::set_opened(self.fd, table::word(epoch, index)) => {}
            Some(index) => description::release(index),
            None => table::forget(self.fd),
        }
    }
}

/// Returns the flags of events on a file that is opened with these flags.
pub(crate) const fn event_flags(open: c_int) -> u16 {
    let append = if open & libc::O_APPEND != 0 { flag::APPEND } else { 0 };
    append | if open & libc::O_DIRECT != 0 { flag::DIRECT } else { 0 }
}

/// Applies new status flags of an open file (`F_SETFL`).
pub(crate) fn set_flags(fd: c_int, open: c_int) {
    let index = table::index_of(table::get(fd));
    if index != 0 && !vfork::in_child() {
        let description = description::get(index);
        description.clear(u32::from(flag::APPEND | flag::DIRECT));
        description.set(u32::from(event_flags(open)));
    }
}

fn open_flags(fd: c_int) -> u16 {
    let Some(_permit) = gate::permit(Calls::FLAGS) else { return 0 };
    let flags = borrow(fd).and_then(|fd| rustix::fs::fcntl_getfl(fd).ok());
    flags.map_or(0, |flags: OFlags| event_flags(flags.bits() as c_int))
}

fn file_type(fd: c_int) -> Option<FileType> {
    let _permit = gate::permit(Calls::STAT)?;
    let stat = borrow(fd).and_then(|fd| rustix::fs::fstat(fd).ok())?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

fn is_recordable(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory | FileType::BlockDevice)
}

/// Borrows a descriptor of the application for one system call.
pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY:
    // - Each caller uses the descriptor for one system call, which returns EBADF if the application
    //   does not have it open.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
