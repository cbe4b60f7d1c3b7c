//! Shared code of the whole-system tests.
//!
//! | module | role |
//! |---|---|
//! | [`align`] | Shortest edit script between two sequences |
//! | [`broker`] | NATS server, and daemons on both sides of it |
//! | [`browser`] | Headless Chromium |
//! | [`built`] | Programs and libraries under test |
//! | [`compare`] | Compares a trace with the output of strace |
//! | [`compile`] | Compiles C programs |
//! | [`daemons`] | Starts log-servers and log-clients on loopback |
//! | [`delaying`] | Proxy that delays a connection |
//! | [`deployment`] | Log-server, nodes and producers that are killed, checked by the judge |
//! | [`fact`] | One observed I/O request, comparable between trace and strace |
//! | [`faulty_link`] | Proxy that delays, cuts, repeats and corrupts frames |
//! | [`forged`] | Segments written without the producer |
//! | [`gluster`] | GlusterFS daemon, volumes and mounts |
//! | [`google_store`] | Protocol of Google Cloud Storage |
//! | [`judge`] | Checks a trace against the events that producers committed |
//! | [`killable_daemon`] | Daemon that is killed and restarted |
//! | [`losses`] | Adds recorded losses to a trace |
//! | [`machine`] | Debian container with systemd |
//! | [`mpi`] | MPI programs |
//! | [`namespaces`] | Network and mount namespaces that programs can enter |
//! | [`node`] | Log-server, log-client and `miot ctl` of one node |
//! | [`pattern`] | Synthetic events that follow from thread and number |
//! | [`process`] | Runs programs with a watchdog |
//! | [`producers`] | Producers that start, end and are killed |
//! | [`proxy`] | Proxy that checks watermarks |
//! | [`random`] | Seeded random numbers |
//! | [`resource_usage`] | Memory and descriptors of a process over time |
//! | [`rules`] | Differences by design between trace and strace |
//! | [`scenario`] | Deterministic runs of real programs |
//! | [`set_deployment`] | Several log-servers, nodes and producers, checked by the judge |
//! | [`steered`] | The program `steered`, controlled by commands |
//! | [`strace`] | Parses the output of strace |
//! | [`test_dir`] | Directory of a test |
//! | [`tmpfs`] | Runs a command with a small tmpfs |
//! | [`tmux`] | Programs on a terminal |
//! | [`trace`] | Rows of `miot cat --format json` |
//! | [`traced`] | Runs programs under `miot run` |
//! | [`uploads`] | Uploader, and files compared with objects |
//! | [`victim`] | Events of the program `victim` |
//! | [`watch`] | Subscribers of `miot tail -f` |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod align;
pub mod broker;
pub mod browser;
pub mod built;
pub mod compare;
pub mod compile;
pub mod daemons;
pub mod delaying;
pub mod deployment;
pub mod fact;
pub mod faulty_link;
pub mod forged;
pub mod frozen_ext4;
pub mod gluster;
pub mod google_store;
pub mod judge;
pub mod killable_daemon;
pub mod losses;
pub mod machine;
pub mod mpi;
pub mod namespaces;
pub mod node;
pub mod object_store;
pub mod pattern;
pub mod process;
pub mod producers;
pub mod proxy;
pub mod random;
pub mod resource_usage;
pub mod rules;
pub mod scenario;
pub mod set_deployment;
pub mod steered;
pub mod strace;
pub mod test_dir;
pub mod tmpfs;
pub mod tmux;
pub mod trace;
pub mod traced;
pub mod uploads;
pub mod victim;
pub mod watch;
