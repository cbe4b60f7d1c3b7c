//! Who is let in: the handshake, in time, and a clear word to those who fail in it.

use crate::error::Refusal;
use crate::session::{self, HELLO_WITHIN, LAST_WORD_WITHIN};
use crate::shared::Shared;
use miot_tls::server::{Rejection, Stream, lingering_close};
use miot_tls::{Certificate, TlsServer};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The handshake: an encrypted connection and what the peer's certificate says. `None`: the peer is turned away, which
/// it and the log were told.
pub(crate) async fn admit(
    tls: &TlsServer,
    socket: TcpStream,
    peer: SocketAddr,
    shared: &Shared,
) -> Option<(Stream, Certificate)> {
    let turned_away = |reason: &str| shared.turned_away(peer, reason);
    match timeout(HELLO_WITHIN, tls.accept(socket)).await {
        Ok(Ok(admitted)) => return Some(admitted),
        Ok(Err(Rejection::Gone)) => tracing::debug!(%peer, "connected and said nothing"),
        Ok(Err(Rejection::Plain(mut socket))) => {
            turned_away("it does not speak TLS");
            session::turn_away(&mut socket, Refusal::Plain).await;
            lingering_close(socket, LAST_WORD_WITHIN).await;
        }
        Ok(Err(Rejection::Failed(socket, reason))) => {
            turned_away(&reason);
            lingering_close(socket, LAST_WORD_WITHIN).await;
        }
        Err(_) => turned_away(&format!("no TLS handshake within {HELLO_WITHIN:?}")),
    }
    None
}
