//! TLS handshakes with a time limit. A peer that fails gets a reason.

use crate::error::Refusal;
use crate::session::{self, FINAL_MESSAGE_WITHIN, HELLO_WITHIN};
use crate::shared::Shared;
use miot_tls::server::{Rejection, Stream, lingering_close};
use miot_tls::{Certificate, TlsServer};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Performs the handshake. Returns the encrypted connection and the certificate of the peer; `None`
/// if the peer was refused, which was logged.
pub(crate) async fn admit(
    tls: &TlsServer,
    socket: TcpStream,
    peer: SocketAddr,
    shared: &Shared,
) -> Option<(Stream, Certificate)> {
    let refused = |reason: &str| shared.connection_refused(peer, reason);
    match timeout(HELLO_WITHIN, tls.accept(socket)).await {
        Ok(Ok(admitted)) => return Some(admitted),
        Ok(Err(Rejection::Gone)) => tracing::debug!(%peer, "connection closed before the greeting"),
        Ok(Err(Rejection::Plain(mut socket))) => {
            refused("it does not speak TLS");
            session::send_refusal(&mut socket, Refusal::Plain).await;
            lingering_close(socket, FINAL_MESSAGE_WITHIN).await;
        }
        Ok(Err(Rejection::Failed(socket, reason))) => {
            refused(&reason);
            lingering_close(socket, FINAL_MESSAGE_WITHIN).await;
        }
        Err(_) => refused(&format!("no TLS handshake within {HELLO_WITHIN:?}")),
    }
    None
}
