//! Contents of a file system: a walk of a directory tree by several threads, distributions of
//! attributes, snapshots of them, and changes between two snapshots.
//!
//! | module | role |
//! |---|---|
//! | [`contents`] | distributions of the attributes of files, directories and links |
//! | [`histogram`] | a distribution over bins whose bounds are powers of two |
//! | [`growth`] | changes between two contents |
//! | [`walk`] | threads, stack of directories, counted entries |
//! | `read` | a part of a directory and the attributes of its entries |
//! | [`node`] | a directory, by the names on its path |
//! | [`mounts`], [`exclude`], [`pace`], [`errors`] | skipped file systems and names, rate, failures |
//! | [`checkpoint`] | state of a walk in a file, to continue after an interruption |
//! | [`snapshot`] | contents at a point in time, as a file |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod checkpoint;
pub mod contents;
pub mod errors;
pub mod exclude;
pub mod growth;
pub mod histogram;
pub mod mounts;
pub mod node;
pub mod pace;
mod read;
pub mod snapshot;
pub mod walk;

pub use checkpoint::{Checkpoint, Identity};
pub use contents::{Attributes, Contents, Unit};
pub use exclude::Excludes;
pub use growth::Growth;
pub use histogram::{Amount, Bin, Histogram};
pub use node::DirectoryOpener;
pub use pace::Pace;
pub use snapshot::Snapshot;
pub use walk::Walk;
