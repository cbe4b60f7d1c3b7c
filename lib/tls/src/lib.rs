//! Certificates and TLS of MIOT: both ends of a connection, and the rights that a certificate
//! gives.
//!
//! | module | role |
//! |---|---|
//! | [`certificate`] | content of a certificate: names, role, validity |
//! | [`files`] | the three files that a configuration names, read and checked |
//! | [`server`], [`client`] | both ends of TLS; their files can be renewed at run time |
//! | [`failure`] | explanation of a failed handshake, as text |
//!
//! Connections use TLS 1.3 only, both sides present a certificate, and sessions are not resumed, so
//! that each connection is checked in full.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod certificate;
pub mod client;
pub mod failure;
pub mod files;
pub mod server;

pub use certificate::{Certificate, NotAllowed, Role};
pub use client::TlsClient;
pub use files::{Error, Files};
pub use server::TlsServer;

use rustls::crypto::CryptoProvider;
use std::net::IpAddr;
use std::sync::Arc;

/// Returns true for `localhost` and for addresses that only this machine can reach.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
