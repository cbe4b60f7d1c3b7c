//! `libmiot_mpi.so`: records the MPI-IO calls of an unmodified program, and optionally its
//! communication calls.
//!
//! The library is loaded with `LD_PRELOAD` or linked before MPI's own libraries. It exports the
//! functions of MPI-IO (`MPI_File_*`) and those that complete requests, and calls the next
//! functions of the same names. It needs no part of MPI to be built or loaded: the first
//! `MPI_File_open` looks up all symbols. Therefore it can be preloaded into every program, and it
//! supports every MPI whose binary interface is known ([`abi`]).
//!
//! | module | role |
//! |---|---|
//! | `real` | functions behind the hooks; macro that declares a hook |
//! | `tracer` | selection of the tracer: the posix hook's if loaded, so that layers link |
//! | `abi`, `mpi` | the loaded MPI: its constants, and the local calls that the hooks make |
//! | `files`, `requests` | open files and requests in flight, by MPI's handles |
//! | `record` | recording of blocking and non-blocking requests |
//! | `types`, `layout` | decoding of datatypes, and their flattening into blocks |
//! | `data`, `manage`, `wait` | hooks of MPI-IO |
//! | `path` | file names |
//! | `communication` | hooks of communication calls, recorded on request |
//!
//! # Fortran
//! Fortran programs call `mpi_file_open_`, `mpi_file_open_f08_` and the like in another library,
//! which convert handles and call `PMPI_File_open`. Therefore each hook is exported under both
//! names, `MPI_` and `PMPI_`, and calls that MPI makes by either name within a recorded call are
//! passed on. Another tool that uses the profiling interface receives all calls, before or after
//! this library.
//!
//! # Transparency
//! Each call of the program is made once, with its arguments. Where the program ignores a status,
//! the hook passes one of its own, because the status contains the number of bytes moved. The calls
//! that the hooks add are local and are made only after MPI has accepted the arguments they need,
//! so that they call no error handler of the program.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, dead_code))]

mod abi;
mod communication;
mod data;
mod files;
mod layout;
mod manage;
mod mpi;
mod path;
mod real;
mod record;
mod requests;
mod tracer;
mod types;
mod wait;
