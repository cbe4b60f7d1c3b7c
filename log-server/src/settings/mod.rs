//! The configuration of a log-server, and the part of it that can change at run time.

pub mod config;
pub mod tuning;
