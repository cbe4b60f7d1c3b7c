//! `miot-fuse` behaves like the file system that it passes through, and records every request to
//! it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod alike;
mod descriptors;
mod foreign;
mod hangs;
mod mounted;
mod programs;
mod refused;
mod seen;
mod storm;
