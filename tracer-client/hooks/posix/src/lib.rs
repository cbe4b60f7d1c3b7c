//! `libmiot_posix.so`: records the POSIX and STDIO calls of an unmodified program.
//!
//! The library is loaded with `LD_PRELOAD`. It exports functions under the names of libc's and
//! thereby receives the program's calls. Each hook begins a request, calls the real function and
//! ends the request ([`miot_tracer`]). On a node without a log-client nothing is recorded, and each
//! call is passed on before any other check.
//!
//! | module | role |
//! |---|---|
//! | `real`, `lookup` | functions behind the hooks; macro that declares a hook |
//! | `request` | recording of requests on a descriptor, at its position, on one or two paths |
//! | `files`, `table`, `description`, `chunked` | descriptors, open files, handles, positions |
//! | `path`, `scan`, `cwd`, `filter` | absolute paths; excluded paths |
//! | `pending`, `memory` | requests in flight; memory that only the kernel is meant to read |
//! | `confine` | programs that install a filter of system calls |
//! | `mpi` | MPI calls, for which `libmiot_mpi.so` is loaded |
//! | `vfork`, `process` | children in borrowed memory; start of the library; process creation |
//! | `open`, `data`, `descriptor`, `attributes`, `names` | hooks of the layer `posix` |
//! | `directories`, `xattr`, `mappings`, `copies` | further hooks of the layer `posix` |
//! | `aio`, `libaio`, `uring`, `syscall` | hooks of asynchronous I/O |
//! | `stdio` | hooks of the layer `stdio`; `shim.c` contains the bodies of variadic functions |
//!
//! # Transparency
//! Return values and `errno` are those of the real call, which is made exactly once with the same
//! arguments. Pointers are read only after the kernel or libc has read them. `pthread_cancel` and
//! C++ exceptions pass through: hooks are `extern "C-unwind"` and own nothing that needs a
//! destructor. A request that is left in this way, or by `siglongjmp`, is not recorded; one on a
//! stream remains the parent of the thread's next requests.
//!
//! No hook allocates memory, takes a lock or makes a system call of its own, with these exceptions:
//!
//! - the first request of a thread or on an unknown descriptor,
//! - relative paths after a `chdir`,
//! - paths relative to a descriptor (one `readlink` of `/proc/self/fd`),
//! - shared positions (one `lseek`).
//!
//! None of these calls is made if a filter of the program forbids it. A path then stays as given,
//! and an offset stays unknown. A path that must be assembled takes 4 KiB of stack.
//!
//! # What is recorded
//! Calls through the dynamic symbol table, by every name that glibc gives them (`*64`, `*at`,
//! `*_chk`, `_unlocked`, `__xstat`…). Not recorded:
//!
//! - static programs and raw system calls (Go; `syscall()` except for asynchronous I/O), and
//!   therefore io_uring that bypasses both liburing's shared library and libc, see `uring`;
//! - calls within libc: reads and writes below a stream, `fts`, `nftw`, `glob`, `getpwnam`,
//!   locales, `shm_open`, file actions of `posix_spawn`, `realpath`, streams flushed at `exit`; the
//!   work of the loader;
//! - wide-character functions, `scanf` on strings, `perror` and `err`;
//! - memory accesses to mapped files;
//! - a child between `vfork` and `exec`: it shares this process's memory but not its descriptors.
//!
//! Regular files, directories, block devices and every call with a path are recorded. Sockets,
//! pipes and terminals are not, except for the open and the close of one that is opened by name. A
//! call that fails because the descriptor is not open is not recorded, because there is no file.
//! Paths that `filter` excludes (`/proc`, `/sys`, `/dev` except `/dev/shm`, shared libraries, the
//! MIOT directory, `MIOT_EXCLUDE`) are excluded for every call; `MIOT_INCLUDE` overrides it.
//! Descriptors above one million are not recorded.
//!
//! # Handles and paths
//! A handle represents an open file description: `dup` does not create a new one, so that a handle
//! may be closed several times. A descriptor that was open before the hook is named by a file
//! record at its first request. A forked child names the descriptors that it inherits again, with
//! handles of its own. Requests on paths have no handle.
//!
//! Paths are absolute and without `//`, `/./` and a final slash; `..` and links stay. The target of
//! a symbolic link is recorded as given. Results of `mmap` are addresses. `close_range` is one
//! event regardless of the number of descriptors that it closes.
//!
//! # Offsets
//! The position of a description is counted without a query to the kernel; see `description` for
//! the exceptions. If two threads `read` through the same description concurrently, their offsets
//! may be swapped: the kernel orders them, and the order is not observable from outside. The
//! positions of streams are counted separately, see `stdio`.
//!
//! # Time
//! The duration of a request contains, in addition to the real call, one clock read, and for calls
//! with a path the assembly of the recorded path: well below a microsecond.

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
mod lookup;
mod mappings;
mod memory;
mod mpi;
mod names;
mod open;
mod path;
mod pending;
mod process;
mod real;
mod request;
mod scan;
mod stdio;
mod syscall;
mod table;
mod uring;
mod vfork;
mod xattr;
