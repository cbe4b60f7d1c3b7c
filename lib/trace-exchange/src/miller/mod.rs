//! The ASCII trace format of E. L. Miller, *Input/Output Behavior of Supercomputing Applications* (1990), appendix.
//!
//! A trace is text, a record per line: up to ten numbers, in hexadecimal, with blanks between them, in this order:
//!
//! ```text
//! recordType compression offset length startTime completionTime operationId fileId processId processTime
//! ```
//!
//! Which of offset, length, operationId, fileId and processId are there, the bits of `compression` say ([`compression`]);
//! what is not there follows from records before it. What the appendix leaves open, and how it is read here, is in
//! `docs/reference/miller.md`.
//!
//! | module | role |
//! |---|---|
//! | [`record`] | a record with all its fields, and comments |
//! | [`reader`] | text to records |
//! | [`writer`] | records to text |
//! | [`export`], [`import`] | MIOT's events to records, and back |
//! | `comment` | what records cannot say |
//! | `state` | what records leave out |

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

/// Nanoseconds of a tick, the unit of all times of the format.
pub const TICK: u64 = 10_000;

/// Bytes of a block: `TRACE_BLOCK_SIZE`.
pub const BLOCK: u64 = 512;

/// Bits of the compression field.
pub mod compression {
    /// The offset of a logical record is in blocks of [`super::BLOCK`] bytes.
    pub const OFFSET_IN_BLOCKS: u8 = 0x01;
    /// The length of a logical record is in blocks of [`super::BLOCK`] bytes.
    pub const LENGTH_IN_BLOCKS: u8 = 0x02;
    /// No length: as the record of this file before.
    pub const NO_LENGTH: u8 = 0x04;
    /// No process: as the record before.
    pub const NO_PROCESSID: u8 = 0x08;
    /// No operation: as the record of this file before.
    pub const NO_OPERATIONID: u8 = 0x20;
    /// No offset: where the access to this file before ended.
    pub const NO_BLOCK: u8 = 0x40;
    /// No file: as the record of this process before.
    pub const NO_FILEID: u8 = 0x80;
    /// All of them.
    pub const ALL: u8 = OFFSET_IN_BLOCKS
        | LENGTH_IN_BLOCKS
        | NO_LENGTH
        | NO_PROCESSID
        | NO_OPERATIONID
        | NO_BLOCK
        | NO_FILEID;
}
