//! A record with all its fields, before compression.

/// Type of an I/O: the field `recordType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordType(u8);

/// Kind of accessed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// Data of a user's file.
    File,
    /// Indirect blocks and the like.
    Meta,
    /// Blocks that the file system reads ahead.
    ReadAhead,
    /// Blocks that are paged.
    VirtualMemory,
}

impl RecordType {
    /// A call of a program, not a physical I/O.
    pub const LOGICAL: u8 = 0x80;
    /// A write, not a read.
    pub const WRITE: u8 = 0x40;
    /// The data was not in the cache.
    pub const CACHE_MISS: u8 = 0x20;
    /// The data was in the cache because it had been read ahead.
    pub const READ_AHEAD_HIT: u8 = 0x10;
    /// The process did not wait for the I/O.
    pub const ASYNC: u8 = 0x08;
    /// A bit that the appendix does not define.
    pub const RESERVED: u8 = 0x04;
    /// Mask of [`Data`].
    pub const DATA: u8 = 0x03;
    /// The line is a comment.
    pub const COMMENT: u8 = 0xff;

    /// Returns the record type of these bits; `None` for the value of a comment.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<RecordType> {
        (bits != RecordType::COMMENT).then_some(RecordType(bits))
    }

    /// Returns the bits as in the trace.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Returns true for a call of a program, false for an I/O of a disk.
    #[must_use]
    pub fn is_logical(self) -> bool {
        self.has(RecordType::LOGICAL)
    }

    /// Returns true for a write, false for a read.
    #[must_use]
    pub fn is_write(self) -> bool {
        self.has(RecordType::WRITE)
    }

    /// Returns true if the process did not wait for the I/O.
    #[must_use]
    pub fn is_async(self) -> bool {
        self.has(RecordType::ASYNC)
    }

    /// Returns true if the data was not in the cache. Meaningless if the tracer did not know it.
    #[must_use]
    pub fn is_cache_miss(self) -> bool {
        self.has(RecordType::CACHE_MISS)
    }

    /// Returns true if the data was in the cache because it had been read ahead. Meaningless if the
    /// tracer did not know it.
    #[must_use]
    pub fn is_read_ahead_hit(self) -> bool {
        self.has(RecordType::READ_AHEAD_HIT)
    }

    /// Returns the kind of accessed data.
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

/// One I/O. Times are in ticks of 10 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Type of the I/O.
    pub kind: RecordType,
    /// Logical: byte in the file. Physical: block of the disk.
    pub offset: u64,
    /// Logical: bytes requested. Physical: blocks.
    pub length: u64,
    /// Begin, relative to the begin of the trace.
    pub start: u64,
    /// Time from begin to completion, as reported to the process.
    pub took: u64,
    /// Operation id, which a call shares with the physical I/Os that it caused. Unique in a
    /// process; 0 if unknown.
    pub operation: u64,
    /// Logical: the file, with a new number per open, unique in its process. Physical: the disk.
    pub file: u64,
    /// The process. A physical record has only the process of its line or of the previous record:
    /// it belongs to the process of the logical record with the same operation.
    pub process: u64,
    /// CPU time of the process from the begin of its previous I/O to the begin of this one; for the
    /// first, from the begin of the process. 0 for physical records.
    pub process_time: u64,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An I/O.
    Record(Record),
    /// Free text, without a line end. Programs ignore it.
    Comment(Vec<u8>),
}
