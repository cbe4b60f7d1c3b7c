//! The two directions of a connection, with or without TLS.

use miot_tls::TlsClient;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;

/// Bytes from the log-server, buffered: a message takes one system call.
pub(super) type FromServer = Box<dyn AsyncRead + Send + Unpin>;
/// Bytes to the log-server.
pub(super) type ToServer = Box<dyn AsyncWrite + Send + Unpin>;

/// Size of the buffer: some hundred acknowledgments.
const READ_BYTES: usize = 4096;

/// Splits a connection to `server` (`host:port`) into its directions, after the TLS handshake if
/// `tls` is given.
pub(super) async fn both_ways(
    stream: TcpStream,
    server: &str,
    tls: Option<&TlsClient>,
) -> io::Result<(FromServer, ToServer)> {
    let Some(tls) = tls else {
        let (reader, writer) = stream.into_split();
        return Ok((Box::new(BufReader::with_capacity(READ_BYTES, reader)), Box::new(writer)));
    };
    // Renewed certificates take effect on the next connection, even without SIGHUP.
    if let Err(error) = tls.reload() {
        tracing::error!(%error, "cannot reload certificate, key and authority; the loaded ones stay in use");
    }
    let (reader, writer) = tokio::io::split(tls.connect(server, stream).await?);
    Ok((Box::new(BufReader::with_capacity(READ_BYTES, reader)), Box::new(writer)))
}
