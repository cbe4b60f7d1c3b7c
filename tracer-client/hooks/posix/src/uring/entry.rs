//! A submission queue entry, and the request that it asks for.

use crate::files::tracked;
use crate::libaio::total;
use crate::memory::is_readable;
use crate::path::{Path, arg};
use crate::pending::Request;
use crate::{filter, table};
use miot_tracer::op::posix;
use miot_tracer::{NONE, Op, file, new_handle};
use std::ffi::c_int;

/// `struct io_uring_sqe`, `linux/io_uring.h`: the words by the name of their most usual meaning.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    pub(super) user_data: u64,
    buffer: u16,
    personality: u16,
    second_fd: i32,
    third: u64,
    pad: u64,
}

const _: () = assert!(size_of::<Entry>() == super::ring::ENTRY_BYTES);

/// Bits of `flags`.
const FIXED_FILE: u8 = 1;
const NO_COMPLETION: u8 = 1 << 6;
/// Of `splice`, in `operation_flags`.
const FIXED_INPUT: u32 = 1 << 31;

impl Entry {
    /// True if the program asks for no completion but of a failure.
    pub(super) fn is_silent(&self) -> bool {
        self.flags & NO_COMPLETION != 0
    }

    /// The request, which begins now; `None` if it is none that is recorded. To be called before the kernel has the entry.
    pub(super) fn begin(&self) -> Option<Request> {
        let (offset, length) = (self.offset, u64::from(self.length));
        match self.operation {
            1 => self.moving(posix::URING_READ, total(self.address, length)),
            2 => self.moving(posix::URING_WRITE, total(self.address, length)),
            4 | 22 => self.moving(posix::URING_READ, (length, self.address)),
            5 | 23 => self.moving(posix::URING_WRITE, (length, self.address)),
            3 => self.on_fd(posix::URING_FSYNC, NONE, NONE),
            8 => self.on_fd(posix::URING_SYNC_FILE_RANGE, offset, length),
            17 => self.on_fd(posix::URING_FALLOCATE, offset, self.address),
            19 => self.closing(),
            24 => self.on_fd(posix::URING_FADVISE, offset, length),
            55 => self.on_fd(posix::URING_FTRUNCATE, NONE, offset),
            30 => self.splicing(),
            18 => {
                self.on_path(posix::URING_OPEN, self.address, arg(self.operation_flags as c_int, self.length))
            }
            28 => self.on_path(posix::URING_OPEN, self.address, self.how()),
            21 => self.on_path(posix::URING_STATX, self.address, arg(self.operation_flags as c_int, 0)),
            36 => self.on_path(posix::URING_UNLINK, self.address, arg(self.operation_flags as c_int, 0)),
            37 => self.on_path(posix::URING_MKDIR, self.address, arg(self.length as c_int, 0)),
            35 => self.on_paths(posix::URING_RENAME),
            39 => self.on_paths(posix::URING_LINK),
            38 => self.on_path(posix::URING_SYMLINK, self.offset, NONE),
            41 => self.on_fd(posix::URING_SETXATTR, NONE, length),
            43 => self.on_fd(posix::URING_GETXATTR, NONE, length),
            42 => named(posix::URING_SETXATTR, libc::AT_FDCWD, self.third, length),
            44 => named(posix::URING_GETXATTR, libc::AT_FDCWD, self.third, length),
            _ => None,
        }
    }

    /// A request on a descriptor, or on one that is registered with the ring: that file is not known.
    fn on_fd(&self, op: Op, offset: u64, length: u64) -> Option<Request> {
        if self.flags & FIXED_FILE == 0 {
            return Request::on(op, tracked(op, self.fd)?, offset, length);
        }
        Some(Request { offset, length, ..Request::of(op)? })
    }

    /// Reading or writing, at an offset or where the descriptor stands.
    fn moving(&self, op: Op, (length, buffer): (u64, u64)) -> Option<Request> {
        if self.offset == NONE && self.flags & FIXED_FILE == 0 {
            tracked(op, self.fd)?.unseen(|| ());
        }
        Some(self.on_fd(op, self.offset, length)?.with_buffer(buffer))
    }

    /// As in [`closing`](crate::descriptor::closing), the table forgets the descriptor before it is closed.
    fn closing(&self) -> Option<Request> {
        if self.second_fd != 0 {
            return None;
        }
        let request = self.on_fd(posix::URING_CLOSE, NONE, NONE);
        table::forget(self.fd);
        request
    }

    fn splicing(&self) -> Option<Request> {
        let op = posix::URING_SPLICE;
        let input = if self.operation_flags & FIXED_INPUT == 0 { tracked(op, self.second_fd) } else { None };
        let output = if self.flags & FIXED_FILE == 0 { tracked(op, self.fd) } else { None };
        if input.is_none() && output.is_none() {
            return None;
        }
        for (file, offset) in [(input, self.address), (output, self.offset)] {
            if let Some(file) = file.filter(|_| offset == NONE) {
                file.unseen(|| ());
            }
        }
        let length = u64::from(self.length);
        let request = match output {
            Some(file) => Request::on(op, file, self.offset, length),
            None => Request::of(op).map(|request| Request { length, ..request }),
        };
        let (handle2, offset2) = input.map_or((NONE, NONE), |file| (file.handle(), self.address));
        Some(Request { handle2, offset2, ..request? })
    }

    fn on_path(&self, op: Op, path: u64, arg: u64) -> Option<Request> {
        named(op, self.fd, path, arg)
    }

    fn on_paths(&self, op: Op) -> Option<Request> {
        let (first, second) = (name(self.fd, self.address), name(self.length as c_int, self.offset));
        if first.is_none() && second.is_none() {
            return None;
        }
        let length = arg(self.operation_flags as c_int, 0);
        Some(Request {
            handle: first.unwrap_or(0),
            handle2: second.unwrap_or(NONE),
            length,
            ..Request::of(op)?
        })
    }

    /// Flags and mode of `openat2`, from its `struct open_how`.
    fn how(&self) -> u64 {
        let how = self.offset as *const [u64; 2];
        if !is_readable(how, 1) {
            return NONE;
        }
        // SAFETY: it can be read, and its thread is in the call that submits it.
        let [flags, mode] = unsafe { how.read_unaligned() };
        arg(flags as c_int, mode as u32)
    }
}

/// A request on a path. The path is gone when the request completes: a handle of its own stands for it.
fn named(op: Op, directory: c_int, path: u64, arg: u64) -> Option<Request> {
    let handle = name(directory, path)?;
    Some(Request { handle, length: arg, ..Request::of(op)? })
}

/// A handle for a path; 0 if it cannot be read. `None`: the path is left out.
fn name(directory: c_int, path: u64) -> Option<u64> {
    /// An error that says nothing about whether the path has been read: the kernel is asked.
    const UNKNOWN: i64 = -(libc::EAGAIN as i64);
    Path(path as *const _).resolved(directory, UNKNOWN, false, |path| {
        if filter::excluded(path) {
            return None;
        }
        let handle = new_handle();
        Some(if !path.is_empty() && file(handle, 0, path) { handle } else { 0 })
    })
}
