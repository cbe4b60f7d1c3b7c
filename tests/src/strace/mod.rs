//! Parses the output of `strace` of the same run, for comparison with the trace.

mod calls;
mod model;
pub mod parse;
mod state;

pub use model::{Seen, Witness, witness};

/// Options of strace that [`parse`] and [`witness`] require: all threads and children, all strings
/// and paths in hexadecimal, flags as numbers, complete vectors, and directory entries as their
/// number.
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
