//! The 64-byte event record.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for the major version of the
//! segment.**
//!
//! A record is one slot of eight little-endian `u64` words, followed by the continuation slots of
//! its extension, if it has one. All slots of a record become visible with one store.
//!
//! ```text
//! word 0   bits 0-7 kind · 8-15 slots of the record (1..=MAX_SLOTS) · 16-23 layer ·
//!          24-31 operation
//!          bits 32-63 request number: assigned at the start of the request, ascending per thread,
//!          never 0; 0 in a record that is not a request
//! word 1   completion time, raw clock ticks
//! word 2   bits 0-47 duration in ticks (saturating) · bits 48-63 flags
//! word 3   file handle (a new number per open, ascending per process; 0 = none)
//! word 4   offset, or an argument of the operation (see op::ArgMeaning)
//! word 5   requested length, or an argument of the operation
//! word 6   result: bytes moved or another value; negative = −errno
//! word 7   bits 0-31 attempt number of the lane, modulo 2³²: counts every record that was offered
//!          to the lane, so that a gap between two records is the exact number lost there
//!          bits 32-63 request number of the parent on the same thread (0 = none)
//! ```
//!
//! The extension of a record with more than one slot starts directly after the first slot:
//!
//! ```text
//! u16 length of path 1 · u16 length of path 2 · u8 present words (see Ext) · 3 bytes zero
//! one u64 per bit set in `present words`, in bit order
//! bytes of path 1, bytes of path 2, zeros to the end of the slot
//! ```

use crate::op::Op;

/// Number of words in a slot.
pub const WORDS: usize = 8;
/// Size of a slot, bytes.
pub const SLOT_BYTES: usize = WORDS * 8;
/// One slot.
pub type Slot = [u64; WORDS];

/// Longest recorded path, bytes: `PATH_MAX` of Linux. Longer paths are truncated and flagged.
pub const MAX_PATH: usize = 4096;
/// Number of slots of the largest record: the first slot and an extension with all words and two
/// paths of [`MAX_PATH`].
pub const MAX_SLOTS: usize = 1 + (EXT_HEADER + 8 * EXT_WORDS + 2 * MAX_PATH).div_ceil(SLOT_BYTES);

const EXT_HEADER: usize = 8;
/// Numbers of the words of an extension: bits of `present words` and indexes in [`Ext::words`].
pub mod word {
    /// See [`super::Ext::handle2`].
    pub const HANDLE2: usize = 0;
    /// See [`super::Ext::offset2`].
    pub const OFFSET2: usize = 1;
    /// See [`super::Ext::cpu_time`].
    pub const CPU_TIME: usize = 2;
    /// See [`super::Ext::caller`].
    pub const CALLER: usize = 3;
    /// See [`super::Ext::communicator`].
    pub const COMMUNICATOR: usize = 4;
    /// See [`super::Ext::etypes`].
    pub const ETYPES: usize = 5;
    /// See [`super::Ext::type_size`].
    pub const TYPE_SIZE: usize = 6;
    /// See [`super::Ext::type_extent`].
    pub const TYPE_EXTENT: usize = 7;
}

/// Maximum number of words in an extension.
pub const EXT_WORDS: usize = 8;
/// Longest duration of a record, ticks. A longer one is stored as this and flagged
/// [`flag::DURATION_SATURATED`].
pub const MAX_DURATION: u64 = (1 << 48) - 1;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// A completed request.
    Request = 1,
    /// The path of a handle without a recorded open: a descriptor opened before the hook was
    /// active, inherited through `fork` or `exec`, or whose open event was lost.
    File = 2,
}

impl RecordKind {
    /// Returns the kind with this number; `None` if this version does not define it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<RecordKind> {
        match number {
            1 => Some(RecordKind::Request),
            2 => Some(RecordKind::File),
            _ => None,
        }
    }
}

/// Bits of [`Event::flags`].
pub mod flag {
    /// A path was longer than [`super::MAX_PATH`] and was truncated.
    pub const PATH_CUT: u16 = 1 << 0;
    /// The offset was queried from the kernel after the request, because another process shares the
    /// position or the file is open for appending.
    pub const OFFSET_QUERIED: u16 = 1 << 1;
    /// The request completed asynchronously: it starts and ends in different calls.
    pub const ASYNC: u16 = 1 << 2;
    /// The request never completed: its thread or process ended during it.
    pub const INTERRUPTED: u16 = 1 << 3;
    /// The file is open for appending.
    pub const APPEND: u16 = 1 << 4;
    /// The request bypasses the page cache (`O_DIRECT`).
    pub const DIRECT: u16 = 1 << 5;
    /// The duration exceeded 48 bits and is stored as [`super::MAX_DURATION`].
    pub const DURATION_SATURATED: u16 = 1 << 6;
    /// Set by the log-server: the event arrived after the merge had passed its time (late event).
    pub const LATE: u16 = 1 << 7;
    /// First bit of those with a meaning per operation: bits 8-13, for debug messages also bit 14.
    /// `mmap`: PROT_READ, PROT_WRITE, PROT_EXEC, MAP_SHARED. `close_range`: its flags. Reads and
    /// writes: [`UNALIGNED`].
    pub const OP_SHIFT: u32 = 8;
    /// Reads and writes: the address of the (first) buffer is not a multiple of
    /// [`MEMORY_ALIGNMENT`].
    pub const UNALIGNED: u16 = 1 << OP_SHIFT;
    /// Memory alignment of [`UNALIGNED`], bytes: Darshan's default (`--with-mem-align`).
    pub const MEMORY_ALIGNMENT: usize = 8;
    /// Set by log-client or log-server, never by a producer: `time` is not the completion time of
    /// the request, see [`moved_bit`].
    pub const MOVED: u16 = 1 << 14;
    /// Returns the flag of an event of this operation whose completion time was changed because it
    /// was before that of the previous event of its stream, before the watermark of its node, or in
    /// the future. This is [`MOVED`], except for debug messages, whose bits 8-14 are in use: for
    /// them it is bit 1, which has no other meaning there.
    #[inline]
    #[must_use]
    pub const fn moved_bit(op: crate::op::Op) -> u16 {
        let debug = crate::op::app::DEBUG;
        if op.layer == debug.layer && op.number == debug.number { OFFSET_QUERIED } else { MOVED }
    }
    /// Set by the log-server: two nanoseconds of the node's clock map to one of the trace, and this
    /// event belongs to the later one. With it, the node's own time can be restored exactly.
    pub const TIE: u16 = 1 << 15;
}

/// Value of an offset, length or handle that a request does not have.
pub const NONE: u64 = u64::MAX;

/// Record as the producer fills it, without the fields that the lane adds (kind, number of slots,
/// attempt number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Layer and operation.
    pub op: Op,
    /// Number of this request in its lane, assigned at its start.
    pub request: u32,
    /// Request number of the parent, 0 if none.
    pub enclosing: u32,
    /// Completion time, raw ticks.
    pub end: u64,
    /// Duration, ticks.
    pub duration: u64,
    /// See [`flag`].
    pub flags: u16,
    /// Handle of the file, 0 if none.
    pub handle: u64,
    /// See [`crate::op::ArgMeaning`]; [`NONE`] if unused or unknown.
    pub offset: u64,
    /// See [`crate::op::ArgMeaning`]; [`NONE`] if unused.
    pub length: u64,
    /// See [`crate::op::ResultMeaning`]; negative = −errno.
    pub result: i64,
}

/// Extension of a record: its optional part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ext<'a> {
    /// Bit 0: handle of the file that `copy_file_range`, `sendfile` or `splice` reads from.
    pub handle2: Option<u64>,
    /// Bit 1: offset in that file.
    pub offset2: Option<u64>,
    /// Bit 2: CPU time of the thread at completion, nanoseconds.
    pub cpu_time: Option<u64>,
    /// Bit 3: thread and user for which a file-system client made the request, or a library in
    /// another thread or at a later time.
    pub caller: Option<Caller>,
    /// Bit 4: communicator with which the file was opened (MPI-IO).
    pub communicator: Option<Communicator>,
    /// Bit 5: offset as the program passed it, in elementary types of the view (MPI-IO).
    pub etypes: Option<u64>,
    /// Bit 6: size of one element of the datatype, or of the file type if a view is set, bytes
    /// (MPI-IO).
    pub type_size: Option<u64>,
    /// Bit 7: extent of that type, bytes (MPI-IO).
    pub type_extent: Option<u64>,
    /// Path of the request, absolute if the hook could resolve it; not necessarily UTF-8.
    pub path1: &'a [u8],
    /// Second path (the new name of a rename), name of an extended attribute, or the new view: the
    /// data representation, a space, and the blocks of the file type as `offset:bytes`, separated
    /// by commas.
    pub path2: &'a [u8],
}

/// Thread and user for which a request was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Thread id (as the kernel passes it to a FUSE file system), 0 if unknown.
    pub tid: u32,
    /// User id, [`Caller::UNKNOWN`] if unknown.
    pub uid: u32,
}

/// Communicator with which a file was opened (MPI-IO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Rank of the process in the communicator.
    pub rank: u32,
    /// Number of processes in the communicator.
    pub size: u32,
}

impl Caller {
    /// User id of an unknown user.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Returns the word of the extension: thread in the low half, user in the high one.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.tid as u64 | (self.uid as u64) << 32
    }

    /// Inverse of [`word`](Self::word).
    #[must_use]
    pub const fn from_word(word: u64) -> Caller {
        Caller { tid: word as u32, uid: (word >> 32) as u32 }
    }
}

impl Communicator {
    /// Returns the word of the extension: rank in the low half, size in the high one.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.rank as u64 | (self.size as u64) << 32
    }

    /// Inverse of [`word`](Self::word).
    #[must_use]
    pub const fn from_word(word: u64) -> Communicator {
        Communicator { rank: word as u32, size: (word >> 32) as u32 }
    }
}

impl Ext<'_> {
    /// Returns true if there is neither a word nor a path.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(Option::is_none) && self.path1.is_empty() && self.path2.is_empty()
    }

    /// Returns the words of the extension, indexed by [`word`].
    #[inline]
    #[must_use]
    pub fn words(&self) -> [Option<u64>; EXT_WORDS] {
        [
            self.handle2,
            self.offset2,
            self.cpu_time,
            self.caller.map(Caller::word),
            self.communicator.map(Communicator::word),
            self.etypes,
            self.type_size,
            self.type_extent,
        ]
    }

    fn bytes(&self) -> usize {
        EXT_HEADER + 8 * self.words().iter().flatten().count() + self.path1.len() + self.path2.len()
    }
}

impl Event {
    /// Returns the first slot of the record. A duration above [`MAX_DURATION`] is saturated and
    /// flagged.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, kind: RecordKind, slots: u8, attempt: u32) -> Slot {
        let (duration, saturated) = if self.duration <= MAX_DURATION {
            (self.duration, 0)
        } else {
            (MAX_DURATION, flag::DURATION_SATURATED)
        };
        [
            kind as u64
                | u64::from(slots) << 8
                | u64::from(self.op.layer) << 16
                | u64::from(self.op.number) << 24
                | u64::from(self.request) << 32,
            self.end,
            duration | u64::from(self.flags | saturated) << 48,
            self.handle,
            self.offset,
            self.length,
            self.result as u64,
            u64::from(attempt) | u64::from(self.enclosing) << 32,
        ]
    }

    /// Decodes the first slot of a record. Any bits result in an event: the caller must check that
    /// its values are valid.
    #[inline]
    #[must_use]
    pub fn from_slot(slot: &Slot) -> Event {
        Event {
            op: Op { layer: (slot[0] >> 16) as u8, number: (slot[0] >> 24) as u8 },
            request: (slot[0] >> 32) as u32,
            enclosing: (slot[7] >> 32) as u32,
            end: slot[1],
            duration: slot[2] & MAX_DURATION,
            flags: (slot[2] >> 48) as u16,
            handle: slot[3],
            offset: slot[4],
            length: slot[5],
            result: slot[6] as i64,
        }
    }
}

/// Returns the kind byte of a first slot.
#[inline]
#[must_use]
pub fn kind_of(slot: &Slot) -> u8 {
    slot[0] as u8
}

/// Returns the number of slots in a first slot; a valid one is in `1..=MAX_SLOTS`.
#[inline]
#[must_use]
pub fn slots_of(slot: &Slot) -> usize {
    usize::from((slot[0] >> 8) as u8)
}

/// Returns the attempt number of a first slot, modulo 2³².
#[inline]
#[must_use]
pub fn attempt_of(slot: &Slot) -> u32 {
    slot[7] as u32
}

/// Returns the number of slots of a record with this extension, including the first slot.
#[inline]
#[must_use]
pub fn slots_for(ext: &Ext<'_>) -> usize {
    if ext.is_empty() { 1 } else { 1 + ext.bytes().div_ceil(SLOT_BYTES) }
}

/// Writes an extension word by word through `put(slot index from 1, word index, value)`.
///
/// The paths must be at most [`MAX_PATH`] bytes long, see [`truncate_path`].
pub fn write_ext(ext: &Ext<'_>, mut put: impl FnMut(usize, usize, u64)) {
    let words = ext.words();
    let mut present = 0u64;
    for (bit, word) in words.iter().enumerate() {
        present |= u64::from(word.is_some()) << bit;
    }
    let mut at = 0;
    let mut next = |value: u64| {
        put(1 + at / WORDS, at % WORDS, value);
        at += 1;
    };
    next(ext.path1.len() as u64 | (ext.path2.len() as u64) << 16 | present << 32);
    words.iter().flatten().for_each(|w| next(*w));
    // The second path follows the first without a gap: its words start with the remaining bytes of
    // the first.
    let (mut pending, mut bits) = (0u64, 0);
    for path in [ext.path1, ext.path2] {
        let (whole, rest) = path.as_chunks::<8>();
        for chunk in whole {
            let word = u64::from_le_bytes(*chunk);
            next(pending | word << bits);
            pending = if bits == 0 { 0 } else { word >> (64 - bits) };
        }
        for byte in rest {
            pending |= u64::from(*byte) << bits;
            bits += 8;
            if bits == 64 {
                next(pending);
                (pending, bits) = (0, 0);
            }
        }
    }
    if bits > 0 {
        next(pending);
    }
    while !at.is_multiple_of(WORDS) {
        put(1 + at / WORDS, at % WORDS, 0);
        at += 1;
    }
}

/// Number of slots of an extension that consists of one path.
#[inline]
#[must_use]
pub fn path_slots(path: &[u8]) -> usize {
    (EXT_HEADER + path.len()).div_ceil(SLOT_BYTES)
}

/// Content of an extension that consists of one path.
#[derive(Clone, Copy, Debug)]
pub enum OnePath<'a> {
    /// The first path.
    First(&'a [u8]),
    /// The second path, or the arguments of a message.
    Second(&'a [u8]),
}

impl<'a> OnePath<'a> {
    /// Bytes of the path.
    #[inline(always)]
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            OnePath::First(path) | OnePath::Second(path) => path,
        }
    }

    /// First word of the extension.
    #[inline(always)]
    #[must_use]
    pub fn header(self) -> u64 {
        match self {
            OnePath::First(path) => path.len() as u64,
            OnePath::Second(path) => (path.len() as u64) << 16,
        }
    }
}

/// Writes the extension that consists of one path, as [`write_ext`] does, but slot by slot through
/// `put(slot index from 1, words)`. The path must be at most [`MAX_PATH`] bytes long.
#[inline]
pub fn write_path(path: OnePath<'_>, mut put: impl FnMut(usize, Slot)) {
    let (header, path) = (path.header(), path.bytes());
    let mut slot = |index: usize, bytes: &[u8; SLOT_BYTES]| {
        let (words, _) = bytes.as_chunks::<8>();
        put(index, std::array::from_fn(|word| u64::from_le_bytes(words[word])));
    };
    let (head, rest) = path.split_at(path.len().min(SLOT_BYTES - EXT_HEADER));
    let mut bytes = [0; SLOT_BYTES];
    bytes[..EXT_HEADER].copy_from_slice(&header.to_le_bytes());
    bytes[EXT_HEADER..EXT_HEADER + head.len()].copy_from_slice(head);
    slot(1, &bytes);
    for (index, part) in rest.chunks(SLOT_BYTES).enumerate() {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..part.len()].copy_from_slice(part);
        slot(2 + index, &bytes);
    }
}

/// Returns the part of a path that fits a record, and [`flag::PATH_CUT`] if that is not all of it,
/// otherwise 0.
#[inline]
#[must_use]
pub fn truncate_path(path: &[u8]) -> (&[u8], u16) {
    match path.get(..MAX_PATH) {
        Some(head) if path.len() > MAX_PATH => (head, flag::PATH_CUT),
        _ => (path, 0),
    }
}

/// Decodes the extension of a record from the bytes of its continuation slots. Returns `None` if
/// the lengths or words exceed the bytes, as in a record of a faulty producer.
#[must_use]
pub fn ext_from_bytes(bytes: &[u8]) -> Option<Ext<'_>> {
    let header = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let (len1, len2) = (usize::from(header as u16), usize::from((header >> 16) as u16));
    let present = (header >> 32) as u8;
    let mut at = EXT_HEADER;
    let mut words = [None; EXT_WORDS];
    for (bit, word) in words.iter_mut().enumerate() {
        if present & (1 << bit) != 0 {
            *word = Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
            at += 8;
        }
    }
    Some(Ext {
        handle2: words[word::HANDLE2],
        offset2: words[word::OFFSET2],
        cpu_time: words[word::CPU_TIME],
        caller: words[word::CALLER].map(Caller::from_word),
        communicator: words[word::COMMUNICATOR].map(Communicator::from_word),
        etypes: words[word::ETYPES],
        type_size: words[word::TYPE_SIZE],
        type_extent: words[word::TYPE_EXTENT],
        path1: bytes.get(at..at + len1)?,
        path2: bytes.get(at + len1..at + len1 + len2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_written_in_slots_is_the_same_extension() {
        let long = vec![b'x'; MAX_PATH];
        for length in [1, 7, 8, 55, 56, 57, 119, 120, 121, 1000, MAX_PATH] {
            let path = &long[..length];
            let slots = 1 + path_slots(path);
            for (only, ext) in [
                (OnePath::First(path), Ext { path1: path, ..Ext::default() }),
                (OnePath::Second(path), Ext { path2: path, ..Ext::default() }),
            ] {
                assert_eq!(slots, slots_for(&ext), "{length}");
                let (mut one, mut other) = (vec![[7; WORDS]; slots], vec![[7; WORDS]; slots]);
                write_ext(&ext, |slot, word, value| one[slot][word] = value);
                write_path(only, |slot, words| other[slot] = words);
                assert_eq!(one, other, "{length}");
            }
        }
    }
    use proptest::prelude::*;

    const _: () = assert!(MAX_SLOTS <= u8::MAX as usize, "the slot count is one byte");

    proptest! {
        #[test]
        fn event_round_trips_through_slot(
            layer: u8, number: u8, request: u32, enclosing: u32, end: u64, duration in 0..=MAX_DURATION,
            flags: u16, handle: u64, offset: u64, length: u64, result: i64, slots in 1..=MAX_SLOTS as u8, attempt: u32,
        ) {
            let event = Event { op: Op { layer, number }, request, enclosing, end, duration, flags, handle, offset, length, result };
            let slot = event.slot(RecordKind::Request, slots, attempt);
            prop_assert_eq!(Event::from_slot(&slot), event);
            prop_assert_eq!((kind_of(&slot), slots_of(&slot), attempt_of(&slot)), (1, usize::from(slots), attempt));
        }

        #[test]
        fn extension_round_trips_through_slots(
            words: [Option<u64>; EXT_WORDS],
            path1 in prop::collection::vec(any::<u8>(), 0..=MAX_PATH), path2 in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let ext = Ext {
                handle2: words[word::HANDLE2],
                offset2: words[word::OFFSET2],
                cpu_time: words[word::CPU_TIME],
                caller: words[word::CALLER].map(Caller::from_word),
                communicator: words[word::COMMUNICATOR].map(Communicator::from_word),
                etypes: words[word::ETYPES],
                type_size: words[word::TYPE_SIZE],
                type_extent: words[word::TYPE_EXTENT],
                path1: &path1,
                path2: &path2,
            };
            prop_assert_eq!(ext.words(), words);
            let slots = slots_for(&ext);
            prop_assert!(slots <= MAX_SLOTS);
            if ext.is_empty() {
                return Ok(());
            }
            let mut bytes = vec![0xffu8; (slots - 1) * SLOT_BYTES];
            write_ext(&ext, |slot, word, value| {
                let at = (slot - 1) * SLOT_BYTES + word * 8;
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            });
            prop_assert_eq!(ext_from_bytes(&bytes), Some(ext));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = ext_from_bytes(&bytes);
        }
    }

    #[test]
    fn long_duration_saturates_with_flag() {
        let event = Event {
            op: crate::op::posix::READ,
            request: 1,
            enclosing: 0,
            end: 0,
            duration: u64::MAX,
            flags: 0,
            handle: 0,
            offset: NONE,
            length: NONE,
            result: 0,
        };
        let back = Event::from_slot(&event.slot(RecordKind::Request, 1, 0));
        assert_eq!((back.duration, back.flags), (MAX_DURATION, flag::DURATION_SATURATED));
    }
}
