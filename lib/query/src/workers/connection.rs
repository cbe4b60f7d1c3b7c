//! A connection to a worker, with or without TLS.

use miot_tls::TlsClient;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::server::Connected;

/// Longest time to connect and to agree on TLS.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time without messages after which a side asks whether the other one is still there.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(20);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open connection.
pub(crate) struct Connection(Box<dyn Stream>);

impl Connection {
    pub(crate) fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Connection {
        Connection(Box::new(stream))
    }
}

/// Connects to a worker at `HOST:PORT`.
///
/// # Errors
/// The reason as text.
pub(crate) async fn open(address: &str, tls: Option<&TlsClient>) -> io::Result<Connection> {
    let opened = timeout(CONNECT_TIME, async {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(match tls {
            Some(tls) => Connection::new(tls.connect(address, socket).await?),
            None => Connection::new(socket),
        })
    });
    opened.await.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 10 s")))
}

/// The role of the peer was checked when the connection was accepted.
impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
