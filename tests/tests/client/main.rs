//! File-system clients that record their own requests: their debug messages, the examples, and the
//! hook of PVFS clients.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod messages;
mod pool;
mod pvfs;
