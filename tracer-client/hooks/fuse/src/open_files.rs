//! Open files and directories.

#![expect(clippy::disallowed_types, reason = "handle numbers, and whether a path was recorded")]

use crate::descriptor_cache::DescriptorCache;
use crate::descriptors::Descriptor;
use crate::inode::{Inode, PinnedInode};
use miot_tracer::flag;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Size in bytes of the buffer for directory entries: that of glibc's `readdir`.
const ENTRIES_BYTES: usize = 32 << 10;

/// Open files or directories, by the number that the kernel uses for them.
#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for HandleTable<T> {
    fn default() -> HandleTable<T> {
        HandleTable { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> HandleTable<T> {
    pub(crate) fn insert(&self, file: T) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(file));
        number
    }

    /// Returns the open file with this number.
    ///
    /// # Errors
    /// `EBADF` if there is none.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}

/// Trace handle of an open file or directory.
#[derive(Debug)]
pub(crate) struct TraceHandle {
    pub(crate) handle: u64,
    pub(crate) inode: Arc<Inode>,
    /// Event flags: `flag::APPEND`, `flag::DIRECT`.
    pub(crate) flags: u16,
    /// Whether the trace contains the name of the handle.
    is_named: AtomicBool,
}

impl TraceHandle {
    pub(crate) fn new(inode: Arc<Inode>, flags: i32) -> TraceHandle {
        let append = if flags & libc::O_APPEND != 0 { flag::APPEND } else { 0 };
        let direct = if flags & libc::O_DIRECT != 0 { flag::DIRECT } else { 0 };
        TraceHandle {
            handle: miot_tracer::new_handle(),
            inode,
            flags: append | direct,
            is_named: AtomicBool::new(false),
        }
    }

    /// Records whether the event of the open, which names the handle, is in the trace.
    pub(crate) fn set_named(&self, is_named: bool) {
        self.is_named.store(is_named, Relaxed);
    }

    /// Names the handle if the file was opened while nothing was recorded. Returns whether it did.
    pub(crate) fn define(&self, mount: &[u8]) -> bool {
        if self.is_named.load(Relaxed) {
            return false;
        }
        let defined = miot_tracer::name_file(self.handle, self.flags, &self.inode.location.path(mount));
        self.is_named.store(defined, Relaxed);
        defined
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Opened without `O_APPEND` and `O_DIRECT`: the kernel writes pages of mappings through any
    /// descriptor that is open for writing, at offsets that need not be aligned.
    fd: Arc<Descriptor>,
    /// Opened with `O_DIRECT` when it is first needed.
    direct: OnceLock<Descriptor>,
    access: OFlags,
    pub(crate) trace: TraceHandle,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OpenFile {
    /// Opens a file with the flags of the caller's open.
    pub(crate) fn open(cache: &DescriptorCache, inode: &PinnedInode, flags: i32) -> Result<OpenFile, Errno> {
        let BackingFlags { open, access } = backing_flags(flags);
        let direct = OnceLock::new();
        if flags & libc::O_DIRECT != 0 {
            // First, because this open may be refused, and then the file must not be truncated.
            let _ = direct.set(cache.open_additional(|| reopen(inode, access | OFlags::DIRECT))?);
        }
        let fd = cache
            .open_for_program(inode, persistent_flags(open), || reopen(inode, open))
            .or_else(|errno| share_descriptor(inode, open, errno))?;
        Ok(OpenFile { fd, direct, access, trace: TraceHandle::new(inode.inode().clone(), flags) })
    }

    /// Returns the open file for a descriptor that was created with [`backing_flags`].
    pub(crate) fn from_created(
        cache: &DescriptorCache,
        inode: Arc<Inode>,
        flags: i32,
        fd: Descriptor,
    ) -> Result<OpenFile, Errno> {
        let BackingFlags { open, access } = backing_flags(flags);
        let direct = OnceLock::new();
        if flags & libc::O_DIRECT != 0 {
            let _ = direct.set(cache.open_additional(|| reopen(&fd, access | OFlags::DIRECT))?);
        }
        let fd = Arc::new(fd);
        inode.add_open(persistent_flags(open), &fd);
        Ok(OpenFile { fd, direct, access, trace: TraceHandle::new(inode, flags) })
    }

    /// Returns the descriptor that bypasses the page cache.
    pub(crate) fn direct(&self, cache: &DescriptorCache) -> Result<BorrowedFd<'_>, Errno> {
        if self.direct.get().is_none() {
            // The program has set `O_DIRECT` by fcntl after the open.
            let direct = cache.open_additional(|| reopen(&self.fd, self.access | OFlags::DIRECT))?;
            let _ = self.direct.set(direct);
        }
        self.direct.get().map(AsFd::as_fd).ok_or(Errno::INVAL)
    }
}

/// Flags for opening the file of the source.
pub(crate) struct BackingFlags {
    /// Flags of the program's open that apply to the file of the source.
    pub(crate) open: OFlags,
    /// Access mode alone.
    pub(crate) access: OFlags,
}

/// Converts the flags of a program's open.
pub(crate) fn backing_flags(flags: i32) -> BackingFlags {
    let removed = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_APPEND | libc::O_DIRECT;
    BackingFlags {
        open: OFlags::from_bits_retain((flags & !removed) as u32) | OFlags::CLOEXEC | OFlags::NOCTTY,
        access: OFlags::from_bits_retain((flags & libc::O_ACCMODE) as u32) | OFlags::CLOEXEC,
    }
}

/// Returns the flags that have an effect after the open.
fn persistent_flags(open: OFlags) -> OFlags {
    open.difference(OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOCTTY)
}

/// Returns the descriptor of another open with the same flags if no descriptor is left. Reads and
/// writes have explicit offsets, so the shared position has no effect.
fn share_descriptor(inode: &Inode, open: OFlags, errno: Errno) -> Result<Arc<Descriptor>, Errno> {
    let is_exhausted = matches!(errno, Errno::MFILE | Errno::NFILE);
    let shared = inode.open_with(persistent_flags(open)).filter(|_| is_exhausted).ok_or(errno)?;
    if open.contains(OFlags::TRUNC) {
        rustix::fs::ftruncate(&*shared, 0).map_err(|_| errno)?;
    }
    Ok(shared)
}

/// Returns a path that opens the file of a descriptor again, even if its name was removed.
pub(crate) fn proc_link(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&fd.as_fd()))
}

pub(crate) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(proc_link(fd), flags, rustix::fs::Mode::empty())
}

/// Entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryEntry {
    pub(crate) name: Box<[u8]>,
    pub(crate) number: u64,
    pub(crate) file_type: FileType,
    /// Position of the next entry.
    pub(crate) next: u64,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: Arc<Descriptor>,
    read_state: Mutex<ReadState>,
    pub(crate) trace: TraceHandle,
}

/// Entries that were read and not yet requested.
#[derive(Debug, Default)]
struct ReadState {
    entries: VecDeque<DirectoryEntry>,
    /// Position of the first of them, or of the next entry to read.
    position: u64,
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OpenDirectory {
    pub(crate) fn open(cache: &DescriptorCache, inode: &PinnedInode) -> Result<OpenDirectory, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(inode, c".", flags, rustix::fs::Mode::empty());
        let fd = cache.open_for_program(inode, flags, open)?;
        let trace = TraceHandle::new(inode.inode().clone(), 0);
        Ok(OpenDirectory { fd, read_state: Mutex::default(), trace })
    }

    /// Passes the entries from a position on to `take` until it returns false (no space left) or
    /// there are no more. Returns the number of entries taken.
    ///
    /// # Errors
    /// Errors of state the directory or of `take`, if no entry was taken before.
    pub(crate) fn read(
        &self,
        position: u64,
        mut take: impl FnMut(&DirectoryEntry) -> Result<bool, Errno>,
    ) -> Result<u64, Errno> {
        let mut state = self.read_state.lock().unwrap_or_else(PoisonError::into_inner);
        if position != state.position {
            rustix::fs::seek(&*self.fd, SeekFrom::Start(position))?;
            *state = ReadState { entries: VecDeque::new(), position };
        }
        let mut taken = 0;
        loop {
            if state.entries.is_empty() {
                match self.read_batch() {
                    Ok(more) if more.is_empty() => return Ok(taken),
                    Ok(more) => state.entries = more,
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(errno) => return Err(errno),
                }
            }
            while let Some(entry) = state.entries.front() {
                match take(entry) {
                    Ok(true) => {}
                    Ok(false) => return Ok(taken),
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(errno) => return Err(errno),
                }
                taken += 1;
                state.position = entry.next;
                state.entries.pop_front();
            }
        }
    }

    /// Reads one buffer of entries; none at the end of the directory.
    fn read_batch(&self) -> Result<VecDeque<DirectoryEntry>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut directory = RawDir::new(&*self.fd, &mut buffer);
        let mut entries = VecDeque::new();
        while let Some(entry) = directory.next() {
            let entry = entry?;
            entries.push_back(DirectoryEntry {
                name: entry.file_name().to_bytes().into(),
                number: entry.ino(),
                file_type: entry.file_type(),
                next: entry.next_entry_cookie(),
            });
            if directory.is_buffer_empty() {
                break;
            }
        }
        Ok(entries)
    }
}
