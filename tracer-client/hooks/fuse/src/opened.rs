//! Open files and directories.

use crate::descriptors::Descriptor;
use crate::holding::Holding;
use crate::inode::{Held, Inode};
use miot_tracer::flag;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// A buffer for entries of a directory: what glibc's `readdir` takes at a time.
const ENTRIES_BYTES: usize = 32 << 10;

/// What the kernel has open, by the number it was given.
#[derive(Debug)]
pub(crate) struct Table<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&self, file: T) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(file));
        number
    }

    /// # Errors
    /// `EBADF` if there is none.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}

/// The handle of an open file or directory in the trace.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) handle: u64,
    pub(crate) inode: Arc<Inode>,
    /// `flag::APPEND`, `flag::DIRECT`.
    pub(crate) flags: u16,
    /// The trace has the name.
    named: AtomicBool,
}

impl Traced {
    pub(crate) fn new(inode: Arc<Inode>, flags: i32) -> Traced {
        let append = if flags & libc::O_APPEND != 0 { flag::APPEND } else { 0 };
        let direct = if flags & libc::O_DIRECT != 0 { flag::DIRECT } else { 0 };
        Traced {
            handle: miot_tracer::new_handle(),
            inode,
            flags: append | direct,
            named: AtomicBool::new(false),
        }
    }

    /// The event of the open is in the trace.
    pub(crate) fn set_named(&self, named: bool) {
        self.named.store(named, Relaxed);
    }

    /// Names the handle if it was opened while nothing was recorded. True: it did so now.
    pub(crate) fn define(&self, mount: &[u8]) -> bool {
        if self.named.load(Relaxed) {
            return false;
        }
        let defined = miot_tracer::file(self.handle, self.flags, &self.inode.place.path(mount));
        self.named.store(defined, Relaxed);
        defined
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Without `O_APPEND` and `O_DIRECT`: the kernel writes pages of mappings through any descriptor that is open for
    /// writing, and means the offset it says, however little it is aligned.
    fd: Arc<Descriptor>,
    /// With `O_DIRECT`, once asked for.
    direct: OnceLock<Descriptor>,
    access: OFlags,
    pub(crate) traced: Traced,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OpenFile {
    /// Opens a file with the flags of the caller's open.
    pub(crate) fn open(holding: &Holding, inode: &Held, flags: i32) -> Result<OpenFile, Errno> {
        let (kept, access) = kept(flags);
        let direct = OnceLock::new();
        if flags & libc::O_DIRECT != 0 {
            // First, because it may be refused and must not truncate.
            let _ = direct.set(holding.beside(|| reopen(inode, access | OFlags::DIRECT))?);
        }
        let fd = holding
            .opened(inode, lasting(kept), || reopen(inode, kept))
            .or_else(|errno| share(inode, kept, errno))?;
        Ok(OpenFile { fd, direct, access, traced: Traced::new(inode.inode().clone(), flags) })
    }

    /// A file that was just made with [`kept`] flags.
    pub(crate) fn made(
        holding: &Holding,
        inode: Arc<Inode>,
        flags: i32,
        fd: Descriptor,
    ) -> Result<OpenFile, Errno> {
        let (kept, access) = kept(flags);
        let direct = OnceLock::new();
        if flags & libc::O_DIRECT != 0 {
            let _ = direct.set(holding.beside(|| reopen(&fd, access | OFlags::DIRECT))?);
        }
        let fd = Arc::new(fd);
        inode.opened(lasting(kept), &fd);
        Ok(OpenFile { fd, direct, access, traced: Traced::new(inode, flags) })
    }

    /// The descriptor that goes past the page cache.
    pub(crate) fn direct(&self, holding: &Holding) -> Result<BorrowedFd<'_>, Errno> {
        if self.direct.get().is_none() {
            // Set by fcntl after the open.
            let direct = holding.beside(|| reopen(&self.fd, self.access | OFlags::DIRECT))?;
            let _ = self.direct.set(direct);
        }
        self.direct.get().map(AsFd::as_fd).ok_or(Errno::INVAL)
    }
}

/// Flags of an open that go to the file below, and the access mode alone.
pub(crate) fn kept(flags: i32) -> (OFlags, OFlags) {
    let left_out = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_APPEND | libc::O_DIRECT;
    let kept = OFlags::from_bits_retain((flags & !left_out) as u32) | OFlags::CLOEXEC | OFlags::NOCTTY;
    (kept, OFlags::from_bits_retain((flags & libc::O_ACCMODE) as u32) | OFlags::CLOEXEC)
}

/// What of these flags matters after the open.
fn lasting(kept: OFlags) -> OFlags {
    kept.difference(OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOCTTY)
}

/// Where there are no descriptors left: that of another open with the same flags. Reads and writes say where, so that it has no
/// position that matters.
fn share(inode: &Inode, kept: OFlags, errno: Errno) -> Result<Arc<Descriptor>, Errno> {
    let short = matches!(errno, Errno::MFILE | Errno::NFILE);
    let shared = inode.open_with(lasting(kept)).filter(|_| short).ok_or(errno)?;
    if kept.contains(OFlags::TRUNC) {
        rustix::fs::ftruncate(&*shared, 0).map_err(|_| errno)?;
    }
    Ok(shared)
}

/// The path under which the kernel gives the file of a descriptor once more, whatever became of its name.
pub(crate) fn link_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&fd.as_fd()))
}

pub(crate) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(link_of(fd), flags, rustix::fs::Mode::empty())
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Box<[u8]>,
    pub(crate) number: u64,
    pub(crate) kind: FileType,
    /// Where the next one begins.
    pub(crate) next: u64,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: Arc<Descriptor>,
    reading: Mutex<Reading>,
    pub(crate) traced: Traced,
}

/// Entries that were read and not yet asked for.
#[derive(Debug, Default)]
struct Reading {
    entries: VecDeque<Entry>,
    /// Where the first of them begins, or the next to be read.
    position: u64,
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OpenDirectory {
    pub(crate) fn open(holding: &Holding, inode: &Held) -> Result<OpenDirectory, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(inode, c".", flags, rustix::fs::Mode::empty());
        let fd = holding.opened(inode, flags, open)?;
        let traced = Traced::new(inode.inode().clone(), 0);
        Ok(OpenDirectory { fd, reading: Mutex::default(), traced })
    }

    /// Gives entries from a position on to `take` until it has no room (false) or there are no more. Says how many it took.
    ///
    /// # Errors
    /// Of reading the directory or of `take`, if nothing was taken before.
    pub(crate) fn read(
        &self,
        position: u64,
        mut take: impl FnMut(&Entry) -> Result<bool, Errno>,
    ) -> Result<u64, Errno> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if position != reading.position {
            rustix::fs::seek(&*self.fd, SeekFrom::Start(position))?;
            *reading = Reading { entries: VecDeque::new(), position };
        }
        let mut taken = 0;
        loop {
            if reading.entries.is_empty() {
                match self.more() {
                    Ok(more) if more.is_empty() => return Ok(taken),
                    Ok(more) => reading.entries = more,
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(errno) => return Err(errno),
                }
            }
            while let Some(entry) = reading.entries.front() {
                match take(entry) {
                    Ok(true) => {}
                    Ok(false) => return Ok(taken),
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(errno) => return Err(errno),
                }
                taken += 1;
                reading.position = entry.next;
                reading.entries.pop_front();
            }
        }
    }

    fn more(&self) -> Result<VecDeque<Entry>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut directory = RawDir::new(&*self.fd, &mut buffer);
        let mut entries = VecDeque::new();
        while let Some(entry) = directory.next() {
            let entry = entry?;
            entries.push_back(Entry {
                name: entry.file_name().to_bytes().into(),
                number: entry.ino(),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            });
            if directory.is_buffer_empty() {
                break;
            }
        }
        Ok(entries)
    }
}
