//! Requests that move data between a descriptor and memory, or between two descriptors.

use super::said::{Result, said};
use super::{Buffer, Target};
use crate::replay::Step;
use crate::replay::plan::LARGEST;
use miot_proto::event::flag;
use miot_proto::op::OpClass;
use rustix::io::Errno;
use std::ffi::c_int;
use std::ptr::null_mut;

impl Target {
    pub(super) fn move_data(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
        let fd = self.descriptor(step)?;
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        if step.info().is_some_and(|info| info.class == OpClass::Copy) {
            return self.copy(name, step, fd, length);
        }
        let length = length.min(LARGEST as usize);
        let offset = step.offset.unwrap_or(0);
        let writes = step.info().is_some_and(|info| info.class == OpClass::Write);
        let appends = writes && step.flags & flag::APPEND != 0;
        // Where it stands is not for those to say that say it themselves.
        let fd = match (name, step.offset) {
            ("read" | "readv" | "write" | "writev", Some(position)) if !appends => {
                self.files().standing(step.handle, fd, position)?
            }
            _ => fd,
        };
        let memory = if writes { self.written(offset, length as u64) } else { buffer.of(length) };
        let vector = [libc::iovec { iov_base: memory, iov_len: length }];
        // SAFETY: the memory has at least `length` bytes and is not freed within the calls; those that write to it have it alone.
        said(unsafe {
            match name {
                "read" => libc::read(fd, memory, length),
                "write" => libc::write(fd, memory, length),
                "pread" => libc::pread64(fd, memory, length, offset),
                "pwrite" => libc::pwrite64(fd, memory, length, offset),
                "readv" => libc::readv(fd, vector.as_ptr(), 1),
                "writev" => libc::writev(fd, vector.as_ptr(), 1),
                "preadv" => libc::preadv(fd, vector.as_ptr(), 1, offset),
                "pwritev" => libc::pwritev(fd, vector.as_ptr(), 1, offset),
                "preadv2" => libc::preadv2(fd, vector.as_ptr(), 1, offset, 0),
                "pwritev2" => libc::pwritev2(fd, vector.as_ptr(), 1, offset, 0),
                _ => return Err(Errno::NOSYS),
            }
        } as i64)
    }

    fn copy(&self, name: &str, step: &Step, to: c_int, length: usize) -> Result<i64> {
        let source = step.path2.as_deref();
        let from = self.files().descriptor(step.handle2, source, 0, &self.below)?;
        let to = match (name, step.offset) {
            ("sendfile", Some(position)) => self.files().standing(step.handle, to, position)?,
            _ => to,
        };
        let (mut at, mut into) = (step.offset2.unwrap_or(0), step.offset.unwrap_or(0));
        let at: *mut i64 = if step.offset2.is_some() { &raw mut at } else { null_mut() };
        let into: *mut i64 = if step.offset.is_some() { &raw mut into } else { null_mut() };
        // SAFETY: the offsets outlive the calls.
        said(unsafe {
            match name {
                "copy_file_range" => libc::copy_file_range(from, at, to, into, length, 0),
                "sendfile" => libc::sendfile64(to, from, at, length),
                _ => return Err(Errno::NOSYS),
            }
        } as i64)
    }
}
