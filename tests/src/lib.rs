//! What the whole-system tests share.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod align;
pub mod built;
pub mod compare;
pub mod compile;
pub mod daemons;
pub mod fact;
pub mod namespace;
pub mod pattern;
pub mod process;
pub mod rules;
pub mod scenario;
pub mod strace;
pub mod trace;
pub mod traced;
