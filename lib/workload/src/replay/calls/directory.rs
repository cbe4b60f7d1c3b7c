//! Requests on directory streams.

use super::Target;
use super::libc_calls::Directory;
use super::returned::Result;
use crate::replay::ReplayStep;
use miot_proto::op::posix;
use rustix::io::Errno;
use std::ffi::c_int;

impl Target {
    /// Opens a directory stream on a descriptor.
    pub(super) fn open_directory_stream(&self, step: &ReplayStep, fd: c_int) -> Result<i64> {
        let directory = Directory::from_descriptor(fd)?;
        self.files().set_directory(step.handle, directory.address(), fd);
        Ok(0)
    }

    /// Makes a request on a directory stream.
    pub(super) fn on_directory(&self, step: &ReplayStep) -> Result<i64> {
        let (address, fd) = self.files().directory(step.handle).ok_or(Errno::BADF)?;
        let directory = Directory::from_address(address);
        match step.operation() {
            posix::READDIR => Ok(directory.read()),
            // Positions of a stream have other values here, so `seekdir` goes to the start.
            posix::REWINDDIR | posix::SEEKDIR => {
                directory.rewind();
                Ok(0)
            }
            _ => {
                self.files().remove(step.handle, fd);
                directory.close()
            }
        }
    }
}
