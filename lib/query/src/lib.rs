//! The command line of `miot-query`, for the program and for manual pages. The program itself is in
//! `main.rs` and needs the feature `engine`.
//!
//! | module | role |
//! |---|---|
//! | [`cli`] | options and output formats |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod cli;
