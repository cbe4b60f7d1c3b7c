//! Asynchronous requests in flight: a table in the segment, because a thread's lane shows only the
//! request that the thread itself is in.
//!
//! Any thread takes a free entry with one compare-and-swap and fills it; the thread that completes
//! the request frees it. A request that finds no free entry is recorded, but not shown.

use crate::process;
use miot_proto::op::Op;
use miot_proto::segment::{PENDING_BYTES, PENDING_ENTRIES, pending as at};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// One entry; layout: [`miot_proto::segment::pending`].
#[repr(C, align(256))]
pub(crate) struct PendingEntry {
    request: AtomicU64,
    begin: AtomicU64,
    handle: AtomicU64,
    offset: AtomicU64,
    length: AtomicU64,
    threads: AtomicU64,
    path: [AtomicU64; at::PATH_BYTES / 8],
}

const _: () = {
    assert!(size_of::<PendingEntry>() == PENDING_BYTES && PENDING_ENTRIES < u16::MAX as usize);
    assert!(offset_of!(PendingEntry, request) == at::REQUEST && offset_of!(PendingEntry, begin) == at::BEGIN);
    assert!(offset_of!(PendingEntry, handle) == at::HANDLE && offset_of!(PendingEntry, offset) == at::OFFSET);
    assert!(offset_of!(PendingEntry, length) == at::LENGTH && offset_of!(PendingEntry, path) == at::PATH);
    assert!(offset_of!(PendingEntry, threads) == at::THREADS);
};

/// Entry at which the search for a free one starts: the one that was freed last.
static NEXT_FREE: AtomicU32 = AtomicU32::new(0);

/// Content of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownRequest<'a> {
    pub(crate) op: Op,
    pub(crate) begin: u64,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Thread that began the request, 0 if unknown.
    pub(crate) tid: u32,
    /// Thread that it is for, 0 if unknown.
    pub(crate) caller: u32,
    /// Empty if unknown.
    pub(crate) path: &'a [u8],
}

/// A taken entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownAt {
    /// Index of the entry + 1; 0 if the request is not shown.
    pub(crate) entry: u16,
    /// Number of the request.
    pub(crate) number: u32,
}

impl ShownAt {
    /// Of a request that is not shown.
    pub(crate) const NOWHERE: ShownAt = ShownAt { entry: 0, number: 0 };
}

/// Shows a request, if there is a free entry.
pub(crate) fn show(table: &[PendingEntry], number: u32, shown: &ShownRequest<'_>) -> ShownAt {
    let start = NEXT_FREE.load(Relaxed) as usize;
    let free = (0..table.len()).map(|step| (start + step) % table.len()).find(|index| {
        let request = &table[*index].request;
        request.load(Relaxed) == 0 && request.compare_exchange(0, at::RESERVED, Acquire, Relaxed).is_ok()
    });
    let Some(index) = free else { return ShownAt::NOWHERE };
    let entry = &table[index];
    entry.begin.store(shown.begin, Relaxed);
    entry.handle.store(shown.handle, Relaxed);
    entry.offset.store(shown.offset, Relaxed);
    entry.length.store(shown.length, Relaxed);
    entry.threads.store(u64::from(shown.tid) | u64::from(shown.caller) << 32, Relaxed);
    entry.set_path(shown.path);
    entry.request.store(at::word(shown.op, number), Release);
    process::count_pending_used(index as u64 + 1);
    ShownAt { entry: index as u16 + 1, number }
}

/// Shows the request no longer. Does nothing if it is not shown, or if `table` is that of another
/// process image.
pub(crate) fn hide(table: &[PendingEntry], op: Op, ShownAt { entry, number }: ShownAt) {
    let Some(index) = usize::from(entry).checked_sub(1) else { return };
    let Some(entry) = table.get(index) else { return };
    if entry.request.compare_exchange(at::word(op, number), 0, Release, Relaxed).is_ok() {
        NEXT_FREE.store(index as u32, Relaxed);
    }
}

impl PendingEntry {
    /// Stores a path, or the end of a long one.
    fn set_path(&self, path: &[u8]) {
        const CUT: &[u8] = b"...";
        let (start, end) = match path.len().checked_sub(at::PATH_BYTES) {
            None | Some(0) => (&[][..], path),
            Some(more) => (CUT, &path[more + CUT.len()..]),
        };
        let mut bytes = start.iter().chain(end).copied();
        for word in &self.path {
            let part: [u8; 8] = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            word.store(u64::from_le_bytes(part), Relaxed);
            // The rest of an entry is never read past a NUL.
            if part[7] == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::event::NONE;
    use miot_proto::op::client::{READ, WRITE};

    fn table(entries: usize) -> Vec<PendingEntry> {
        let word = || AtomicU64::new(0);
        let entry = |_| PendingEntry {
            request: word(),
            begin: word(),
            handle: word(),
            offset: word(),
            length: word(),
            threads: word(),
            path: std::array::from_fn(|_| word()),
        };
        (0..entries).map(entry).collect()
    }

    fn request(path: &[u8]) -> ShownRequest<'_> {
        ShownRequest { op: READ, begin: 1, handle: 2, offset: 3, length: NONE, tid: 5, caller: 6, path }
    }

    fn path_of(entry: &PendingEntry) -> Vec<u8> {
        let bytes: Vec<u8> = entry.path.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
    }

    #[test]
    fn entries_are_taken_once_and_freed_by_their_request_only() {
        let table = table(3);
        let taken: Vec<ShownAt> = (1..=4).map(|number| show(&table, number, &request(b"/a"))).collect();
        let mut entries: Vec<u16> = taken[..3].iter().map(|taken| taken.entry).collect();
        entries.sort_unstable();
        assert_eq!((entries, taken[3]), (vec![1, 2, 3], ShownAt::NOWHERE));
        hide(&table, READ, ShownAt::NOWHERE);
        hide(&table, WRITE, taken[1]);
        hide(&table, READ, ShownAt { number: 9, ..taken[1] });
        assert_eq!(show(&table, 5, &request(b"/b")), ShownAt::NOWHERE, "the entry is not free");
        hide(&table, READ, taken[1]);
        assert_eq!(show(&table, 6, &request(b"/b")).entry, taken[1].entry);
        let entry = &table[usize::from(taken[1].entry) - 1];
        assert_eq!((entry.threads.load(Relaxed), path_of(entry)), (5 | 6 << 32, b"/b".to_vec()));
    }

    #[test]
    fn end_of_a_long_path_is_kept() {
        let table = table(1);
        let mut last = ShownAt::NOWHERE;
        for length in [0, 1, 7, 8, 9, 204, 205, 207, 208, 209, 4096] {
            hide(&table, READ, last);
            let path: Vec<u8> = (0..length).map(|index| b'a' + (index % 26) as u8).collect();
            last = show(&table, 1, &request(&path));
            let kept = path_of(&table[0]);
            match length {
                ..=208 => assert_eq!(kept, path),
                _ => assert_eq!(kept, [b"...", &path[length - 205..]].concat()),
            }
        }
    }
}
