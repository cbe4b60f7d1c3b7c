//! The server side of TLS: a log-server.

use crate::certificate::{Certificate, Role};
use crate::failure::{Peer, explain};
use crate::files::{Error, Files, Material, warn_of_end};
use crate::provider;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// An encrypted connection.
pub type Stream = tokio_rustls::server::TlsStream<TcpStream>;

/// First two bytes of a TLS connection: a handshake record, major version 3.
const TLS: [u8; 2] = [0x16, 0x03];

/// Certificate, key and authorities of a log-server.
pub struct TlsServer {
    files: Files,
    current: RwLock<(Arc<ServerConfig>, Certificate)>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Reason why a connection is refused, and the connection, to send the reason.
#[derive(Debug)]
pub enum Rejection {
    /// The peer does not use TLS. Nothing was read yet.
    Plain(TcpStream),
    /// The handshake failed. An alert was sent.
    Failed(TcpStream, String),
    /// The peer closed the connection.
    Gone,
}

impl TlsServer {
    /// Loads the files.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load(files: Files) -> Result<TlsServer, Error> {
        let current = RwLock::new(configure(&files)?);
        let server = TlsServer { files, current };
        server.warn_of_end();
        Ok(server)
    }

    /// Loads the files again, for new connections.
    ///
    /// # Errors
    /// [`Error`]; then the loaded files stay in use.
    pub fn reload(&self) -> Result<(), Error> {
        let new = configure(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        self.warn_of_end();
        Ok(())
    }

    /// Logs a warning if the certificate expires soon.
    pub fn warn_of_end(&self) {
        warn_of_end(&self.current.read().unwrap_or_else(PoisonError::into_inner).1, self.files.certificate());
    }

    /// Returns the own certificate.
    #[must_use]
    pub fn own(&self) -> Certificate {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Performs the handshake. Returns the encrypted connection and the certificate of the peer,
    /// which was signed by one of the authorities. Has no timeout.
    ///
    /// # Errors
    /// [`Rejection`].
    pub async fn accept(&self, stream: TcpStream) -> Result<(Stream, Certificate), Rejection> {
        let mut first = [0; TLS.len()];
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Err(Rejection::Gone),
            Ok(n) if first[..n] != TLS[..n] => return Err(Rejection::Plain(stream)),
            // It has given up waiting: a handshake would be for nothing.
            Ok(_) if is_closed(&stream) => return Err(Rejection::Gone),
            Ok(_) => {}
        }
        let config = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0);
        let accepted = TlsAcceptor::from(config).accept(stream).into_fallible().await;
        let stream =
            accepted.map_err(|(error, stream)| Rejection::Failed(stream, explain(&error, Peer::Server)))?;
        let first = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        match Certificate::parse(first.map_or(&[], |der| der.as_ref())) {
            Ok(certificate) => Ok((stream, certificate)),
            Err(reason) => {
                Err(Rejection::Failed(stream.into_inner().0, format!("its certificate: {reason}")))
            }
        }
    }
}

/// True if the peer has closed its sending half.
fn is_closed(stream: &TcpStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|closed| closed > 0)
}

/// Maximum number of bytes that are read from a refused peer before closing.
const MAX_DRAIN: u64 = 256 << 10;

/// Closes a connection after a refusal so that the peer can read the reason: reads the data that
/// the peer still sends, for at most `within`. Otherwise the kernel would send a reset that
/// discards the reason.
pub async fn lingering_close(mut socket: TcpStream, within: Duration) {
    let reading = async {
        let _ = socket.shutdown().await;
        let mut rest = socket.take(MAX_DRAIN);
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    };
    let _ = timeout(within, reading).await;
}

fn configure(files: &Files) -> Result<(Arc<ServerConfig>, Certificate), Error> {
    let material = files.read()?;
    let unusable = unusable(files.certificate());
    require(&material.own, Role::Server).map_err(|error| unusable(error.to_string()))?;
    let Material { own, certified, roots, revoked } = material;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::<RootCertStore>::clone(&roots), provider())
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    // The certificate of a resumed session would not be checked again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok((Arc::new(config), own))
}

/// Returns the error for an own certificate that cannot be used here.
pub(crate) fn unusable(path: &Path) -> impl Fn(String) -> Error {
    move |reason| Error::Unusable { key: "tls_certificate", path: path.into(), reason }
}

/// A certificate does not have the role that its use requires.
#[derive(Debug, thiserror::Error)]
#[error("a certificate {}, where one of a {wanted} is required; create one with `miot pki {wanted}`",
    .own.map_or("without a role of MIOT".into(), |role| format!("of a {role}")))]
pub(crate) struct WrongRole {
    own: Option<Role>,
    wanted: Role,
}

/// Checks that a certificate has this role.
pub(crate) fn require(certificate: &Certificate, role: Role) -> Result<(), WrongRole> {
    if certificate.role == Some(role) {
        return Ok(());
    }
    Err(WrongRole { own: certificate.role, wanted: role })
}
