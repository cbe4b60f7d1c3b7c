//! placeholder while the crate grows
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, dead_code))]

mod chunked;
mod cwd;
mod data;
mod description;
mod descriptor;
mod files;
mod filter;
mod open;
mod path;
mod process;
mod real;
mod request;
mod table;
mod vfork;
