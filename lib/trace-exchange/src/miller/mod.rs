//! The ASCII trace format of E. L. Miller, *Input/Output Behavior of Supercomputing Applications*
//! (1990), appendix.
//!
//! A trace is text with one record per line. A record has up to ten numbers, in hexadecimal,
//! separated by blanks, in this order:
//!
//! ```text
//! recordType compression offset length startTime completionTime
//! operationId fileId processId processTime
//! ```
//!
//! The bits of `compression` determine which of offset, length, operationId, fileId and processId
//! are present ([`compression`]). Omitted fields are derived from earlier records.
//! `docs/reference/miller.md` lists the questions that the appendix leaves open, and how MIOT
//! answers them.
//!
//! | module | role |
//! |---|---|
//! | [`record`] | a record with all its fields, and comments |
//! | [`reader`] | text to records |
//! | [`writer`] | records to text |
//! | [`export`], [`import`] | MIOT's events to records, and back |
//! | `comment` | data that records cannot hold |
//! | `state` | derives omitted fields |

mod comment;
pub mod export;
pub mod import;
pub mod reader;
pub mod record;
mod state;
pub mod writer;

pub use export::{Export, SkippedRequests};
pub use import::{ImportError, Options};
pub use reader::{Base, Damage, Mode, ReadError, Reader};
pub use record::{Data, Item, Record, RecordType};
pub use writer::Writer;

/// Nanoseconds per tick, the unit of all times of the format.
pub const TICK: u64 = 10_000;

/// Bytes per block: `TRACE_BLOCK_SIZE`.
pub const BLOCK: u64 = 512;

/// Bits of the compression field.
pub mod compression {
    /// The offset of a logical record is in blocks of [`super::BLOCK`] bytes.
    pub const OFFSET_IN_BLOCKS: u8 = 0x01;
    /// The length of a logical record is in blocks of [`super::BLOCK`] bytes.
    pub const LENGTH_IN_BLOCKS: u8 = 0x02;
    /// The length is omitted: as in the previous record of this file.
    pub const NO_LENGTH: u8 = 0x04;
    /// The process is omitted: as in the previous record.
    pub const NO_PROCESSID: u8 = 0x08;
    /// The operation is omitted: as in the previous record of this file.
    pub const NO_OPERATIONID: u8 = 0x20;
    /// The offset is omitted: the end of the previous access to this file.
    pub const NO_BLOCK: u8 = 0x40;
    /// The file is omitted: as in the previous record of this process.
    pub const NO_FILEID: u8 = 0x80;
    /// All bits.
    pub const ALL: u8 = OFFSET_IN_BLOCKS
        | LENGTH_IN_BLOCKS
        | NO_LENGTH
        | NO_PROCESSID
        | NO_OPERATIONID
        | NO_BLOCK
        | NO_FILEID;
}
