//! Who may talk to whom, and with which rights: certificates, TLS, and what a daemon gives up.
//!
//! | module | role |
//! |---|---|
//! | [`certificate`] | what a certificate says: names, role, how long it is valid |
//! | [`files`] | the three files that a configuration names, read and checked |
//! | [`server`], [`client`] | both ends of TLS, with files that are renewed while they run |
//! | [`failure`] | what a failed handshake means, in words |
//! | [`privileges`] | giving up what a daemon does not need |
//!
//! TLS 1.3 alone, both sides with a certificate, nothing resumed: each connection is checked in full.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod certificate;
pub mod client;
pub mod failure;
pub mod files;
pub mod privileges;
pub mod server;

pub use certificate::{Certificate, Role};
pub use client::Client;
pub use files::{Error, Files};
pub use privileges::{User, user_name};
pub use server::Server;

use rustls::crypto::CryptoProvider;
use std::net::IpAddr;
use std::sync::Arc;

/// True for `localhost` and the addresses that only this machine can reach.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
