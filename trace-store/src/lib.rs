//! Reading and writing a trace directory.
//!
//! ```text
//! DIR/miot-trace.json                        manifest: format, schema version, when, by whom
//! DIR/events/part-000000.parquet             sealed parts; the same part number in every table's folder
//! DIR/{processes,threads,files,losses,clocks}/part-000000.parquet
//! DIR/live/part-000001.events.arrows         Arrow IPC streams of the part being written,
//! DIR/live/part-000001.files.arrows  …       one per table that has rows
//! ```
//!
//! Rules that every reader and writer keeps:
//!
//! - A part is sealed if and only if `events/part-N.parquet` exists. It is renamed into place last, after
//!   the side tables of the part; from then on the live files of part N are ignored, and removed.
//! - The side-table rows that the events of part N need stand in parts up to N. In the live part they are
//!   durable before the first byte of these events is written.
//! - Each message of a live stream carries a checksum ([`live`]). A live stream is read up to the last
//!   message that is whole, so a crash at any instant leaves a readable directory.
//! - One process writes to a directory: it holds a lock on the manifest.
//!
//! | module | role |
//! |---|---|
//! | [`schema`] | the columns of every table |
//! | [`escape`] | paths that are not UTF-8 |
//! | `layout`, `manifest` | names of files, and what makes a directory a trace |
//! | [`live`] | one Arrow IPC stream: appending, cutting a torn tail, reading |
//! | `seal`, `sealer` | a live part becomes Parquet; the thread that does it |
//! | [`writer`], `recover` | appending to a trace; what a restarted writer must know |
//! | [`reader`], [`rows`], [`follow`] | reading: each event once, with names, and as they come |
//! | [`fsck`] | is this directory what it should be? |

mod error;
pub mod escape;
pub mod follow;
pub mod fsck;
mod layout;
pub mod live;
mod manifest;
mod parquet_file;
pub mod reader;
mod recover;
pub mod rows;
pub mod schema;
mod seal;
mod sealer;
pub mod writer;

pub use error::Error;
pub use follow::Follow;
pub use manifest::{MANIFEST, Manifest};
pub use reader::Reader;
pub use recover::{Cut, Recovered, RecoveredProcess, RecoveredStream};
pub use rows::{FileNames, Names};
pub use schema::Table;
pub use writer::{Options, Summary, Writer};
