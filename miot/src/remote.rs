//! Options for connections to a log-server.

use clap::Args;
use miot_proto::command::{OperatorReply, OperatorRequest};
use miot_proto::wire::{Message, Role};
use miot_trace_results::server::{self, Certificates};
pub(crate) use miot_trace_results::server::{Stream, address};
use std::path::PathBuf;
use std::time::Duration;

/// Options for certificates; see `miot pki`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS (all three or none)")]
pub(crate) struct Tls {
    /// Your certificate, a PEM file made by `miot pki reader` or `miot pki operator`
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_CERTIFICATE", global = true)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_KEY", global = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificate of the authority that signed the log-server's certificate, a PEM file
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_AUTHORITY", global = true)]
    pub(crate) tls_authority: Option<PathBuf>,
}

impl Tls {
    fn certificates(&self) -> Certificates<'_> {
        Certificates {
            certificate: self.tls_certificate.as_deref(),
            key: self.tls_key.as_deref(),
            authority: self.tls_authority.as_deref(),
        }
    }
}

/// Connects and completes the handshake. `timeout` is the longest wait for a message; `None` waits
/// forever.
pub(crate) fn connect(
    address: &str,
    tls: &Tls,
    role: Role,
    timeout: Option<Duration>,
) -> anyhow::Result<Box<dyn Stream + Send>> {
    Ok(server::connect(address, tls.certificates(), role, timeout)?.stream)
}

/// Connects for operator requests. `timeout` is added to the longest wait for an answer.
pub(crate) fn operator(
    address: &str,
    tls: &Tls,
    timeout: Duration,
) -> anyhow::Result<Box<dyn Stream + Send>> {
    Ok(server::operator(address, tls.certificates(), timeout)?)
}

/// Sends a request and returns the reply. A refusal is an error.
pub(crate) fn ask(stream: &mut dyn Stream, request: &OperatorRequest) -> anyhow::Result<OperatorReply> {
    Ok(server::ask(stream, request)?)
}

/// Returns the error for an unexpected message.
pub(crate) fn unexpected_reply() -> anyhow::Error {
    server::unexpected_reply().into()
}

/// Sends a message.
pub(crate) fn send(stream: &mut dyn Stream, message: &Message) -> anyhow::Result<()> {
    Ok(server::send(stream, message)?)
}

/// Reads the next message.
pub(crate) fn receive(stream: &mut dyn Stream) -> anyhow::Result<Message> {
    Ok(server::receive(stream)?)
}
