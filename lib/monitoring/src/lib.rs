//! How the daemons are looked at: an HTTP listener with the rights of certificates, and metrics in Prometheus' text format.
//!
//! | module | role |
//! |---|---|
//! | [`http`] | the listener: who may see what, limits |
//! | [`exposition`] | numbers as Prometheus reads them |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod exposition;
pub mod http;

pub use exposition::Exposition;
pub use http::{Http, Pages};
