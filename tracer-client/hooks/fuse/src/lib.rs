//! `miot-fuse`: a directory shown once more as a file system that records what the kernel asks.
//!
//! What no preloaded library sees arrives here: static programs, mapped files, `io_uring`.
//! Every request is recorded in the layer `fuse`, with the operations of the layer `client`, and made on the source
//! directory. Tracing never decides how a request ends.
//!
//! | module | role |
//! |---|---|
//! | `options` | the command line |
//! | `mounting` | what is refused; mounting, serving, unmounting |
//! | `passthrough` | the requests: begun, made, ended, answered |
//! | `source` | what each does to the directory |
//! | `inodes`, `inode`, `place` | files the kernel knows, and their paths |
//! | `holding`, `descriptors` | which of them have a descriptor, and how many there may be |
//! | `handle` | what finds those without one |
//! | `opened`, `buffer` | open files and directories; data on its way |
//! | `caller` | making things as the caller |
//! | `attributes` | what `stat` says, in the words of FUSE |
//! | `record` | from a request to an event |
//!
//! # What is recorded
//! Paths are those below the mount point, as programs see them, so that they match those of the layer `posix`. A handle stands
//! for one open, from `open`, `create` or `opendir` to `close`; requests on it have no path of their own. `caller` is the thread
//! that asked, absent where the kernel asks for itself: pages of mappings that it writes, the last close. A request begins
//! when it has been read from the kernel and ends just before its answer. `setattr` has as argument which attributes are set, in the kernel's
//! bits (1 mode, 2 user, 4 group, 16 access time, 32 modification time), and the mode in the upper half; where the size is among
//! them the request is `truncate`. `readdir` counts entries, and has flag bit 8 set where attributes were asked for as well.
//! Not recorded: what has no answer (`forget`), the start and end of the mount, and operations that are not offered, which
//! the kernel asks for once.

mod attributes;
mod buffer;
mod caller;
mod descriptors;
mod handle;
mod holding;
mod inode;
mod inodes;
pub mod mounting;
mod opened;
pub mod options;
mod passthrough;
mod place;
mod record;
mod source;

pub use passthrough::Passthrough;
