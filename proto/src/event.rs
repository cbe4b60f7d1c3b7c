//! The 64-byte event record.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for the major version of the segment.**
//!
//! A record is one slot of eight little-endian `u64` words, followed by as many continuation slots as
//! its extension needs. All slots of a record become visible with one store.
//!
//! ```text
//! word 0   bits 0-7 kind · 8-15 slots of the record (1..=MAX_SLOTS) · 16-23 layer · 24-31 operation
//!          bits 32-63 request number: given at the request's begin, counts up per thread, never 0; 0 in a
//!          record that is no request
//! word 1   completion time, raw clock ticks
//! word 2   bits 0-47 duration in ticks (saturating) · bits 48-63 flags
//! word 3   file handle id (a new one per open, counts up per process; 0 = none)
//! word 4   offset, or the operation's own (see op::ArgMeaning)
//! word 5   length asked for, or the operation's own
//! word 6   result: bytes moved or another value; negative = −errno
//! word 7   bits 0-31 attempt number of the lane, modulo 2³²: counts every record the lane was asked to
//!          take, so that a gap between two records is the exact number lost there
//!          bits 32-63 request number of the enclosing request of the same thread (0 = none)
//! ```
//!
//! The extension, when the record has more than one slot, starts right after the first slot:
//!
//! ```text
//! u16 length of path 1 · u16 length of path 2 · u8 present words (see Ext) · 3 bytes zero
//! one u64 per bit set in `present words`, in bit order
//! bytes of path 1, bytes of path 2, zeros up to the end of the slot
//! ```

use crate::op::Op;

/// Words in a slot.
pub const WORDS: usize = 8;
/// Bytes in a slot.
pub const SLOT_BYTES: usize = WORDS * 8;
/// One slot.
pub type Slot = [u64; WORDS];

/// Longest path recorded, in bytes: Linux's `PATH_MAX`. Longer ones are cut and flagged.
pub const MAX_PATH: usize = 4096;
/// Largest record: the first slot and an extension with two full paths and all words.
pub const MAX_SLOTS: usize = 1 + (EXT_HEADER + 8 * EXT_WORDS + 2 * MAX_PATH).div_ceil(SLOT_BYTES);

const EXT_HEADER: usize = 8;
/// Bits of the words of an extension, which are also their places in [`Ext::words`].
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

/// Words that an extension can have.
pub const EXT_WORDS: usize = 8;
/// Longest duration of a record, ticks; longer ones are flagged [`flag::DURATION_SATURATED`].
pub const MAX_DURATION: u64 = (1 << 48) - 1;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// A completed request.
    Request = 1,
    /// Says which path a handle stands for, where no open event could say it: a descriptor opened
    /// before the hook, inherited through `fork` or `exec`, or whose open event was lost.
    File = 2,
}

impl RecordKind {
    /// The kind with this number, if this version knows it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<RecordKind> {
        match number {
            1 => Some(RecordKind::Request),
            2 => Some(RecordKind::File),
            _ => None,
        }
    }
}

/// Bits of the flags of an event.
pub mod flag {
    /// A path was longer than [`super::MAX_PATH`] and was cut.
    pub const PATH_CUT: u16 = 1 << 0;
    /// The offset was asked of the kernel after the request, because the position is shared with
    /// another process or the file is opened for appending.
    pub const OFFSET_QUERIED: u16 = 1 << 1;
    /// The request was completed asynchronously: begin and end on different calls.
    pub const ASYNC: u16 = 1 << 2;
    /// The request never completed: its thread or process died in it.
    pub const INTERRUPTED: u16 = 1 << 3;
    /// The file is opened for appending.
    pub const APPEND: u16 = 1 << 4;
    /// The request bypasses the page cache (`O_DIRECT`).
    pub const DIRECT: u16 = 1 << 5;
    /// The duration did not fit 48 bits and stands at its maximum.
    pub const DURATION_SATURATED: u16 = 1 << 6;
    /// Set by the log-server: the event came after its time had already been merged.
    pub const LATE: u16 = 1 << 7;
    /// Bits 8-13 belong to the operation, of the messages of a debug log bit 14, too. `mmap`: PROT_READ, PROT_WRITE, PROT_EXEC, MAP_SHARED. `close_range`: its flags. Reads and writes:
    /// [`UNALIGNED`].
    pub const OP_SHIFT: u32 = 8;
    /// Of reads and writes: the buffer (of several the first) does not begin at a multiple of [`MEMORY_ALIGNMENT`].
    pub const UNALIGNED: u16 = 1 << OP_SHIFT;
    /// Bytes; what Darshan takes if it was not built otherwise (`--with-mem-align`).
    pub const MEMORY_ALIGNMENT: usize = 8;
    /// Set by the tiers, never by a producer: `time` is not when the request completed, see [`moved_bit`].
    pub const MOVED: u16 = 1 << 14;
    /// The bit that says that the completion time of an event of this operation was moved: it lay before that of the event
    /// before it in its stream, before what its node had promised, or in the future. [`MOVED`], but for the messages of a
    /// debug log, whose bits 8-14 are in use: there it is bit 1, which says nothing of them otherwise.
    #[inline]
    #[must_use]
    pub const fn moved_bit(op: crate::op::Op) -> u16 {
        let debug = crate::op::app::DEBUG;
        if op.layer == debug.layer && op.number == debug.number { OFFSET_QUERIED } else { MOVED }
    }
    /// Set by the log-server: two nanoseconds of the node's clock fall on one of the trace, and this event is of the
    /// later one. With it the node's own time can be had back exactly.
    pub const TIE: u16 = 1 << 15;
}

/// The value of offset, length or handle that means "none": not every request has one.
pub const NONE: u64 = u64::MAX;

/// A record as the producer fills it, apart from what the lane adds (kind and slots, attempt number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which operation, in which layer.
    pub op: Op,
    /// Number of this request in its lane, given at its begin.
    pub request: u32,
    /// Number of the enclosing request, 0 if none.
    pub enclosing: u32,
    /// Completion time in raw ticks.
    pub end: u64,
    /// Duration in ticks.
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

/// The optional part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ext<'a> {
    /// Bit 0: the other file of `copy_file_range`, `sendfile`, `splice`: the one read from.
    pub handle2: Option<u64>,
    /// Bit 1: the offset in the other file.
    pub offset2: Option<u64>,
    /// Bit 2: CPU time of the thread at completion, nanoseconds.
    pub cpu_time: Option<u64>,
    /// Bit 3: on whose behalf the request was made: by a file-system client, or by a library in another thread or later.
    pub caller: Option<Caller>,
    /// Bit 4: the communicator that the file was opened with (MPI-IO).
    pub communicator: Option<Communicator>,
    /// Bit 5: the offset as the program gave it, in elementary types of the view (MPI-IO).
    pub etypes: Option<u64>,
    /// Bit 6: bytes of one element of the datatype, of the file type where a view is set (MPI-IO).
    pub type_size: Option<u64>,
    /// Bit 7: extent of that type, bytes.
    pub type_extent: Option<u64>,
    /// The path of the request, absolute where the hook could make it so; not necessarily UTF-8.
    pub path1: &'a [u8],
    /// The second path (the new name of a rename), the name of an extended attribute, or the view that is set: the
    /// representation, a space, and the blocks of the file type as `offset:bytes`, separated by commas.
    pub path2: &'a [u8],
}

/// Who asked a file-system client for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Thread id (what the kernel tells a FUSE file system), 0 if it is not known.
    pub tid: u32,
    /// User id, [`Caller::UNKNOWN`] if it is not known.
    pub uid: u32,
}

/// The communicator that a file was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Rank of the process in it.
    pub rank: u32,
    /// How many processes it has.
    pub size: u32,
}

impl Caller {
    /// User that is not known.
    pub const UNKNOWN: u32 = u32::MAX;

    /// The word of the extension: thread in the low half, user in the high one.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.tid as u64 | (self.uid as u64) << 32
    }

    /// What [`word`](Self::word) gave.
    #[must_use]
    pub const fn from_word(word: u64) -> Caller {
        Caller { tid: word as u32, uid: (word >> 32) as u32 }
    }
}

impl Communicator {
    /// The word of the extension: rank in the low half, size in the high one.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.rank as u64 | (self.size as u64) << 32
    }

    /// What [`word`](Self::word) gave.
    #[must_use]
    pub const fn from_word(word: u64) -> Communicator {
        Communicator { rank: word as u32, size: (word >> 32) as u32 }
    }
}

impl Ext<'_> {
    /// True if there is nothing to record.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(Option::is_none) && self.path1.is_empty() && self.path2.is_empty()
    }

    /// The words of the extension, by the number of their bit.
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
    /// The first slot of the record.
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

    /// Reads the first slot of a record. Any bits give an event: whether they make sense is for the
    /// caller to check.
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

/// RecordKind byte of a first slot.
#[inline]
#[must_use]
pub fn kind_of(slot: &Slot) -> u8 {
    slot[0] as u8
}

/// Slot count of a first slot; a valid one is in `1..=MAX_SLOTS`.
#[inline]
#[must_use]
pub fn slots_of(slot: &Slot) -> usize {
    usize::from((slot[0] >> 8) as u8)
}

/// Attempt number of a first slot, modulo 2³².
#[inline]
#[must_use]
pub fn attempt_of(slot: &Slot) -> u32 {
    slot[7] as u32
}

/// Slots a record with this extension takes, the first included.
#[inline]
#[must_use]
pub fn slots_for(ext: &Ext<'_>) -> usize {
    if ext.is_empty() { 1 } else { 1 + ext.bytes().div_ceil(SLOT_BYTES) }
}

/// Writes an extension word by word, through `put(slot index from 1, word index, value)`.
///
/// Paths longer than [`MAX_PATH`] are cut; the caller sets [`flag::PATH_CUT`] (see [`truncate_path`]).
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
    // The second path follows the first without a gap: its words start with the bytes that are left.
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

/// The part of a path that fits a record, and [`flag::PATH_CUT`] if some of it did not.
#[inline]
#[must_use]
pub fn truncate_path(path: &[u8]) -> (&[u8], u16) {
    match path.get(..MAX_PATH) {
        Some(head) if path.len() > MAX_PATH => (head, flag::PATH_CUT),
        _ => (path, 0),
    }
}

/// Reads the extension of a record from its continuation slots, given as bytes.
///
/// # Errors
/// `None` if lengths or words do not fit the bytes; such a record comes from a broken producer.
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
    use proptest::prelude::*;

    const _: () = assert!(MAX_SLOTS <= u8::MAX as usize, "the slot count is one byte");

    proptest! {
        #[test]
        fn an_event_survives_its_slot(
            layer: u8, number: u8, request: u32, enclosing: u32, end: u64, duration in 0..=MAX_DURATION,
            flags: u16, handle: u64, offset: u64, length: u64, result: i64, slots in 1..=MAX_SLOTS as u8, attempt: u32,
        ) {
            let event = Event { op: Op { layer, number }, request, enclosing, end, duration, flags, handle, offset, length, result };
            let slot = event.slot(RecordKind::Request, slots, attempt);
            prop_assert_eq!(Event::from_slot(&slot), event);
            prop_assert_eq!((kind_of(&slot), slots_of(&slot), attempt_of(&slot)), (1, usize::from(slots), attempt));
        }

        #[test]
        fn an_extension_survives_its_slots(
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
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = ext_from_bytes(&bytes);
        }
    }

    #[test]
    fn a_long_duration_saturates_and_says_so() {
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
