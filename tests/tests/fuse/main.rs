//! `miot-fuse` is the file system that it shows, and sees all that is asked of it.

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
