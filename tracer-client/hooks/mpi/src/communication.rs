//! Calls that communicate, for the logical time of phases (docs/guide/phases.md): recorded only where that is asked for, as a
//! parallel program makes many of them.
//!
//! All arguments are passed on in whole registers and slots of the stack, as they came, so nothing is said of their types.

#![allow(clippy::too_many_arguments, reason = "as many as MPI's functions have")]

use crate::mpi::mpi;
use crate::real::hook;
use crate::record::{Event, begin, end};
use miot_proto::event::{Communicator, flag};
use miot_proto::op::{Op, mpi_io as op};
use std::ffi::c_int;
use std::sync::OnceLock;

/// Environment variable: anything but empty or `0` asks for it.
const ENV: &str = "MIOT_MPI_COMMUNICATION";

fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os(ENV).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Which processes a call is about.
#[derive(Clone, Copy)]
enum With {
    /// One, by its rank.
    Peer(usize),
    /// Those of a communicator.
    All(usize),
    /// Those of requests that were made before.
    Requests,
}

fn communicate(op: Op, with: With, flags: u16, call: impl FnOnce() -> c_int) -> c_int {
    let Some(mpi) = mpi() else { return call() };
    let mut event = Event::of(0, Communicator { rank: 0, size: 0 });
    event.done.flags = flags;
    if let With::Peer(peer) = with {
        // An `int` in a register whose upper half says nothing.
        event = event.length(i64::from(peer as c_int));
    }
    let Some(request) = begin(op, &event) else { return call() };
    let returned = call();
    event.done.result = mpi.result(returned);
    if let (With::All(comm), 0) = (with, returned) {
        (event.ext.mpi_rank, event.ext.mpi_size) = mpi.communicator(comm);
    }
    end(&request, &event);
    returned
}

/// A call, with small and with large counts (MPI 4); its operation, its arguments, and whom it is about.
macro_rules! call {
    ($name:literal $op:ident ($($arg:ident),*) $with:expr, $flags:expr) => {
        call!(concat!($name), $op ($($arg),*) $with, $flags);
        call!(concat!($name, "_c"), $op ($($arg),*) $with, $flags);
    };
    ($name:expr, $op:ident ($($arg:ident),*) $with:expr, $flags:expr) => {
        hook! { $name, if is_wanted() => |real| ($($arg: usize),*) {
            // SAFETY: the caller's arguments.
            communicate(op::$op, $with, $flags, || unsafe { real($($arg),*) })
        } }
    };
}

/// A call that returns when it is done, and its form that does not.
macro_rules! both {
    ($name:literal, $nonblocking:literal, $op:ident ($($arg:ident),*) $with:expr) => {
        call! { $name $op ($($arg),*) $with, 0 }
        call! { $nonblocking $op ($($arg,)* request) $with, flag::ASYNC }
    };
}

both! { "Send", "Isend", COMM_SEND (buffer, count, datatype, to, tag, comm) With::Peer(to) }
both! { "Bsend", "Ibsend", COMM_SEND (buffer, count, datatype, to, tag, comm) With::Peer(to) }
both! { "Rsend", "Irsend", COMM_SEND (buffer, count, datatype, to, tag, comm) With::Peer(to) }
both! { "Ssend", "Issend", COMM_SEND (buffer, count, datatype, to, tag, comm) With::Peer(to) }
call! { "Recv" COMM_RECV (buffer, count, datatype, from, tag, comm, status) With::Peer(from), 0 }
call! { "Irecv" COMM_RECV (buffer, count, datatype, from, tag, comm, request) With::Peer(from), flag::ASYNC }
call! { "Sendrecv" COMM_SENDRECV (
    buffer, count, datatype, to, tag, into, room, into_datatype, from, from_tag, comm, status
) With::Peer(to), 0 }
call! { "Sendrecv_replace" COMM_SENDRECV (buffer, count, datatype, to, tag, from, from_tag, comm, status)
With::Peer(to), 0 }
call! { "Start" COMM_START (request) With::Requests, flag::ASYNC }
call! { "Startall" COMM_START (count, requests) With::Requests, flag::ASYNC }
both! { "Barrier", "Ibarrier", COMM_BARRIER (comm) With::All(comm) }
both! { "Bcast", "Ibcast", COMM_BCAST (buffer, count, datatype, root, comm) With::All(comm) }
both! { "Gather", "Igather", COMM_GATHER (from, count, datatype, into, room, into_datatype, root, comm)
With::All(comm) }
both! { "Gatherv", "Igatherv", COMM_GATHER (from, count, datatype, into, rooms, places, into_datatype, root, comm)
With::All(comm) }
both! { "Scatter", "Iscatter", COMM_SCATTER (from, count, datatype, into, room, into_datatype, root, comm)
With::All(comm) }
both! { "Scatterv", "Iscatterv", COMM_SCATTER (from, counts, places, datatype, into, room, into_datatype, root, comm)
With::All(comm) }
both! { "Allgather", "Iallgather", COMM_ALLGATHER (from, count, datatype, into, room, into_datatype, comm)
With::All(comm) }
both! { "Allgatherv", "Iallgatherv", COMM_ALLGATHER (
    from, count, datatype, into, rooms, places, into_datatype, comm
) With::All(comm) }
both! { "Alltoall", "Ialltoall", COMM_ALLTOALL (from, count, datatype, into, room, into_datatype, comm)
With::All(comm) }
both! { "Alltoallv", "Ialltoallv", COMM_ALLTOALL (
    from, counts, places, datatype, into, rooms, into_places, into_datatype, comm
) With::All(comm) }
both! { "Alltoallw", "Ialltoallw", COMM_ALLTOALL (
    from, counts, places, datatypes, into, rooms, into_places, into_datatypes, comm
) With::All(comm) }
both! { "Reduce", "Ireduce", COMM_REDUCE (from, into, count, datatype, operation, root, comm) With::All(comm) }
both! { "Allreduce", "Iallreduce", COMM_ALLREDUCE (from, into, count, datatype, operation, comm) With::All(comm) }
both! { "Reduce_scatter", "Ireduce_scatter", COMM_REDUCE_SCATTER (from, into, counts, datatype, operation, comm)
With::All(comm) }
both! { "Reduce_scatter_block", "Ireduce_scatter_block", COMM_REDUCE_SCATTER (
    from, into, count, datatype, operation, comm
) With::All(comm) }
both! { "Scan", "Iscan", COMM_SCAN (from, into, count, datatype, operation, comm) With::All(comm) }
both! { "Exscan", "Iexscan", COMM_SCAN (from, into, count, datatype, operation, comm) With::All(comm) }
