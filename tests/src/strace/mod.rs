//! The other witness: what `strace` saw of the same run.

mod calls;
mod model;
pub mod parse;
mod state;

pub use model::{Seen, Witness, witness};

/// Options under which [`parse`] and [`witness`] understand the output: all threads and children,
/// every string and path in hexadecimal, flags as numbers, vectors in full, directory entries as
/// their number.
pub const FLAGS: &[&str] = &[
    "-f",
    "--seccomp-bpf",
    "-y",
    "-xx",
    "-s",
    "64",
    "-X",
    "raw",
    "-e",
    "abbrev=getdents64,execve,statfs,fstatfs,newfstatat,stat,statx,sysinfo",
    "-e",
    "signal=none",
    "-e",
    "trace=%file,%desc,%process,mmap,munmap,msync,mremap,sync,utime,utimes,futimesat,utimensat",
];
