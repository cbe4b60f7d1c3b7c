//! `libmiot_mpi.so`: records the MPI-IO calls of an unmodified program, and if asked to those that communicate.
//!
//! Loaded with `LD_PRELOAD`, or linked before MPI's own libraries, it exports the functions of MPI-IO (`MPI_File_*`) and
//! those that complete requests, and calls the next ones of the same names. It needs nothing of MPI to load or to be
//! built: all of it is looked for at the first `MPI_File_open`. So it may be preloaded into every program, and serves
//! each MPI whose binary interface is known ([`abi`]).
//!
//! | module | role |
//! |---|---|
//! | `real` | the functions behind the hooks; the macro that declares a hook |
//! | `tracer` | whose tracer records: that of the posix hook where it is loaded, so that the layers link |
//! | `abi`, `mpi` | the MPI that is loaded: its constants, and the local calls that we make ourselves |
//! | `files`, `requests` | open files and requests under way, by MPI's handles |
//! | `record` | the shapes of requests |
//! | `types`, `layout` | datatypes taken apart, and flattened into blocks |
//! | `data`, `manage`, `wait`, `path` | the hooks |
//! | `communication` | calls that communicate, where they are asked for |
//!
//! # Fortran
//! Fortran programs call `mpi_file_open_`, `mpi_file_open_f08_` and so on, in another library, which convert handles and
//! call `PMPI_File_open`. So each hook is exported under both names, `MPI_` and `PMPI_`, and what MPI calls by either
//! inside a call that is being recorded is passed on. Another tool of the profiling interface sees all calls, before or
//! after this one.
//!
//! # What a program does not notice
//! The calls of the program are made once, with its arguments. Where it ignores a status one of ours is passed, since the
//! bytes moved are in it. Our own calls are local, made only after MPI has accepted the arguments they need, so no error
//! handler of the program is called for them.

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
