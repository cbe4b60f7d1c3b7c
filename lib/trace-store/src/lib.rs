//! Reading and writing a trace directory.
//!
//! ```text
//! DIR/miot-trace.json                     manifest: format, schema version, creation time, writer
//! DIR/events/part-000000.parquet          sealed parts; each part has one number in the folders of
//!                                         all tables
//! DIR/{processes,threads,files,losses,clocks,devices}/part-000000.parquet
//! DIR/{processes,threads,files,losses,clocks,devices}/carried-000007.parquet
//!                                         rows kept from removed parts
//! DIR/live/part-000001.events.arrows      Arrow IPC streams of the live part, one per table with
//!                                         rows
//! DIR/live/part-000001.files.arrows  …
//! DIR/ledger/part-000000.{live,sealed}    number of rows, and the last attempt number of each
//!                                         stream
//! DIR/ledger/part-000000.uploaded         the object store that has the part
//! ```
//!
//! Rules that every reader and writer follows:
//!
//! - A part is sealed if and only if `events/part-N.parquet` exists. This file is renamed into
//!   place last, after the side tables of the part. From then on the live files of part N are
//!   ignored, and removed.
//! - The side-table rows that the events of part N need are in parts up to N. In the live part they
//!   are durable before the first byte of these events is written.
//! - Parts below N are removed if and only if `threads/carried-N.parquet` exists. Their rows that
//!   later parts need are in `carried-N.parquet` of each side table; those files are renamed into
//!   place before that of `threads`. Remaining files of removed parts are ignored, and removed.
//! - Each message of a live stream has a checksum ([`live`]). A live stream is read up to its last
//!   whole message, so a crash at any time leaves a readable directory.
//! - One process at a time writes to a directory: it holds a lock on the manifest.
//!
//! | module | role |
//! |---|---|
//! | [`schema`] | the columns of every table |
//! | [`clocks`] | conversion between merged time and the time of a node |
//! | [`escape`] | paths that are not UTF-8 |
//! | [`ids`], `id_map` | the partition in an id; maps and sets of ids |
//! | `layout`, `manifest` | names of files; the file that identifies a trace |
//! | [`live`] | one Arrow IPC stream: appending, truncating a torn tail, reading |
//! | [`arrow_stream`] | Arrow IPC streams from outside |
//! | `seal`, `sealer` | conversion of a live part to Parquet; the thread that does it |
//! | `event_file` | the Parquet file of events, page by page |
//! | `ledger` | row counts, apart from the rows, to detect lost rows |
//! | [`final_time`] | the time up to which the trace is final |
//! | `file_identity` | detects files that are deleted or replaced while they are written |
//! | `losses`, `ranges` | rows of `losses` for damaged data; ranges of attempt numbers |
//! | `retain`, `carried` | removal of the oldest parts; the rows of them that are kept |
//! | [`writer`], `recover` | appending to a trace; the state that a restarted writer needs |
//! | [`reader`] | a snapshot of the trace: each row once |
//! | `kept_files` | sealed files that stay open, because retention may remove them |
//! | `scan`, `decoders` | selected columns and times; threads that decode columns |
//! | [`rows`], [`follow`] | joins with names; new rows as they are written |
//! | `handles`, `samples` | what a restarted log-server reads: open handles, last device samples |
//! | `used_ids` | detects ids in events of a live part that no side table defines |
//! | `live_rows` | rows of a live stream up to its last whole message |
//! | [`upload`] | what an object store gets of a trace, and what it has |
//! | [`compact`] | one trace of the traces of several log-servers |
//! | [`set`] | traces of several log-servers, read as one |
//! | `unread_log` | what a reader could not read |
//! | `checksum`, `parquet_file` | checksums of sealed files; opening and reading them |
//! | `part_rows` | rows of one table of a part, sealed or live |
//! | [`fsck`], [`repair`], `quarantine` | check of a directory; its repair; the folder of damaged files |

pub mod arrow_stream;
mod carried;
mod checksum;
pub mod clocks;
pub mod compact;
mod decoders;
mod error;
pub mod escape;
mod event_file;
mod file_identity;
pub mod final_time;
pub mod follow;
pub mod fsck;
mod id_map;
pub mod ids;
mod kept_files;
mod layout;
mod ledger;
pub mod live;
mod live_rows;
mod losses;
mod manifest;
mod missing_parts;
mod parquet_file;
mod part_rows;
mod quarantine;
mod ranges;
pub mod reader;
mod recover;
pub mod repair;
mod repeated_value;
mod retain;
pub mod rows;
mod scan;
pub mod schema;
mod seal;
mod sealer;
pub mod set;
mod stream_spans;
mod unread_log;
pub mod upload;
mod used_ids;
pub mod writer;

pub use carried::RemovedParts;
pub use clocks::{ClockPiece, Corrections, TimeError};
pub use error::Error;
pub use follow::{Follow, TracePosition};
pub use id_map::{IdHasher, IdMap, IdSet};
pub use layout::{PartCounts, TableFile, count_parts};
pub use manifest::{MANIFEST, Manifest};
pub use missing_parts::MissingParts;
pub use reader::{LastSamples, Reader, SAMPLED_BOOTS, SealedFile};
pub use recover::{DamagedPart, RecoveredProcess, RecoveredStream, RecoveredTrace, TornTail};
pub use retain::KnownIds;
pub use rows::{FileNames, Names};
pub use scan::{Scan, Select};
pub use schema::Table;
pub use unread_log::{UnreadItem, UnreadLog};
pub use writer::{Options, Summary, Writer};
