//! Simulation of programs on processors, caches and disks, after Miller 1990, section 6. It answers
//! how much cache, read-ahead and write-behind keeps the processor busy for given programs.
//!
//! This is a discrete-event simulation in whole nanoseconds: on every platform the same workload
//! and configuration give exactly the same outcome. The model is described in
//! `docs/guide/simulate.md`.
//!
//! | module | role |
//! |---|---|
//! | [`workload`] | programs as sequences of requests and computation |
//! | [`config`], [`presets`] | the machine |
//! | `engine`, `scheduler`, `events` | the event loop, processors, future events |
//! | `storage`, `transfers` | path of a request: cache, read-ahead, write-behind |
//! | `cache` | blocks and their replacement |
//! | `disk` | durations of transfers |
//! | [`from_trace`] | programs from the events of a trace |
//! | [`generate`] | programs from models of the programs that Miller traced in 1990 |
//! | [`observer`] | observers of each step |
//! | [`result`], [`rates`] | results |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod cache;
pub mod config;
mod disk;
mod engine;
mod events;
pub mod from_trace;
pub mod generate;
pub mod observer;
pub mod presets;
pub mod rates;
pub mod result;
mod scheduler;
mod storage;
#[cfg(test)]
mod tests;
mod transfers;
pub mod workload;

pub use config::{Config, ConfigError};
pub use engine::{simulate, simulate_observed};
pub use from_trace::{FromTrace, Notes};
pub use result::Outcome;
pub use workload::{Program, Request, Workload};
