//! `miot-fuse`: pass-through file system that records every kernel request for a directory.
//!
//! It records requests that no preloaded library observes: those of static programs, of mapped
//! files and of `io_uring`. Every request is recorded in the layer `fuse`, with the operations of
//! the layer `client`, and is executed on the source directory. Recording never changes the result
//! of a request.
//!
//! | module | role |
//! |---|---|
//! | `options` | command line |
//! | `mounting` | checks, mounting, serving, unmounting |
//! | `passthrough` | requests: begin, execute, end, reply |
//! | `source` | execution of each request on the source directory |
//! | `inodes`, `inode`, `location` | files that the kernel knows, and their paths |
//! | `descriptor_cache`, `descriptors` | descriptors of these files, and the limit on them |
//! | `reopen` | reopening of files without a descriptor |
//! | `open_files`, `aligned_buffer` | open files and directories; data buffers |
//! | `credentials` | creation of files with the caller's credentials |
//! | `attributes` | conversion of `stat` to FUSE |
//! | `record` | conversion of a request to an event |
//!
//! # What is recorded
//! Paths are those below the mount point, as programs see them, so that they match those of the
//! layer `posix`. A handle represents one open, from `open`, `create` or `opendir` to `close`;
//! requests on it have no path of their own. `caller` is the thread that made the request. It is
//! absent for requests of the kernel itself: writing pages of mappings, and the last close. A
//! request begins when it has been read from the kernel and ends just before its reply.
//!
//! The argument of `setattr` contains the attributes that are set, as bits of the kernel (1 mode,
//! 2 user, 4 group, 16 access time, 32 modification time), and the mode in the upper half. If the
//! size is among them, the request is recorded as `truncate`. The result of `readdir` is the number
//! of entries; flag bit 8 is set if attributes were requested as well.
//!
//! Not recorded: requests without a reply (`forget`), start and end of the mount, and operations
//! that are not supported, which the kernel requests once.

mod aligned_buffer;
mod attributes;
mod credentials;
mod descriptor_cache;
mod descriptors;
mod inode;
mod inodes;
mod location;
pub mod mounting;
mod open_files;
pub mod options;
mod passthrough;
mod record;
mod reopen;
mod source;

pub use passthrough::Passthrough;
