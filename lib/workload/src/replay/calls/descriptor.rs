//! Requests on a descriptor that move no data.

use super::libc_calls;
use super::returned::Result;
use super::{Target, c_string, permissions};
use crate::replay::ReplayStep;
use crate::replay::open_files::{borrow, duplicate_untraced};
use crate::replay::plan::MAX_REQUEST_BYTES;
use miot_proto::op::{Op, posix};
use rustix::io::Errno;
use std::ffi::{c_int, c_uint};

/// Bits that `mmap` records in the flags of its event, see [`miot_proto::event::flag::OP_SHIFT`]:
/// `PROT_READ`, `PROT_WRITE` and `PROT_EXEC` with their values, then `MAP_SHARED`.
const MMAP_PROTECTION: u16 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u16;
const MMAP_SHARED: u16 = 1 << 3;
/// Bits that belong to the flags of `close_range`.
const CLOSE_RANGE_FLAGS: u16 = 0x3f;

impl Target {
    /// Makes a request on a descriptor that moves no data.
    pub(super) fn on_descriptor(&self, step: &ReplayStep) -> Result<i64> {
        match step.operation() {
            posix::MUNMAP | posix::MSYNC => self.on_mapping(step),
            posix::SYNC => {
                libc_calls::sync();
                Ok(0)
            }
            posix::READDIR | posix::REWINDDIR | posix::SEEKDIR | posix::CLOSEDIR => self.on_directory(step),
            posix::CLOSE_RANGE => self.close_range(step),
            posix::CLOSE => self.close(step),
            _ => self.on_open_descriptor(step, self.descriptor(step)?),
        }
    }

    fn on_open_descriptor(&self, step: &ReplayStep, fd: c_int) -> Result<i64> {
        let offset = step.offset.unwrap_or(0);
        let length = step.length.unwrap_or(0);
        let (low, high) = (step.low_argument(), step.high_argument());
        match step.operation() {
            posix::LSEEK => self.seek(step, fd),
            posix::FSYNC => libc_calls::fsync(fd),
            posix::FDATASYNC => libc_calls::fdatasync(fd),
            posix::SYNCFS => libc_calls::syncfs(fd),
            posix::SYNC_FILE_RANGE => libc_calls::sync_file_range(fd, offset, length),
            posix::FTRUNCATE => libc_calls::ftruncate(fd, length),
            posix::FALLOCATE => libc_calls::fallocate(fd, 0, offset, length),
            posix::POSIX_FALLOCATE => libc_calls::posix_fallocate(fd, offset, length),
            posix::POSIX_FADVISE => libc_calls::posix_fadvise(fd, offset, length),
            posix::DUP | posix::DUP2 | posix::DUP3 if step.result >= 0 => self.duplicate(step, fd),
            posix::FCNTL => self.fcntl(step, fd),
            posix::FSTAT => libc_calls::fstat(fd),
            posix::FSTATAT => libc_calls::fstatat_fd(fd, low),
            posix::STATX => libc_calls::statx_fd(fd, low, high),
            posix::FSTATFS => libc_calls::fstatfs(fd),
            posix::FSTATVFS => libc_calls::fstatvfs(fd),
            posix::GETDENTS => libc_calls::getdents(fd, &mut memory(step)),
            posix::FCHMOD => libc_calls::fchmod(fd, permissions(low as c_uint)),
            posix::FCHOWN => libc_calls::fchown(fd),
            posix::FUTIMES => libc_calls::futimes(fd),
            posix::FUTIMENS => libc_calls::futimens(fd),
            posix::FCHDIR => libc_calls::fchdir(fd),
            posix::FLOCK => libc_calls::flock(fd, low),
            posix::LOCKF => libc_calls::lockf(fd, libc::F_ULOCK, length),
            posix::FDOPENDIR => self.open_directory_stream(step, fd),
            posix::MMAP => self.map(step, fd),
            operation if is_xattr(operation) => on_attribute(step, fd),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Closes the descriptors that stand for the recorded range.
    fn close_range(&self, step: &ReplayStep) -> Result<i64> {
        let flags = c_uint::from(step.operation_flags() & CLOSE_RANGE_FLAGS);
        let recorded = i64::from(step.low_argument() as c_uint)..=i64::from(step.high_argument());
        if step.result >= 0 && flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
            for fd in self.files().remove_recorded(&recorded) {
                // SAFETY: the descriptor has left the table, so nothing uses it any more.
                unsafe { rustix::io::close(fd) };
            }
        }
        // Descriptors have other numbers here.
        libc_calls::close_range_of_none(step.result >= 0, flags)
    }

    fn close(&self, step: &ReplayStep) -> Result<i64> {
        self.descriptor(step)?;
        let fd = self.files().remove_for_close(step.handle).ok_or(Errno::BADF)?;
        libc_calls::close(fd)
    }

    fn seek(&self, step: &ReplayStep, mut fd: c_int) -> Result<i64> {
        let (offset, whence) = (step.offset.unwrap_or(0), step.low_argument());
        if whence == libc::SEEK_CUR && step.result >= 0 {
            fd = self.files().at_position(step.handle, fd, step.result.saturating_sub(offset))?;
        }
        libc_calls::lseek(fd, offset, whence)
    }

    /// `fcntl`: duplicates the descriptor, or unlocks the file in place of all lock commands.
    fn fcntl(&self, step: &ReplayStep, fd: c_int) -> Result<i64> {
        let command = step.low_argument();
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                self.enter_duplicate(step, libc_calls::fcntl_duplicate(fd, command)?)
            }
            _ => libc_calls::fcntl_unlock(fd, command),
        }
    }

    /// `dup`, `dup2` or `dup3`. The last two replace the descriptor that stands for the recorded
    /// one, else a new one.
    fn duplicate(&self, step: &ReplayStep, fd: c_int) -> Result<i64> {
        if step.operation() == posix::DUP {
            return self.enter_duplicate(step, libc_calls::dup(fd)?);
        }
        let replaced = self.files().remove_replaced(i64::from(step.low_argument()));
        let new = replaced.filter(|new| *new != fd);
        let new = new.map_or_else(|| duplicate_untraced(borrow(fd)), Ok)?;
        let new = match step.operation() {
            posix::DUP3 => libc_calls::dup3(fd, new),
            _ => libc_calls::dup2(fd, new),
        }?;
        self.enter_duplicate(step, new)
    }

    fn enter_duplicate(&self, step: &ReplayStep, new: i64) -> Result<i64> {
        self.files().insert(step.handle, step.result, new as c_int);
        Ok(new)
    }

    fn map(&self, step: &ReplayStep, fd: c_int) -> Result<i64> {
        let bits = step.operation_flags();
        let flags = if bits & MMAP_SHARED != 0 { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let protection = c_int::from(bits & MMAP_PROTECTION);
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        let address = libc_calls::mmap(fd, length, protection, flags, step.offset.unwrap_or(0))?;
        self.files().add_mapping(step.handle, address, length);
        Ok(0)
    }

    fn on_mapping(&self, step: &ReplayStep) -> Result<i64> {
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        let unmaps = step.operation() == posix::MUNMAP;
        let mapping = {
            let mut files = self.files();
            if unmaps {
                files.remove_mapping(step.handle, length)
            } else {
                files.mapping(step.handle, length)
            }
        };
        let (address, bytes) = mapping.ok_or(Errno::INVAL)?;
        if unmaps {
            libc_calls::munmap(address, bytes.min(length))
        } else {
            libc_calls::msync(address, bytes.min(length))
        }
    }
}

/// Memory of the requested length, for what the call reads or writes.
fn memory(step: &ReplayStep) -> Vec<u8> {
    vec![0; step.length.unwrap_or(0).clamp(0, MAX_REQUEST_BYTES as i64) as usize]
}

fn is_xattr(operation: Op) -> bool {
    matches!(operation, posix::FGETXATTR | posix::FSETXATTR | posix::FLISTXATTR | posix::FREMOVEXATTR)
}

fn on_attribute(step: &ReplayStep, fd: c_int) -> Result<i64> {
    let name = c_string(step.path2.as_deref().unwrap_or(b""))?;
    let mut memory = memory(step);
    match step.operation() {
        posix::FGETXATTR => libc_calls::fgetxattr(fd, &name, &mut memory),
        posix::FSETXATTR => libc_calls::fsetxattr(fd, &name, &mut memory),
        posix::FLISTXATTR => libc_calls::flistxattr(fd, &mut memory),
        posix::FREMOVEXATTR => libc_calls::fremovexattr(fd, &name),
        _ => Err(Errno::NOSYS),
    }
}
