//! The conservation judge ([`miot_tests::judge`]) with a log-server, log-clients and producers as
//! real processes. They suffer every fault that must not silently lose, repeat, tear or reorder an
//! event: kills, network faults, full disks, stopped processes, and long run time.
//!
//! The faults are random, with a seed that is printed (`MIOT_SEED`). Timing differs as well, so a
//! seed does not reproduce a run, only the kind of run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backlog;
mod disks;
mod everything;
mod network;
mod road;
mod silence;
mod soak;
mod torture;
