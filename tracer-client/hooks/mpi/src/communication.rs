//! Hooks of communication calls, for the logical time of phases (docs/guide/phases.md). They are
//! recorded only on request, because a parallel program makes many of them.
//!
//! All arguments are passed on unchanged as whole registers and stack slots, so that the hooks need
//! not declare their types.

#![allow(clippy::too_many_arguments, reason = "as many as MPI's functions have")]

use crate::mpi::mpi;
use crate::real::hook;
use crate::record::{RequestEvent, begin, end};
use miot_proto::event::{Communicator, flag};
use miot_proto::op::{Op, mpi_io as op};
use std::ffi::c_int;
use std::sync::OnceLock;

/// Environment variable that enables the recording: any value except the empty one and `0`.
const ENV: &str = "MIOT_MPI_COMMUNICATION";

fn is_enabled() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| std::env::var_os(ENV).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Participants of a call.
#[derive(Clone, Copy)]
enum Participants {
    /// One process, by its rank.
    Rank(usize),
    /// All processes of a communicator.
    Communicator(usize),
    /// Those of persistent requests.
    Requests,
}

fn record_communication(op: Op, with: Participants, flags: u16, call: impl FnOnce() -> c_int) -> c_int {
    let Some(mpi) = mpi() else { return call() };
    let mut event = RequestEvent::new(0, Communicator { rank: 0, size: 0 });
    event.done.flags = flags;
    if let Participants::Rank(rank) = with {
        // An `int` in a register whose upper half is undefined.
        event = event.with_length(i64::from(rank as c_int));
    }
    let Some(request) = begin(op, &event) else { return call() };
    let returned = call();
    event.done.result = mpi.result(returned);
    if let (Participants::Communicator(comm), 0) = (with, returned) {
        (event.ext.mpi_rank, event.ext.mpi_size) = mpi.communicator(comm);
    }
    end(&request, &event);
    returned
}

/// Declares the hooks of a call with small and with large counts (MPI 4): its name, operation,
/// arguments, participants and flags.
macro_rules! call {
    ($name:literal $op:ident ($($arg:ident),*) $with:expr, $flags:expr) => {
        call!(concat!($name), $op ($($arg),*) $with, $flags);
        call!(concat!($name, "_c"), $op ($($arg),*) $with, $flags);
    };
    ($name:expr, $op:ident ($($arg:ident),*) $with:expr, $flags:expr) => {
        hook! { $name, if is_enabled() => |real| ($($arg: usize),*) {
            // SAFETY:
            // - `real` gets the caller's arguments.
            record_communication(op::$op, $with, $flags, || unsafe { real($($arg),*) })
        } }
    };
}

/// Declares the hooks of a blocking call and of its non-blocking form.
macro_rules! blocking_and_nonblocking {
    ($name:literal, $nonblocking:literal, $op:ident ($($arg:ident),*) $with:expr) => {
        call! { $name $op ($($arg),*) $with, 0 }
        call! { $nonblocking $op ($($arg,)* request) $with, flag::ASYNC }
    };
}

blocking_and_nonblocking! { "Send", "Isend", COMM_SEND (buffer, count, datatype, to, tag, comm)
Participants::Rank(to) }
blocking_and_nonblocking! { "Bsend", "Ibsend", COMM_SEND (buffer, count, datatype, to, tag, comm)
Participants::Rank(to) }
blocking_and_nonblocking! { "Rsend", "Irsend", COMM_SEND (buffer, count, datatype, to, tag, comm)
Participants::Rank(to) }
blocking_and_nonblocking! { "Ssend", "Issend", COMM_SEND (buffer, count, datatype, to, tag, comm)
Participants::Rank(to) }
call! { "Recv" COMM_RECV (buffer, count, datatype, from, tag, comm, status) Participants::Rank(from), 0 }
call! { "Irecv" COMM_RECV (buffer, count, datatype, from, tag, comm, request)
Participants::Rank(from), flag::ASYNC }
call! { "Sendrecv" COMM_SENDRECV (
    buffer, count, datatype, to, tag, into, into_count, into_datatype, from, from_tag, comm, status
) Participants::Rank(to), 0 }
call! { "Sendrecv_replace" COMM_SENDRECV (buffer, count, datatype, to, tag, from, from_tag, comm, status)
Participants::Rank(to), 0 }
call! { "Start" COMM_START (request) Participants::Requests, flag::ASYNC }
call! { "Startall" COMM_START (count, requests) Participants::Requests, flag::ASYNC }
blocking_and_nonblocking! { "Barrier", "Ibarrier", COMM_BARRIER (comm) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Bcast", "Ibcast", COMM_BCAST (buffer, count, datatype, root, comm)
Participants::Communicator(comm) }
blocking_and_nonblocking! { "Gather", "Igather", COMM_GATHER (
    from, count, datatype, into, into_count, into_datatype, root, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Gatherv", "Igatherv", COMM_GATHER (
    from, count, datatype, into, into_counts, displacements, into_datatype, root, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Scatter", "Iscatter", COMM_SCATTER (
    from, count, datatype, into, into_count, into_datatype, root, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Scatterv", "Iscatterv", COMM_SCATTER (
    from, counts, displacements, datatype, into, into_count, into_datatype, root, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Allgather", "Iallgather", COMM_ALLGATHER (
    from, count, datatype, into, into_count, into_datatype, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Allgatherv", "Iallgatherv", COMM_ALLGATHER (
    from, count, datatype, into, into_counts, displacements, into_datatype, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Alltoall", "Ialltoall", COMM_ALLTOALL (
    from, count, datatype, into, into_count, into_datatype, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Alltoallv", "Ialltoallv", COMM_ALLTOALL (
    from, counts, displacements, datatype, into, into_counts, into_displacements, into_datatype, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Alltoallw", "Ialltoallw", COMM_ALLTOALL (
    from, counts, displacements, datatypes, into, into_counts, into_displacements, into_datatypes, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Reduce", "Ireduce", COMM_REDUCE (
    from, into, count, datatype, operation, root, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Allreduce", "Iallreduce", COMM_ALLREDUCE (
    from, into, count, datatype, operation, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Reduce_scatter", "Ireduce_scatter", COMM_REDUCE_SCATTER (
    from, into, counts, datatype, operation, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Reduce_scatter_block", "Ireduce_scatter_block", COMM_REDUCE_SCATTER (
    from, into, count, datatype, operation, comm
) Participants::Communicator(comm) }
blocking_and_nonblocking! { "Scan", "Iscan", COMM_SCAN (from, into, count, datatype, operation, comm)
Participants::Communicator(comm) }
blocking_and_nonblocking! { "Exscan", "Iexscan", COMM_SCAN (from, into, count, datatype, operation, comm)
Participants::Communicator(comm) }
