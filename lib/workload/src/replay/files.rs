//! Open files of a process, by the handles that they had in the trace.
//!
//! **Positions.** A hook adds positions up as long as nobody else moves them. Where the trace shows that somebody else did (a
//! process that shared the descriptor), the position is set past the hook, through another descriptor of the same open file that
//! the hook has not seen opened, so that it asks the kernel.

use super::Below;
use super::below::Unseen;
use miot_proto::event::flag;
use rustix::fd::{BorrowedFd, IntoRawFd as _};
use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::ops::RangeInclusive;

/// Descriptors that a hook has not seen opened are from here on, so that their numbers are not those of others before.
const UNSEEN: c_int = 512;

/// One open file.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// The last is the one that requests are made on.
    descriptors: Vec<c_int>,
    /// Opened, or made, past the hook.
    unseen: Option<c_int>,
    /// Address, and its descriptor.
    stream: Option<(usize, c_int)>,
    directory: Option<(usize, c_int)>,
}

/// A mapping of a file: handle, address, bytes.
type Mapping = (u64, usize, usize);

#[derive(Debug, Default)]
pub(super) struct Files {
    open: HashMap<u64, Open>,
    /// Descriptors of the trace.
    numbers: HashMap<i64, (u64, c_int)>,
    mappings: Vec<Mapping>,
}

/// Borrowed for system calls of files that this process has open.
pub(super) fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: no negative number is ever entered here; a call with a closed one answers EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Files {
    /// A step has opened it, as the number `recorded` in the trace.
    pub(super) fn opened(&mut self, handle: u64, recorded: i64, fd: c_int) {
        self.open.entry(handle).or_default().descriptors.push(fd);
        self.numbers.insert(recorded, (handle, fd));
    }

    pub(super) fn stream_opened(&mut self, handle: u64, stream: usize, fd: c_int) {
        self.open.entry(handle).or_default().stream = Some((stream, fd));
    }

    pub(super) fn directory_opened(&mut self, handle: u64, directory: usize, fd: c_int) {
        self.open.entry(handle).or_default().directory = Some((directory, fd));
    }

    pub(super) fn stream(&self, handle: u64) -> Option<(usize, c_int)> {
        self.open.get(&handle)?.stream
    }

    pub(super) fn directory(&self, handle: u64) -> Option<(usize, c_int)> {
        self.open.get(&handle)?.directory
    }

    /// The descriptor to make a request on. A file that was open before the trace begins, or in the process that started this
    /// one, is opened by its name, past the hook; one whose name is gone is an empty file without a name.
    pub(super) fn descriptor(
        &mut self,
        handle: u64,
        path: Option<&[u8]>,
        flags: u16,
        below: &Below,
    ) -> Result<c_int, Errno> {
        if let Some(open) = self.open.get(&handle)
            && let Some(fd) = open.unseen.or(open.descriptors.last().copied())
        {
            return Ok(fd);
        }
        let path = path.ok_or(Errno::BADF)?;
        let more = |has: u16, flag: OFlags| if flags & has != 0 { flag } else { OFlags::empty() };
        let more = more(flag::APPEND, OFlags::APPEND) | more(flag::DIRECT, OFlags::DIRECT);
        let open = |access| below.open_at(path, access | more, Mode::empty());
        let opened = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY));
        let fd = match opened {
            Ok(opened) => unseen(&opened)?,
            // The name may be gone, or there never was one that the trace knows; the open file is there all the same.
            Err(Errno::NOENT) => unseen(&nameless(below)?)?,
            Err(errno) => return Err(errno),
        };
        let open = self.open.entry(handle).or_default();
        open.descriptors.push(fd);
        open.unseen = Some(fd);
        Ok(fd)
    }

    /// The descriptor, standing at `position`.
    pub(super) fn standing(&mut self, handle: u64, fd: c_int, position: i64) -> Result<c_int, Errno> {
        let Ok(position) = u64::try_from(position) else { return Ok(fd) };
        if rustix::fs::seek(borrow(fd), SeekFrom::Current(0))? == position {
            return Ok(fd);
        }
        let other = match self.open.get_mut(&handle) {
            Some(open) if open.unseen.is_none() => {
                let other = unseen(borrow(fd))?;
                open.unseen = Some(other);
                other
            }
            _ => fd,
        };
        rustix::fs::seek(borrow(other), SeekFrom::Start(position))?;
        Ok(other)
    }

    /// The descriptor that `close` is to close: the last that is no stream's, while there are others.
    pub(super) fn closing(&mut self, handle: u64) -> Option<c_int> {
        let open = self.open.get(&handle)?;
        let owned = [open.stream, open.directory].map(|owner| owner.map(|(_, fd)| fd));
        let free = open.descriptors.iter().rev().find(|fd| !owned.contains(&Some(**fd)));
        let fd = *free.or(open.descriptors.last())?;
        Some(self.closed(handle, fd))
    }

    /// The descriptors that are to be closed for these numbers of the trace.
    pub(super) fn closing_numbers(&mut self, recorded: &RangeInclusive<i64>) -> Vec<c_int> {
        let within = self.numbers.iter().filter(|(number, _)| recorded.contains(number));
        let all: Vec<(u64, c_int)> = within.map(|(_, open)| *open).collect();
        all.into_iter().map(|(handle, fd)| self.closed(handle, fd)).collect()
    }

    /// A descriptor leaves the table. The last of a file is its unseen one, if it has one, and is what is to be closed.
    pub(super) fn closed(&mut self, handle: u64, fd: c_int) -> c_int {
        self.numbers.retain(|_, (_, other)| *other != fd);
        let Some(open) = self.open.get_mut(&handle) else { return fd };
        open.descriptors.retain(|other| *other != fd);
        for owner in [&mut open.stream, &mut open.directory] {
            *owner = owner.take().filter(|(_, other)| *other != fd);
        }
        if !open.descriptors.is_empty() {
            return fd;
        }
        match self.open.remove(&handle).and_then(|open| open.unseen) {
            Some(unseen) if unseen != fd => {
                // SAFETY: it was this table's alone, and has left it.
                unsafe { rustix::io::close(fd) };
                unseen
            }
            _ => fd,
        }
    }

    /// The descriptor that stands for the number `recorded` in the trace, to be replaced.
    pub(super) fn replaced(&mut self, recorded: i64) -> Option<c_int> {
        let (handle, fd) = self.numbers.remove(&recorded)?;
        let open = self.open.get_mut(&handle)?;
        open.descriptors.retain(|other| *other != fd);
        if open.descriptors.is_empty() && open.unseen.is_none_or(|unseen| unseen == fd) {
            self.open.remove(&handle);
        }
        Some(fd)
    }

    pub(super) fn mapped(&mut self, handle: u64, address: usize, length: usize) {
        self.mappings.push((handle, address, length));
    }

    /// A mapping of the file, of this length if there is one.
    pub(super) fn mapping(&mut self, handle: u64, length: usize, removes: bool) -> Option<(usize, usize)> {
        let of = |exactly: bool| {
            move |(owner, _, bytes): &Mapping| *owner == handle && (!exactly || *bytes == length)
        };
        let at =
            self.mappings.iter().position(of(true)).or_else(|| self.mappings.iter().position(of(false)))?;
        let (_, address, bytes) = if removes { self.mappings.remove(at) } else { self.mappings[at] };
        Some((address, bytes))
    }
}

/// An empty file without a name: in the directory, unless its file system has none.
fn nameless(below: &Below) -> Result<Unseen, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    below
        .open_at(b"", OFlags::TMPFILE | OFlags::RDWR, mode)
        .or_else(|_| rustix::fs::memfd_create(c"nameless", MemfdFlags::CLOEXEC).map(Unseen::of))
}

/// Another descriptor of the same open file, past the hook.
pub(super) fn unseen(fd: impl rustix::fd::AsFd) -> Result<c_int, Errno> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, UNSEEN)?.into_raw_fd())
}

/// How `fdopen` is to open a descriptor, whatever it was opened for.
pub(super) fn stream_mode(fd: c_int) -> &'static CStr {
    match rustix::fs::fcntl_getfl(borrow(fd)).map(|flags| flags & OFlags::RWMODE) {
        Ok(OFlags::RDWR) => c"r+",
        Ok(OFlags::WRONLY) => c"w",
        _ => c"r",
    }
}
