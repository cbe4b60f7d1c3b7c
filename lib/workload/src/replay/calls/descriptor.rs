//! Requests on a descriptor that move no data.

use super::said::{Result, last_error, number, said};
use super::{Target, mode, text};
use crate::replay::Step;
use crate::replay::files::{borrow, unseen};
use crate::replay::plan::LARGEST;
use miot_proto::event::flag;
use rustix::io::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

impl Target {
    /// A request on a descriptor that moves no data.
    pub(super) fn on_descriptor(&self, name: &str, step: &Step) -> Result<i64> {
        if name == "munmap" || name == "msync" {
            return self.on_mapping(name, step);
        }
        if name == "sync" {
            // SAFETY: no arguments.
            unsafe { libc::sync() };
            return Ok(0);
        }
        if matches!(name, "readdir" | "rewinddir" | "seekdir" | "closedir") {
            return self.on_directory(name, step);
        }
        if name == "close_range" {
            let flags = c_uint::from(step.flags >> flag::OP_SHIFT & 0x3f);
            let numbers = i64::from(step.arg as u32)..=step.arg >> 32 & i64::from(u32::MAX);
            let closes = step.result >= 0 && flags & libc::CLOSE_RANGE_CLOEXEC == 0;
            for fd in if closes { self.files().closing_numbers(&numbers) } else { Vec::new() } {
                // SAFETY: it has just left the table.
                unsafe { rustix::io::close(fd) };
            }
            // Descriptors have other numbers here; a range that ends before it begins is refused.
            let first = c_uint::MAX - c_uint::from(step.result >= 0);
            // SAFETY: nothing is that high.
            return said(unsafe { libc::close_range(first, c_uint::MAX - 1, flags as c_int) });
        }
        if name == "close" {
            self.descriptor(step)?;
            let fd = self.files().closing(step.handle).ok_or(Errno::BADF)?;
            // SAFETY: it has just left the table.
            return said(unsafe { libc::close(fd) });
        }
        let mut fd = self.descriptor(step)?;
        let offset = step.offset.unwrap_or(0);
        let length = step.length.unwrap_or(0);
        let low = step.arg as c_int;
        let mut stat = std::mem::MaybeUninit::<libc::stat64>::uninit();
        let takes_memory = name.contains("xattr") || name == "getdents";
        let room = if takes_memory { length.clamp(0, LARGEST as i64) as usize } else { 0 };
        let mut memory = vec![0u8; room];
        let out: *mut c_void = if memory.is_empty() { null_mut() } else { memory.as_mut_ptr().cast() };
        if name == "lseek" && low == libc::SEEK_CUR && step.result >= 0 {
            fd = self.files().standing(step.handle, fd, step.result.saturating_sub(offset))?;
        }
        let attribute = text(step.path2.as_deref().unwrap_or(b""))?;
        let now: *const libc::timespec = null();
        // SAFETY: what the calls write to is as large as they are told, and outlives them.
        unsafe {
            match name {
                "lseek" => said(libc::lseek64(fd, offset, low)),
                "fsync" => said(libc::fsync(fd)),
                "fdatasync" => said(libc::fdatasync(fd)),
                "syncfs" => said(libc::syncfs(fd)),
                "sync_file_range" => said(libc::sync_file_range(fd, offset, length, 7)),
                "ftruncate" => said(libc::ftruncate64(fd, length)),
                "fallocate" => said(libc::fallocate64(fd, 0, offset, length)),
                "posix_fallocate" => number(libc::posix_fallocate64(fd, offset, length)),
                "posix_fadvise" => number(libc::posix_fadvise64(fd, offset, length, libc::POSIX_FADV_NORMAL)),
                "dup" | "dup2" | "dup3" | "fcntl" if step.result >= 0 || name == "fcntl" => {
                    self.duplicate(name, step, fd)
                }
                "fstat" => said(libc::fstat64(fd, stat.as_mut_ptr())),
                "fstatat" => {
                    said(libc::fstatat64(fd, c"".as_ptr(), stat.as_mut_ptr(), low | libc::AT_EMPTY_PATH))
                }
                "statx" => {
                    let mut out = std::mem::MaybeUninit::<libc::statx>::uninit();
                    let mask = (step.arg >> 32) as c_uint;
                    said(libc::statx(fd, c"".as_ptr(), low | libc::AT_EMPTY_PATH, mask, out.as_mut_ptr()))
                }
                "fstatfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statfs64>::uninit();
                    said(libc::fstatfs64(fd, out.as_mut_ptr()))
                }
                "fstatvfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statvfs64>::uninit();
                    said(libc::fstatvfs64(fd, out.as_mut_ptr()))
                }
                "getdents" => said(libc::syscall(libc::SYS_getdents64, fd, out, memory.len())),
                "fchmod" => said(libc::fchmod(fd, mode(low))),
                "fchown" => said(libc::fchown(fd, c_uint::MAX, c_uint::MAX)),
                "futimes" => said(libc::futimes(fd, null())),
                "futimens" => said(libc::futimens(fd, now)),
                "fchdir" => said(libc::fchdir(fd)),
                "flock" => said(libc::flock(fd, low)),
                "lockf" => said(libc::lockf(fd, libc::F_ULOCK, length)),
                "fdopendir" => {
                    let directory = libc::fdopendir(fd);
                    if directory.is_null() {
                        return Err(last_error());
                    }
                    self.files().directory_opened(step.handle, directory.expose_provenance(), fd);
                    Ok(0)
                }
                "mmap" => {
                    let flags = if step.flags >> flag::OP_SHIFT & 8 != 0 {
                        libc::MAP_SHARED
                    } else {
                        libc::MAP_PRIVATE
                    };
                    let access = c_int::from(step.flags >> flag::OP_SHIFT & 7);
                    let bytes = usize::try_from(length).map_err(|_| Errno::INVAL)?;
                    let address = libc::mmap64(null_mut(), bytes, access, flags, fd, offset);
                    if address == libc::MAP_FAILED {
                        return Err(last_error());
                    }
                    self.files().mapped(step.handle, address.addr(), bytes);
                    Ok(0)
                }
                "fgetxattr" => said(libc::fgetxattr(fd, attribute.as_ptr(), out, memory.len()) as i64),
                "fsetxattr" => said(libc::fsetxattr(fd, attribute.as_ptr(), out, memory.len(), 0)),
                "flistxattr" => said(libc::flistxattr(fd, out.cast(), memory.len()) as i64),
                "fremovexattr" => said(libc::fremovexattr(fd, attribute.as_ptr())),
                _ => Err(Errno::NOSYS),
            }
        }
    }

    fn duplicate(&self, name: &str, step: &Step, fd: c_int) -> Result<i64> {
        let command = step.arg as c_int;
        // SAFETY: numbers only, and a structure that outlives the call.
        let new = unsafe {
            match name {
                "fcntl" if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                    libc::fcntl(fd, command, 0)
                }
                "fcntl" => {
                    let unlock = libc::flock64 {
                        l_type: libc::F_UNLCK as i16,
                        l_whence: libc::SEEK_SET as i16,
                        l_start: 0,
                        l_len: 0,
                        l_pid: 0,
                    };
                    return said(libc::fcntl(fd, command, &raw const unlock));
                }
                "dup" => libc::dup(fd),
                _ => {
                    let recorded = i64::from(command);
                    let new = self.files().replaced(recorded).filter(|new| *new != fd);
                    let new = new.map_or_else(|| unseen(borrow(fd)), Ok)?;
                    if name == "dup3" { libc::dup3(fd, new, libc::O_CLOEXEC) } else { libc::dup2(fd, new) }
                }
            }
        };
        said(new)?;
        self.files().opened(step.handle, step.result, new);
        Ok(i64::from(new))
    }

    fn on_mapping(&self, name: &str, step: &Step) -> Result<i64> {
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        let found = self.files().mapping(step.handle, length, name == "munmap");
        let (address, bytes) = found.ok_or(Errno::INVAL)?;
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY: a mapping of this table's, which nothing points into.
        said(unsafe {
            match name {
                "munmap" => libc::munmap(address, bytes.min(length)),
                _ => libc::msync(address, bytes.min(length), libc::MS_SYNC),
            }
        })
    }

    fn on_directory(&self, name: &str, step: &Step) -> Result<i64> {
        let (address, fd) = self.files().directory(step.handle).ok_or(Errno::BADF)?;
        let directory: *mut libc::DIR = std::ptr::with_exposed_provenance_mut(address);
        if name == "closedir" {
            self.files().closed(step.handle, fd);
        }
        // SAFETY: opened by a step of this process and not closed since; steps of several threads on one are ordered as in the
        // trace, whose program had to see to that.
        unsafe {
            match name {
                "readdir" => Ok(i64::from(!libc::readdir64(directory).is_null())),
                "rewinddir" => {
                    libc::rewinddir(directory);
                    Ok(0)
                }
                "seekdir" => {
                    libc::rewinddir(directory);
                    Ok(0)
                }
                _ => said(libc::closedir(directory)),
            }
        }
    }
}
