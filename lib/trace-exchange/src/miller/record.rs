//! A record with all its fields, before compression.

/// What an I/O was: the field `recordType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordType(u8);

/// What kind of data was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// Data of a user's file.
    File,
    /// Indirect blocks and the like.
    Meta,
    /// Blocks that the file system reads ahead.
    ReadAhead,
    /// Blocks that paging wants.
    VirtualMemory,
}

impl RecordType {
    /// Not a physical I/O, but a call of a program.
    pub const LOGICAL: u8 = 0x80;
    /// Not a read.
    pub const WRITE: u8 = 0x40;
    /// The cache did not have it.
    pub const CACHE_MISS: u8 = 0x20;
    /// The cache had it because it had been read ahead.
    pub const READ_AHEAD_HIT: u8 = 0x10;
    /// The process did not wait for it.
    pub const ASYNC: u8 = 0x08;
    /// A bit that the appendix gives no meaning.
    pub const RESERVED: u8 = 0x04;
    /// [`Data`].
    pub const DATA: u8 = 0x03;
    /// The line is a comment.
    pub const COMMENT: u8 = 0xff;

    /// `None` for the value of a comment.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<RecordType> {
        (bits != RecordType::COMMENT).then_some(RecordType(bits))
    }

    /// As in the trace.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// A call of a program; false: an I/O of a disk.
    #[must_use]
    pub fn is_logical(self) -> bool {
        self.has(RecordType::LOGICAL)
    }

    /// A write; false: a read.
    #[must_use]
    pub fn is_write(self) -> bool {
        self.has(RecordType::WRITE)
    }

    /// The process did not wait for it.
    #[must_use]
    pub fn is_async(self) -> bool {
        self.has(RecordType::ASYNC)
    }

    /// The cache did not have it. Means nothing in a trace whose tracer did not know.
    #[must_use]
    pub fn is_cache_miss(self) -> bool {
        self.has(RecordType::CACHE_MISS)
    }

    /// The cache had it because it had been read ahead. Means nothing in a trace whose tracer did not know.
    #[must_use]
    pub fn is_read_ahead_hit(self) -> bool {
        self.has(RecordType::READ_AHEAD_HIT)
    }

    /// What kind of data was accessed.
    #[must_use]
    pub fn data(self) -> Data {
        match self.0 & RecordType::DATA {
            0 => Data::File,
            1 => Data::Meta,
            2 => Data::ReadAhead,
            _ => Data::VirtualMemory,
        }
    }
}

/// One I/O. Times are ticks of 10 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it was.
    pub kind: RecordType,
    /// Logical: byte in the file. Physical: block of the disk.
    pub offset: u64,
    /// Logical: bytes asked for. Physical: blocks.
    pub length: u64,
    /// Begin, since the trace's.
    pub start: u64,
    /// From begin to completion, as it was reported to the process.
    pub took: u64,
    /// The same for a call and for the physical I/Os that it caused. Unique in a process; 0 where it is not known.
    pub operation: u64,
    /// Logical: the file, a new number per open, unique in its process. Physical: the disk.
    pub file: u64,
    /// The process. Of a physical record only what the line, or the record before, says: it belongs to the process of the
    /// logical record with the same operation.
    pub process: u64,
    /// CPU time of the process from the begin of its I/O before to that of this one; of its first: since its own begin.
    /// 0 for physical records.
    pub process_time: u64,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An I/O.
    Record(Record),
    /// Free text, without a line end. Programs pass over it.
    Comment(Vec<u8>),
}
