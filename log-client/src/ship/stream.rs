//! The two directions of a connection, encrypted or not.

use miot_tls::TlsClient;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What the log-server says.
pub(super) type FromServer = Box<dyn AsyncRead + Send + Unpin>;
/// What is said to it.
pub(super) type ToServer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of a connection with `server` (`host:port`), after the handshake if there is to be one.
pub(super) async fn both_ways(
    stream: TcpStream,
    server: &str,
    tls: Option<&TlsClient>,
) -> io::Result<(FromServer, ToServer)> {
    let Some(tls) = tls else {
        let (reader, writer) = stream.into_split();
        return Ok((Box::new(reader), Box::new(writer)));
    };
    // Renewed certificates count from the next connection on, whether somebody says so or not.
    if let Err(error) = tls.reload() {
        tracing::error!(%error, "certificate, key and authority stay as they were");
    }
    let (reader, writer) = tokio::io::split(tls.connect(server, stream).await?);
    Ok((Box::new(reader), Box::new(writer)))
}
