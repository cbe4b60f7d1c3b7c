//! placeholder while the crate grows
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, dead_code))]
// Names are those of C.

mod aio;
mod attributes;
mod chunked;
mod copies;
mod cwd;
mod data;
mod description;
mod descriptor;
mod directories;
mod files;
mod filter;
mod mappings;
mod names;
mod open;
mod path;
mod process;
mod real;
mod request;
mod stdio;
mod table;
mod vfork;
mod xattr;
