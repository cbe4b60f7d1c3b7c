//! Open files of a process, by their handles in the trace.
//!
//! **Positions.** A hook computes positions itself as long as no other process moves them. Where
//! the trace shows that another process did (one that shared the descriptor), the position is set
//! past the hook, through another descriptor of the same open file. The hook has not recorded the
//! open of that descriptor, so it asks the kernel for the position.

use super::ReplayRoot;
use super::root::UntracedFd;
use miot_proto::event::flag;
use rustix::fd::{BorrowedFd, IntoRawFd as _};
use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::ops::RangeInclusive;

/// First number of descriptors that a hook has not seen opened. It is above those of other files,
/// so that the hook does not confuse them with closed ones.
const FIRST_UNTRACED: c_int = 512;

/// One open file.
#[derive(Debug, Default)]
struct OpenFile {
    /// Requests use the last one.
    descriptors: Vec<c_int>,
    /// Descriptor that a hook has not seen opened. Requests prefer it.
    untraced: Option<c_int>,
    /// Address of the `FILE`, and its descriptor.
    stream: Option<(usize, c_int)>,
    /// Address of the `DIR`, and its descriptor.
    directory: Option<(usize, c_int)>,
}

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    handle: u64,
    address: usize,
    bytes: usize,
}

/// The table of open files.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    open: HashMap<u64, OpenFile>,
    /// By descriptor of the trace: handle and descriptor.
    recorded: HashMap<i64, (u64, c_int)>,
    mappings: Vec<Mapping>,
}

/// Borrows a descriptor of the table for system calls.
pub(super) fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: the table contains no negative number; a call with a closed one fails with EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl OpenFiles {
    /// Adds a descriptor that a step has opened, as the number `recorded` in the trace.
    pub(super) fn insert(&mut self, handle: u64, recorded: i64, fd: c_int) {
        self.open.entry(handle).or_default().descriptors.push(fd);
        self.recorded.insert(recorded, (handle, fd));
    }

    pub(super) fn set_stream(&mut self, handle: u64, stream: usize, fd: c_int) {
        self.open.entry(handle).or_default().stream = Some((stream, fd));
    }

    pub(super) fn set_directory(&mut self, handle: u64, directory: usize, fd: c_int) {
        self.open.entry(handle).or_default().directory = Some((directory, fd));
    }

    /// Address of the `FILE` and its descriptor.
    pub(super) fn stream(&self, handle: u64) -> Option<(usize, c_int)> {
        self.open.get(&handle)?.stream
    }

    /// Address of the `DIR` and its descriptor.
    pub(super) fn directory(&self, handle: u64) -> Option<(usize, c_int)> {
        self.open.get(&handle)?.directory
    }

    /// Returns the descriptor for a request. A file that was open before the trace begins, or in
    /// the process that started this one, is opened by its path, past the hook. If nothing has that
    /// path any more, an empty unnamed file takes its place.
    ///
    /// # Errors
    /// `EBADF` without a path, else as `openat2`(2).
    pub(super) fn descriptor(
        &mut self,
        handle: u64,
        path: Option<&[u8]>,
        flags: u16,
        root: &ReplayRoot,
    ) -> Result<c_int, Errno> {
        if let Some(open) = self.open.get(&handle)
            && let Some(fd) = open.untraced.or(open.descriptors.last().copied())
        {
            return Ok(fd);
        }
        let path = path.ok_or(Errno::BADF)?;
        let if_set = |bit: u16, flag: OFlags| if flags & bit != 0 { flag } else { OFlags::empty() };
        let more = if_set(flag::APPEND, OFlags::APPEND) | if_set(flag::DIRECT, OFlags::DIRECT);
        let open = |access| root.open_at(path, access | more, Mode::empty());
        let fd = match open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
            Ok(opened) => duplicate_untraced(&opened)?,
            // The file may be removed, or the trace has no path of it; it was open all the same.
            Err(Errno::NOENT) => duplicate_untraced(&unnamed_file(root)?)?,
            Err(errno) => return Err(errno),
        };
        let open = self.open.entry(handle).or_default();
        open.descriptors.push(fd);
        open.untraced = Some(fd);
        Ok(fd)
    }

    /// Returns a descriptor of the open file of `fd` whose position is `position`. Negative
    /// positions are not set.
    pub(super) fn at_position(&mut self, handle: u64, fd: c_int, position: i64) -> Result<c_int, Errno> {
        let Ok(position) = u64::try_from(position) else { return Ok(fd) };
        if rustix::fs::seek(borrow(fd), SeekFrom::Current(0))? == position {
            return Ok(fd);
        }
        let other = match self.open.get_mut(&handle) {
            Some(open) if open.untraced.is_none() => {
                let other = duplicate_untraced(borrow(fd))?;
                open.untraced = Some(other);
                other
            }
            _ => fd,
        };
        rustix::fs::seek(borrow(other), SeekFrom::Start(position))?;
        Ok(other)
    }

    /// Removes and returns the descriptor that `close` must close: the last that belongs to no
    /// stream, or the last one if there is no such.
    pub(super) fn remove_for_close(&mut self, handle: u64) -> Option<c_int> {
        let open = self.open.get(&handle)?;
        let owned = [open.stream, open.directory].map(|owner| owner.map(|(_, fd)| fd));
        let free = open.descriptors.iter().rev().find(|fd| !owned.contains(&Some(**fd)));
        let fd = *free.or(open.descriptors.last())?;
        Some(self.remove(handle, fd))
    }

    /// Removes and returns the descriptors that stand for a range of descriptors of the trace.
    pub(super) fn remove_recorded(&mut self, recorded: &RangeInclusive<i64>) -> Vec<c_int> {
        let within = self.recorded.iter().filter(|(number, _)| recorded.contains(number));
        let all: Vec<(u64, c_int)> = within.map(|(_, open)| *open).collect();
        all.into_iter().map(|(handle, fd)| self.remove(handle, fd)).collect()
    }

    /// Removes a descriptor and returns the one to close: the untraced one of the file, if `fd` is
    /// its last and it has one. Then `fd` is closed here.
    pub(super) fn remove(&mut self, handle: u64, fd: c_int) -> c_int {
        self.recorded.retain(|_, (_, other)| *other != fd);
        let Some(open) = self.open.get_mut(&handle) else { return fd };
        open.descriptors.retain(|other| *other != fd);
        for owner in [&mut open.stream, &mut open.directory] {
            *owner = owner.take().filter(|(_, other)| *other != fd);
        }
        if !open.descriptors.is_empty() {
            return fd;
        }
        match self.open.remove(&handle).and_then(|open| open.untraced) {
            Some(untraced) if untraced != fd => {
                // SAFETY: only this table used the descriptor, and it has left the table.
                unsafe { rustix::io::close(fd) };
                untraced
            }
            _ => fd,
        }
    }

    /// Removes and returns the descriptor that stands for `recorded`, because `dup2` replaces it.
    pub(super) fn remove_replaced(&mut self, recorded: i64) -> Option<c_int> {
        let (handle, fd) = self.recorded.remove(&recorded)?;
        let open = self.open.get_mut(&handle)?;
        open.descriptors.retain(|other| *other != fd);
        if open.descriptors.is_empty() && open.untraced.is_none_or(|untraced| untraced == fd) {
            self.open.remove(&handle);
        }
        Some(fd)
    }

    pub(super) fn add_mapping(&mut self, handle: u64, address: usize, bytes: usize) {
        self.mappings.push(Mapping { handle, address, bytes });
    }

    /// Returns address and bytes of a mapping of the file, of this length if there is one.
    pub(super) fn mapping(&self, handle: u64, bytes: usize) -> Option<(usize, usize)> {
        let Mapping { address, bytes, .. } = self.mappings[self.find_mapping(handle, bytes)?];
        Some((address, bytes))
    }

    /// As [`mapping`](Self::mapping), and removes it.
    pub(super) fn remove_mapping(&mut self, handle: u64, bytes: usize) -> Option<(usize, usize)> {
        let at = self.find_mapping(handle, bytes)?;
        let Mapping { address, bytes, .. } = self.mappings.remove(at);
        Some((address, bytes))
    }

    fn find_mapping(&self, handle: u64, bytes: usize) -> Option<usize> {
        let of_file = |mapping: &Mapping| mapping.handle == handle;
        let same_length = |mapping: &Mapping| of_file(mapping) && mapping.bytes == bytes;
        self.mappings.iter().position(same_length).or_else(|| self.mappings.iter().position(of_file))
    }
}

/// Creates an empty unnamed file: in the replay root, or in memory if its file system has no
/// `O_TMPFILE`.
fn unnamed_file(root: &ReplayRoot) -> Result<UntracedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    root.open_at(b"", OFlags::TMPFILE | OFlags::RDWR, mode)
        .or_else(|_| rustix::fs::memfd_create(c"unnamed", MemfdFlags::CLOEXEC).map(UntracedFd::new))
}

/// Returns another descriptor of the same open file. A hook does not record it.
pub(super) fn duplicate_untraced(fd: impl rustix::fd::AsFd) -> Result<c_int, Errno> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_UNTRACED)?.into_raw_fd())
}

/// Returns the mode of `fdopen` that fits the access mode of a descriptor.
pub(super) fn stream_mode(fd: c_int) -> &'static CStr {
    match rustix::fs::fcntl_getfl(borrow(fd)).map(|flags| flags & OFlags::RWMODE) {
        Ok(OFlags::RDWR) => c"r+",
        Ok(OFlags::WRONLY) => c"w",
        _ => c"r",
    }
}
