//! Reading and writing a trace directory.
//!
//! ```text
//! DIR/miot-trace.json                        manifest: format, schema version, when, by whom
//! DIR/events/part-000000.parquet             sealed parts; the same part number in every table's folder
//! DIR/{processes,threads,files,losses,clocks,devices}/part-000000.parquet
//! DIR/{processes,threads,files,losses,clocks,devices}/carried-000007.parquet   rows of parts that retention removed
//! DIR/live/part-000001.events.arrows         Arrow IPC streams of the part being written,
//! DIR/live/part-000001.files.arrows  …       one per table that has rows
//! DIR/ledger/part-000000.{live,sealed}       how many rows there were, and how far each stream got
//! ```
//!
//! Rules that every reader and writer keeps:
//!
//! - A part is sealed if and only if `events/part-N.parquet` exists. It is renamed into place last, after
//!   the side tables of the part; from then on the live files of part N are ignored, and removed.
//! - The side-table rows that the events of part N need stand in parts up to N. In the live part they are
//!   durable before the first byte of these events is written.
//! - Parts below N are removed if and only if `threads/carried-N.parquet` exists. What later parts need of them stands
//!   in `carried-N.parquet` of each side table, which are renamed into place before that one; whatever is left of these
//!   parts is ignored, and removed.
//! - Each message of a live stream carries a checksum ([`live`]). A live stream is read up to the last
//!   message that is whole, so a crash at any instant leaves a readable directory.
//! - One process writes to a directory: it holds a lock on the manifest.
//!
//! | module | role |
//! |---|---|
//! | [`schema`] | the columns of every table |
//! | [`clocks`] | from merged time back to a node's own time |
//! | [`escape`] | paths that are not UTF-8 |
//! | `layout`, `manifest` | names of files, and what makes a directory a trace |
//! | [`live`] | one Arrow IPC stream: appending, cutting a torn tail, reading |
//! | `seal`, `sealer` | a live part becomes Parquet; the thread that does it |
//! | `event_file` | the Parquet file of events, page by page |
//! | `ledger`, `linked` | how many rows there were, apart from them; files that vanish under their writer |
//! | `losses`, `ranges` | rows that tell of what is gone |
//! | `retain`, `carried` | the oldest parts go; what is left of them |
//! | [`writer`], `recover` | appending to a trace; what a restarted writer must know |
//! | [`reader`], `scan`, [`rows`], [`follow`] | reading: each event once, some columns of some time, with names, and as they come |
//! | `defined` | whether side tables define what the events of a live part use |
//! | `live_rows` | the rows of a live stream, as far as it is whole |
//! | `unread` | what a reader could not read |
//! | [`fsck`], [`repair`] | is this directory what it should be, and making it so |

mod carried;
mod checksum;
pub mod clocks;
mod damaged;
mod defined;
mod error;
pub mod escape;
mod event_file;
pub mod follow;
pub mod fsck;
mod layout;
mod ledger;
mod linked;
pub mod live;
mod live_rows;
mod losses;
mod manifest;
mod missing;
mod parquet_file;
mod ranges;
pub mod reader;
mod recover;
pub mod repair;
mod retain;
pub mod rows;
mod scan;
pub mod schema;
mod seal;
mod sealer;
mod unread;
pub mod writer;

pub use carried::Removed;
pub use clocks::{Corrections, Piece, TimeError};
pub use error::Error;
pub use follow::{Follow, Place};
pub use layout::{Holds, PartCounts, count_parts};
pub use manifest::{MANIFEST, Manifest};
pub use missing::Missing;
pub use reader::{LastSamples, Reader, SAMPLED_BOOTS};
pub use recover::{Cut, DamagedPart, Recovered, RecoveredProcess, RecoveredStream};
pub use retain::Known;
pub use rows::{FileNames, Names};
pub use scan::{Scan, Select};
pub use schema::Table;
pub use unread::{Notes, Unread};
pub use writer::{Options, Summary, Writer};
