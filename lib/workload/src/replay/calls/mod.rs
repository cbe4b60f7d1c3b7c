//! The calls of libc, one for each kind of step: `data`, `descriptor`, `name` and `stream` by what a request is on, `how` which
//! call makes it, `said` what calls return, `buffer` where reads go to.
//!
//! What a trace does not say is left as it is: owners and times (a call that sets them sets nothing, or now), the kind of a lock
//! (it is an unlock of the same call; order is kept by [`super::order`]), advice, the mode of `fallocate`.

mod buffer;
mod data;
mod descriptor;
mod how;
mod name;
mod said;
mod stream;

pub(super) use buffer::Buffer;
pub use how::{Made, how};

use super::files::Files;
use super::{Below, Step};
use crate::content::Content;
use miot_proto::op::{Layer, OpClass};
use rustix::io::Errno;
use said::Result;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the steps of a process work on.
#[derive(Debug)]
pub(super) struct Target {
    below: Below,
    files: Mutex<Files>,
    /// Nothing, if nothing is written.
    content: Option<Content>,
    /// Content without newlines and NULs, as strings.
    text: Vec<u8>,
}

/// Longest string that is written.
const TEXT: u64 = 1 << 20;

fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

impl Target {
    pub(super) fn new(below: Below, longest: u64) -> Target {
        let content = (longest > 0).then(|| Content::new(0, longest));
        let bytes = content.iter().flat_map(|content| content.at(0, longest.min(TEXT)));
        let text = bytes.map(|byte| b'!' + byte % 93).collect();
        Target { below, files: Mutex::default(), content, text }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a step: negative = −errno.
    pub(super) fn make(&self, step: &Step, buffer: &mut Buffer) -> i64 {
        let made = match step.info() {
            Some(info) if info.op.layer == Layer::Stdio as u8 => self.on_stream(info.name, step, buffer),
            Some(info) if info.class.is_data() => self.move_data(info.name, step, buffer),
            Some(info) if info.class == OpClass::Sync || info.paths == 0 => {
                self.on_descriptor(info.name, step)
            }
            Some(info)
                if step.handle != 0
                    && step.result >= 0
                    && !matches!(info.name, "open" | "openat" | "creat" | "opendir" | "mkstemp") =>
            {
                self.on_descriptor(info.name, step)
            }
            Some(info) => self.on_name(info.name, step, buffer),
            None => Err(Errno::NOSYS),
        };
        made.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()))
    }

    /// The descriptor of a step's file.
    pub(super) fn descriptor(&self, step: &Step) -> Result<c_int> {
        self.files().descriptor(step.handle, step.path.as_deref(), step.flags, &self.below)
    }

    /// What is written at an offset.
    pub(super) fn written(&self, offset: i64, length: u64) -> *mut c_void {
        let offset = u64::try_from(offset).unwrap_or(0);
        let bytes =
            self.content.as_ref().map(|content| content.at(offset, length).as_ptr().cast_mut().cast());
        bytes.unwrap_or(null_mut())
    }

    /// The whole name of a step, checked.
    fn name(&self, path: Option<&[u8]>, follows: bool) -> Result<CString> {
        let path = path.ok_or(Errno::NOENT)?;
        self.below.check(path, follows)?;
        text(self.below.path(path).as_os_str().as_bytes())
    }
}

/// Permissions without those that would lend anybody's rights.
fn mode(recorded: c_int) -> c_uint {
    recorded as c_uint & 0o777
}
