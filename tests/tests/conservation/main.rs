//! The conservation judge ([`miot_tests::judge`]) over a log-server, log-clients and producers as
//! real processes, to which everything is done that must not lose, repeat, tear or disorder an
//! event without a word: kills, networks that break, full disks, silence, and long time.
//!
//! Random, with a seed that is printed (`MIOT_SEED`); the machine decides as well, so that a seed
//! does not give the same run again, but the same kind of run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backlog;
mod disks;
mod everything;
mod network;
mod road;
mod silence;
mod soak;
mod torture;
