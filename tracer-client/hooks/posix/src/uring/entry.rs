//! Submission queue entries, and the requests that they contain.

use crate::files::tracked;
use crate::libaio::requested_bytes;
use crate::memory::is_readable;
use crate::path::{Path, PathArgument, arg};
use crate::pending::PendingRequest;
use crate::{filter, table};
use miot_tracer::op::posix;
use miot_tracer::{NONE, Op, name_file, new_handle};
use std::ffi::c_int;

/// `struct io_uring_sqe` of `linux/io_uring.h`. Each field has the name of its most frequent
/// meaning.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SubmissionEntry {
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
    third_address: u64,
    pad: u64,
}

const _: () = assert!(size_of::<SubmissionEntry>() == super::ring::ENTRY_BYTES);

/// Bit of `flags` (`IOSQE_FIXED_FILE`): the file is registered with the ring.
const FIXED_FILE: u8 = 1;
/// Bit of `flags` (`IOSQE_CQE_SKIP_SUCCESS`): only a failure creates a completion.
const NO_COMPLETION: u8 = 1 << 6;
/// Bit of `operation_flags` (`SPLICE_F_FD_IN_FIXED`): the input of a splice is registered.
const FIXED_INPUT: u32 = 1 << 31;

/// Values of `operation`: `IORING_OP_*`.
mod opcode {
    pub(super) const READV: u8 = 1;
    pub(super) const WRITEV: u8 = 2;
    pub(super) const FSYNC: u8 = 3;
    pub(super) const READ_FIXED: u8 = 4;
    pub(super) const WRITE_FIXED: u8 = 5;
    pub(super) const SYNC_FILE_RANGE: u8 = 8;
    pub(super) const FALLOCATE: u8 = 17;
    pub(super) const OPENAT: u8 = 18;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const STATX: u8 = 21;
    pub(super) const READ: u8 = 22;
    pub(super) const WRITE: u8 = 23;
    pub(super) const FADVISE: u8 = 24;
    pub(super) const OPENAT2: u8 = 28;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const RENAMEAT: u8 = 35;
    pub(super) const UNLINKAT: u8 = 36;
    pub(super) const MKDIRAT: u8 = 37;
    pub(super) const SYMLINKAT: u8 = 38;
    pub(super) const LINKAT: u8 = 39;
    pub(super) const FSETXATTR: u8 = 41;
    pub(super) const SETXATTR: u8 = 42;
    pub(super) const FGETXATTR: u8 = 43;
    pub(super) const GETXATTR: u8 = 44;
    pub(super) const FTRUNCATE: u8 = 55;
}

impl SubmissionEntry {
    /// Returns whether the request has no completion unless it fails.
    pub(super) fn is_silent(&self) -> bool {
        self.flags & NO_COMPLETION != 0
    }

    /// Begins the request; `None` if it is not recorded. Must be called before the kernel gets the
    /// entry.
    pub(super) fn begin(&self) -> Option<PendingRequest> {
        let (offset, length) = (self.offset, u64::from(self.length));
        match self.operation {
            opcode::READV => self.begin_transfer(posix::URING_READ, requested_bytes(self.address, length)),
            opcode::WRITEV => self.begin_transfer(posix::URING_WRITE, requested_bytes(self.address, length)),
            opcode::READ_FIXED | opcode::READ => {
                self.begin_transfer(posix::URING_READ, (length, self.address))
            }
            opcode::WRITE_FIXED | opcode::WRITE => {
                self.begin_transfer(posix::URING_WRITE, (length, self.address))
            }
            opcode::FSYNC => self.on_fd(posix::URING_FSYNC, NONE, NONE),
            opcode::SYNC_FILE_RANGE => self.on_fd(posix::URING_SYNC_FILE_RANGE, offset, length),
            opcode::FALLOCATE => self.on_fd(posix::URING_FALLOCATE, offset, self.address),
            opcode::CLOSE => self.begin_close(),
            opcode::FADVISE => self.on_fd(posix::URING_FADVISE, offset, length),
            opcode::FTRUNCATE => self.on_fd(posix::URING_FTRUNCATE, NONE, offset),
            opcode::SPLICE => self.begin_splice(),
            opcode::OPENAT => {
                self.on_path(posix::URING_OPEN, self.address, arg(self.operation_flags as c_int, self.length))
            }
            opcode::OPENAT2 => self.on_path(posix::URING_OPEN, self.address, self.open_how()),
            opcode::STATX => {
                self.on_path(posix::URING_STATX, self.address, arg(self.operation_flags as c_int, 0))
            }
            opcode::UNLINKAT => {
                self.on_path(posix::URING_UNLINK, self.address, arg(self.operation_flags as c_int, 0))
            }
            opcode::MKDIRAT => self.on_path(posix::URING_MKDIR, self.address, arg(self.length as c_int, 0)),
            opcode::RENAMEAT => self.on_paths(posix::URING_RENAME),
            opcode::LINKAT => self.on_paths(posix::URING_LINK),
            opcode::SYMLINKAT => self.on_path(posix::URING_SYMLINK, self.offset, NONE),
            opcode::FSETXATTR => self.on_fd(posix::URING_SETXATTR, NONE, length),
            opcode::FGETXATTR => self.on_fd(posix::URING_GETXATTR, NONE, length),
            opcode::SETXATTR => {
                begin_on_path(posix::URING_SETXATTR, libc::AT_FDCWD, self.third_address, length)
            }
            opcode::GETXATTR => {
                begin_on_path(posix::URING_GETXATTR, libc::AT_FDCWD, self.third_address, length)
            }
            _ => None,
        }
    }

    /// Begins a request on a descriptor, or on a file that is registered with the ring and
    /// therefore unknown.
    fn on_fd(&self, op: Op, offset: u64, length: u64) -> Option<PendingRequest> {
        if self.flags & FIXED_FILE == 0 {
            return PendingRequest::begin_on(op, self.fd, offset, length);
        }
        Some(PendingRequest { offset, length, ..PendingRequest::begin(op)? })
    }

    /// Begins a read or a write, at an offset or at the descriptor's position.
    fn begin_transfer(&self, op: Op, (length, buffer): (u64, u64)) -> Option<PendingRequest> {
        if self.offset == NONE && self.flags & FIXED_FILE == 0 {
            tracked(op, self.fd)?.run_unrecorded(|| ());
        }
        Some(self.on_fd(op, self.offset, length)?.with_buffer(buffer))
    }

    /// Begins a close. As in [`record_close`](crate::descriptor::record_close), the table forgets
    /// the descriptor before it is closed.
    fn begin_close(&self) -> Option<PendingRequest> {
        if self.second_fd != 0 {
            return None;
        }
        let request = self.on_fd(posix::URING_CLOSE, NONE, NONE);
        table::forget(self.fd);
        request
    }

    fn begin_splice(&self) -> Option<PendingRequest> {
        let op = posix::URING_SPLICE;
        let input = if self.operation_flags & FIXED_INPUT == 0 { tracked(op, self.second_fd) } else { None };
        let output = if self.flags & FIXED_FILE == 0 { tracked(op, self.fd) } else { None };
        if input.is_none() && output.is_none() {
            return None;
        }
        for (file, offset) in [(input, self.address), (output, self.offset)] {
            if let Some(file) = file.filter(|_| offset == NONE) {
                file.run_unrecorded(|| ());
            }
        }
        let length = u64::from(self.length);
        let request = match output {
            Some(_) => PendingRequest::begin_on(op, self.fd, self.offset, length),
            None => PendingRequest::begin(op).map(|request| PendingRequest { length, ..request }),
        };
        let (handle2, offset2) = input.map_or((NONE, NONE), |file| (file.handle(), self.address));
        Some(PendingRequest { handle2, offset2, ..request? })
    }

    fn on_path(&self, op: Op, path: u64, arg: u64) -> Option<PendingRequest> {
        begin_on_path(op, self.fd, path, arg)
    }

    fn on_paths(&self, op: Op) -> Option<PendingRequest> {
        let (first, second) =
            (name_path(self.fd, self.address), name_path(self.length as c_int, self.offset));
        if first.is_none() && second.is_none() {
            return None;
        }
        let length = arg(self.operation_flags as c_int, 0);
        Some(PendingRequest {
            handle: first.unwrap_or(0),
            handle2: second.unwrap_or(NONE),
            length,
            ..PendingRequest::begin(op)?
        })
    }

    /// Returns flags and mode of `openat2`, from its `struct open_how`; [`NONE`] if it cannot be
    /// read.
    fn open_how(&self) -> u64 {
        let how = self.offset as *const [u64; 2];
        if !is_readable(how, 1) {
            return NONE;
        }
        // SAFETY:
        // - The structure is readable.
        // - The thread that owns it is in the call that submits it.
        let [flags, mode] = unsafe { how.read_unaligned() };
        arg(flags as c_int, mode as u32)
    }
}

/// Begins a request on a path. The path may be freed before the request completes, so that it gets
/// a handle of its own, which is named now.
fn begin_on_path(op: Op, directory: c_int, path: u64, arg: u64) -> Option<PendingRequest> {
    let handle = name_path(directory, path)?;
    Some(PendingRequest { handle, length: arg, ..PendingRequest::begin(op)? })
}

/// Returns a new handle for a path; 0 if the path cannot be read. `None` if it is excluded.
fn name_path(directory: c_int, path: u64) -> Option<u64> {
    /// An error that does not show whether the path was read, so that the kernel is queried.
    const UNKNOWN: i64 = -(libc::EAGAIN as i64);
    Path(path as *const _).resolved(directory, UNKNOWN, PathArgument::First, |path| {
        if filter::excluded(path) {
            return None;
        }
        let handle = new_handle();
        Some(if !path.is_empty() && name_file(handle, 0, path) { handle } else { 0 })
    })
}
