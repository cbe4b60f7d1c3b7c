//! From a descriptor to the file that is recorded.
//!
//! A descriptor that is met for the first time (inherited, or opened while nothing was recorded) is looked
//! at once: regular files, directories and block devices are recorded, named by the link in
//! `/proc/self/fd`; everything else is left out. After a fork the child does the same with a new handle.

use crate::description::{self, Description, New, SHARED, UNASKED, state};
use crate::{filter, path, table, vfork};
use miot_tracer::gate::{self, Calls};
use miot_tracer::op::posix;
use miot_tracer::{Begun, Doing, Op, cancel, flag, new_handle, within_mpi};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags};
use std::ffi::c_int;

/// Begins a request, unless this is a child that borrows its parent's memory.
#[inline(always)]
pub(crate) fn begin(op: Op) -> Option<Begun> {
    if vfork::in_child() { None } else { miot_tracer::begin(op) }
}

/// [`begin`] that says what the request is about to do.
#[inline(always)]
pub(crate) fn begin_on(op: Op, doing: Doing) -> Option<Begun> {
    if vfork::in_child() { None } else { miot_tracer::begin_on(op, doing) }
}

/// The same for a request that encloses others. Its end must follow.
#[inline(always)]
pub(crate) fn begin_enclosing_on(op: Op, doing: Doing) -> Option<Begun> {
    if vfork::in_child() { None } else { miot_tracer::begin_enclosing_on(op, doing) }
}

/// The file of a descriptor, if requests on it are recorded.
#[inline(always)]
pub(crate) fn tracked(op: Op, fd: c_int) -> Option<&'static Description> {
    let word = table::get(fd);
    if table::epoch_of(word) == miot_tracer::epoch() {
        // So it is not EXCLUDED, of which no process image has the epoch.
        let found = description::get(word as u32);
        if found.ready() {
            return Some(found);
        }
    } else if word == table::EXCLUDED {
        return None;
    }
    prepare(op, fd, false)
}

/// The same for requests that are recorded on pipes and terminals opened by name, too: `close`.
pub(crate) fn tracked_any(op: Op, fd: c_int) -> Option<&'static Description> {
    let word = table::get(fd);
    if word == table::EXCLUDED { None } else { prepare(op, fd, true) }
}

#[cold]
#[inline(never)]
fn prepare(op: Op, fd: c_int, special: bool) -> Option<&'static Description> {
    if vfork::in_child() {
        return None;
    }
    if !miot_tracer::active(op) {
        // Sets the process up, so that it has an epoch.
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
        if !found.renew(epoch, new_handle) {
            return None;
        }
        table::replace(fd, word, table::word(epoch, index));
    }
    if !found.has(state::CHECKED) {
        // Where nobody may ask, it is what most names are.
        let recordable = !gate::may(Calls::STAT) || file_type(fd).is_some_and(is_recordable);
        found.set(if recordable { state::CHECKED } else { state::CHECKED | state::SPECIAL });
    }
    if !found.has(state::DEFINED) || !(found.is_named() || found.has(state::SPECIAL)) {
        define(fd, found);
    }
    (special || !found.has(state::SPECIAL)).then_some(found)
}

/// Looks at all descriptors that are open now, as far as a program usually has any: later it may not be allowed.
#[cold]
pub(crate) fn look_at_all() {
    const MOST: c_int = 1024;
    for fd in 0..MOST {
        if table::get(fd) != table::EXCLUDED {
            prepare(posix::READ, fd, true);
        }
    }
}

/// Looks at a descriptor nobody has told us about.
fn register(fd: c_int, found: u64, epoch: u32) -> Option<&'static Description> {
    // A bad descriptor is no file.
    let kind = file_type(fd)?;
    let mut buffer = path::Buffer::new();
    let known =
        is_recordable(kind) && path::of_descriptor(fd, &mut buffer) && !filter::excluded(buffer.bytes());
    if !known {
        table::replace(fd, found, table::EXCLUDED);
        return None;
    }
    let flags = open_flags(fd);
    let handle = new_handle();
    let defined = miot_tracer::file(handle, flags, buffer.bytes());
    let state = u32::from(flags) | state::CHECKED | if defined { state::DEFINED } else { 0 };
    let new = New { handle, state, generation: SHARED, stream: UNASKED, epoch, mpi: 0 };
    let index = description::allocate(&new)?;
    if table::replace(fd, found, table::word(epoch, index)) {
        return Some(description::get(index));
    }
    // Another thread was faster, or there is no room.
    description::release(index);
    let index = table::index_of(table::get(fd));
    (index != 0).then(|| description::get(index))
}

/// Names the handle of a file whose name could not be recorded so far, or has been overwritten. One that has no name any
/// more is not asked for it again before the lane has gone on.
fn define(fd: c_int, description: &Description) {
    let mut buffer = path::Buffer::new();
    if path::of_descriptor(fd, &mut buffer)
        && miot_tracer::file(description.handle(), description.flags(), buffer.bytes())
    {
        description.set(state::DEFINED);
    }
    description.named_now();
}

/// A file that has just been opened.
pub(crate) struct Opened {
    pub(crate) fd: c_int,
    pub(crate) handle: u64,
    /// As passed to `open`.
    pub(crate) flags: c_int,
    /// The generation before the call: a process made during the call shares the file already.
    pub(crate) generation: u32,
    /// Where the stream on it is.
    pub(crate) stream: u64,
    /// Its open has been recorded, with its name.
    pub(crate) defined: bool,
}

impl Opened {
    /// Enters it into the table.
    pub(crate) fn enter(&self) {
        let mut state = u32::from(event_flags(self.flags));
        if self.flags & libc::O_DIRECTORY != 0 {
            state |= state::CHECKED;
        }
        if self.defined {
            state |= state::DEFINED;
        }
        let (handle, epoch) = (self.handle, miot_tracer::epoch());
        let (generation, stream, mpi) = (self.generation, self.stream, within_mpi());
        let new = New { handle, state, generation, stream, epoch, mpi };
        let Some(index) = description::allocate(&new) else {
            table::forget(self.fd);
            return;
        };
        if !table::set(self.fd, table::word(epoch, index)) {
            description::release(index);
        }
    }
}

/// The flags of events on a file opened with these flags.
pub(crate) const fn event_flags(open: c_int) -> u16 {
    let append = if open & libc::O_APPEND != 0 { flag::APPEND } else { 0 };
    append | if open & libc::O_DIRECT != 0 { flag::DIRECT } else { 0 }
}

/// Takes over new status flags of an open file (`F_SETFL`).
pub(crate) fn set_flags(fd: c_int, open: c_int) {
    let index = table::index_of(table::get(fd));
    if index != 0 && !vfork::in_child() {
        let description = description::get(index);
        description.clear(u32::from(flag::APPEND | flag::DIRECT));
        description.set(u32::from(event_flags(open)));
    }
}

fn open_flags(fd: c_int) -> u16 {
    let Some(_pass) = gate::pass(Calls::FLAGS) else { return 0 };
    let flags = borrow(fd).and_then(|fd| rustix::fs::fcntl_getfl(fd).ok());
    flags.map_or(0, |flags: OFlags| event_flags(flags.bits() as c_int))
}

fn file_type(fd: c_int) -> Option<FileType> {
    let _pass = gate::pass(Calls::STAT)?;
    let stat = borrow(fd).and_then(|fd| rustix::fs::fstat(fd).ok())?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

fn is_recordable(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory | FileType::BlockDevice)
}

pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: used for one system call each, which answers EBADF if the application has it not open.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
