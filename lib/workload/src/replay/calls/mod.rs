//! The calls of libc that replay the steps.
//!
//! | module | role |
//! |---|---|
//! | `method` | which call replays a request |
//! | `data` | requests that move data |
//! | `descriptor`, `directory` | other requests on descriptors; on directory streams |
//! | `path`, `open` | requests on paths; those that open files |
//! | `stream` | requests of the layer stdio |
//! | `libc_calls` | one safe function per libc call |
//! | `returned` | return values as results |
//! | `buffer` | memory that reads fill |
//!
//! A replay does not change what a trace does not record:
//!
//! - Owners: a call that sets them passes −1, "leave unchanged".
//! - Times: a call that sets them sets the current time.
//! - Locks: a call that locks or unlocks unlocks. [`super::order`] keeps the order of the requests.
//! - The advice of `posix_fadvise` and the mode of `fallocate`: the defaults.

mod buffer;
mod data;
mod descriptor;
mod directory;
mod libc_calls;
mod method;
mod open;
mod path;
mod returned;
mod stream;

pub(super) use buffer::Buffer;
pub use method::{ReplayMethod, replay_method};

use super::open_files::OpenFiles;
use super::{ReplayRoot, ReplayStep};
use crate::content::Content;
use miot_proto::event::flag;
use miot_proto::op::{Layer, OpClass, posix};
use returned::Result;
use rustix::io::Errno;
use std::ffi::{CString, c_int, c_uint};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the steps of a process work on: the root directory, the open files and the written content.
#[derive(Debug)]
pub(super) struct Target {
    root: ReplayRoot,
    files: Mutex<OpenFiles>,
    /// `None` if no step writes.
    content: Option<Content>,
    /// Content without newlines and NULs, for strings.
    text: Vec<u8>,
}

/// Longest string that is written, bytes.
const MAX_TEXT: u64 = 1 << 20;

/// Whether a call follows a symbolic link at the end of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symlink {
    Follow,
    NoFollow,
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

impl Target {
    /// `longest`: bytes of the longest write of the process.
    pub(super) fn new(root: ReplayRoot, longest: u64) -> Target {
        let content = (longest > 0).then(|| Content::new(0, longest));
        let bytes = content.iter().flat_map(|content| content.at(0, longest.min(MAX_TEXT)));
        let text = bytes.map(|byte| b'!' + byte % 93).collect();
        Target { root, files: Mutex::default(), content, text }
    }

    fn files(&self) -> MutexGuard<'_, OpenFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the request of a step and returns its result; negative = −errno.
    pub(super) fn replay(&self, step: &ReplayStep, buffer: &mut Buffer) -> i64 {
        let result = match step.info() {
            Some(info) if info.op.layer == Layer::Stdio as u8 => self.on_stream(step, buffer),
            Some(info) if info.class.is_data() => self.move_data(step, buffer),
            Some(info) if info.class == OpClass::Sync || info.paths == 0 => self.on_descriptor(step),
            Some(_) if step.handle != 0 && step.result >= 0 && !opens_path(step) => self.on_descriptor(step),
            Some(_) => self.on_path(step, buffer),
            None => Err(Errno::NOSYS),
        };
        result.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()))
    }

    /// Returns the descriptor of a step's file.
    pub(super) fn descriptor(&self, step: &ReplayStep) -> Result<c_int> {
        self.files().descriptor(step.handle, step.path.as_deref(), step.flags, &self.root)
    }

    /// Returns the bytes that are written at an offset; none if no step writes.
    ///
    /// # Panics
    /// If `length` is more than the longest write.
    pub(super) fn written(&self, offset: i64, length: usize) -> &[u8] {
        let offset = u64::try_from(offset).unwrap_or(0);
        self.content.as_ref().map_or(&[], |content| content.at(offset, length as u64))
    }

    /// Returns the absolute path of a step's path, or an error if it leads out of the root.
    fn full_path(&self, path: Option<&[u8]>, symlink: Symlink) -> Result<CString> {
        let path = path.ok_or(Errno::NOENT)?;
        self.root.check(path, symlink)?;
        c_string(self.root.path(path).as_os_str().as_bytes())
    }
}

impl ReplayStep {
    /// Lower half of the argument: the flags of `open`, the mode of `chmod`, the command of
    /// `fcntl`.
    fn low_argument(&self) -> c_int {
        self.arg as c_int
    }

    /// Upper half of the argument: the mode of `open`, the mask of `statx`, the last descriptor of
    /// `close_range`.
    fn high_argument(&self) -> c_uint {
        (self.arg >> u32::BITS) as c_uint
    }

    /// Bits of [`ReplayStep::flags`] from [`flag::OP_SHIFT`] on: they belong to the operation.
    fn operation_flags(&self) -> u16 {
        self.flags >> flag::OP_SHIFT
    }
}

/// True for requests that open a file by its path.
fn opens_path(step: &ReplayStep) -> bool {
    matches!(step.operation(), posix::OPEN | posix::OPENAT | posix::CREAT | posix::OPENDIR | posix::MKSTEMP)
}

/// Permission bits that a replay sets: never set-user-ID, set-group-ID or sticky.
const PERMISSIONS: c_uint = 0o777;

fn permissions(recorded: c_uint) -> c_uint {
    recorded & PERMISSIONS
}
