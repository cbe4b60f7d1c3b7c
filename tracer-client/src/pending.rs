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

/// The table of a process.
#[derive(Clone, Copy)]
pub(crate) struct PendingTable<'a> {
    entries: &'a [PendingEntry],
    search: &'a Search,
}

/// Where the search for a free entry starts. Threads that change it at the same time only cause
/// longer searches.
struct Search {
    /// The entry that was freed last, or the one after that which was taken last.
    start: AtomicU32,
    /// Requests that are not shown without a search, because there was no free entry and none was
    /// freed since: programs with thousands of requests in flight would pay for a search at each of
    /// them.
    skips_left: AtomicU32,
}

impl Search {
    const fn new() -> Search {
        Search { start: AtomicU32::new(0), skips_left: AtomicU32::new(0) }
    }
}

static SEARCH: Search = Search::new();

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
    pub(crate) file: ShownFile<'a>,
}

/// The file of an asynchronous request in flight.
#[derive(Clone, Copy, Debug)]
pub enum ShownFile<'a> {
    /// None, or it is not known.
    Unknown,
    /// The file that the process has open as this descriptor.
    Descriptor(u32),
    /// Its path. Of a path that is longer than
    /// [`PATH_BYTES`](miot_proto::segment::pending::PATH_BYTES) the end is shown.
    Path(&'a [u8]),
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

impl PendingTable<'static> {
    /// The table of this process, whose entries these are.
    pub(crate) fn of_process(entries: &'static [PendingEntry]) -> PendingTable<'static> {
        PendingTable { entries, search: &SEARCH }
    }
}

impl PendingTable<'_> {
    /// Shows a request, if there is a free entry.
    pub(crate) fn show(self, number: u32, shown: &ShownRequest<'_>) -> ShownAt {
        let skips = self.search.skips_left.load(Relaxed);
        if skips != 0 {
            self.search.skips_left.store(skips - 1, Relaxed);
            return ShownAt::NOWHERE;
        }
        let count = self.entries.len();
        let start = self.search.start.load(Relaxed) as usize;
        let free = (start..start + count).map(|step| step % count).find(|index| {
            let request = &self.entries[*index].request;
            request.load(Relaxed) == 0 && request.compare_exchange(0, at::RESERVED, Acquire, Relaxed).is_ok()
        });
        let Some(index) = free else {
            self.search.skips_left.store(count as u32, Relaxed);
            return ShownAt::NOWHERE;
        };
        self.search.start.store(index as u32 + 1, Relaxed);
        let entry = &self.entries[index];
        entry.begin.store(shown.begin, Relaxed);
        entry.handle.store(shown.handle, Relaxed);
        entry.offset.store(shown.offset, Relaxed);
        entry.length.store(shown.length, Relaxed);
        entry.threads.store(u64::from(shown.tid) | u64::from(shown.caller) << 32, Relaxed);
        match shown.file {
            ShownFile::Unknown => entry.path[0].store(0, Relaxed),
            ShownFile::Descriptor(fd) => entry.path[0].store(at::descriptor_word(fd), Relaxed),
            ShownFile::Path(path) => entry.set_path(path),
        }
        entry.request.store(at::word(shown.op, number), Release);
        process::count_pending_used(index as u64 + 1);
        ShownAt { entry: index as u16 + 1, number }
    }

    /// Shows the request no longer. Does nothing if it is not shown, or if the table is that of
    /// another process image.
    pub(crate) fn hide(self, op: Op, ShownAt { entry, number }: ShownAt) {
        let Some(index) = usize::from(entry).checked_sub(1) else { return };
        let Some(entry) = self.entries.get(index) else { return };
        // A request ends once, so no other thread frees the entry now.
        if entry.request.load(Relaxed) == at::word(op, number) {
            entry.request.store(0, Release);
            self.search.start.store(index as u32, Relaxed);
            self.search.skips_left.store(0, Relaxed);
        }
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

    fn entries(count: usize) -> Vec<PendingEntry> {
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
        (0..count).map(entry).collect()
    }

    fn request(path: &[u8]) -> ShownRequest<'_> {
        ShownRequest {
            op: READ,
            begin: 1,
            handle: 2,
            offset: 3,
            length: NONE,
            tid: 5,
            caller: 6,
            file: ShownFile::Path(path),
        }
    }

    fn path_of(entry: &PendingEntry) -> Vec<u8> {
        let bytes: Vec<u8> = entry.path.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
    }

    #[test]
    fn entries_are_taken_once_and_freed_by_their_request_only() {
        let (entries, search) = (entries(3), Search::new());
        let table = PendingTable { entries: &entries, search: &search };
        let taken: Vec<ShownAt> = (1..=4).map(|number| table.show(number, &request(b"/a"))).collect();
        let mut indices: Vec<u16> = taken[..3].iter().map(|taken| taken.entry).collect();
        indices.sort_unstable();
        assert_eq!((indices, taken[3]), (vec![1, 2, 3], ShownAt::NOWHERE));
        table.hide(READ, ShownAt::NOWHERE);
        table.hide(WRITE, taken[1]);
        table.hide(READ, ShownAt { number: 9, ..taken[1] });
        assert_eq!(table.show(5, &request(b"/b")), ShownAt::NOWHERE, "the entry is not free");
        table.hide(READ, taken[1]);
        assert_eq!(table.show(6, &request(b"/b")).entry, taken[1].entry);
        let entry = &entries[usize::from(taken[1].entry) - 1];
        assert_eq!((entry.threads.load(Relaxed), path_of(entry)), (5 | 6 << 32, b"/b".to_vec()));
    }

    #[test]
    fn entry_that_was_freed_while_others_searched_is_found_later() {
        let (entries, search) = (entries(3), Search::new());
        let table = PendingTable { entries: &entries, search: &search };
        let taken: Vec<ShownAt> = (1..=3).map(|number| table.show(number, &request(b""))).collect();
        table.hide(READ, taken[0]);
        // As if the search had ended without an entry just before.
        search.skips_left.store(3, Relaxed);
        let shown: Vec<u16> = (4..=7).map(|number| table.show(number, &request(b"")).entry).collect();
        assert_eq!(shown, [0, 0, 0, taken[0].entry]);
    }

    #[test]
    fn end_of_a_long_path_is_kept() {
        let (entries, search) = (entries(1), Search::new());
        let table = PendingTable { entries: &entries, search: &search };
        let mut last = ShownAt::NOWHERE;
        for length in [0, 1, 7, 8, 9, 204, 205, 207, 208, 209, 4096] {
            table.hide(READ, last);
            let path: Vec<u8> = (0..length).map(|index| b'a' + (index % 26) as u8).collect();
            last = table.show(1, &request(&path));
            let kept = path_of(&entries[0]);
            match length {
                ..=208 => assert_eq!(kept, path),
                _ => assert_eq!(kept, [b"...", &path[length - 205..]].concat()),
            }
        }
    }
}
