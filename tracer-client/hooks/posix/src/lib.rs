//! `libmiot_posix.so`: records the POSIX and STDIO calls of an unmodified program.
//!
//! Loaded with `LD_PRELOAD`, the library exports functions under the names of libc's and so gets the
//! program's calls. Each hook begins a request, calls the real function, and ends the request
//! ([`miot_tracer`]). Where the node has no log-client nothing is recorded and each call passes straight on, before
//! anything else is looked at.
//!
//! | module | role |
//! |---|---|
//! | `real` | the functions behind the hooks; the macro that declares a hook |
//! | `request` | the shapes of requests: on a descriptor, at its position, on one path, on two |
//! | `files`, `table`, `description`, `chunked` | descriptors, what they refer to, handles and positions |
//! | `path`, `cwd`, `filter` | paths: made absolute, left out |
//! | `pending`, `memory` | requests between their submission and their completion; memory that only the kernel is meant to read |
//! | `confine` | programs that install a filter of system calls |
//! | `vfork`, `process` | children in borrowed memory; the start; calls that make processes |
//! | `open`, `data`, `descriptor`, `attributes`, `names`, `directories`, `xattr`, `mappings`, `copies` | hooks of the layer `posix` |
//! | `aio`, `libaio`, `uring`, `syscall` | hooks of asynchronous I/O |
//! | `stdio` | hooks of the layer `stdio`; `shim.c` has the bodies of those that take `...` |
//!
//! # What a program does not notice
//! Return values and `errno` are those of the real call, which is made exactly once with the very same
//! arguments; pointers are read only where the kernel or libc has read them first. `pthread_cancel` and C++
//! exceptions pass through: hooks are `extern "C-unwind"` and hold nothing that needs a destructor. (A request that is
//! left so, or by `siglongjmp`, is not recorded; one on a stream stays the encloser of what its thread does next.) No hook
//! allocates, takes a lock or makes a system call of its own, with these exceptions: the first request of a
//! thread or on a descriptor that is not known yet, relative paths after a `chdir`, paths relative to a
//! descriptor (one `readlink` of `/proc/self/fd`), and shared positions (one `lseek`). None of them is made where a filter of
//! the program does not allow it; then a path stays as given and an offset unknown. A path that has to be
//! put together takes 4 KiB of stack.
//!
//! # What is seen
//! Calls that go through the dynamic symbol table, by every name that glibc gives them (`*64`, `*at`, `*_chk`,
//! `_unlocked`, `__xstat`…). Not seen:
//!
//! - static programs, raw system calls (Go; those by `syscall()` but for asynchronous I/O), so also io_uring that goes past
//!   liburing's shared library and libc: see `uring`;
//! - what libc does inside itself: the reads and writes below a stream, `fts`, `nftw`, `glob`, `getpwnam`,
//!   locales, `shm_open`, `posix_spawn`'s file actions, `realpath`, streams flushed at `exit`; the loader's own work;
//! - wide-character and `scanf`-on-string functions, `perror` and `err`;
//! - memory accesses to mapped files;
//! - a child between `vfork` and `exec`: it shares our memory but not our descriptors, so it is let pass.
//!
//! Recorded are regular files, directories and block devices, and every call with a path. Sockets, pipes
//! and terminals are not, apart from the open and the close of one that is opened by name. Calls that fail
//! because the descriptor is not open are not recorded: there is no file. What `filter` leaves out
//! (`/proc`, `/sys`, `/dev` but `/dev/shm`, shared libraries, the MIOT directory, `MIOT_EXCLUDE`) stays out by
//! whatever call; `MIOT_INCLUDE` brings back. Above a million descriptors nothing is recorded.
//!
//! # Handles and paths
//! A handle stands for an open file description: `dup` does not make a new one, so a handle may be closed
//! several times. A descriptor that was there before the hook is named by a file record at its first
//! request; a forked child names those it inherits again, with handles of its own. Requests on paths have no
//! handle. Paths are absolute and without `//`, `/./` and a slash at the end; `..` and links stay; the target
//! of a symbolic link is recorded as given. Results of `mmap` are addresses; `close_range` is one event,
//! whatever it closes.
//!
//! # Offsets
//! The position of a description is counted, without asking the kernel; see `description` for where it must be
//! asked. Two threads that `read` through the same description at once may find their offsets swapped: the
//! kernel orders them, and nobody can say how from outside. Streams are counted apart, see `stdio`.
//!
//! # Time
//! The duration of a request contains, besides the real call, one clock read, and for calls with a path the
//! making of the recorded path, well below a microsecond.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, dead_code, non_snake_case))]

mod aio;
mod attributes;
mod chunked;
mod confine;
mod copies;
mod cwd;
mod data;
mod description;
mod descriptor;
mod directories;
mod files;
mod filter;
mod libaio;
mod mappings;
mod memory;
mod names;
mod open;
mod path;
mod pending;
mod process;
mod real;
mod request;
mod stdio;
mod syscall;
mod table;
mod uring;
mod vfork;
mod xattr;
