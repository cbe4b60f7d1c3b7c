//! Asynchronous I/O: the trace has each request once, with what became of it, for C programs that
//! write down what they ask for and see, and in total for fio with each of its asynchronous
//! engines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engines;
mod programs;
