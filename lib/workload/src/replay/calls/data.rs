//! Requests that move data between a descriptor and memory, or between two descriptors.

use super::returned::Result;
use super::{Buffer, Target, libc_calls};
use crate::replay::ReplayStep;
use crate::replay::plan::MAX_REQUEST_BYTES;
use miot_proto::event::flag;
use miot_proto::op::{OpClass, posix};
use rustix::io::Errno;
use std::ffi::c_int;

impl Target {
    pub(super) fn move_data(&self, step: &ReplayStep, buffer: &mut Buffer) -> Result<i64> {
        let fd = self.descriptor(step)?;
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        let class = step.info().map(|info| info.class);
        if class == Some(OpClass::Copy) {
            return self.copy(step, fd, length);
        }
        let length = length.min(MAX_REQUEST_BYTES as usize);
        if class == Some(OpClass::Write) {
            self.write(step, fd, length)
        } else {
            self.read(step, fd, buffer.slice(length))
        }
    }

    fn read(&self, step: &ReplayStep, fd: c_int, memory: &mut [u8]) -> Result<i64> {
        let offset = step.offset.unwrap_or(0);
        match step.operation() {
            posix::READ => libc_calls::read(self.positioned(step, fd)?, memory),
            posix::READV => libc_calls::readv(self.positioned(step, fd)?, memory),
            posix::PREAD => libc_calls::pread(fd, memory, offset),
            posix::PREADV => libc_calls::preadv(fd, memory, offset),
            posix::PREADV2 => libc_calls::preadv2(fd, memory, offset),
            _ => Err(Errno::NOSYS),
        }
    }

    fn write(&self, step: &ReplayStep, fd: c_int, length: usize) -> Result<i64> {
        let offset = step.offset.unwrap_or(0);
        let memory = self.written(offset, length);
        let appends = step.flags & flag::APPEND != 0;
        let at_position = |fd| if appends { Ok(fd) } else { self.positioned(step, fd) };
        match step.operation() {
            posix::WRITE => libc_calls::write(at_position(fd)?, memory),
            posix::WRITEV => libc_calls::writev(at_position(fd)?, memory),
            posix::PWRITE => libc_calls::pwrite(fd, memory, offset),
            posix::PWRITEV => libc_calls::pwritev(fd, memory, offset),
            posix::PWRITEV2 => libc_calls::pwritev2(fd, memory, offset),
            _ => Err(Errno::NOSYS),
        }
    }

    fn copy(&self, step: &ReplayStep, to: c_int, length: usize) -> Result<i64> {
        let source = step.path2.as_deref();
        let from = self.files().descriptor(step.handle2, source, 0, &self.root)?;
        match step.operation() {
            posix::COPY_FILE_RANGE => {
                libc_calls::copy_file_range(from, step.offset2, to, step.offset, length)
            }
            posix::SENDFILE => libc_calls::sendfile(self.positioned(step, to)?, from, step.offset2, length),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Returns a descriptor of the step's open file whose position is the recorded offset. For
    /// calls that use the position of the descriptor.
    fn positioned(&self, step: &ReplayStep, fd: c_int) -> Result<c_int> {
        match step.offset {
            Some(position) => self.files().at_position(step.handle, fd, position),
            None => Ok(fd),
        }
    }
}
