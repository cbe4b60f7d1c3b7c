//! Events of a trace by row: the columns of a batch of events, and how an event is printed. No
//! other crate defines them.
//!
//! | module | role |
//! |---|---|
//! | [`columns`] | columns of a batch of events, by row |
//! | [`events`] | events for analyses: numbers, with layer and operation resolved |
//! | [`row`] | events for printing: with the names of node, files and thread |
//! | [`operations`], [`nodes`] | numbers for the layers, operations and nodes of a trace |
//! | [`link`] | trees of requests: parents and their child requests |
//! | [`within`] | trees of requests within the regions of their thread |
//! | [`outermost`] | requests without a parent |
//! | [`place`] | byte ranges of each request in its file |
//! | [`view`] | bytes of a file that an MPI-IO request accesses through its view |
//! | [`message`] | text of a message of a debug log, attributes of a region |
//! | [`format`] | output formats that several commands share |
//! | [`text`] | times, durations, lines and tables for people |
//! | [`print`] | rows as text, JSON lines or CSV |
//! | [`by_id`] | values by id |
//! | [`testing`] | events and batches for tests (feature `testing`) |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod by_id;
pub mod columns;
pub mod events;
pub mod format;
pub mod link;
pub mod message;
pub mod nodes;
pub mod operations;
pub mod outermost;
pub mod place;
pub mod print;
pub mod row;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod view;
pub mod within;

pub use by_id::ById;
pub use columns::{EventColumns, MissingColumn};
pub use events::{Event, EventNames, Events};
pub use format::{Format, TextOrJson};
pub use link::{Linker, Request, Tree};
pub use miot_trace_store::{IdMap, IdSet};
pub use nodes::{NodeColumn, NodeNumbers};
pub use outermost::{Outermost, each_outermost};
pub use place::{Place, Places, UnknownPlace, UnknownPlaces};
pub use print::RowPrinter;
pub use row::{Column, EventRow};
pub use within::RegionTrees;
