//! Asynchronous I/O. The trace has each request once with its result: for C programs that log their
//! requests and results, and in total for fio with each of its asynchronous engines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engines;
mod hangs;
mod programs;
