//! The client side of TLS: a log-client, a reader or an operator.

use crate::certificate::{Certificate, Role};
use crate::failure::{Peer, explain};
use crate::files::{Error, Files, Material, warn_of_end};
use crate::provider;
use crate::server::{require, unusable};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fmt;
use std::io;
use std::net::TcpStream as BlockingStream;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificate, key and authorities of a client of a log-server.
pub struct TlsClient {
    files: Files,
    role: Role,
    current: RwLock<(Arc<ClientConfig>, Certificate)>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient")
            .field("files", &self.files)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl TlsClient {
    /// Loads the files. The certificate must have this role.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load(files: Files, role: Role) -> Result<TlsClient, Error> {
        let current = RwLock::new(configure(&files, role)?);
        let client = TlsClient { files, role, current };
        client.warn_of_end();
        Ok(client)
    }

    /// Loads the files again, for new connections.
    ///
    /// # Errors
    /// [`Error`]; then the loaded files stay in use.
    pub fn reload(&self) -> Result<(), Error> {
        let new = configure(&self.files, self.role)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Logs a warning if the certificate expires soon.
    pub fn warn_of_end(&self) {
        warn_of_end(&self.own(), self.files.certificate());
    }

    /// Returns the own certificate.
    #[must_use]
    pub fn own(&self) -> Certificate {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Performs the handshake with the log-server at `address` (`host:port`), whose certificate
    /// must be for that host. A rejection of this side's certificate shows only at the first read.
    ///
    /// # Errors
    /// The reason why the peer is not the log-server, as text.
    pub async fn connect(&self, address: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(self.config());
        let stream = connector.connect(name(address)?, stream).await.map_err(|e| in_words(&e))?;
        check_role(stream.get_ref().1)?;
        Ok(stream)
    }

    /// Performs the handshake on a blocking connection.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_blocking(
        &self,
        address: &str,
        mut stream: BlockingStream,
    ) -> io::Result<StreamOwned<ClientConnection, BlockingStream>> {
        let mut connection =
            ClientConnection::new(self.config(), name(address)?).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| in_words(&error))?;
        }
        check_role(&connection)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn in_words(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), explain(error, Peer::Client))
}

fn check_role(connection: &ClientConnection) -> io::Result<()> {
    let first = connection.peer_certificates().and_then(|chain| chain.first());
    let odd = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let certificate =
        Certificate::parse(first.map_or(&[], |der| der.as_ref())).map_err(|error| odd(error.to_string()))?;
    require(&certificate, Role::Server)
        .map_err(|reason| odd(format!("it is not a log-server: it has {reason}")))
}

/// Host of `host:port`.
fn name(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let bad = |error| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{host}` is neither a host name nor an address: {error}"),
        )
    };
    ServerName::try_from(host.clone()).map_err(bad)
}

fn configure(files: &Files, role: Role) -> Result<(Arc<ClientConfig>, Certificate), Error> {
    let material = files.read()?;
    let unusable = unusable(files.certificate());
    require(&material.own, role).map_err(|error| unusable(error.to_string()))?;
    let Material { own, certified, roots, revoked } = material;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::<RootCertStore>::clone(&roots), provider())
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(error.to_string()))?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), own))
}
