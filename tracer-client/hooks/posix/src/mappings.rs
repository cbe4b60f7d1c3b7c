//! Hooks of memory mappings of files: the calls, not the accesses to the memory.
//!
//! `munmap` and `msync` have only an address as argument. A small table stores the file of each
//! mapping, so that these calls are recorded for files, and only for files. The table has no locks.
//! When it is full, or after a fork, `munmap` and `msync` of unknown mappings are not recorded.

#![expect(clippy::disallowed_types, reason = "table of mapped files, read without locks")]

use crate::files::{begin_on, tracked};
use crate::real::{Address, Offset, ReturnValue, hook};
use crate::uring;
use miot_tracer::op::posix;
use miot_tracer::{Completion, NONE, Op, RequestArgs, end, epoch, flag};
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Capacity of the table. More mapped files at a time are rare, and each `munmap` searches all
/// entries.
const MAX: usize = 256;
/// Value of `start` while a thread writes the entry.
const RESERVED: usize = 1;

struct Mapping {
    /// Address; 0 for a free entry.
    start: AtomicUsize,
    length: AtomicUsize,
    handle: AtomicU64,
    /// Process image that owns the handle.
    epoch: AtomicU32,
}

static MAPPINGS: [Mapping; MAX] = [const {
    Mapping {
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        handle: AtomicU64::new(0),
        epoch: AtomicU32::new(0),
    }
}; MAX];
/// Number of entries that have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Mapping] {
    MAPPINGS.get(..USED.load(Acquire)).unwrap_or(&MAPPINGS)
}

fn remember(start: usize, length: usize, handle: u64) {
    for (index, mapping) in MAPPINGS.iter().enumerate() {
        if mapping.start.load(Relaxed) == 0
            && mapping.start.compare_exchange(0, RESERVED, AcqRel, Relaxed).is_ok()
        {
            mapping.length.store(length, Relaxed);
            mapping.handle.store(handle, Relaxed);
            mapping.epoch.store(epoch(), Relaxed);
            mapping.start.store(start, Release);
            USED.fetch_max(index + 1, AcqRel);
            return;
        }
    }
}

/// Returns the handle of the file that is mapped at an address, and its entry.
fn find(address: usize) -> Option<(u64, &'static Mapping)> {
    used().iter().find_map(|mapping| {
        let start = mapping.start.load(Acquire);
        let inside = start > RESERVED && address.wrapping_sub(start) < mapping.length.load(Relaxed);
        (inside && mapping.epoch.load(Relaxed) == epoch()).then(|| (mapping.handle.load(Relaxed), mapping))
    })
}

/// Removes the mappings that are entirely within a range.
fn forget(address: usize, length: usize) {
    for mapping in used() {
        let start = mapping.start.load(Acquire);
        let end = start.saturating_add(mapping.length.load(Relaxed));
        if start > RESERVED && start >= address && end <= address.saturating_add(round_up(length)) {
            let _ = mapping.start.compare_exchange(start, 0, AcqRel, Relaxed);
        }
    }
}

/// Rounds up to whole pages, as the kernel maps and unmaps them. 4 KiB is the smallest page size.
const fn round_up(length: usize) -> usize {
    length.saturating_add(4095) & !4095
}

hook!(mmap | mmap64 (
    address: usize, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: Offset,
) -> Address, |real| {
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return real();
    }
    let Some(file) = tracked(posix::MMAP, fd) else { return uring::on_mmap(fd, offset, real) };
    let handle = file.handle();
    let args = RequestArgs { handle, offset: offset as u64, length: length as u64 };
    let Some(begun) = begin_on(posix::MMAP, args) else { return real() };
    let returned = real();
    let result = returned.result();
    if returned != Address::FAILED {
        if flags & libc::MAP_FIXED != 0 {
            forget(returned.0, length);
        }
        remember(returned.0, length, handle);
    }
    let shared = (flags & libc::MAP_TYPE != libc::MAP_PRIVATE) as u16;
    let access = (protection & 7) as u16 | shared << 3;
    let flags = file.flags() | access << flag::OP_SHIFT;
    end(begun, Completion { handle, offset: offset as u64, length: length as u64, result, flags });
    returned
});

hook!(munmap(address: usize, length: usize) -> c_int, |real| {
    uring::on_munmap(address);
    let begun = begin_on_mapping(posix::MUNMAP, address, length);
    // Before the call: after it, another thread may get the same address.
    forget(address, length);
    end_on_mapping(begun, length, real)
});
hook!(msync(address: usize, length: usize, flags: c_int) -> c_int, |real| {
    end_on_mapping(begin_on_mapping(posix::MSYNC, address, length), length, real)
});
hook!(mremap(address: usize, length: usize, new_length: usize, flags: c_int, new_address: usize) -> Address, |real| {
    let mapped = find(address).filter(|(_, mapping)| mapping.start.load(Acquire) == address);
    let returned = real();
    if let Some((handle, _)) = mapped
        && returned != Address::FAILED
    {
        forget(address, length);
        remember(returned.0, new_length, handle);
    }
    returned
});

type StartedAccess = Option<(u64, miot_tracer::StartedRequest)>;

/// Begins a request on a mapping, if a file is mapped at the address.
fn begin_on_mapping(op: Op, address: usize, length: usize) -> StartedAccess {
    let (handle, _) = find(address)?;
    Some((handle, begin_on(op, RequestArgs { handle, offset: NONE, length: length as u64 })?))
}

fn end_on_mapping(begun: StartedAccess, length: usize, real: impl FnOnce() -> c_int) -> c_int {
    let returned = real();
    if let Some((handle, begun)) = begun {
        let result = returned.result();
        end(begun, Completion { handle, offset: NONE, length: length as u64, result, flags: 0 });
    }
    returned
}

#[cfg(test)]
mod tests {
    use super::{MAX, find, forget, remember};

    // One test, because the process has one table.
    #[test]
    fn mappings_are_found_until_they_are_unmapped() {
        remember(0x10000, 0x1800, 5);
        assert_eq!(find(0x10000).map(|(handle, _)| handle), Some(5));
        assert_eq!(find(0x117ff).map(|(handle, _)| handle), Some(5));
        assert!(find(0xffff).is_none() && find(0x11800).is_none());
        forget(0x10000, 0x1000);
        assert!(find(0x10000).is_some(), "partly unmapped");
        forget(0x10000, 0x1801);
        assert!(find(0x10000).is_none());
        for index in 1..=MAX + 3 {
            remember(index << 16, 1, index as u64);
        }
        assert_eq!(find(MAX << 16).map(|(handle, _)| handle), Some(MAX as u64));
        assert!(find((MAX + 1) << 16).is_none());
        forget(0, usize::MAX);
        assert!(find(MAX << 16).is_none());
    }
}
